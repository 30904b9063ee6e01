//! A line that a program, a library or a driver has printed: what in it can be explained. NCCL, UCX, libfabric, perftest,
//! Open MPI, the pingpong programs and the kernel print statuses and errnos in words and numbers of their own.

use super::entry::{ExplainedWord, Kind};
use super::{WC_STATUS_SENTENCES, entries, errno};

/// What was recognised in a line.
#[derive(Clone, Debug, Default)]
pub struct Recognised {
    /// What it names, each once.
    pub entries: Vec<ExplainedWord>,
    /// What else there is to say of it.
    pub notes: Vec<String>,
}

impl Recognised {
    fn add(&mut self, entry: ExplainedWord) {
        if !self.entries.iter().any(|known| (known.kind, &known.name) == (entry.kind, &entry.name)) {
            self.entries.push(entry);
        }
    }

    fn status(&mut self, number: u32) {
        if let Some(entry) = entries(Kind::Status).into_iter().find(|entry| entry.number == Some(number)) {
            self.add(entry);
        }
    }

    /// The number of its completion status, if it has one.
    pub fn completion(&self) -> Option<u32> {
        self.entries.iter().find(|entry| entry.kind == Kind::Status).and_then(|entry| entry.number)
    }

    /// Whether it only announces lines that have the reason.
    pub fn is_heading(&self) -> bool {
        self.entries.iter().all(|entry| entry.kind == Kind::Message && entry.name.contains("got completion with error"))
    }

    /// Whether it only says that something failed that was given up for another failure.
    pub fn is_consequence(&self) -> bool {
        const FLUSHED: u32 = 5;
        let passed_on = |entry: &ExplainedWord| entry.kind == Kind::Message && entry.short.ends_with("ended first");
        let relayed = |entry: &ExplainedWord| entry.kind == Kind::Message && entry.name.contains("-> 6");
        self.entries.iter().all(|entry| {
            passed_on(entry) || relayed(entry) || (entry.kind, entry.number) == (Kind::Status, Some(FLUSHED))
        })
    }
}

/// Statuses as the completions of ConnectX NICs have them, and those of `ibv_wc`.
const VENDOR_SYNDROMES: [(u32, u32); 13] = [
    (0x01, 1),
    (0x02, 2),
    (0x04, 4),
    (0x05, 5),
    (0x06, 6),
    (0x10, 7),
    (0x11, 8),
    (0x12, 9),
    (0x13, 10),
    (0x14, 11),
    (0x15, 12),
    (0x16, 13),
    (0x22, 16),
];

/// What UCX and others say of a status, where that is in none of the tables of [`WC_STATUS_SENTENCES`].
const OTHER_SENTENCES: [(&str, u32); 11] = [
    ("transport retry count exceeded", 12),
    ("retry exceeded error", 12),
    ("receive-no-ready retry count exceeded", 13),
    ("receiver-not-ready retry count exceeded", 13),
    ("rnr retry exceeded error", 13),
    ("remote operation error", 11),
    ("remote access on", 10),
    ("local protection on", 4),
    ("local qp operation on", 2),
    ("wr flushed", 5),
    ("work request flushed", 5),
];

/// Sentences of statuses that are said of other things as well.
const COMMON_SENTENCES: [&str; 6] =
    ["success", "fatal error", "general error", "bad response", "remote aborted", "aborted error"];

/// What libibverbs says of an asynchronous event.
const EVENT_SENTENCES: [(&str, u32); 12] = [
    ("local work queue catastrophic error", 1),
    ("local work queue fatal error", 1),
    ("invalid request local work queue error", 2),
    ("local access violation work queue error", 3),
    ("send queue drained", 5),
    ("path migration request error", 7),
    ("local catastrophic error", 8),
    ("srq catastrophic error", 14),
    ("srq limit reached", 15),
    ("last wqe reached", 16),
    ("port error", 10),
    ("cq error", 0),
];

