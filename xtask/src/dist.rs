//! What is handed to people: the program and the C libraries, in a directory that works wherever it is copied to.
//! `libibverbs.so.1` is an archive of Rust linked by hand, because only a linker script gives symbols the versions that
//! programs ask for; `librdmacm.so.1` and `libibumad.so.3` jump into it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages;
use crate::preload;
use crate::process::{self, run};
use crate::toolchain::{Machine, Toolchain};

/// The private nodes of rdma-core's releases; drivers ask for the one of the release they were built with.
const PRIVATE: &[u32] = &[25, 33, 34, 57, 59, 64, 65];

/// The node of libibverbs.so.1 that is for our own libraries only.
const OWN: &str = "UBIVERBS_PRIVATE";

/// What it has there for programs that look for it by name: other tools' spans, and NCCL's profiler plugin, of which
/// the library has another name.
const LOOKED_FOR: [&str; 2] = ["ubiverbs_record_span", "ncclProfiler_v4"];
pub const PROFILER_NAME: &str = "libnccl-profiler-ubiverbs.so";

/// The libraries that are jumps into libibverbs.so.1, and the tables of their symbols.
const JUMPING: [(&str, &str); 2] = [("librdmacm.so.1", "rdmacm.txt"), ("libibumad.so.3", "umad.txt")];

/// The one whose symbols count when no version is named.
const DEFAULT_PRIVATE: u32 = 34;

/// What to build.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Options {
    /// Only the C library.
    #[arg(long)]
    library: bool,
    /// Of the dev profile, in target/dist-debug: built sooner, slower to run, and not packed.
    #[arg(long)]
    debug: bool,
    /// For this machine; another than this one needs a cross compiler and QEMU, which are installed where that is
    /// possible. What is made is then in target/MACHINE-unknown-linux-gnu.
    #[arg(long, value_name = "MACHINE")]
    target: Option<Machine>,
}

impl Options {
    /// Only the C library, for this machine.
    pub const LIBRARY: Options = Options { library: true, debug: false, target: None };

    /// Everything of the dev profile, which is made sooner, runs slower and checks more.
    pub const DEBUG: Options = Options { library: false, debug: true, target: None };

    /// Everything, for a machine.
    pub fn machine(target: Machine) -> Options {
        Options { library: false, debug: false, target: Some(target) }
    }
}

/// Builds what is asked for and returns where it is.
pub fn build(root: &Path, options: Options) -> Result<String, String> {
    let mut toolchain = Toolchain::system(root, options.target)?;
    let mut place = toolchain.place(&process::target_directory(root)?).join("dist");
    if options.debug {
        (toolchain, place) = (toolchain.with_debug_profile(), place.with_file_name("dist-debug"));
    }
    let mut made = tree(root, &toolchain, &place, options.library)?;
    if !options.library && !options.debug {
        made.extend(packages::build(root, &toolchain, &place)?);
    }
    Ok(made.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join("\n"))
}

/// Builds everything for this machine, and packs nothing.
pub fn unpacked(root: &Path) -> Result<(), String> {
    if process::is_built("release") {
        return Ok(());
    }
    let toolchain = Toolchain::system(root, None)?;
    tree(root, &toolchain, &process::target_directory(root)?.join("dist"), false).map(|_| ())
}

