//! Which sockets become rsockets, and how large their queues are: the file `preload_config` and the environment, both
//! as rdma-core has them. Without the file, or without a line in it that can be read, all do that can.

use latch::PerProcess;
use std::ffi::{CStr, OsStr, c_int};
use std::os::unix::ffi::OsStrExt;

/// The file, in the directory of rsockets' other settings.
const CONFIG_FILE: &str = "/etc/rdma/rsocket/preload_config";

/// Names another file, for those who may not write there, and for tests.
const FILE_VARIABLE: &str = "UBIVERBS_PRELOAD_CONFIG";

/// `AF_IB`, which no libc of ours knows.
const AF_IB: c_int = 27;

/// A line: sockets of these programs. What is not named is every one.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    program: Option<String>,
    domain: Option<c_int>,
    kind: Option<c_int>,
    protocol: Option<c_int>,
}

/// What is set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Config {
    lines: Vec<Line>,
    /// Entries of the send queue, and of the receive queue; bytes of inline data.
    pub(super) send_queue: Option<c_int>,
    pub(super) receive_queue: Option<c_int>,
    pub(super) inline: Option<c_int>,
}

/// This process's.
pub(super) fn config() -> &'static Config {
    static CONFIG: PerProcess<Config> = PerProcess::new();
    CONFIG.get_or_make(|| {
        let file = hca::environment::variable(FILE_VARIABLE).unwrap_or_else(|| CONFIG_FILE.into());
        let text = std::fs::read(file).unwrap_or_default();
        let number = |name| {
            let text = hca::environment::variable(name)?;
            leading_number(text.as_bytes())
        };
        Config {
            lines: lines(&String::from_utf8_lossy(&text)),
            send_queue: number("RS_SQ_SIZE"),
            receive_queue: number("RS_RQ_SIZE"),
            inline: number("RS_INLINE"),
        }
    })
}

/// As `atoi` has it; 0 is none.
fn leading_number(text: &[u8]) -> Option<c_int> {
    let digits: Vec<u8> = text.trim_ascii_start().iter().copied().take_while(u8::is_ascii_digit).collect();
    String::from_utf8(digits).ok()?.parse().ok().filter(|number| *number != 0)
}

impl Config {
    /// Whether a socket of this program is to be an rsocket.
    pub(super) fn takes(&self, domain: c_int, kind: c_int, protocol: c_int) -> bool {
        self.takes_of(&program(), domain, kind, protocol)
    }

    fn takes_of(&self, program: &str, domain: c_int, kind: c_int, protocol: c_int) -> bool {
        let protocol = match (protocol, kind) {
            (0, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
            (0, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
            _ => protocol,
        };
        let fits = |line: &Line| {
            line.program.as_ref().is_none_or(|name| begins_with(program, name))
                && line.domain.is_none_or(|it| it == domain)
                && line.kind.is_none_or(|it| it == kind)
                && line.protocol.is_none_or(|it| it == protocol)
        };
        self.lines.is_empty() || self.lines.iter().any(fits)
    }
}

/// Whatever the case of letters.
fn begins_with(program: &str, name: &str) -> bool {
    program.as_bytes().get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()))
}

/// The name by which the program was started, without its directory.
fn program() -> String {
    unsafe extern "C" {
        static program_invocation_short_name: *const std::ffi::c_char;
    }
    // SAFETY: the C library's, a string or null; programs that change it do so before they have threads.
    let name = unsafe {
        let name = program_invocation_short_name;
        if name.is_null() { b"" } else { CStr::from_ptr(name).to_bytes() }
    };
    OsStr::from_bytes(name).to_string_lossy().into_owned()
}

/// Lines that can be read; the others say nothing.
fn lines(text: &str) -> Vec<Line> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(line).collect()
}

fn line(text: &str) -> Option<Line> {
    let mut words = text.split_whitespace();
    let (program, domain, kind, protocol) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let domain = word(domain, &["AF_", "PF_"], &[("INET", libc::AF_INET), ("INET6", libc::AF_INET6), ("IB", AF_IB)])?;
    let kind = word(kind, &["SOCK_"], &[("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)])?;
    let protocol = word(protocol, &["IPPROTO_"], &[("TCP", libc::IPPROTO_TCP), ("UDP", libc::IPPROTO_UDP)])?;
    Some(Line { program: (program != "*").then(|| program.to_owned()), domain, kind, protocol })
}

/// What a word says: everything, or one of these. None if it says neither.
fn word(text: &str, prefixes: &[&str], known: &[(&str, c_int)]) -> Option<Option<c_int>> {
    if text == "*" {
        return Some(None);
    }
    let upper = text.to_ascii_uppercase();
    let bare = prefixes.iter().find_map(|prefix| upper.strip_prefix(prefix)).unwrap_or(&upper);
    known.iter().find(|(name, _)| *name == bare).map(|(_, value)| Some(*value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP, SOCK_DGRAM, SOCK_STREAM};

    fn of(text: &str) -> Config {
        Config { lines: lines(text), ..Config::default() }
    }

    #[test]
    fn without_lines_every_socket_is_taken() {
        assert!(of("").takes_of("x", AF_INET, SOCK_STREAM, 0));
        assert!(of("# x INET STREAM TCP\nnot a line\nx INET STREAM SCTP\n").takes_of("y", AF_INET6, SOCK_DGRAM, 0));
    }

    #[test]
    fn a_line_names_programs_by_their_beginning() {
        let config = of("iperf INET STREAM *\n");
        assert!(config.takes_of("iperf3", AF_INET, SOCK_STREAM, 0));
        assert!(config.takes_of("IPERF", AF_INET, SOCK_STREAM, IPPROTO_TCP));
        assert!(!config.takes_of("iper", AF_INET, SOCK_STREAM, 0));
        assert!(!config.takes_of("iperf3", AF_INET6, SOCK_STREAM, 0));
        assert!(!config.takes_of("iperf3", AF_INET, SOCK_DGRAM, 0));
    }

    #[test]
    fn words_may_have_their_prefixes_and_any_case() {
        let config = of("* af_inet6 Sock_Stream ipproto_tcp\n* * dgram UDP\n");
        assert!(config.takes_of("x", AF_INET6, SOCK_STREAM, 0));
        assert!(!config.takes_of("x", AF_INET, SOCK_STREAM, 0));
        assert!(config.takes_of("x", AF_INET, SOCK_DGRAM, 0));
        assert!(config.takes_of("x", AF_INET, SOCK_DGRAM, IPPROTO_UDP));
    }

    #[test]
    fn numbers_are_read_as_far_as_they_are_numbers() {
        assert_eq!(leading_number(b" 64x"), Some(64));
        assert_eq!(leading_number(b"0"), None);
        assert_eq!(leading_number(b"many"), None);
        assert_eq!(leading_number(b"99999999999999"), None);
    }
}