/// What is in a line.
pub fn recognise(line: &str) -> Recognised {
    let lower = line.to_ascii_lowercase();
    let tokens = tokens(line);
    let mut found = Recognised::default();
    if lower.contains("got completion with error:") && completion_dump(line).is_none() {
        // Four lines of numbers follow, and have the reason.
        messages(&lower, &mut found);
        return found;
    }
    names(&tokens, &mut found);
    connection_events(&lower, &tokens, &mut found);
    statuses(&lower, &tokens, &mut found);
    if let Some((syndrome, vendor)) = completion_dump(line) {
        syndromes(syndrome, &mut found);
        vendor_error(vendor, &mut found);
    }
    if lower.contains("async") || lower.contains("event") {
        let said = EVENT_SENTENCES.iter().find(|(sentence, _)| lower.contains(sentence));
        let entry = said
            .and_then(|(_, number)| entries(Kind::AsyncEvent).into_iter().find(|entry| entry.number == Some(*number)));
        entry.into_iter().for_each(|entry| found.add(entry));
    }
    calls(&lower, &tokens, &mut found);
    messages(&lower, &mut found);
    if let Some(vendor) = vendor_number(&tokens) {
        vendor_error(vendor, &mut found);
    }
    found
}

/// Words and numbers: runs of letters, digits and `_`, in capitals.
fn tokens(line: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    line.split(|c: char| !is_part(c)).filter(|word| !word.is_empty()).map(str::to_ascii_uppercase).collect()
}

/// A number as programs print it: decimal, or hexadecimal with its `0x`.
fn number(token: &str) -> Option<u32> {
    match token.strip_prefix("0X") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => token.parse().ok(),
    }
}

/// Names of verbs, and numbers of rules.
fn names(tokens: &[String], found: &mut Recognised) {
    for token in tokens {
        let kinds: &[Kind] = match () {
            () if token.starts_with("IBV_WC_") => &[Kind::Status],
            () if token.starts_with("IBV_EVENT_") => &[Kind::AsyncEvent],
            () if token.starts_with("RDMA_CM_EVENT_") => &[Kind::CmEvent],
            () => continue,
        };
        for kind in kinds {
            let named = entries(*kind).into_iter().find(|entry| entry.name == *token);
            named.into_iter().for_each(|entry| found.add(entry));
        }
    }
    for pair in tokens.windows(2).filter(|pair| pair[0] == "UV" && pair[1].len() == 4) {
        let rule = entries(Kind::Rule).into_iter().find(|entry| entry.name == format!("UV-{}", pair[1]));
        rule.into_iter().for_each(|entry| found.add(entry));
    }
}

/// The status of an event of the connection manager: the reason of a rejection.
fn connection_events(lower: &str, tokens: &[String], found: &mut Recognised) {
    let rejected = lower.contains("rdma_cm_event_rejected") || lower.contains("connect rejected");
    if !rejected {
        return;
    }
    let said = ["STATUS", "ERROR", "REASON"].iter().find_map(|word| number_behind(tokens, &[word]));
    let reason = entries(Kind::Reject).into_iter().find(|entry| entry.number == said && said.is_some());
    reason.into_iter().for_each(|entry| found.add(entry));
}

/// The first number directly behind these words.
fn number_behind(tokens: &[String], words: &[&str]) -> Option<u32> {
    tokens.windows(words.len() + 1).find_map(|run| {
        let (last, before) = run.split_last()?;
        before.iter().zip(words).all(|(token, word)| token == word).then(|| number(last)).flatten()
    })
}

/// The status of a completion, in words or as a number.
fn statuses(lower: &str, tokens: &[String], found: &mut Recognised) {
    if lower.contains("rdma_cm_event") || lower.contains("connect rejected") {
        return;
    }
    let said = || {
        let named = WC_STATUS_SENTENCES.into_iter().zip(0..).chain(OTHER_SENTENCES);
        named
            .filter(|(sentence, _)| !COMMON_SENTENCES.contains(sentence))
            .filter(|(sentence, _)| lower.contains(&sentence.to_ascii_lowercase()))
            .max_by_key(|(sentence, _)| sentence.len())
            .map(|(_, number)| number)
    };
    // The syndrome is surer than the words.
    if let Some(syndrome) = syndrome_of(tokens) {
        syndromes(syndrome, found);
    } else if let Some(number) = said().or_else(|| status_number(lower, tokens)) {
        found.status(number);
    }
}

/// What a completion's line has, besides its status.
const COMPLETION_WORDS: [&str; 12] = [
    "completion",
    "wr_id",
    "wrid",
    "wc ",
    "wc_",
    "cqe",
    "opcode",
    "vendor",
    "prov_err",
    "polling",
    "work request",
    "cq ",
];

fn status_number(lower: &str, tokens: &[String]) -> Option<u32> {
    if !COMPLETION_WORDS.iter().any(|word| lower.contains(word)) {
        return None;
    }
    let sequences: [&[&str]; 6] =
        [&["STATUS"], &["STATUS", "NUMBER"], &["PROV_ERRNO"], &["WC", "ERROR"], &["WC", "STATUS"], &["WITH", "ERROR"]];
    let told = sequences.into_iter().find_map(|words| number_behind(tokens, words));
    told.filter(|number| (1..24).contains(number))
}

