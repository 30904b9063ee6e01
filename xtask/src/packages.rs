//! What people download: a tarball that is unpacked anywhere, and a Debian package. Debug information stays out of
//! both; Debian's other half of it is a package of its own. The same source gives the same bytes for every packer.

mod debian;

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, run};
use crate::toolchain::Toolchain;

/// What of `dist` has code.
pub const CODE: [&str; 6] = [
    "bin/ubiverbs",
    "lib/libibverbs.so.1",
    "lib/librdmacm.so.1",
    "lib/libibumad.so.3",
    "lib/librspreload.so",
    "lib/libubiverbs-paths.so",
];

/// What packages are made of.
struct Source<'a> {
    root: &'a Path,
    toolchain: &'a Toolchain,
    /// The directory with programs and libraries.
    dist: &'a Path,
    /// Where packages go, and a place for what is packed.
    place: PathBuf,
    work: PathBuf,
    version: String,
    /// When the source was last changed, in seconds of UTC: what is packed says nothing of when it was.
    moment: u64,
}

/// Makes all of them out of `dist`, in `packages` beside it; returns where they are.
pub fn build(root: &Path, toolchain: &Toolchain, dist: &Path) -> Result<Vec<PathBuf>, String> {
    let place = dist.with_file_name("packages");
    let _ = fs::remove_dir_all(&place);
    let work = place.join("work");
    let source = Source { root, toolchain, dist, place, work, version: version(root)?, moment: moment(root) };
    let mut made = vec![source.tarball()?];
    made.extend(debian::build(&source)?);
    let _ = fs::remove_dir_all(&source.work);
    Ok(made)
}

impl Source<'_> {
    fn tarball(&self) -> Result<PathBuf, String> {
        let name = format!("ubiverbs-{}", self.version);
        let tree = self.work.join(&name);
        copy(self.dist, &tree)?;
        for file in CODE {
            // Names of functions stay, for backtraces.
            run(self.toolchain.tool("strip").arg("--strip-debug").arg(tree.join(file)))?;
        }
        for file in ["README.md", "README.zh.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "docs"] {
            copy(&self.root.join(file), &tree.join(file))?;
        }
        write(&tree.join("INSTALL.md"), &INSTALL.replace("@NAME@", &name))?;
        let path = self.place.join(format!("{name}-{}-linux.tar.gz", self.toolchain.machine.name()));
        self.archive(&path, &self.work, &name)?;
        Ok(path)
    }

    /// A directory as a compressed tarball.
    fn archive(&self, path: &Path, directory: &Path, name: &str) -> Result<(), String> {
        tar(path, directory, name, self.moment, &["--use-compress-program=gzip -9n"])
    }
}

/// A directory as a tarball: root's, and the same for every user who makes it.
pub fn tar(path: &Path, directory: &Path, name: &str, moment: u64, more: &[&str]) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(["--format=gnu", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
    tar.arg(format!("--mtime=@{moment}")).args(more).arg("-cf");
    run(tar.arg(path).arg("-C").arg(directory).arg(name))
}

/// What the tarball says of itself.
const INSTALL: &str = "\
# Installing

It works where it is unpacked; nothing else is needed than the C library.

```sh
./bin/ubiverbs run -- ibv_devinfo      # any program that uses libibverbs, librdmacm or libibumad
./bin/ubiverbs doctor                  # what would keep programs from working here
```

For every user of the machine, with manual pages:

```sh
sudo cp -a ../@NAME@ /opt/ubiverbs
sudo ln -s /opt/ubiverbs/bin/ubiverbs /usr/local/bin/ubiverbs
sudo cp -a share/. /usr/local/share/
```

`bin` and `lib` stay together: the program looks for its libraries in `../lib`. Do not copy the libraries to where the
system looks for its own, unless every program is to use them. To remove it, remove what was copied.
";

/// The version of the program.
pub fn version(root: &Path) -> Result<String, String> {
    let package = package(root)?;
    package["version"].as_str().map(str::to_owned).ok_or_else(|| "the program has no version".into())
}

/// What cargo knows of the program.
fn package(root: &Path) -> Result<serde_json::Value, String> {
    let metadata = process::metadata(root)?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let package = packages.iter().find(|package| package["name"] == "ubiverbs-cli");
    package.cloned().ok_or_else(|| "cargo knows no ubiverbs-cli".into())
}

/// When the source was last changed: what the caller says, as is usual, or the last commit.
pub fn moment(root: &Path) -> u64 {
    let said = env::var("SOURCE_DATE_EPOCH").ok();
    let committed = || {
        let git = Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"]).output().ok()?;
        String::from_utf8(git.stdout).ok()
    };
    // Debian's tools take what is older than 1985 for a mistake.
    said.or_else(committed).and_then(|text| text.trim().parse().ok()).unwrap_or(1_700_000_000)
}

/// Copies a file or a directory; links stay links.
pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    to.parent().map_or(Ok(()), directory)?;
    run(Command::new("cp").arg("-a").arg(from).arg(to))
}

/// Writes a file, and makes its directory.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    path.parent().map_or(Ok(()), directory)?;
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn directory(path: &Path) -> Result<(), String> {
    let readable = |()| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    fs::create_dir_all(path).and_then(readable).map_err(|e| format!("cannot make {}: {e}", path.display()))
}
