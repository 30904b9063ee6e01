//! The Debian package, and the one with its debug information. The first keeps our libraries in a directory of its own,
//! where only `ubiverbs run` finds them: the system's libraries stay what they are. No tool of Debian's is needed to
//! make them.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{CODE, Source, copy, directory, package, write};
use crate::elf;
use crate::process::{self, cargo, run};

/// Counts packages of one version of ours.
const REVISION: u32 = 1;

/// What lintian would complain of, and why it need not.
const OVERRIDES: &str = "\
# They only jump into libibverbs.so.1 beside them, which is linked against it.
ubiverbs: library-not-linked-against-libc [usr/lib/ubiverbs/lib/librdmacm.so.1]
ubiverbs: library-not-linked-against-libc [usr/lib/ubiverbs/lib/libibumad.so.3]
ubiverbs: library-not-linked-against-libc [usr/lib/ubiverbs/lib/librspreload.so]
";

/// Makes both; returns where they are.
pub fn build(source: &Source<'_>) -> Result<Vec<PathBuf>, String> {
    let data = source.work.join("data");
    let lib = data.join("usr/lib/ubiverbs");
    copy(source.dist, &lib)?;
    let symbols = source.work.join("symbols");
    for file in CODE {
        let path = lib.join(file);
        strip(source, &path, &symbols)?;
        if file.starts_with("lib/") {
            // Debian's libraries are loaded, not executed.
            run(Command::new("chmod").arg("644").arg(&path))?;
        }
    }
    write(&data.join("usr/share/lintian/overrides/ubiverbs"), OVERRIDES)?;
    // Manual pages and completions are where the system looks for them.
    let share = data.join("usr/share");
    for part in ["man", "bash-completion", "fish", "zsh"] {
        copy(&lib.join("share").join(part), &share.join(part))?;
    }
    fs::remove_dir_all(lib.join("share")).map_err(|e| format!("cannot remove the other share: {e}"))?;
    let functions = share.join("zsh/vendor-completions");
    fs::rename(share.join("zsh/site-functions"), &functions)
        .map_err(|e| format!("cannot make {}: {e}", functions.display()))?;
    compress(&share.join("man/man1"))?;
    directory(&data.join("usr/bin"))?;
    let link = data.join("usr/bin/ubiverbs");
    symlink("../lib/ubiverbs/bin/ubiverbs", &link).map_err(|e| format!("cannot make {}: {e}", link.display()))?;
    let about = About::of(source)?;
    documents(source, &about, &share.join("doc/ubiverbs"))?;

    let libc = elf::newest_libc(&CODE.map(|file| source.dist.join(file)))?;
    let description = "\
RDMA verbs in user space
 A software RDMA NIC without kernel module, privileges or hardware. Programs
 written for libibverbs and librdmacm run on it unmodified, started with
 \"ubiverbs run\"; on the wire it speaks RoCEv2. It is for writing, testing and
 understanding RDMA programs: packets can be captured, lost on purpose and
 explained, in a container or in a continuous integration job as well.
 .
 The libraries of this package are private to it: other programs keep using
 those of the system.";
    let control = format!(
        "Section: net\nPriority: optional\nDepends: libc6 (>= {libc})\n\
         Suggests: ibverbs-utils, perftest, rdmacm-utils\n{}Description: {description}\n",
        about.homepage
    );
    let program = pack(source, &about, "ubiverbs", &data, &control)?;

    let version = &about.version;
    let documentation = symbols.join("usr/share/doc/ubiverbs-dbgsym");
    documentation.parent().map_or(Ok(()), directory)?;
    symlink("ubiverbs", &documentation).map_err(|e| format!("cannot make {}: {e}", documentation.display()))?;
    let control = format!(
        "Section: debug\nPriority: optional\nDepends: ubiverbs (= {version})\nAuto-Built-Package: debug-symbols\n\
         Build-Ids: {}\n{}Description: debug symbols for ubiverbs\n",
        identities(&symbols)?.join(" "),
        about.homepage
    );
    let debug = pack(source, &about, "ubiverbs-dbgsym", &symbols, &control)?;
    Ok(vec![program, debug])
}