/// The syndrome of a completion: `synd 0x15 vend 0x81` of UCX, `syndrome 0x5, vendor syndrome 0xf9` of the kernel.
fn syndrome_of(tokens: &[String]) -> Option<u32> {
    let has_vendor = tokens.iter().any(|token| matches!(token.as_str(), "VEND" | "VENDOR"));
    let mut before = "";
    for pair in tokens.windows(2).filter(|_| has_vendor) {
        let is_word = matches!(pair[0].as_str(), "SYND" | "SYNDROME") && before != "VENDOR";
        if is_word && pair[1].starts_with("0X") {
            return number(&pair[1]);
        }
        before = &pair[0];
    }
    None
}

fn syndromes(syndrome: u32, found: &mut Recognised) {
    if let Some((_, status)) = VENDOR_SYNDROMES.iter().find(|(known, _)| *known == syndrome) {
        found.status(*status);
    }
}

/// The fourth line that libmlx5, DPDK and the kernel print of a completion that failed: its syndrome, and the vendor's.
fn completion_dump(line: &str) -> Option<(u32, u32)> {
    let numbers: Vec<&str> = line.split([' ', '|', '\t']).filter(|word| !word.is_empty()).collect();
    let is_hex = |word: &&str, digits: usize| word.len() == digits && word.bytes().all(|b| b.is_ascii_hexdigit());
    let byte = |text: &str| u32::from_str_radix(text, 16).ok();
    let (vendor, syndrome, kind) = match numbers.as_slice() {
        [.., _, two, _, four] if numbers.iter().rev().take(4).all(|word| is_hex(word, 8)) => {
            (byte(&two[4..6])?, byte(&two[6..])?, byte(&four[6..])?)
        }
        words => {
            let at = words.iter().position(|word| word.ends_with("30:"))?;
            let bytes = words.get(at + 1..at + 17)?;
            if !bytes.iter().all(|word| is_hex(word, 2)) {
                return None;
            }
            (byte(bytes[6])?, byte(bytes[7])?, byte(bytes[15])?)
        }
    };
    // A failed request or a failed answer.
    let is_error = matches!(kind >> 4, 0xd | 0xe) && VENDOR_SYNDROMES.iter().any(|(known, _)| *known == syndrome);
    is_error.then_some((syndrome, vendor))
}

/// What a vendor's NIC says besides the status.
fn vendor_number(tokens: &[String]) -> Option<u32> {
    let sequences: [&[&str]; 7] = [
        &["VENDOR", "ERR"],
        &["VENDOR", "ERROR"],
        &["VENDOR_ERR"],
        &["VENDOR_ERROR"],
        &["VENDOR", "SYNDROME"],
        &["VEND"],
        &["SYNDROM"],
    ];
    let glued = || tokens.windows(2).find(|pair| pair[0].ends_with("VENDOR_ERR")).and_then(|pair| number(&pair[1]));
    sequences.into_iter().find_map(|words| number_behind(tokens, words)).or_else(glued)
}

/// On ubiverbs it is the number of the rule that explains the failure, on a ConnectX NIC one of its own.
fn vendor_error(vendor: u32, found: &mut Recognised) {
    let Some(status) = found.completion().filter(|_| vendor != 0) else { return };
    let rule = u16::try_from(vendor).ok().filter(|number| rule_fits(*number, status));
    if let Some(rule) =
        rule.and_then(|number| entries(Kind::Rule).into_iter().find(|entry| entry.number == Some(number.into())))
    {
        found.notes.push(format!("vendor error {vendor} is, on ubiverbs, the rule {} that explains it", rule.name));
        found.add(rule);
        return;
    }
    let means = match vendor {
        0x51..=0x53 => "the device could not use local memory: the lkey, or the address behind it",
        0x81 => "no acknowledgement came, after all retries",
        0x87 => "the receiver was not ready, after all retries",
        0x88 => "the peer refused the access to its memory",
        0xf9 => "the work was flushed: it did not fail itself",
        _ => "of a meaning that only the NIC's vendor knows",
    };
    found.notes.push(format!("vendor error {vendor} ({vendor:#x}) is ConnectX's, not of verbs: {means}"));
}

