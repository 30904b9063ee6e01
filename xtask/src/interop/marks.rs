//! Congestion as both kernels see it: the guest's packet filter marks every RoCE packet that it sends or receives (CE), and counts what ours says
//! in these two bits. Data must be right all the same, as the ICRC leaves the bits out; our packets must come ECT(0), and our notifications (CNPs)
//! without a promise.

use super::guest::Guest;
use std::time::Duration;

/// How long the filter may take to be changed or asked.
const FILTER_TIMEOUT: Duration = Duration::from_secs(30);

/// Counts first, marks then. The opcode is the first byte behind the UDP header: up to 0x1f it is a reliable connection's, 0x81 is a notification.
/// Management datagrams, whose senders nothing slows down, are no part of it.
const RULES: [&str; 9] = [
    "add table inet marks",
    "add chain inet marks in { type filter hook input priority 0; }",
    "add chain inet marks out { type filter hook output priority 0; }",
    "add rule inet marks in udp dport 4791 @th,64,8 0x81 meta nfproto ipv4 ip ecn not-ect counter comment notifications",
    "add rule inet marks in udp dport 4791 @th,64,8 0x81 meta nfproto ipv6 ip6 ecn not-ect counter comment notifications",
    "add rule inet marks in udp dport 4791 @th,64,8 <= 0x1f meta nfproto ipv4 ip ecn != ect0 counter comment strange",
    "add rule inet marks in udp dport 4791 @th,64,8 <= 0x1f meta nfproto ipv6 ip6 ecn != ect0 counter comment strange",
    "add rule inet marks in udp dport 4791 @th,64,8 <= 0x1f ip ecn set ce counter comment capable",
    "add rule inet marks in udp dport 4791 @th,64,8 <= 0x1f ip6 ecn set ce counter comment capable",
];
const MARK: [&str; 2] =
    ["add rule inet marks out udp dport 4791 ip ecn set ce", "add rule inet marks out udp dport 4791 ip6 ecn set ce"];

/// Has the guest mark everything.
pub fn begin(guest: &mut Guest) -> Result<(), String> {
    for rule in RULES.iter().chain(&MARK) {
        let answer = guest.run(&format!("nft '{rule}'"), FILTER_TIMEOUT)?;
        if answer.status != 0 {
            return Err(format!("the guest's packet filter does not take {rule:?}: {}", answer.said));
        }
    }
    Ok(())
}

/// Ends it. Says what is wrong with what came from us.
pub fn end(guest: &mut Guest) -> Result<(), String> {
    let said = guest.run("nft list chain inet marks in", FILTER_TIMEOUT)?.said;
    guest.run("nft delete table inet marks", FILTER_TIMEOUT)?;
    let count = |what| counted(&said, what);
    match (count("capable"), count("strange"), count("notifications")) {
        (Some(1..), Some(0), Some(1..)) => Ok(()),
        _ => Err(format!("our packets are not ECT(0), or marked ones were not answered:\n{said}")),
    }
}

/// How many packets the rules of this name have seen.
fn counted(said: &str, what: &str) -> Option<u64> {
    let of_rule = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "packets");
        words.nth(1)?.parse::<u64>().ok()
    };
    let comment = format!("comment \"{what}\"");
    said.lines().filter(|line| line.contains(&comment)).map(of_rule).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_rules_are_added_up() {
        let said = "table inet marks {\n\tchain in {\n\t\tudp dport 4791 ip ecn set ce counter packets 12 bytes 900 comment \"capable\"\n\
                    \t\tudp dport 4791 ip6 ecn set ce counter packets 30 bytes 9 comment \"capable\"\n\
                    \t\tudp dport 4791 counter packets 0 bytes 0 comment \"strange\"\n\t}\n}\n";
        assert_eq!((counted(said, "capable"), counted(said, "strange")), (Some(42), Some(0)));
        assert_eq!(counted("counter packets x comment \"strange\"\n", "strange"), None);
    }
}
