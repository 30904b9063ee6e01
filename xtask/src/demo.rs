//! The demo as a user runs it, and tshark's opinion of the capture it writes: no frame malformed, every frame
//! InfiniBand over RoCEv2.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process;

/// Builds the program, runs its demo and checks the capture.
pub fn check(root: &Path) -> Result<String, String> {
    let target = process::target_directory(root)?;
    process::run(process::cargo(root).args(["build", "--release", "--package", "ubiverbs-cli"]))?;
    let capture = target.join("demo.pcapng");
    match fs::remove_file(&capture) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(format!("{}: {e}", capture.display())),
        _ => {}
    }
    process::run(Command::new(target.join("release/ubiverbs")).args(["demo", "--pcap"]).arg(&capture))?;
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
    let count = judge(&frames)?;
    Ok(format!("{count} frames in the demo's capture, all InfiniBand, none malformed"))
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
    use super::judge;

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
}
