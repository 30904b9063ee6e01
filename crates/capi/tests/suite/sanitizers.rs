//! Programs built with sanitizers, or run under Valgrind: they start where our libraries are preloaded, as `ubiverbs run`
//! does; of a correct one nothing is reported, and of a wrong one what is wrong, also where only the NIC touches memory.

use crate::library::{self, Link, alone, directory, on_link};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compilers, and the sanitizers that each one's runtime is tried of.
const BUILDS: [(&str, &str); 4] = [("cc", "address"), ("cc", "thread"), ("cc", "undefined"), ("clang", "memory")];

/// Tools of Valgrind.
const TOOLS: [&str; 3] = ["memcheck", "helgrind", "drd"];

/// If it is set all tools run; each takes half a minute, and the last two find nothing of the NIC's.
const ALL_TOOLS: &str = "UBIVERBS_TEST_ALL_TOOLS";

/// A mistake of the program, who finds it, and what each says.
struct Mistake {
    name: &'static str,
    found: &'static [(&'static str, &'static [&'static str])],
}

const NIC_RACE: &[&str] = &["ThreadSanitizer: data race", "'NIC, queue pair 0x", "wrong_work"];
const UNADDRESSABLE: &str = "Unaddressable byte(s) found during client check request";
const EARLY: &str = "Conditional jump or move depends on uninitialised value(s)";
const SEND_OF_64: &str = "is to send 64 bytes at 0x";
const CALLER: &str = "wrong_work";

const MISTAKES: [Mistake; 8] = [
    Mistake {
        name: "freed-send",
        found: &[
            (
                "address",
                &["ERROR: AddressSanitizer: heap-use-after-free", "the NIC reads 64 bytes", "wr_id 0x1,", CALLER],
            ),
            ("memory", &["MemorySanitizer: use-of-uninitialized-value", SEND_OF_64, CALLER]),
            ("memcheck", &[UNADDRESSABLE, SEND_OF_64, CALLER]),
        ],
    },
    Mistake {
        name: "freed-receive",
        found: &[
            (
                "address",
                &["ERROR: AddressSanitizer: heap-use-after-free", "the NIC writes 64 bytes", "wr_id 0x1,", CALLER],
            ),
            ("memcheck", &[UNADDRESSABLE, "the NIC writes 64 bytes", CALLER]),
        ],
    },
    Mistake {
        name: "late-receive",
        found: &[
            ("address", &["ERROR: AddressSanitizer: heap-use-after-free", "the NIC writes 64 bytes", "wr_id 0x1,"]),
            ("memcheck", &[UNADDRESSABLE, "the NIC writes 64 bytes"]),
        ],
    },
    Mistake { name: "stack", found: &[("address", &["AddressSanitizer: stack-use-after-return", CALLER])] },
    Mistake {
        name: "early-read",
        found: &[
            ("thread", NIC_RACE),
            ("memory", &["MemorySanitizer: use-of-uninitialized-value", CALLER]),
            ("memcheck", &[EARLY, CALLER]),
        ],
    },
    Mistake { name: "changed-send", found: &[("thread", NIC_RACE)] },
    Mistake {
        name: "uninitialised-send",
        found: &[
            ("memory", &["MemorySanitizer: use-of-uninitialized-value", SEND_OF_64, "wr_id 0x1)", CALLER]),
            ("memcheck", &["Uninitialised byte(s) found during client check request", SEND_OF_64, CALLER]),
        ],
    },
    Mistake {
        name: "private-data",
        found: &[
            ("address", &["ERROR: AddressSanitizer: heap-use-after-free", "private_data"]),
            ("memcheck", &["Invalid read of size 1", "private_data"]),
        ],
    },
];

