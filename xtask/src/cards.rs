//! `cargo xtask cards`: well-known programs on every card that the NIC can be like, as the page docs/cards.md. The rows are
//! what `ubiverbs matrix` found; nothing in it is written by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The page.
const PAGE: &str = "docs/cards.md";

/// What can be chosen.
#[derive(clap::Args)]
pub struct Options {
    /// Take the program `ubiverbs` from this directory, which has `bin` and `lib`
    #[arg(long, value_name = "DIRECTORY")]
    dist: Option<PathBuf>,
    /// Run only programs whose line contains this word, and print the rows instead of writing the page
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
}

/// A program: how it is called in the table, its server if it has one, and its client or itself. `sh` runs both, with
/// `WORK` for a directory that has what was compiled or unpacked.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("ibv_rc_pingpong", "ibv_rc_pingpong -g 0 -n 100", "ibv_rc_pingpong -g 0 -n 100 127.0.0.1"),
    ("ibv_uc_pingpong", "ibv_uc_pingpong -g 0 -n 100", "ibv_uc_pingpong -g 0 -n 100 127.0.0.1"),
    ("ibv_ud_pingpong", "ibv_ud_pingpong -g 0 -n 100", "ibv_ud_pingpong -g 0 -n 100 127.0.0.1"),
    ("ibv_srq_pingpong", "ibv_srq_pingpong -g 0 -n 100 -q 2", "ibv_srq_pingpong -g 0 -n 100 -q 2 127.0.0.1"),
    ("ib_send_bw", "ib_send_bw -F -n 200", "ib_send_bw -F -n 200 127.0.0.1"),
    ("ib_send_bw -R", "ib_send_bw -F -R -n 200", "ib_send_bw -F -R -n 200 127.0.0.1"),
    ("ib_send_bw -c UD", "ib_send_bw -F -c UD -n 200", "ib_send_bw -F -c UD -n 200 127.0.0.1"),
    ("ib_write_bw", "ib_write_bw -F -n 200", "ib_write_bw -F -n 200 127.0.0.1"),
    ("ib_write_lat -I 220", "ib_write_lat -F -I 220 -n 200", "ib_write_lat -F -I 220 -n 200 127.0.0.1"),
    ("ib_read_bw", "ib_read_bw -F -n 200", "ib_read_bw -F -n 200 127.0.0.1"),
    ("ib_atomic_bw", "ib_atomic_bw -F -n 200", "ib_atomic_bw -F -n 200 127.0.0.1"),
    ("rping", "rping -s -a 127.0.0.1 -C 20", "rping -c -a 127.0.0.1 -C 20"),
    ("ucmatose", "ucmatose -b 127.0.0.1", "ucmatose -s 127.0.0.1"),
    ("udaddy", "udaddy -b 127.0.0.1", "udaddy -s 127.0.0.1"),
    (
        "ucx_perftest (UCX, rc_verbs)",
        "UCX_TLS=rc_v,self ucx_perftest",
        "UCX_TLS=rc_v,self ucx_perftest -t tag_bw -n 200 -w 10 127.0.0.1",
    ),
    (
        "ucx_perftest (UCX, ud_verbs)",
        "UCX_TLS=ud_v,self ucx_perftest",
        "UCX_TLS=ud_v,self ucx_perftest -t tag_bw -n 200 -w 10 127.0.0.1",
    ),
    ("fi_pingpong (libfabric, verbs)", "fi_pingpong -p verbs -e msg", "fi_pingpong -p verbs -e msg 127.0.0.1"),
    (
        "Open MPI (pml ucx)",
        "",
        "UCX_TLS=rc_v,ud_v,self mpirun.openmpi --allow-run-as-root --oversubscribe --mca pml ucx --mca osc ucx \
         --mca btl self --mca coll ^sm -n 2 WORK/mpi-openmpi 1",
    ),
    ("MPICH (ch4:ucx)", "", "UCX_TLS=rc_v,ud_v,self MPIR_CVAR_NOLOCAL=1 mpiexec.mpich -n 2 WORK/mpi-mpich 1"),
    (
        "rdma-core's suite (pyverbs)",
        "",
        "cd WORK && /usr/bin/python3 tests/run_tests.py tests.test_device tests.test_pd tests.test_mr tests.test_cq \
         tests.test_cq_events tests.test_addr tests.test_qp tests.test_atomic",
    ),
];