/// Makes the directory with programs and libraries; returns what is in it.
pub fn tree(root: &Path, toolchain: &Toolchain, place: &Path, library_only: bool) -> Result<Vec<PathBuf>, String> {
    let built = toolchain.place(&process::target_directory(root)?).join(toolchain.profile());
    let directory = |name: &str| {
        let path = place.join(name);
        fs::create_dir_all(&path).map_err(|e| format!("cannot make {}: {e}", path.display())).map(|()| path)
    };
    toolchain.build_libraries(root, library_only)?;
    let work = directory("build")?;
    let tables = JUMPING.map(|(library, name)| (library, table(root, name)));
    let mut jumping = Vec::new();
    for (library, table) in &tables {
        jumping.push((*library, jumps_of(table.as_ref().map_err(String::clone)?)?));
    }
    let jumps: Vec<Jump<'_>> = jumping.iter().flat_map(|(_, jumps)| jumps).copied().collect();
    let stands = table(root, "rspreload.txt")?;
    let stands = preload::stands(&stands)?;
    let private = private_node(&jumps, &preload::private_names(&stands));
    let library = link(root, toolchain, &private, &built.join("libcapi.a"), &work, &directory("lib")?)?;
    let mut others = vec![preload::link(toolchain, &stands, &library, &work)?];
    for (name, jumps) in &jumping {
        others.push(link_table(toolchain, name, jumps, &library, &work)?);
    }
    if library_only {
        let _ = fs::remove_dir_all(&work);
        return Ok(vec![library]);
    }
    let paths = link_paths(toolchain, &built.join("libpaths.a"), &work, &directory("lib")?)?;
    let _ = fs::remove_dir_all(&work);
    toolchain.build_program(root)?;
    let program = directory("bin")?.join("ubiverbs");
    replace(&program, |to| fs::copy(built.join("ubiverbs"), to).map(|_| ()))?;
    let share = directory("share")?;
    run(toolchain.start(&program).arg("manual").arg(&share))?;
    let mut made = vec![program, library];
    made.append(&mut others);
    made.extend([paths, share]);
    Ok(made)
}

/// A table of symbols.
fn table(root: &Path, name: &str) -> Result<String, String> {
    let table = root.join("crates/capi/link").join(name);
    fs::read_to_string(&table).map_err(|e| format!("cannot read {}: {e}", table.display()))
}

/// Writes what the linker is to read.
pub fn write(work: &Path, name: &str, content: &str) -> Result<PathBuf, String> {
    let path = work.join(name);
    fs::write(&path, content).map_err(|e| format!("cannot write {}: {e}", path.display())).map(|()| path)
}

/// Links the archive into `libibverbs.so.1`.
fn link(
    root: &Path,
    toolchain: &Toolchain,
    private: &str,
    archive: &Path,
    work: &Path,
    lib: &Path,
) -> Result<PathBuf, String> {
    let text = table(root, "symbols.txt")?;
    let symbols = symbols(&text)?;
    let script = write(work, "versions.map", &(version_script(&symbols) + private))?;
    let stand_ins = write(work, "stand_ins.s", &assembly(toolchain.machine, &symbols))?;
    let library = lib.join("libibverbs.so.1");
    link_shared(toolchain, &library, &script, &[&stand_ins], archive)?;
    // What programs find when they are linked, and what NCCL opens first.
    for name in ["libibverbs.so", PROFILER_NAME] {
        replace(&lib.join(name), |to| symlink("libibverbs.so.1", to))?;
    }
    Ok(library)
}

/// Links a library of jumps from its table, beside the library that it jumps into.
fn link_table(
    toolchain: &Toolchain,
    name: &str,
    jumps: &[Jump<'_>],
    verbs: &Path,
    work: &Path,
) -> Result<PathBuf, String> {
    let script = write(work, &format!("{name}.map"), &jumps_script(jumps))?;
    let code = write(work, &format!("{name}.s"), &jumps_code(toolchain.machine, jumps))?;
    let library = verbs.with_file_name(name);
    link_jumps(toolchain, &library, name, &script, &code, verbs)?;
    replace(&library.with_extension(""), |to| symlink(name, to))?;
    Ok(library)
}

/// Links a library of jumps into libibverbs.so.1, which it looks for beside itself.
pub fn link_jumps(
    toolchain: &Toolchain,
    library: &Path,
    name: &str,
    script: &Path,
    code: &Path,
    verbs: &Path,
) -> Result<(), String> {
    replace(library, |to| {
        let mut linker = toolchain.compiler();
        linker
            .args(["-shared", "-nostdlib", "-Wl,--build-id=sha1", "-o"])
            .arg(to)
            .arg(format!("-Wl,-soname,{name}"))
            // Beside it, or above it: `lib/rsocket/librspreload.so` is another name of `lib/librspreload.so`.
            .arg("-Wl,--enable-new-dtags,-rpath,$ORIGIN:$ORIGIN/..")
            .arg(format!("-Wl,--version-script={}", script.display()))
            .args(["-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,--no-undefined"])
            .arg(code)
            .arg(verbs)
            .args(toolchain.without_libraries_of_libraries());
        run(&mut linker).map_err(std::io::Error::other)
    })
}

/// Links the archive into the library that `ubiverbs run` preloads for device files; it exports what it stands in for, and nothing else.
fn link_paths(toolchain: &Toolchain, archive: &Path, work: &Path, lib: &Path) -> Result<PathBuf, String> {
    // Not nm: where it has LLVM's plugin it reads Rust's objects with that, and badly.
    let text = process::output(Command::new("readelf").args(["--symbols", "--wide"]).arg(archive))?;
    let own =
        text.split("\nFile: ").filter(|member| member.lines().next().is_some_and(|name| name.contains("(paths-")));
    let function = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, _, _, "FUNC", "GLOBAL", "DEFAULT", section, name] if section != "UND" && !name.starts_with("_R") => {
                Some(name.to_owned())
            }
            _ => None,
        }
    };
    let names: Vec<String> = own.flat_map(str::lines).filter_map(function).collect();
    let script = work.join("paths.map");
    let text = format!("{{ global: {}; local: *; }};\n", names.join("; "));
    fs::write(&script, text).map_err(|e| format!("cannot write {}: {e}", script.display()))?;
    let library = lib.join("libubiverbs-paths.so");
    link_shared(toolchain, &library, &script, &[], archive)?;
    Ok(library)
}

