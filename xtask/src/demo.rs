//! The demo as users run it. Simulated, with tshark's opinion of the capture it writes: no frame malformed, every frame
//! InfiniBand over RoCEv2. On the NIC it runs between two processes: as this user, as a user without any privileges, in
//! a network namespace that has only `lo`, and between two namespaces that a pair of virtual interfaces joins.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::process;
use crate::toolchain::Toolchain;

/// Builds the program, runs its demos and checks what they say.
pub fn check(root: &Path) -> Result<String, String> {
    let target = process::target_directory(root)?;
    let program = Toolchain::system(root, None)?.build_bin(root, "ubiverbs")?;
    let frames = simulated(&program, &target)?;
    let places = on_the_nic(&program)?;
    Ok(format!("{frames} frames in the demo's capture, all InfiniBand, none malformed; on the NIC: {places}"))
}

fn simulated(program: &Path, target: &Path) -> Result<usize, String> {
    let capture = target.join("demo.pcapng");
    match fs::remove_file(&capture) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(format!("{}: {e}", capture.display())),
        _ => {}
    }
    process::run(Command::new(program).args(["demo", "--simulated", "--pcap"]).arg(&capture))?;
    if !capture.exists() {
        return Err(format!("the demo wrote no {}", capture.display()));
    }
    // Payload that looks like NFS over RDMA is none: without this, Wireshark guesses and then complains.
    let frames = process::output(
        Command::new("tshark")
            .args([
                "--disable-protocol",
                "rpcordma",
                "-T",
                "fields",
                "-e",
                "frame.number",
                "-e",
                "frame.protocols",
                "-r",
            ])
            .arg(&capture)
            .stderr(Stdio::null()),
    )?;
    judge(&frames)
}

/// Runs the demo on the NIC wherever this user may run it. Says where that was.
fn on_the_nic(program: &Path) -> Result<String, String> {
    process::run(Command::new(program).arg("demo"))?;
    if !crate::prerequisites::is_root() {
        return Ok("as this user (the other places need root)".into());
    }
    let copy = PublicCopy::of(program)?;
    let path = copy.0.to_str().ok_or("the temporary directory has a strange name")?;
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let lo_up = "ip link set lo up";
    for (place, script) in [
        ("as a user without privileges", format!("{nobody} {path} demo --json --quick")),
        ("in a namespace with only lo", format!("unshare -n sh -ec '{lo_up}; {path} demo --json'")),
        ("there without privileges", format!("unshare -n sh -ec '{lo_up}; {nobody} {path} demo --json --quick'")),
        ("between two namespaces, IPv4", between_namespaces(path, "10.99.7.1/24", "10.99.7.2/24", "10.99.7.1")),
        ("between two namespaces, IPv6", between_namespaces(path, "fd99:7::1/64", "fd99:7::2/64", "fd99:7::1")),
    ] {
        let said = process::output(Command::new("sh").args(["-ec", &script])).map_err(|e| format!("{place}: {e}"))?;
        verdict(&said).map_err(|e| format!("{place}: {e}"))?;
    }
    Ok("as this user and without privileges, with only lo, between namespaces over IPv4 and IPv6".into())
}

/// One namespace inside another, a pair of interfaces between them, a server in the outer one and a caller in the inner. Everything in them goes
/// with their last process.
fn between_namespaces(path: &str, outer: &str, inner: &str, server: &str) -> String {
    // An IPv6 address is usable at once only without duplicate address detection.
    let nodad = if server.contains(':') { "nodad" } else { "" };
    format!(
        "unshare -n sh -ec '
            ip link set lo up
            mkfifo \"$1/ready\" \"$1/go\"
            unshare -n sh -ec \"echo ready > $1/ready; read go < $1/go; ip link set lo up
                ip address add {inner} dev inner {nodad}; ip link set inner up
                exec env UBIVERBS_SECRET=both {path} demo --json --quick --connect {server}\" &
            caller=$!
            read ready < \"$1/ready\"
            ip link add outer type veth peer name inner netns $caller || {{ kill $caller; exit 1; }}
            ip address add {outer} dev outer {nodad}
            ip link set outer up
            UBIVERBS_SECRET=both {path} demo --server {server} > /dev/null &
            server=$!
            echo go > \"$1/go\"
            rm -r \"$1\"
            wait $caller
            wait $server
        ' sh \"$(mktemp -d)\""
    )
}