/// What both packages say of their origin.
struct About {
    version: String,
    maintainer: String,
    /// A field, or nothing.
    homepage: String,
}

impl About {
    fn of(source: &Source<'_>) -> Result<About, String> {
        let known = package(source.root)?;
        // As Debian's own tools take it; and the project as such where nobody says who packs this. The domain is one
        // that can never exist: the project has no address for mail.
        let name = env::var("DEBFULLNAME").unwrap_or_else(|_| "The ubiverbs authors".into());
        let address = env::var("DEBEMAIL").unwrap_or_else(|_| "ubiverbs@packages.invalid".into());
        let homepage = known["homepage"].as_str().or(known["repository"].as_str());
        Ok(About {
            version: format!("{}-{REVISION}", source.version),
            maintainer: format!("{name} <{address}>"),
            homepage: homepage.map(|address| format!("Homepage: {address}\n")).unwrap_or_default(),
        })
    }
}

/// Takes the symbols out of a file and puts them to where debuggers look for them, by the file's identity.
fn strip(source: &Source<'_>, file: &Path, symbols: &Path) -> Result<(), String> {
    let tool = |name: &str| source.toolchain.tool(name);
    let text = process::output(Command::new("readelf").args(["--notes", "--wide"]).arg(file))?;
    let identity = text.split("Build ID: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let (first, rest) = identity
        .and_then(|identity| identity.split_at_checked(2))
        .ok_or_else(|| format!("{} has no build identity", file.display()))?;
    let sections = process::output(Command::new("readelf").args(["--sections", "--wide"]).arg(file))?;
    // The library of jumps has none.
    if sections.contains(".debug_info") {
        let aside = symbols.join(format!("usr/lib/debug/.build-id/{first}/{rest}.debug"));
        aside.parent().map_or(Ok(()), directory)?;
        run(tool("objcopy").args(["--only-keep-debug", "--compress-debug-sections"]).arg(file).arg(&aside))?;
        run(Command::new("chmod").arg("644").arg(&aside))?;
    }
    run(tool("strip").args(["--strip-unneeded", "--remove-section=.comment", "--remove-section=.note"]).arg(file))
}

/// The identities of the files whose symbols are there.
fn identities(symbols: &Path) -> Result<Vec<String>, String> {
    let text = process::output(
        Command::new("find").current_dir(symbols.join("usr/lib/debug/.build-id")).args(["-name", "*.debug"]),
    )?;
    let identity = |line: &str| line.trim_start_matches("./").trim_end_matches(".debug").replace('/', "");
    let mut identities: Vec<String> = text.lines().map(identity).collect();
    identities.sort();
    Ok(identities)
}

/// Compresses each file of a directory, or one file.
fn compress(path: &Path) -> Result<(), String> {
    run(Command::new("gzip").args(["-9n", "--recursive"]).arg(path))
}

/// What is read: documents, licences, what is new.
fn documents(source: &Source<'_>, about: &About, place: &Path) -> Result<(), String> {
    let root = source.root;
    copy(&root.join("docs"), place)?;
    copy(&root.join("README.md"), &place.join("README.md"))?;
    copy(&root.join("CHANGELOG.md"), &place.join("changelog"))?;
    let date = process::output(
        Command::new("date")
            .env("LC_ALL", "C")
            .args(["--utc", "--rfc-email"])
            .arg(format!("--date=@{}", source.moment)),
    )?;
    let changes = format!(
        "ubiverbs ({}) unstable; urgency=medium\n\n  * Made by cargo xtask dist; changelog.gz says what is new.\n\n \
         -- {}  {}\n",
        about.version,
        about.maintainer,
        date.trim()
    );
    write(&place.join("changelog.Debian"), &changes)?;
    compress(&place.join("changelog"))?;
    compress(&place.join("changelog.Debian"))?;
    write(&place.join("copyright"), &copyright(source)?)
}

/// Who may do what with it, as Debian's tools read it.
fn copyright(source: &Source<'_>) -> Result<String, String> {
    let path = source.root.join("LICENSE-MIT");
    let text = fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let (head, terms) = text.split_once("\n\n").unwrap_or(("", &text));
    let (head, terms) =
        if head.contains("Copyright") { (head, terms) } else { terms.split_once("\n\n").unwrap_or((head, terms)) };
    let holder = head
        .lines()
        .find_map(|line| line.split_once("Copyright (c) "))
        .map_or("The ubiverbs authors", |(_, name)| name);
    let indented: String =
        terms.trim().lines().map(|line| if line.is_empty() { " .\n".into() } else { format!(" {line}\n") }).collect();
    let crates: String = linked(source)?.iter().map(|line| format!(" {line}\n")).collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: ubiverbs\n\
         Comment:\n Crates of others that are linked in, and their licences:\n{crates}\n\
         Files: *\nCopyright: {holder}\nLicense: Expat or Apache-2.0\n\n\
         License: Expat\n{indented}\n\
         License: Apache-2.0\n On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0.\n"
    ))
}

