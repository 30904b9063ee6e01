//! Programs from the Python Package Index, for `cargo xtask programs --downloads`: wheels of versions that are named
//! here, and a virtual environment with them. Both are kept in target/python; remove it to download again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, output, run};

/// A package, its version, and how large its wheel is.
struct Wheel {
    name: &'static str,
    version: &'static str,
    megabytes: u32,
}

/// Mooncake without CUDA, as the other needs CUDA's libraries to be loaded at all. NIXL loads those only for memory of
/// GPUs, and takes whichever of its two packages is there; it names PyTorch as a dependency, which it uses only where a
/// program gives it tensors. So no dependencies are installed but those named here.
const WHEELS: [Wheel; 4] = [
    Wheel { name: "mooncake-transfer-engine-non-cuda", version: "0.3.13.post1", megabytes: 46 },
    Wheel { name: "nixl", version: "1.5.1", megabytes: 1 },
    Wheel { name: "nixl-cu13", version: "1.5.1", megabytes: 59 },
    Wheel { name: "numpy", version: "2.4.6", megabytes: 17 },
];

/// Sees that everything is there, and returns the virtual environment.
pub fn provide(root: &Path) -> Result<PathBuf, String> {
    let place = process::target_directory(root)?.join("python");
    let [wheels, environment, stamp] = ["wheels", "environment", "installed"].map(|name| place.join(name));
    let python = output(Command::new("python3").arg("--version"))
        .map_err(|e| format!("{e}\ninstall it with: apt-get install python3-venv"))?;
    let wanted: Vec<String> = WHEELS.iter().map(|Wheel { name, version, .. }| format!("{name}=={version}")).collect();
    let state = format!("{}\n{}\n", python.trim(), wanted.join("\n"));
    if fs::read_to_string(&stamp).is_ok_and(|it| it == state) {
        return Ok(environment);
    }
    println!("downloading into {}, at most:", wheels.display());
    for Wheel { name, version, megabytes } in &WHEELS {
        println!("{megabytes:>6} MB  {name} {version}");
    }
    fs::create_dir_all(&wheels).map_err(|e| format!("cannot make {}: {e}", wheels.display()))?;
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))
        .map_err(|e| format!("{e}\nthe module is in a package of its own: apt-get install python3-venv"))?;
    let pip = environment.join("bin/pip");
    let fixed = ["--quiet", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"];
    run(Command::new(&pip).arg("download").args(fixed).arg("--dest").arg(&wheels).args(&wanted))?;
    run(Command::new(&pip).arg("install").args(fixed).args(["--no-index", "--find-links"]).arg(&wheels).args(&wanted))?;
    // They need some libraries of the system.
    let import = ["-c", "import mooncake.engine, nixl._api"];
    run(Command::new(environment.join("bin/python")).args(import))
        .map_err(|e| format!("{e}\ntheir libraries need others: apt-get install libcurl4 libnuma1"))?;
    fs::write(&stamp, state).map_err(|e| format!("cannot write {}: {e}", stamp.display()))?;
    Ok(environment)
}