/// A copy of the program that everybody may run; gone when dropped.
struct PublicCopy(PathBuf);

impl PublicCopy {
    fn of(program: &Path) -> Result<PublicCopy, String> {
        let copy = PublicCopy(std::env::temp_dir().join(format!("ubiverbs-demo-{}", std::process::id())));
        let failed = |e: std::io::Error| format!("{}: {e}", copy.0.display());
        fs::copy(program, &copy.0).map_err(failed)?;
        fs::set_permissions(&copy.0, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        Ok(copy)
    }
}

impl Drop for PublicCopy {
    fn drop(&mut self) {
        // A file that stays in the temporary directory is no failure.
        let _ = fs::remove_file(&self.0);
    }
}

/// Reads the demo's own report: every step of it must be right.
fn verdict(report: &str) -> Result<(), String> {
    let report: Value = serde_json::from_str(report).map_err(|e| format!("the report is not JSON: {e}"))?;
    let steps = report["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let wrong: Vec<String> = steps.iter().filter(|step| step["ok"] != true).map(Value::to_string).collect();
    if report["ok"] == true && steps.len() == 8 && wrong.is_empty() {
        return Ok(());
    }
    Err(format!("{} steps, error {}: {}", steps.len(), report["error"], wrong.join("\n")))
}

/// Reads `frame number, protocols` lines and returns how many, or the frames that are not right.
fn judge(frames: &str) -> Result<usize, String> {
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in frames.lines() {
        count += 1;
        let (number, protocols) = line.split_once('\t').unwrap_or((line, ""));
        if protocols.contains("malformed") {
            wrong.push(format!("frame {number} is malformed: {protocols}"));
        } else if !protocols.split(':').any(|protocol| protocol == "infiniband") {
            wrong.push(format!("frame {number} is not InfiniBand: {protocols}"));
        }
    }
    match (count, wrong.is_empty()) {
        (0, _) => Err("the capture is empty".into()),
        (count, true) => Ok(count),
        _ => Err(wrong.join("\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::{judge, verdict};

    #[test]
    fn good_captures_are_counted_and_bad_ones_explained() {
        let good = "1\teth:ethertype:ip:udp:infiniband\n2\teth:ethertype:ip:udp:infiniband:data\n";
        assert_eq!(judge(good), Ok(2));
        let malformed = "1\teth:ethertype:ip:udp:infiniband:_ws.malformed\n";
        assert!(judge(malformed).unwrap_err().contains("frame 1 is malformed"));
        let foreign = "7\teth:ethertype:ip:udp:data\n";
        assert!(judge(foreign).unwrap_err().contains("frame 7 is not InfiniBand"));
        assert_eq!(judge("").unwrap_err(), "the capture is empty");
    }

    #[test]
    fn a_report_is_good_only_with_all_its_steps() {
        let report = |steps: &[bool], ok: bool| {
            let steps: Vec<_> = steps.iter().map(|ok| serde_json::json!({ "ok": ok })).collect();
            serde_json::json!({ "ok": ok, "error": null, "steps": steps }).to_string()
        };
        assert_eq!(verdict(&report(&[true; 8], true)), Ok(()));
        assert!(verdict(&report(&[true; 7], true)).unwrap_err().contains("7 steps"));
        assert!(verdict(&report(&[true; 8], false)).is_err());
        assert!(verdict(&report(&[true, true, true, true, true, true, true, false], true)).is_err());
        assert!(verdict("").unwrap_err().contains("not JSON"));
    }
}
