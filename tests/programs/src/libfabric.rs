//! libfabric over its verbs provider: what it finds here, and its ping-pong over connected endpoints, over reliable
//! datagrams made of them (`ofi_rxm`) or of unreliable ones (`ofi_rxd`), and over unreliable ones. It looks at every
//! byte itself (`-c`). It leaves out the loopback, so all of this needs hosts with an interface.

use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Scene, Stage, Where};
use crate::{Test, expect};

const ROW: Row = Row {
    program: "libfabric: `fi_info`, `fi_pingpong`",
    version: Version::Package("libfabric-bin"),
    what: "MSG, RDM over `ofi_rxm` and `ofi_rxd`, DGRAM endpoints; messages with and without tags, 64 bytes to 1 MiB, \
        every byte checked by the program; one host and two; IPv6",
};

/// Provider, domain, endpoint, further options, and the largest message.
const LINES: [(&str, &str, &str, &str); 5] = [
    ("verbs -d ubi_veth0 -e msg", "", "1m", ""),
    ("verbs;ofi_rxm -d ubi_veth0 -e rdm", "", "1m", ""),
    ("verbs;ofi_rxm -d ubi_veth0 -e rdm", "-m tagged", "1m", ""),
    ("verbs;ofi_rxd -d ubi_veth0-dgram -e rdm", "", "64k", "-S 65536"),
    ("verbs -d ubi_veth0-dgram -e dgram", "", "1k", ""),
];

pub fn tests() -> Vec<Test> {
    let mut tests = vec![Test::new("fi_info -p verbs, every kind of endpoint", endpoints).for_root()];
    for (provider, mode, largest, sizes) in LINES {
        for at in [Where::OneHost, Where::TwoHosts] {
            tests.push(pingpong(at, provider, words(&[mode, sizes]), largest, "10.77.0.1"));
        }
    }
    tests.push(pingpong(Where::TwoHosts, "verbs -d ubi_veth0 -e msg", "-6".into(), "1m", "fd77::1"));
    all_of(&ROW, tests)
}

fn words(words: &[&str]) -> String {
    words.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(" ")
}

/// Paragraphs of provider, domain and type.
fn endpoints(stage: &Stage) -> Result<(), String> {
    let Some([left, _]) = &stage.joined else { return Err("no cables".into()) };
    let ended = stage.end(&mut stage.run_on(left, None, &[], "fi_info -p verbs"))?;
    let paragraphs: Vec<&str> = ended.text.split("provider: ").collect();
    let wanted = [
        ["verbs\n", "domain: ubi_veth0\n", "FI_EP_MSG", "FI_PROTO_RDMA_CM_IB_RC"],
        ["verbs\n", "domain: ubi_veth0-dgram\n", "FI_EP_DGRAM", "FI_PROTO_IB_UD"],
        ["verbs\n", "domain: ubi_lo-dgram\n", "FI_EP_DGRAM", "FI_PROTO_IB_UD"],
        ["verbs;ofi_rxm\n", "domain: ubi_veth0\n", "FI_EP_RDM", "FI_PROTO_RXM"],
        ["verbs;ofi_rxd\n", "domain: ubi_veth0-dgram\n", "FI_EP_RDM", "FI_PROTO_RXD"],
    ];
    wanted.iter().try_for_each(|wanted| {
        let found =
            paragraphs.iter().any(|text| text.starts_with(wanted[0]) && wanted.iter().all(|word| text.contains(word)));
        if found { Ok(()) } else { Err(format!("no {wanted:?} in:\n{}", ended.text)) }
    })
}

fn pingpong(at: Where, provider: &'static str, more: String, largest: &'static str, address: &'static str) -> Test {
    let hosts = if at == Where::OneHost { "one host" } else { "two hosts" };
    let line = words(&["fi_pingpong -c -I 10 -p", provider, &more]);
    let play = move |stage: &Stage| {
        let Some([left, right]) = &stage.joined else { return Err("no cables".into()) };
        let port = stage.next_port();
        let told = stage.play(&Scene {
            hosts: [left, if at == Where::OneHost { left } else { right }],
            user: None,
            options: &[],
            server: format!("{line} -B {port}"),
            port,
            clients: vec![format!("{line} -P {port} {address}")],
            stays: false,
        })?;
        told.iter().try_for_each(|text| {
            // Size, messages sent, messages received of them.
            let row = format!("{largest} 10 =10");
            let rows = text.lines().map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" "));
            if rows.clone().any(|found| found == row) { expect(text, &["bytes"]) } else { Err(text.clone()) }
        })
    };
    Test::new(format!("fi_pingpong -c -p {provider} {more}, {hosts}").replace(" ,", ","), play).for_root()
}