/// The crates of others in program and libraries, with their licences.
fn linked(source: &Source<'_>) -> Result<Vec<String>, String> {
    let mut tree = cargo(source.root);
    tree.args(["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}: {l}"]);
    tree.args(["--package", "ubiverbs-cli", "--package", "ubiverbs-capi", "--package", "ubiverbs-paths"]);
    let text = process::output(tree.args(["--target", &source.toolchain.machine.target()]))?;
    // Ours have a path after the version; a star says that the crate was named before.
    let others = text.lines().map(|line| line.trim_end_matches(" (*)")).filter(|line| !line.is_empty());
    let mut crates: Vec<String> =
        others.filter(|line| !line.contains("(/")).map(|line| line.replace(" (proc-macro)", "")).collect();
    crates.sort();
    crates.dedup();
    Ok(crates)
}

/// Packs a tree into a package; returns where it is.
fn pack(source: &Source<'_>, about: &About, name: &str, data: &Path, fields: &str) -> Result<PathBuf, String> {
    let architecture = source.toolchain.machine.debian();
    let About { version, maintainer, .. } = about;
    let control = source.work.join(format!("{name}-control"));
    let size = installed_size(data)?;
    let text = format!(
        "Package: {name}\nSource: ubiverbs\nVersion: {version}\nArchitecture: {architecture}\n\
         Maintainer: {maintainer}\nInstalled-Size: {size}\n{fields}"
    );
    write(&control.join("control"), &text)?;
    let sums = "find . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 md5sum";
    write(&control.join("md5sums"), &process::output(Command::new("sh").current_dir(data).args(["-c", sums]))?)?;
    let parts = source.work.join(format!("{name}-parts"));
    write(&parts.join("debian-binary"), "2.0\n")?;
    source.archive(&parts.join("control.tar.gz"), &control, ".")?;
    source.archive(&parts.join("data.tar.gz"), data, ".")?;
    let path = source.place.join(format!("{name}_{version}_{architecture}.deb"));
    let mut ar = Command::new("ar");
    run(ar.current_dir(&parts).arg("rcD").arg(&path).args(["debian-binary", "control.tar.gz", "data.tar.gz"]))?;
    Ok(path)
}

/// How many KiB a tree takes when it is installed, by the rule of Debian's own tools: each file is rounded up, anything
/// else is one. `du` would count directories as the file system that this is built on does.
fn installed_size(tree: &Path) -> Result<u64, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", tree.display());
    let mut size = 1;
    for entry in fs::read_dir(tree).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        size += match () {
            () if kind.is_dir() => installed_size(&entry.path())?,
            () if kind.is_file() => entry.metadata().map_err(failed)?.len().div_ceil(1024),
            () => 1,
        };
    }
    Ok(size)
}
