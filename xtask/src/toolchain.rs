//! What things are built for, and with what: a machine, and the C compiler that links for it. The machine we run on has
//! `cc`; for the other one there is Debian's cross compiler, and QEMU runs what it makes. Zig's compiler, which can
//! link for older releases of the C library, is set up in `wheel.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::prerequisites;
use crate::process::{self, cargo};

/// A machine that we build for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Machine {
    /// 64-bit PCs.
    #[value(name = "x86_64", alias = "x86_64-unknown-linux-gnu")]
    X86_64,
    /// 64-bit ARM.
    #[value(name = "aarch64", alias = "aarch64-unknown-linux-gnu")]
    Aarch64,
}

impl Machine {
    /// The one we run on.
    pub fn here() -> Result<Machine, String> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Machine::X86_64),
            "aarch64" => Ok(Machine::Aarch64),
            other => Err(format!(
                "nothing is written for {other} yet: libraries and packages are made for x86_64 and aarch64"
            )),
        }
    }

    /// As Linux, Rust and Python call it.
    pub fn name(self) -> &'static str {
        match self {
            Machine::X86_64 => "x86_64",
            Machine::Aarch64 => "aarch64",
        }
    }

    /// As Debian calls it.
    pub fn debian(self) -> &'static str {
        match self {
            Machine::X86_64 => "amd64",
            Machine::Aarch64 => "arm64",
        }
    }

    /// Rust's target.
    pub fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// The first part of the names of GNU's tools for it.
    pub fn gnu(self) -> String {
        format!("{}-linux-gnu", self.name())
    }

    /// The instruction that passes a call on, with everything in its registers.
    pub fn jump(self) -> &'static str {
        match self {
            Machine::X86_64 => "jmp",
            Machine::Aarch64 => "b",
        }
    }
}

/// Builds for a machine.
#[derive(Clone, Debug)]
pub struct Toolchain {
    /// For which.
    pub machine: Machine,
    /// Rust's target is named, as it is not that of this machine.
    cross: bool,
    /// Zig's compiler, behind a name of its own.
    zig: Option<PathBuf>,
    /// Builds without optimisation, for tries.
    debug: bool,
}

/// The packages of what is handed to people, and of the programs that test it. Each build chooses all of them: cargo then
/// gives the crates that they share the same features, and builds them once.
const PACKAGES: [&str; 5] =
    ["ubiverbs-capi", "ubiverbs-paths", "ubiverbs-cli", "ubiverbs-programs", "ubiverbs-check-programs"];

fn packages() -> impl Iterator<Item = &'static str> {
    PACKAGES.into_iter().flat_map(|package| ["--package", package])
}

impl Toolchain {
    /// The system's compiler, for a machine or for this one. What is missing is installed, or named.
    pub fn system(root: &Path, machine: Option<Machine>) -> Result<Toolchain, String> {
        let here = Machine::here()?;
        let machine = machine.unwrap_or(here);
        let toolchain = Toolchain { machine, cross: machine != here, zig: None, debug: false };
        if toolchain.cross {
            prerequisites::cross(root, machine)?;
        }
        Ok(toolchain)
    }

    /// This toolchain with another compiler.
    pub fn with_zig(self, compiler: PathBuf) -> Toolchain {
        Toolchain { zig: Some(compiler), ..self }
    }

    /// This toolchain with the dev profile: quick to build.
    pub fn with_debug_profile(self) -> Toolchain {
        Toolchain { debug: true, ..self }
    }