/// The program, built with a sanitizer or none.
fn compile(compiler: &str, sanitizer: Option<&str>, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/sanitized.c");
    let name = format!("sanitized-{compiler}-{}{}", sanitizer.unwrap_or("plain"), options.concat());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-g", "-O1", "-fno-inline"]);
    command.args(sanitizer.map(|sanitizer| format!("-fsanitize={sanitizer}"))).args(options);
    command.arg("-o").arg(&program).arg(source).arg("-L").arg(directory());
    let compiled = command.args(["-lrdmacm", "-libverbs", "-lpthread"]).output();
    let compiled = compiled.unwrap_or_else(|e| panic!("{compiler}: {e}; apt-get install gcc clang"));
    assert!(compiled.status.success(), "{}", library::show(compiler, &compiled));
    program
}

/// Runs the program, by its own name or after the words of a tool.
fn run(link: Link, tool: &[&str], program: &Path, arguments: &[&str]) -> (Output, String) {
    let preloaded = ["libibverbs.so.1", "librdmacm.so.1"].map(|name| directory().join(name).display().to_string());
    let mut command = on_link(link, "env");
    command.arg(format!("LD_PRELOAD={}", preloaded.join(":"))).arg("ASAN_OPTIONS=detect_stack_use_after_return=1");
    command.args(tool).arg(program).args(arguments);
    let output = command.output().unwrap();
    let said = library::show(&program.display().to_string(), &output);
    (output, said)
}

/// The mistakes that a sanitizer or tool finds are reported.
fn mistakes_are_found(who: &str, tool: &[&str], program: &Path) {
    for mistake in &MISTAKES {
        for (_, texts) in mistake.found.iter().filter(|(finder, _)| *finder == who) {
            let (ended, said) = run(Link::SharedMemory, tool, program, &[mistake.name]);
            assert!(!ended.status.success(), "{who}, {}: {said}", mistake.name);
            for text in *texts {
                assert!(said.contains(text), "{who}, {}: no \"{text}\": {said}", mistake.name);
            }
        }
    }
}

#[test]
fn sanitizers_start_and_find_what_is_wrong_and_nothing_else() {
    let _turn = alone();
    for (compiler, sanitizer) in BUILDS {
        let program = compile(compiler, Some(sanitizer), &[]);
        let is_reported = |said: &str| said.contains("Sanitizer") || said.contains("runtime error");
        for link in [Link::SharedMemory, Link::Udp] {
            let (ended, said) = run(link, &[], &program, &[]);
            assert!(ended.status.success() && !is_reported(&said), "{said}");
        }
        let (_, said) = run(Link::SharedMemory, &[], &program, &[sanitizer]);
        assert!(is_reported(&said), "{said}");
        mistakes_are_found(sanitizer, &[], &program);
    }
}

#[test]
fn address_sanitizer_lets_the_work_go_on_if_it_is_told_to() {
    let _turn = alone();
    let program = compile("cc", Some("address"), &[]);
    let goes_on = ["env", "ASAN_OPTIONS=halt_on_error=0:suppress_equal_pcs=0:detect_leaks=0"];
    let (ended, said) = run(Link::SharedMemory, &goes_on, &program, &["freed-receive"]);
    // The receive is posted, its place is looked at, the message lands: each is reported, and nothing is written.
    let reports = said.matches("ERROR: AddressSanitizer").count();
    assert!(ended.status.success() && reports >= 2, "{reports} reports, {}: {said}", ended.status);
}

#[test]
fn a_runtime_of_another_version_is_left_alone() {
    let _turn = alone();
    let program = compile("cc", None, &["-DOTHER_VERSION", "-rdynamic"]);
    let (ended, said) = run(Link::SharedMemory, &[], &program, &[]);
    assert!(ended.status.success() && said.contains("ThreadSanitizer of this program has no "), "{said}");
}

#[test]
fn valgrind_finds_what_is_wrong_and_nothing_else() {
    let _turn = alone();
    let program = compile("cc", None, &[]);
    let tools = if std::env::var_os(ALL_TOOLS).is_some() { &TOOLS[..] } else { &TOOLS[..1] };
    for tool in tools {
        let name = format!("--tool={tool}");
        let valgrind = ["valgrind", "--error-exitcode=9", "--quiet", &name];
        let (ended, said) = run(Link::SharedMemory, &valgrind, &program, &[]);
        assert!(ended.status.success(), "{said}");
        mistakes_are_found(tool, &valgrind, &program);
    }
}