/// Links an archive of Rust into a shared library that needs only the C library.
fn link_shared(
    toolchain: &Toolchain,
    library: &Path,
    script: &Path,
    more: &[&Path],
    archive: &Path,
) -> Result<(), String> {
    let name = library.file_name().unwrap_or_default().display();
    replace(library, |to| {
        let mut linker = toolchain.compiler();
        linker
            .args(["-shared", "-Wl,--build-id=sha1", "-o"])
            .arg(to)
            .arg(format!("-Wl,-soname,{name}"))
            .arg(format!("-Wl,--version-script={}", script.display()))
            .args(["-Wl,--gc-sections", "-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,--no-undefined"])
            .args(more)
            .arg("-Wl,--whole-archive")
            .arg(archive)
            .args(["-Wl,--no-whole-archive", "-lpthread", "-ldl", "-lm", "-lc"])
            // What unwinds the stack, as a part of the library.
            .arg(if toolchain.is_zig() { "-lunwind" } else { "-static-libgcc" });
        run(&mut linker).map_err(std::io::Error::other)
    })
}

/// Puts a file in place at once, so that a program which has the old one open keeps it.
pub fn replace(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), String> {
    let fresh = path.with_extension("fresh");
    let _ = fs::remove_file(&fresh);
    make(&fresh).and_then(|()| fs::rename(&fresh, path)).map_err(|e| format!("cannot make {}: {e}", path.display()))
}

/// One exported symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol<'a> {
    node: &'a str,
    answer: SymbolSource,
    name: &'a str,
    /// Found only by those who ask for this version.
    old: bool,
}

/// A symbol of a library of jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Jump<'a> {
    node: &'a str,
    name: &'a str,
}

fn jumps_of(text: &str) -> Result<Vec<Jump<'_>>, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let jump = |line| {
        let words: Vec<&str> = str::split_whitespace(line).collect();
        match words[..] {
            [node, name] => Ok(Jump { node, name }),
            _ => Err(format!("not a node and a name: {line}")),
        }
    };
    lines.map(jump).collect()
}

/// Who answers a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SymbolSource {
    /// A function of the library.
    Own,
    /// A stand-in, by the function that plays it.
    StandIn(&'static str),
    /// A byte.
    Data,
}

fn symbols(text: &str) -> Result<Vec<Symbol<'_>>, String> {
    let mut symbols = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (Some(node), Some(answer), Some(name)) = (words.next(), words.next(), words.next()) else {
            return Err(format!("not a node, an answer and a name: {line}"));
        };
        let old = match words.next() {
            None => false,
            Some("old") => true,
            Some(other) => return Err(format!("{other} says nothing: {line}")),
        };
        let answer = match answer {
            "own" => SymbolSource::Own,
            "status" => SymbolSource::StandIn("ubiverbs_unsupported"),
            "object" => SymbolSource::StandIn("ubiverbs_no_object"),
            "nothing" => SymbolSource::StandIn("ubiverbs_nothing"),
            "data" => SymbolSource::Data,
            other => return Err(format!("{other} is no answer: {line}")),
        };
        symbols.push(Symbol { node, answer, name, old });
    }
    Ok(symbols)
}

