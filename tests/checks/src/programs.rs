//! The programs: compiled once, run with a checker, and what they were told.

use checks::{Family, Number, Rule};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// Seconds after which a program is stuck. They take some tenths of a second where the machine has time.
pub const TIME_LIMIT_SECONDS: u32 = 300;

/// Whether a program breaks its rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Break,
    Keep,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Break => "break",
            Kind::Keep => "keep",
        }
    }
}

/// How a program ended, and what it was told.
pub struct Ended {
    pub succeeded: bool,
    pub how: String,
    /// What it wrote.
    pub said: String,
    /// The rules that were told of, also those that another one names.
    pub findings: BTreeSet<Number>,
    /// A rule that told of a mistake which another one had told of for it.
    pub told_twice: Option<Number>,
}

/// The programs of all families that were asked for.
pub struct Programs {
    libraries: PathBuf,
    place: PathBuf,
    by_family: BTreeMap<String, PathBuf>,
}

impl Programs {
    /// Compiles the programs of these families, all at once, where the source is newer. A family without a file has no
    /// programs.
    pub fn compile(libraries: &Path, families: &BTreeSet<&str>) -> Result<Programs, String> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
        let place = libraries.with_file_name("check-programs");
        fs::create_dir_all(&place).map_err(|e| format!("cannot make {}: {e}", place.display()))?;
        let mut by_family = BTreeMap::new();
        let mut compilers = Vec::new();
        for family in families {
            let (source, program) = (sources.join(format!("{family}.c")), place.join(family));
            if !source.exists() {
                continue;
            }
            by_family.insert((*family).to_owned(), program.clone());
            let newest = [source.clone(), sources.join("common.h")].iter().filter_map(|path| modified(path)).max();
            if modified(&program) > newest {
                continue;
            }
            let mut compiler = Command::new("cc");
            compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]);
            compiler.args(["-Wno-unused-function", "-g", "-O1", "-o"]).arg(&program).arg(&source);
            compiler.arg("-L").arg(libraries).args(["-lrdmacm", "-libverbs", "-lpthread"]);
            let child = compiler.spawn().map_err(|e| format!("cc is missing ({e}): apt-get install gcc"))?;
            compilers.push((source, child));
        }
        // The stand-in for a GPU's driver lies beside the programs.
        let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/driver.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "-o"]).arg(place.join("libcuda.so.1"));
        let child = compiler.arg(&driver).arg("-lpthread").spawn().map_err(|e| format!("cc: {e}"))?;
        compilers.push((driver, child));
        for (source, mut child) in compilers {
            let status = child.wait().map_err(|e| e.to_string())?;
            if !status.success() {
                return Err(format!(
                    "{} does not compile; are libibverbs-dev and librdmacm-dev installed?",
                    source.display()
                ));
            }
        }
        Ok(Programs { libraries: libraries.to_owned(), place, by_family })
    }

    /// The directory with the library.
    pub fn libraries(&self) -> &Path {
        &self.libraries
    }

    /// The program of a family.
    pub fn path(&self, family: &str) -> PathBuf {
        self.place.join(family)
    }

    /// The cases of all programs.
    pub fn cases(&self) -> Result<Vec<(String, Number, Kind)>, String> {
        let mut cases = Vec::new();
        for (family, program) in &self.by_family {
            let output = self.command(program).arg("--list").output().map_err(|e| format!("{family}: {e}"))?;
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let mut words = line.split_whitespace();
                let rule = words.next().unwrap_or("");
                let rule: Number = rule.parse().map_err(|_| format!("{family}.c: {rule:?} is no number of a rule"))?;
                let kinds = [Kind::Break, Kind::Keep];
                cases.extend(words.filter_map(|word| {
                    kinds.iter().find(|kind| kind.name() == word).map(|kind| (family.clone(), rule, *kind))
                }));
            }
        }
        Ok(cases)
    }

    /// Runs a program to its end, with everything on.
    pub fn run(&self, family: &str, rule: Number, kind: Kind) -> Result<Ended, String> {
        let program = &self.by_family[family];
        let spool = self.place.join(format!("{rule}-{}-{}.findings", kind.name(), std::process::id()));
        let _ = fs::remove_file(&spool);
        let mut command = self.command("timeout");
        command.arg("--kill-after=2").arg(TIME_LIMIT_SECONDS.to_string());
        let finds_races = Rule::of(rule).is_some_and(|rule| rule.family() == Family::Races);
        if finds_races {
            // Of all its processes together.
            command.arg(self.libraries.with_file_name("bin").join("ubiverbs")).args(["run", "--no-files"]);
            command.args(["--check=races", "--check-format=json", "--check-report"]).arg(&spool).arg("--");
        } else {
            command.env("UBIVERBS_WHY", "text").env("UBIVERBS_CHECK", "text").env("UBIVERBS_FINDINGS", &spool);
        }
        command.arg(program).arg(rule.to_string()).arg(kind.name());
        let output = command.stdin(Stdio::null()).output().map_err(|e| format!("timeout: {e}"))?;
        let lines = fs::read_to_string(&spool).unwrap_or_default();
        let _ = fs::remove_file(&spool);
        let (mut findings, mut named) = (BTreeSet::new(), BTreeSet::new());
        let mut told = Vec::new();
        for line in serde_json::Deserializer::from_str(&lines).into_iter::<serde_json::Value>() {
            let line = line.map_err(|e| format!("a finding is no JSON: {e}: {lines}"))?;
            match line["findings"].as_array() {
                Some(findings) => told.extend(findings.iter().cloned()),
                None => told.push(line),
            }
        }
        for line in told {
            let number = |rule: &serde_json::Value| rule.as_str()?.parse::<Number>().ok();
            findings.extend(number(&line["rule"]));
            named.extend(line["also"].as_array().into_iter().flatten().filter_map(number));
        }
        let told_twice = named.intersection(&findings).next().copied();
        findings.append(&mut named);
        if lines.is_empty() {
            return Err(format!("nobody checked the program\n{}", String::from_utf8_lossy(&output.stderr)));
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = text(&output.stdout) + &text(&output.stderr);
        let how = match output.status.code() {
            Some(124 | 137) => format!("took more than {TIME_LIMIT_SECONDS} s"),
            _ => format!("ended with {}", output.status),
        };
        Ok(Ended { succeeded: output.status.success(), how, said, findings, told_twice })
    }

    /// A program on our library, without what the environment says otherwise.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", &self.libraries).current_dir(&self.place);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("UBIVERBS_")) {
            command.env_remove(name);
        }
        command
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}
