//! Clusters on one machine: the manifests of examples/kubernetes judged by their schemas and played in containers, and
//! jobs of several hosts that Slurm, Open MPI and MPICH start. The tests are in tests/clusters; this builds what they
//! need. They take minutes and Debian packages of their own, so they are no part of `cargo xtask test`.

use std::path::Path;
use std::process::Command;

use crate::process::{self, run as run_command};
use crate::toolchain::Machine;
use crate::{dist, packages, prerequisites, release, wheel};

#[derive(clap::Args)]
pub struct Options {
    /// Only parts whose names contain one of these words: manifests, containers, engines.
    words: Vec<String>,
}

/// Kubernetes' schemas of all releases, as pip knows them.
const SCHEMAS: &str = "kubernetes-validate==1.37.0";

/// Where Linux has the second hierarchy of control groups beside the first, crun refuses to start containers.
const HYBRID: &str =
    "if mountpoint --quiet /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; exec \"$@\"";

pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let is_wanted =
        |part: &str| options.words.is_empty() || options.words.iter().any(|word| part.contains(word.as_str()));
    let target = process::target_directory(root)?;
    let (work, tests) = (target.join("clusters"), root.join("tests/clusters"));
    prerequisites::wheel()?;
    let python = wheel::environment(&work.join("python"), &[SCHEMAS])?;
    let mut failed = Vec::new();
    let mut play = |name: &str, command: &mut Command| {
        if let Err(error) = run_command(command) {
            failed.push(format!("{name}: {error}"));
        }
    };
    if is_wanted("manifests") {
        play("manifests", Command::new(&python).arg(tests.join("manifests.py")));
    }
    if is_wanted("containers") {
        prerequisites::containers()?;
        if !process::is_built("release") {
            dist::build(root, dist::Options::default())?;
        }
        let version = packages::version(root)?;
        let place = target.join("packages");
        let image = release::image::build(root, &place, &version, packages::moment(root), Machine::here()?)?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", HYBRID, "sh"]).arg(&python).arg(tests.join("containers.py"));
        play("containers", command.arg(image).arg(&work));
    }
    if is_wanted("engines") {
        prerequisites::engines()?;
        dist::unpacked(root)?;
        play("engines", Command::new(&python).arg(tests.join("engines.py")).arg(target.join("dist")).arg(&work));
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}
