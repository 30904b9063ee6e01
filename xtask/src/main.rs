//! Build, test and check tasks of the workspace: what a person types and what CI runs, so that both see the same. It
//! knows the design's rules (which crate may use which, what the core may not do) and nothing of RDMA.
#![forbid(unsafe_code)]

mod aarch64;
mod api;
mod arrows;
mod attack;
mod bench;
mod cards;
mod checks;
mod clusters;
mod crates;
mod demo;
mod deny;
mod dist;
mod downloads;
mod elf;
mod failures;
mod fuzz;
mod gpu;
mod interop;
mod miri;
mod newest;
mod no_std;
mod packages;
mod preload;
mod prerequisites;
mod process;
mod programs;
mod purity;
mod release;
mod rooms;
mod sanitizers;
mod soak;
mod sources;
mod strangers;
mod test;
mod toolchain;
mod wheel;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tasks of the ubiverbs workspace.
///
/// Run `cargo xtask test` before you commit; it is exactly what CI runs. The other tasks are its parts, for when you
/// work on one thing. Exit status: 0 when all is well, 1 when a check failed, 2 for wrong usage.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run everything that must pass: format, rules, clippy, tests, docs, real programs, the demo's capture.
    ///
    /// Steps run side by side, and every step runs even if one before it failed; only missing prerequisites stop it. As
    /// root on Debian and its relatives, what is missing is installed with apt-get; elsewhere the step says what to
    /// install. What each step said is also in target/test. The last line is `N passed, N failed`: tests, plus one
    /// failure for every failed step that runs no tests. With CI in the environment, a step that takes more than twice
    /// its time in xtask/times.json fails, too.
    Test(test::Options),
    /// Run the tests of the core crates, which need neither sockets nor other programs: seconds after a change.
    Core,
    /// Run all benchmarks, and write the results to target/bench as tables and as JSON.
    ///
    /// First the small ones of the crates; then `ubiverbs bench`, and perftest on our NIC compared with TCP (qperf,
    /// sockperf) and UCX, of which it prints ratios. What is not installed is named and left out.
    Bench(bench::Options),
    /// Check that the dependencies between our crates, and between the modules of large ones, are those of the design.
    Arrows,
    /// Compare the public interface of the crate `ubiverbs` with the list of it in crates/ubiverbs/public-api.txt.
    ///
    /// Types of inner crates must be exported where they are used. Take `--write` when a change is meant.
    Api(api::Options),
    /// Check that the crates can be published: manifests, licences, packages, and what a program that uses them builds.
    ///
    /// Nothing is uploaded. `test` does it without the options.
    Crates(crates::Options),
    /// Check licences, versions and sources of the dependencies against deny.toml.
    ///
    /// Asks cargo-deny where it is installed, also for advisories if their database can be fetched; checks the same
    /// rules itself elsewhere.
    Deny,
    /// Check that the core crates use no sockets, clocks, threads or `unsafe`.
    Purity,
    /// Prove that the core builds without the standard library.
    NoStd,
    /// Run the release build's demo and let tshark judge the capture it writes.
    Demo,
    /// Run programs written for other NICs on ours: those of rdma-core, perftest, UCX, libfabric, fio, qperf, two MPI
    /// libraries, qemu, and some compiled here.
    Programs {
        /// Run only the tests whose names contain one of these words.
        words: Vec<String>,
        /// Run only programs that must be downloaded first, some 120 MB: Mooncake and NIXL, from the Python Package
        /// Index.
        ///
        /// They are kept in target/python; remove it to download them again. They are no part of `test`.
        #[arg(long)]
        downloads: bool,
        /// Run all, those that must be downloaded too, and write the table of docs/programs.md.
        #[arg(long, conflicts_with_all = ["words", "downloads"])]
        scoreboard: bool,
        /// Run them with every rule of verbs checked; fail if one is told what docs/checks.md does not have.
        ///
        /// It takes a quarter of an hour, and is no part of `test`.
        #[arg(long, conflicts_with_all = ["scoreboard", "downloads"])]
        check: bool,
    },
    /// Run well-known programs on every card that the NIC can be like (`ubiverbs matrix`), and write docs/cards.md.
    ///
    /// It takes target/dist, and some minutes: it is no part of `test`.
    Cards(cards::Options),
    /// Builds perftest and rdma-core's examples with sanitizers, and runs them on the NIC.
    Sanitizers(sanitizers::Options),
    /// Run, for each rule of verbs that `ubiverbs run --check` and `--why` know, a C program that breaks it and one that
    /// does not: tests/checks.
    Checks {
        /// Only for rules or families whose names contain one of these words, such as UV-0201 or memory.
        words: Vec<String>,
    },
    /// Download the newest rdma-core and the Python that its test suite wants, and say where they are.
    ///
    /// Packages of Debian's testing suite, some 45 MB, unpacked into target/newest; remove it to get newer ones. `test`
    /// does it when it needs them.
    Newest,
    /// Kill peers in the middle of transfers, a thousand times through shared memory, and look at what is left of them.
    ///
    /// The survivor must get an error and all of its work back, and keep no descriptor, ring or memory of the dead.
    /// `test` does the same with a few kills. Then, for root, a tenth as many between hosts.
    Kills {
        /// How many.
        #[arg(default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..))]
        count: u32,
    },
    /// Put a thousand million damaged packets through the receiving side of UDP, and count those that are accepted.
    ///
    /// All damage of one bit and of two bits, for every path MTU; bursts; random damage. `test` does the same with
    /// fewer. Takes some ten minutes.
    Damage {
        /// How many.
        #[arg(default_value_t = 1_000_000_000, value_parser = clap::value_parser!(u64).range(100_000..))]
        packets: u64,
    },
    /// Run the unit tests of `memory`, `latch` and the shared ring of `link` under Miri, which sees undefined
    /// behaviour.
    ///
    /// Needs a nightly toolchain with Miri, so it is no part of `test`; says how to get them. Tests that need the
    /// kernel are ignored there.
    Miri,
    /// Let libFuzzer look for inputs that break something, each target for its share of the time, and print executions
    /// and coverage.
    ///
    /// Needs cargo-fuzz and a nightly toolchain, so it is no part of `test`, which replays the corpora; says how to get
    /// them. What it finds is added to fuzz/corpus; an input that broke a rule is in fuzz/artifacts.
    Fuzz(fuzz::Options),
    /// Build what is handed to people into target/dist: bin/ubiverbs and lib/libibverbs.so.1. It can be copied
    /// anywhere.
    ///
    /// A tarball and a Debian package of it are in target/packages.
    Dist(dist::Options),
    /// Build the Python wheel, install it into an environment of its own and run programs on it.
    ///
    /// It is in target/wheel, and runs wherever the C library is glibc 2.28 or newer. Zig, which links for that, is
    /// fetched with pip (100 MB, once), so this is no part of `test`.
    Wheel(wheel::Options),
    /// Judge and play the manifests of examples/kubernetes, and run MPI jobs of several hosts by ssh and Slurm. Needs root.
    ///
    /// Pods are containers of podman, each pod with a network of its own; hosts are namespaces on one switch. It takes
    /// minutes, so it is no part of `test`. docs/clusters.md says how to do it on real machines.
    Clusters(clusters::Options),
    /// Make everything that a release hands to people, and say what a person must type to publish it.
    ///
    /// It checks the version, CHANGELOG.md, the working tree, all tests, dependencies and crates; then target/publish has
    /// crates, tarballs, Debian packages, wheels, the image, a list of components (SBOM) and checksums. Nothing is
    /// uploaded.
    Release(release::Options),
    /// Build everything for 64-bit ARM, and run tests, ping-pongs and the demo there; QEMU plays the machine elsewhere.
    ///
    /// The cross compiler, QEMU and Debian's programs for ARM are fetched. What is made, with tarball and package, is in
    /// target/aarch64-unknown-linux-gnu. Emulation cannot show that memory accesses are in order.
    Aarch64(aarch64::Options),
    /// Run verbs programs between our NIC and the kernel's Soft-RoCE, which boots in a virtual machine. Needs root.
    ///
    /// Packages for the machine are downloaded once, into target/interop; remove it to get newer ones. Prints a table,
    /// and writes target/interop/result.json and what each program said. Takes minutes: it is no part of `test`.
    Interop(interop::Options),
    /// Play rounds of random verified work between two processes, with faults, stops and kills, until the time is over.
    ///
    /// Each round is drawn from the seed and its number, and its line says how to play it again. Logs, the places where
    /// processes were stuck, and result.json are in target/soak. As root also between network namespaces and between
    /// users.
    Soak(soak::Options),
    /// Test and measure memory of a GPU, and run NCCL over it between processes that believe to be on different hosts.
    ///
    /// Needs an NVIDIA GPU with its driver, a C compiler, and a Python with torch. What each rank said is in target/gpu.
    Gpu(gpu::Options),
    /// Attack verified traffic as a second user of the host and as a stranger on its network, and say what held. Needs
    /// root.
    ///
    /// First every attack alone, then mixtures of them at random. Attackers are told the numbers that they would have
    /// to guess; what only their secrecy protects is called undefended. docs/security.md says who is defended against
    /// whom.
    Attack(attack::Options),
}

