//! The example runs: both ends in one process, and in two.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

fn http() -> Command {
    Command::new(env!("CARGO_BIN_EXE_http"))
}

fn said(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// It is stopped with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn one_process_serves_and_asks_itself() {
    assert_eq!(said(&mut http()), "0 bytes came over RDMA for /hello\n");
}

#[test]
fn two_processes_talk_over_both_links() {
    for link in ["shared", "udp"] {
        let child = http().args(["serve", "127.0.0.1:0"]).env("UBIVERBS_LINK", link).stdout(Stdio::piped()).spawn();
        let mut server = Server(child.expect("it runs"));
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().expect("piped")).read_line(&mut line).expect("readable");
        let address = line.trim().strip_prefix("serving at ").expect("where it serves");
        for number in 0..10 {
            let mut ask = http();
            ask.args(["get", address, &format!("/{number}")]).env("UBIVERBS_LINK", link);
            assert_eq!(said(&mut ask), format!("0 bytes came over RDMA for /{number}\n"));
        }
    }
}