/// The program for MPI, which looks at every byte.
const MPI_PROGRAM: &str = "tests/programs/c/mpi.c";

/// Where Debian has rdma-core's own tests, compressed.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";

/// Runs them, and writes the page.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let target = crate::process::target_directory(root)?;
    let dist = options.dist.clone().unwrap_or_else(|| target.join("dist"));
    let program = dist.join("bin/ubiverbs");
    let work = prepared(root, &target.join("cards"))?;
    let (mut rows, mut refusals) = (Vec::new(), Vec::new());
    for (title, server, client) in PROGRAMS {
        if options.only.as_ref().is_some_and(|word| !title.contains(word.as_str())) {
            continue;
        }
        let client = client.replace("WORK", &work);
        let mut command = Command::new(&program);
        command.args(["matrix", "--json", "--timeout", "40s", "--run=--nics 1"]);
        if !server.is_empty() {
            command.args(["--server", server]);
        }
        let output = command.args(["--", "sh", "-c", &client]).output();
        let output = output.map_err(|e| format!("{} did not start: {e}", program.display()))?;
        let Ok(found) = serde_json::from_slice::<Value>(&output.stdout) else {
            let errors = String::from_utf8_lossy(&output.stderr);
            println!("{title}: {}", errors.trim());
            continue;
        };
        let cases = found["cases"].as_array().cloned().unwrap_or_default();
        let names: Vec<String> = cases.iter().map(|case| case["nic"].as_str().unwrap_or_default().to_owned()).collect();
        let marks: Vec<&str> = cases.iter().map(|case| if case["works"] == true { "yes" } else { "**no**" }).collect();
        rows.push(format!("| `{title}` | {} |", marks.join(" | ")));
        println!("{}", rows[rows.len() - 1]);
        for case in cases.iter().filter(|case| case["works"] != true) {
            let first = case["refusals"].get(0).or(Some(&case["explained"])).and_then(Value::as_str);
            let why = first.or(case["failed"].as_str()).unwrap_or_default().replace('|', "\\|");
            refusals.push(format!("| `{title}` | {} | {why} |", case["nic"].as_str().unwrap_or_default()));
        }
        if options.only.is_none() {
            // As far as it has come: the rest takes minutes.
            write(root, &names, &rows, &refusals)?;
        }
    }
    Ok(())
}

/// Compiles and unpacks what programs need. Returns the directory.
fn prepared(root: &Path, work: &Path) -> Result<String, String> {
    fs::create_dir_all(work.join("tests")).map_err(|e| format!("cannot make {}: {e}", work.display()))?;
    for library in ["openmpi", "mpich"] {
        let program = work.join(format!("mpi-{library}"));
        let mut compiler = Command::new(format!("mpicc.{library}"));
        crate::process::run(compiler.args(["-std=c11", "-O2", "-o"]).arg(program).arg(root.join(MPI_PROGRAM)))?;
    }
    let unpack = format!("cp -r {SUITE}/. tests/ && gunzip --force tests/*.gz");
    crate::process::run(Command::new("sh").current_dir(work).args(["-c", &unpack]))
        .map_err(|e| format!("{e}\nrdma-core's tests are missing: apt-get install python3-pyverbs"))?;
    Ok(work.display().to_string())
}

/// Writes the page.
fn write(root: &Path, names: &[String], rows: &[String], refusals: &[String]) -> Result<(), String> {
    let rule = "---|".repeat(names.len());
    let page = format!(
        "# Programs on cards\n\nWhich well-known programs work on the NICs of [profiles.md](profiles.md): unchanged, with \
         their usual options, two processes of\none host. `cargo xtask cards` writes this page from what `ubiverbs matrix` \
         finds. A **no** says that the program, asked for\nin this way, needs what the card does not have; many have other \
         ways.\n\n| program | {} |\n|---|{rule}\n{}\n\n## What was refused first\n\n| program | card | what |\n|---|---|---|\n{}\n",
        names.join(" | "),
        rows.join("\n"),
        refusals.join("\n"),
    );
    let path = root.join(PAGE);
    fs::write(&path, page).map_err(|e| format!("cannot write {}: {e}", path.display()))
}
