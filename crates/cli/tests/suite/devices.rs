//! `devices` and `explain` as a user runs them.
#![allow(missing_docs)]

use crate::program::ubiverbs;

#[test]
fn loopback_is_a_device_with_its_addresses() {
    let output = ubiverbs(&["devices", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a JSON document");
    let devices = document["devices"].as_array().expect("a list");
    let lo = devices.iter().find(|device| device["name"] == "ubi_lo").expect("a device for lo");
    assert_eq!((&lo["active"], &lo["mtu"]), (&true.into(), &4096.into()));
    assert!(lo["gids"].as_array().unwrap().iter().any(|gid| gid["gid"] == "::ffff:127.0.0.1"), "{lo}");
    let text = String::from_utf8(ubiverbs(&["devices"]).stdout).unwrap();
    assert!(text.contains("ubi_lo") && text.contains("::ffff:127.0.0.1"), "{text}");
}

#[test]
fn a_status_is_explained_by_number_and_by_name() {
    for asked in ["12", "IBV_WC_RETRY_EXC_ERR", "retry_exc"] {
        let output = ubiverbs(&["explain", asked]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(text.starts_with("IBV_WC_RETRY_EXC_ERR (12)") || text.contains("IBV_WC_RNR_RETRY_EXC_ERR"), "{text}");
    }
    let unknown = ubiverbs(&["explain", "250"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("250"));
    let all = String::from_utf8(ubiverbs(&["explain"]).stdout).unwrap();
    assert_eq!(all.lines().count(), 24);
}

#[test]
fn events_rejections_errnos_and_rules_are_explained() {
    let explained = |words: &[&str]| {
        let output = ubiverbs(&[&["explain"], words].concat());
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(explained(&["IBV_EVENT_CQ_ERR"]).starts_with("IBV_EVENT_CQ_ERR (0): a completion queue overflowed"));
    assert!(explained(&["cm", "8"]).starts_with("RDMA_CM_EVENT_REJECTED (8)"));
    assert!(explained(&["reject", "8"]).contains("nobody listens"));
    assert!(explained(&["ibv_modify_qp", "EINVAL"]).contains("INIT to RTR needs"));
    assert!(explained(&["UV-0201"]).starts_with("UV-0201: error:"));
    assert!(explained(&["rule"]).lines().count() >= 2);
    assert!(explained(&["ibv_query_gid", "ENODEV"]).contains("in general"));
}

#[test]
fn nics_take_the_place_of_the_hosts_devices() {
    let output = ubiverbs(&["devices", "--json", "--nics", "3"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a JSON document");
    let facts: Vec<String> = document["devices"].as_array().expect("a list").iter().map(facts).collect();
    let expected = [("ubi_0", 1), ("ubi_1", 2), ("ubi_2", 3)];
    assert_eq!(facts, expected.map(|(name, last)| format!("{name} true [::ffff:127.0.0.{last}]")));
    let healthy = ubiverbs(&["doctor", "--nics", "3"]);
    assert!(String::from_utf8_lossy(&healthy.stdout).contains("ubi_0, ubi_1, ubi_2"), "{healthy:?}");
    let refused = ubiverbs(&["devices", "--nics", "65"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("there are 1 to 64 NICs of 1 to 4 ports each"),
        "{refused:?}"
    );
}

fn facts(device: &serde_json::Value) -> String {
    let gids: Vec<_> =
        device["gids"].as_array().expect("a list").iter().filter_map(|gid| gid["gid"].as_str()).collect();
    format!("{} {} [{}]", device["name"].as_str().expect("a name"), device["active"], gids.join(", "))
}
