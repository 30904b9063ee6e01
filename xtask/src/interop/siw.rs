//! The kernel's Soft-iWARP, which Debian's kernels leave out: compiled from Debian's package of their source against the
//! headers of the kernel that the virtual machine boots. Everything stays below target/interop.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;

/// Where the driver is in the source of the kernel.
const DRIVER: &str = "drivers/infiniband/sw/siw";

/// The module for a kernel, such as `6.1.0-56-amd64`. What was compiled already is taken.
pub fn module(place: &Path, release: &str) -> Result<PathBuf, String> {
    let module = place.join(format!("siw-{release}.ko"));
    if module.exists() {
        return Ok(module);
    }
    println!("fetching the source of the kernel, and compiling siw");
    let work = place.join("siw");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).map_err(|e| format!("cannot make {}: {e}", work.display()))?;
    let (common, series) =
        names(release).ok_or_else(|| format!("{release} is not the release of a kernel of Debian"))?;
    let source = format!("linux-source-{series}");
    let packages = [
        format!("linux-headers-{release}"),
        format!("linux-headers-{common}-common"),
        format!("linux-kbuild-{series}"),
        source.clone(),
    ];
    let mut download = Command::new("apt-get");
    download.current_dir(&work).args(["--quiet=2", "--option", "APT::Sandbox::User=root", "download"]).args(&packages);
    process::run(&mut download).map_err(|e| format!("cannot download {}\n{e}", packages.join(" ")))?;
    let root = work.join("root");
    for archive in fs::read_dir(&work).map_err(|e| format!("cannot read {}: {e}", work.display()))?.flatten() {
        if archive.path().extension().is_some_and(|extension| extension == "deb") {
            process::run(Command::new("dpkg-deb").arg("--extract").arg(archive.path()).arg(&root))?;
        }
    }
    let wanted = format!("{source}/{DRIVER}");
    let archive = root.join("usr/src").join(format!("{source}.tar.xz"));
    process::run(Command::new("tar").arg("-C").arg(&work).arg("-xf").arg(archive).arg(&wanted))?;
    // Headers of one kind of kernel include those of all by their place in the system.
    let headers = root.join("usr/src").join(format!("linux-headers-{release}"));
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile).map_err(|e| format!("cannot read {}: {e}", makefile.display()))?;
    let text = text.replace("/usr/src/", &format!("{}/", root.join("usr/src").display()));
    fs::write(&makefile, text).map_err(|e| format!("cannot write {}: {e}", makefile.display()))?;
    let driver = work.join(&wanted);
    let mut make = Command::new("make");
    make.arg("-C").arg(&headers).arg(format!("M={}", driver.display())).args(["CONFIG_RDMA_SIW=m", "modules"]);
    process::run(&mut make).map_err(|e| format!("siw does not compile: it needs the kernel's compiler\n{e}"))?;
    fs::copy(driver.join("siw.ko"), &module).map_err(|e| format!("cannot write {}: {e}", module.display()))?;
    let _ = fs::remove_dir_all(&work);
    Ok(module)
}

/// `6.1.0-56` and `6.1` for `6.1.0-56-amd64`.
fn names(release: &str) -> Option<(&str, String)> {
    let (common, _) = release.rsplit_once('-')?;
    let mut numbers = common.split('.');
    Some((common, format!("{}.{}", numbers.next()?, numbers.next()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_names_of_a_release() {
        assert_eq!(names("6.1.0-56-amd64"), Some(("6.1.0-56", "6.1".into())));
        assert_eq!(names("6.12.107+deb13-amd64"), Some(("6.12.107+deb13", "6.12".into())));
        assert_eq!(names("6"), None);
    }
}