fn main() -> ExitCode {
    let root = root();
    let result = match Arguments::parse().task {
        Task::Test(options) => test::run(&root, &options),
        Task::Core => test::core(&root),
        Task::Bench(options) => bench::run(&root, &options),
        Task::Arrows => arrows::check(&root)
            .and_then(|note| Ok(format!("{note}; {}; {}", rooms::check(&root)?, strangers::check(&root)?)))
            .map(|note| println!("{note}")),
        Task::Api(options) => api::run(&root, &options).map(|note| println!("{note}")),
        Task::Crates(options) => crates::run(&root, &options).map(|note| println!("{note}")),
        Task::Deny => deny::check(&root).map(|note| println!("{note}")),
        Task::Purity => purity::check(&root).map(|note| println!("{note}")),
        Task::NoStd => no_std::check(&root).map(|note| println!("{note}")),
        Task::Programs { words, downloads, scoreboard, check } => prerequisites::programs()
            .and_then(|()| {
                let which = match (downloads, scoreboard, check) {
                    (_, true, _) => programs::Which::Scoreboard,
                    (true, false, _) => programs::Which::Downloaded,
                    (false, false, true) => programs::Which::Checked,
                    (false, false, false) => programs::Which::Installed,
                };
                programs::prepare(&root, which, &words)
            })
            .and_then(|mut command| process::run(&mut command)),
        Task::Checks { words } => checks::prepare(&root, &words).and_then(|mut command| process::run(&mut command)),
        Task::Newest => newest::provide(&root).map(|place| println!("{}", place.display())),
        Task::Kills { count } => test::kills(&root, count),
        Task::Damage { packets } => test::damage(&root, packets),
        Task::Miri => miri::run(&root),
        Task::Fuzz(options) => fuzz::run(&root, &options),
        Task::Dist(options) => dist::build(&root, options).map(|note| println!("{note}")),
        Task::Wheel(options) => wheel::build(&root, options).map(|note| println!("{note}")),
        Task::Clusters(options) => clusters::run(&root, &options),
        Task::Release(options) => release::run(&root, &options),
        Task::Aarch64(options) => aarch64::check(&root, &options).map(|note| println!("{note}")),
        Task::Interop(options) => interop::run(&root, &options),
        Task::Cards(options) => cards::run(&root, &options),
        Task::Sanitizers(options) => sanitizers::run(&root, &options).map(|said| println!("{said}")),
        Task::Soak(options) => soak::run(&root, &options),
        Task::Gpu(options) => gpu::check(&root, &options),
        Task::Attack(options) => attack::run(&root, &options),
        Task::Demo => prerequisites::tshark().and_then(|_| demo::check(&root)).map(|note| println!("{note}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace, wherever the task was started from. What cargo says now counts more than what it said when this was
/// built: two checkouts may share a target directory.
fn root() -> PathBuf {
    let here = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().map(Path::to_path_buf).unwrap_or(here)
}