/// Whether work that ended with this status has this rule on ubiverbs.
fn rule_fits(rule: u16, status: u32) -> bool {
    match status {
        1 => matches!(rule, 110..=112),
        2 => rule == 145,
        4 => matches!(rule, 101..=107),
        5 => rule == 160,
        6 => rule == 108,
        7 => rule == 136,
        8 => rule == 150,
        9 => matches!(rule, 125..=126 | 129..=131 | 133 | 150),
        10 => matches!(rule, 120..=128 | 134),
        11 => rule == 132,
        12 => matches!(rule, 140 | 141),
        13 => rule == 142,
        22 | 23 => rule == 165,
        _ => false,
    }
}

/// A call, and its errno.
fn calls(lower: &str, tokens: &[String], found: &mut Recognised) {
    let Some(call) = tokens.iter().find(|token| is_call(token)).map(|token| token.to_ascii_lowercase()) else { return };
    let failed = ["fail", "error", "unable", "cannot", "couldn't", "refused"].iter().any(|word| lower.contains(word));
    let code = errno_of(lower, tokens, &call).filter(|_| failed || tokens.len() <= 4 || lower.contains(": "));
    match code {
        Some(code) => found.add(of_call(&call, code)),
        None if failed => {
            let known = entries(Kind::Errno).into_iter().filter(|entry| entry.name.starts_with(&format!("{call} ")));
            known.for_each(|entry| found.add(entry));
        }
        None => {}
    }
}

/// Whether a word is a call of one of the libraries; programs have names that begin alike.
fn is_call(token: &str) -> bool {
    const OTHERS: [&str; 12] = [
        "RDMA_CM",
        "RDMA_CMA",
        "RDMA_CORE",
        "RDMA_RXE",
        "RDMA_CLIENT",
        "RDMA_SERVER",
        "RDMA_XCLIENT",
        "RDMA_XSERVER",
        "RDMA_WRITE",
        "RDMA_READ",
        "RDMA_SEND",
        "IBV_DEVINFO",
    ];
    let begins = ["IBV_", "RDMA_", "UMAD_"].iter().any(|beginning| token.starts_with(beginning));
    let is_constant = ["IBV_WC_", "IBV_EVENT_", "IBV_QP", "IBV_WR_", "IBV_ACCESS_", "RDMA_CM_EVENT_", "RDMA_PS_"];
    begins
        && !OTHERS.contains(&token)
        && !token.ends_with("PINGPONG")
        && !is_constant.iter().any(|beginning| token.starts_with(beginning))
}

/// The errno that a line tells of a call: its name, what `strerror` says, or a number behind a word that announces one.
fn errno_of(lower: &str, tokens: &[String], call: &str) -> Option<u32> {
    if let Some(code) = tokens.iter().find_map(|token| errno::number(token)) {
        return Some(code);
    }
    if let Some(code) = errno::in_words(lower) {
        return Some(code);
    }
    const ANNOUNCE: [&str; 11] =
        ["ERROR", "ERRNO", "ERR", "FAILED", "WITH", "CODE", "RETURNED", "RETURNS", "RET", "RC", "RETVAL"];
    tokens.windows(2).find_map(|pair| {
        let announced = ANNOUNCE.contains(&pair[0].as_str()) || pair[0].eq_ignore_ascii_case(call);
        number(&pair[1]).filter(|code| announced && errno::name(*code).is_some())
    })
}

/// What is known of an errno of a call; in general, if nothing special is.
pub fn of_call(call: &str, code: u32) -> ExplainedWord {
    let name = format!("{call} {}", errno::name(code).unwrap_or("errno"));
    let known = entries(Kind::Errno).into_iter().find(|entry| entry.name.eq_ignore_ascii_case(&name));
    known.unwrap_or_else(|| ExplainedWord {
        kind: Kind::Errno,
        short: format!("in general: {}", errno::meaning(code).unwrap_or("nothing is known of it")),
        text: "  Nothing special is known of it from this call. `ubiverbs run --why -- PROGRAM` says why it fails.\n"
            .into(),
        number: Some(code),
        name,
    })
}

/// Lines that programs, libraries and drivers print as they are.
fn messages(lower: &str, found: &mut Recognised) {
    for entry in entries(Kind::Message) {
        let mut rest = lower;
        let in_order = entry.name.split('…').map(str::trim).all(|piece| match rest.find(&piece.to_ascii_lowercase()) {
            Some(at) => {
                rest = &rest[at + piece.len()..];
                true
            }
            None => false,
        });
        if in_order {
            found.add(entry);
        }
    }
}