    /// Where cargo puts what it builds so.
    pub fn profile(&self) -> &'static str {
        if self.debug { "debug" } else { "release" }
    }

    /// Whether another machine is played by QEMU.
    pub fn is_cross(&self) -> bool {
        self.cross
    }

    /// Whether Zig links.
    pub fn is_zig(&self) -> bool {
        self.zig.is_some()
    }

    /// Links, and compiles C.
    pub fn compiler(&self) -> Command {
        match (&self.zig, self.cross) {
            (Some(zig), _) => Command::new(zig),
            (None, true) => Command::new(format!("{}-gcc", self.machine.gnu())),
            (None, false) => Command::new("cc"),
        }
    }

    /// What is said to the linker of a library without code of its own: it uses nothing of the C library; what it needs
    /// does, and brings that along. Zig's linker does not ask.
    pub fn without_libraries_of_libraries(&self) -> &'static [&'static str] {
        if self.is_zig() { &[] } else { &["-Wl,--unresolved-symbols=ignore-in-shared-libs"] }
    }

    /// A tool of GNU's binutils.
    pub fn tool(&self, name: &str) -> Command {
        if self.cross { Command::new(format!("{}-{name}", self.machine.gnu())) } else { Command::new(name) }
    }

    /// Cargo, with a command that builds something for the machine.
    pub fn cargo(&self, root: &Path, command: &str) -> Command {
        let mut cargo = cargo(root);
        cargo.arg(command);
        if self.cross {
            let target = self.machine.target();
            let variable = |what: &str| format!("CARGO_TARGET_{}_{what}", target.to_uppercase().replace('-', "_"));
            cargo.env(variable("LINKER"), format!("{}-gcc", self.machine.gnu()));
            cargo.env(variable("RUNNER"), format!("{} -L {}", self.emulator(), self.system_root()));
            cargo.args(["--target", &target]);
        }
        cargo
    }

    /// Builds the archives of the C libraries, and unless they are all that is wanted the program in the same go.
    pub fn build_libraries(&self, root: &Path, library_only: bool) -> Result<(), String> {
        let mut command = self.cargo(root, "build");
        if self.debug {
            command.args(process::AS_THE_TESTS);
        } else {
            command.arg("--release").args(packages());
        }
        if !library_only && !self.is_zig() {
            command.args(["--bin", "ubiverbs"]);
        }
        process::run(command.arg("--lib"))
    }

    /// Builds archives and programs in one go: what one waits for leaves a processor to another. Cargo finds them built
    /// when they are asked for one by one.
    pub fn build_everything(&self, root: &Path) -> Result<(), String> {
        process::run(self.cargo(root, "build").arg("--release").args(packages()).args(["--lib", "--bins"]))
    }

    /// Builds the program `ubiverbs`. Only its last step differs between compilers, so all use the same crates.
    pub fn build_program(&self, root: &Path) -> Result<(), String> {
        if let Some(zig) = &self.zig {
            let mut command = self.cargo(root, "rustc");
            command.args(["--release", "--package", "ubiverbs-cli", "--bins", "--", "-C"]);
            return process::run(command.arg(format!("linker={}", zig.display())));
        }
        self.build_bin(root, "ubiverbs").map(|_| ())
    }

    /// Builds one of the programs, and returns where it is.
    pub fn build_bin(&self, root: &Path, name: &str) -> Result<PathBuf, String> {
        let mut command = self.cargo(root, "build");
        if self.debug {
            command.args(process::AS_THE_TESTS);
        } else {
            command.arg("--release").args(packages());
        }
        if !process::is_built(if self.debug { "build" } else { "release" }) {
            process::run(command.args(["--bin", name]))?;
        }
        Ok(self.place(&process::target_directory(root)?).join(self.profile()).join(name))
    }

    /// Where things for this machine are, below cargo's directory.
    pub fn place(&self, target: &Path) -> PathBuf {
        if self.cross { target.join(self.machine.target()) } else { target.to_path_buf() }
    }

    /// Runs a program of the machine.
    pub fn start(&self, program: &Path) -> Command {
        if !self.cross {
            return Command::new(program);
        }
        let mut command = Command::new(self.emulator());
        command.args(["-L", &self.system_root()]).arg(program);
        command
    }

    /// Runs programs of the machine, one process after the other.
    pub fn emulator(&self) -> String {
        format!("qemu-{}-static", self.machine.name())
    }

    /// Where the cross compiler's C library is.
    pub fn system_root(&self) -> String {
        format!("/usr/{}", self.machine.gnu())
    }
}
