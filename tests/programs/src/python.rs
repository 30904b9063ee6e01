//! Packages from the Python Package Index that move data by RDMA: Mooncake's transfer engine, and NIXL with the UCX
//! that it brings. Two processes write into each other's memory and read it, and compare all of it.

use crate::host::Host;
use crate::scoreboard::{Row, Version};
use crate::stage::{Link, Running, Stage};
use crate::usage::Bounds;
use crate::{Test, expect};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long two processes may take: mostly some seconds. NIXL spins, which takes long on a machine that is busy.
const PAIR_TIMEOUT: Duration = Duration::from_secs(600);

/// How long one may take after the other has ended, which it does when both are done, or when it has failed.
const AFTER_THE_OTHER: Duration = Duration::from_secs(120);

/// How much each writes into the other, and reads from it: `SIZE` in peers.py.
const DATA: u64 = 24 << 20;

/// A script, with what it needs.
#[derive(Clone, Copy, Debug)]
struct Peers {
    name: &'static str,
    row: &'static Row,
    script: &'static str,
    /// Twice of what it takes: 200 MB and 50 descriptors, and 290 MB and 60.
    bounds: Bounds,
    /// Arguments, from the address and the device.
    arguments: fn(&str, &str) -> Vec<String>,
    /// Variables, from the device.
    variables: fn(&str) -> Vec<(&'static str, String)>,
}

const MOONCAKE: Peers = Peers {
    name: "mooncake",
    row: &Row {
        program: "`mooncake-transfer-engine-non-cuda` (PyPI)",
        version: Version::Named("0.3.13.post1"),
        what: "two processes, protocol `rdma`, no metadata server: 24 MiB in pieces from a byte to megabytes, written \
            and read both ways and compared; one host by shared memory and UDP, two hosts; a capture has all bytes",
    },
    script: "mooncake_peers.py",
    bounds: Bounds { megabytes: 400, descriptors: 100 },
    arguments: |address, device| vec![address.to_owned(), device.to_owned()],
    variables: |_| Vec::new(),
};

const NIXL: Peers = Peers {
    name: "nixl",
    row: &Row {
        program: "`nixl`, `nixl-cu13` (PyPI)",
        version: Version::Named("1.5.1"),
        what: "the same by its UCX, with `rc_verbs` and `ud_verbs` alone, from memory to memory; the libibverbs that \
            the package brings is replaced",
    },
    script: "nixl_peers.py",
    bounds: Bounds { megabytes: 600, descriptors: 120 },
    arguments: |_, _| Vec::new(),
    // Nothing but verbs.
    variables: |device| {
        vec![("UCX_TLS", "rc_verbs,ud_verbs,self".to_owned()), ("UCX_NET_DEVICES", format!("{device}:1"))]
    },
};

pub fn tests(environment: &Path) -> Vec<Test> {
    let python = environment.join("bin/python");
    let mut tests = Vec::new();
    for peers in [MOONCAKE, NIXL] {
        for link in Link::BOTH {
            let (name, python) = (format!("{}: two processes, {}", peers.name, link.name()), python.clone());
            let play = move |stage: &Stage| peers.play(stage, &python, [&stage.alone; 2], "ubi_lo", &link.options());
            tests.push(Test::new(name, play).of(peers.row));
        }
        let (name, its) = (format!("{}: two processes, all bytes are in packets of ours", peers.name), python.clone());
        tests.push(Test::new(name, move |stage| peers.captured(stage, &its)).of(peers.row));
        let (name, python) = (format!("{}: two processes, two hosts", peers.name), python.clone());
        let play = move |stage: &Stage| match &stage.joined {
            Some([left, right]) => peers.play(stage, &python, [left, right], "ubi_veth0", &[]),
            None => Err("there is one host only".into()),
        };
        tests.push(Test::new(name, play).for_root().of(peers.row));
    }
    tests
}

impl Peers {
    /// With a capture of what one of them sends and receives: it must be larger than all data that was moved.
    fn captured(&self, stage: &Stage, python: &Path) -> Result<(), String> {
        let file = stage.place.join(format!("{}.pcap", self.name));
        let _ = fs::remove_file(&file);
        let options = ["--pcap".to_owned(), file.display().to_string()];
        self.play(stage, python, [&stage.alone; 2], "ubi_lo", &options)?;
        let size = fs::metadata(&file).map_err(|e| format!("{}: {e}", file.display()))?.len();
        for entry in fs::read_dir(&stage.place).into_iter().flatten().flatten() {
            if entry.file_name().display().to_string().starts_with(&format!("{}.pcap", self.name)) {
                let _ = fs::remove_file(entry.path());
            }
        }
        match size > 4 * DATA {
            true => Ok(()),
            false => Err(format!("a capture of {size} bytes, where {} bytes were moved", 4 * DATA)),
        }
    }

    fn play(
        &self,
        stage: &Stage,
        python: &Path,
        hosts: [&Host; 2],
        device: &str,
        options: &[String],
    ) -> Result<(), String> {
        let place = stage.place.join(self.name);
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place).map_err(|e| format!("cannot make {}: {e}", place.display()))?;
        let names = ["left", "right"];
        let start = |host: &Host, name: &str, other: &str| {
            let mut command = stage.run_on(host, None, options, "env");
            command.arg(python).arg(scripts().join(self.script)).arg(&place).args([name, other]);
            command.args((self.arguments)(host.address, device)).envs((self.variables)(device));
            command.env("PYTHONDONTWRITEBYTECODE", "1");
            stage.start(name, &mut command)
        };
        let mut running = vec![start(hosts[0], names[0], names[1])?, start(hosts[1], names[1], names[0])?];
        let mut deadline = Instant::now() + PAIR_TIMEOUT;
        let told = |running: &[Running]| running.iter().map(Running::told).collect::<Vec<_>>().join("\n");
        while !running.iter_mut().all(Running::has_ended) {
            for process in &running {
                process.stays_within(self.bounds).map_err(|e| format!("{e}\n{}", told(&running)))?;
            }
            if running.iter_mut().any(Running::has_ended) {
                deadline = deadline.min(Instant::now() + AFTER_THE_OTHER);
            }
            if Instant::now() > deadline {
                return Err(format!("not all of them end\n{}", told(&running)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let both = told(&running);
        for process in running {
            let ended = process.end()?;
            if !ended.status.success() {
                return Err(format!("{}\n{both}", ended.status));
            }
            expect(&ended.text, &["written by the other: ", "read from the other: ", "all is well"])?;
        }
        Ok(())
    }
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}