/// Public nodes in the order of their numbers.
fn nodes<'a>(symbols: &[Symbol<'a>]) -> Vec<&'a str> {
    let number = |node: &str| node.rsplit('.').next().and_then(|number| number.parse::<u32>().ok());
    let nodes: BTreeMap<_, _> =
        symbols.iter().filter(|s| s.node != "PRIVATE").map(|s| (number(s.node), s.node)).collect();
    nodes.into_values().collect()
}

/// Which names are of which version. Stand-ins bring their version themselves.
fn version_script(symbols: &[Symbol<'_>]) -> String {
    let mut script = String::new();
    let mut parent = String::new();
    let mut block = |node: &str, parent: &str, names: &[&str], hide: bool| {
        let _ = writeln!(script, "{node} {{");
        if !names.is_empty() {
            let _ = writeln!(script, "  global:\n    {};", names.join(";\n    "));
        }
        if hide {
            script.push_str("  local:\n    *;\n");
        }
        let _ = writeln!(script, "}}{parent};\n");
    };
    let nodes = nodes(symbols);
    // A stand-in is looked up in its own node only, and a pattern there would hide it.
    let has_stand_in = |node: &str| symbols.iter().any(|s| s.node == node && s.answer != SymbolSource::Own);
    let hiding = nodes.iter().copied().find(|node| !has_stand_in(node));
    for node in nodes {
        let names: Vec<&str> =
            symbols.iter().filter(|s| s.node == node && s.answer == SymbolSource::Own).map(|s| s.name).collect();
        block(node, &parent, &names, hiding == Some(node));
        parent = format!(" {node}");
    }
    let own: Vec<&str> =
        symbols.iter().filter(|s| s.node == "PRIVATE" && s.answer == SymbolSource::Own).map(|s| s.name).collect();
    for release in PRIVATE {
        let names = if *release == DEFAULT_PRIVATE { own.as_slice() } else { &[] };
        block(&format!("IBVERBS_PRIVATE_{release}"), "", names, false);
    }
    script
}

/// The node of libibverbs.so.1 with what the other libraries jump to, and what a sanitizer looks for.
fn private_node(jumps: &[Jump<'_>], more: &[String]) -> String {
    let names = jumps.iter().map(|jump| format!("ubiverbs_{}", jump.name)).chain(more.iter().cloned());
    let names = names.chain(LOOKED_FOR.map(str::to_owned));
    let names = names.chain(["__asan_default_options", "__tsan_default_options"].map(str::to_owned));
    let names: Vec<String> = names.map(|name| format!("    {name};\n")).collect();
    format!("{OWN} {{\n  global:\n{}}};\n", names.concat())
}

/// Which names of a library of jumps are of which version.
fn jumps_script(jumps: &[Jump<'_>]) -> String {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for jump in jumps {
        nodes.entry(jump.node).or_default().push(jump.name);
    }
    let (mut script, mut parent, mut hide) = (String::new(), String::new(), "  local:\n    *;\n");
    for (node, names) in nodes {
        let names = names.join(";\n    ");
        let _ = writeln!(script, "{node} {{\n  global:\n    {names};\n{hide}}}{parent};\n");
        (parent, hide) = (format!(" {node}"), "");
    }
    script
}

/// The jumps.
fn jumps_code(machine: Machine, jumps: &[Jump<'_>]) -> String {
    let (instruction, mut code) = (machine.jump(), String::from(NO_STACK));
    code.push_str("\t.text\n");
    for Jump { name, .. } in jumps {
        let _ = write!(code, "\t.globl {name}\n\t.type {name}, %function\n{name}:\n");
        let _ = write!(code, "\t{instruction} ubiverbs_{name}\n\t.size {name}, .-{name}\n");
    }
    code
}

/// The stack need not be executable.
pub const NO_STACK: &str = "\t.section .note.GNU-stack,\"\",%progbits\n";

/// Stand-ins, each with the name and version it plays.
fn assembly(machine: Machine, symbols: &[Symbol<'_>]) -> String {
    let jump = machine.jump();
    let mut code = String::from(NO_STACK);
    let mut count = 0;
    let mut stand_in = |name: &str, node: &str, default: bool, answer: SymbolSource| {
        count += 1;
        let alias = format!("stand_in_{count}");
        let body = match answer {
            SymbolSource::Own => format!("\t.text\n\t.type {alias}, %function\n{alias}:\n\t{jump} {name}\n"),
            SymbolSource::StandIn(player) => {
                format!("\t.text\n\t.type {alias}, %function\n{alias}:\n\t{jump} {player}\n")
            }
            SymbolSource::Data => format!("\t.bss\n\t.type {alias}, %object\n{alias}:\n\t.zero 1\n"),
        };
        let at = if default { "@@" } else { "@" };
        let _ =
            write!(code, "\t.globl {alias}\n{body}\t.size {alias}, .-{alias}\n\t.symver {alias}, {name}{at}{node}\n");
    };
    for symbol in symbols.iter().filter(|s| s.node != "PRIVATE" && s.answer != SymbolSource::Own) {
        stand_in(symbol.name, symbol.node, !symbol.old, symbol.answer);
    }
    for release in PRIVATE {
        let node = format!("IBVERBS_PRIVATE_{release}");
        let default = *release == DEFAULT_PRIVATE;
        for symbol in symbols.iter().filter(|s| s.node == "PRIVATE") {
            // The default version of our own functions is in the script.
            if !(default && symbol.answer == SymbolSource::Own) {
                stand_in(symbol.name, &node, default, symbol.answer);
            }
        }
        stand_in(&format!("verbs_register_driver_{release}"), &node, true, SymbolSource::StandIn("ubiverbs_nothing"));
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# a comment\nIBVERBS_1.0 status f old\nIBVERBS_1.0 own g\n\nIBVERBS_1.10 own h\nIBVERBS_1.1 own f\nPRIVATE data d\n";

    #[test]
    fn the_script_chains_nodes_by_number_and_hides_the_rest() {
        let symbols = symbols(TABLE).unwrap();
        assert_eq!(nodes(&symbols), ["IBVERBS_1.0", "IBVERBS_1.1", "IBVERBS_1.10"]);
        let script = version_script(&symbols);
        assert!(script.starts_with("IBVERBS_1.0 {\n  global:\n    g;\n};\n"), "{script}");
        assert!(script.contains("IBVERBS_1.1 {\n  global:\n    f;\n  local:\n    *;\n} IBVERBS_1.0;"), "{script}");
        assert!(script.contains("IBVERBS_1.10 {\n  global:\n    h;\n} IBVERBS_1.1;"), "{script}");
        assert!(script.contains("IBVERBS_PRIVATE_34 {\n};"), "{script}");
    }

    #[test]
    fn what_is_old_is_not_the_default() {
        let code = assembly(Machine::X86_64, &symbols(TABLE).unwrap());
        assert!(code.contains(", f@IBVERBS_1.0\n"), "{code}");
        assert!(code.contains(", d@@IBVERBS_PRIVATE_34\n") && code.contains(", d@IBVERBS_PRIVATE_57\n"), "{code}");
        assert!(code.contains(", verbs_register_driver_57@@IBVERBS_PRIVATE_57\n"), "{code}");
    }

    #[test]
    fn libraries_of_jumps_have_versions() {
        let jumps = jumps_of("# a comment\nRDMACM_1.0 f\nRDMACM_1.1 g\nRDMACM_1.0 h\n").unwrap();
        let script = jumps_script(&jumps);
        assert!(script.starts_with("RDMACM_1.0 {\n  global:\n    f;\n    h;\n  local:\n    *;\n};\n"), "{script}");
        assert!(script.contains("RDMACM_1.1 {\n  global:\n    g;\n} RDMACM_1.0;\n"), "{script}");
        assert!(private_node(&jumps, &[]).contains("    ubiverbs_g;\n"));
        assert!(jumps_code(Machine::X86_64, &jumps).contains("f:\n\tjmp ubiverbs_f\n"));
        assert!(jumps_code(Machine::Aarch64, &jumps).contains("f:\n\tb ubiverbs_f\n"));
        assert!(jumps_of("RDMACM_1.0 own f").is_err());
    }

    #[test]
    fn lines_that_say_nothing_are_refused() {
        assert!(symbols("IBVERBS_1.0 own").is_err());
        assert!(symbols("IBVERBS_1.0 maybe f").is_err());
        assert!(symbols("IBVERBS_1.0 own f new").is_err());
    }
}
