//! A program built with sanitizers: it starts where our libraries are preloaded, as `ubiverbs run` does, a correct one
//! is told nothing, and a wrong one what is wrong.

use crate::library::{self, Link, alone, directory, on_link};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compilers, and the sanitizers that each one's runtime is tried of.
const BUILDS: [(&str, &str); 4] = [("cc", "address"), ("cc", "thread"), ("cc", "undefined"), ("clang", "memory")];

/// The program, unless the compiler lacks the runtime.
fn compile(compiler: &str, sanitizer: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/sanitized.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sanitized-{compiler}-{sanitizer}"));
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-g", "-O1"]);
    command.arg(format!("-fsanitize={sanitizer}")).arg("-o").arg(&program).arg(source).arg("-L").arg(directory());
    let Ok(compiled) = command.args(["-lrdmacm", "-libverbs", "-lpthread"]).output() else {
        println!("{compiler} is missing: its sanitizers are not tried");
        return None;
    };
    let said = library::show(sanitizer, &compiled);
    if !compiled.status.success() && ["cannot find", "No such file"].iter().any(|text| said.contains(text)) {
        println!("{compiler} has no runtime of the {sanitizer} sanitizer: it is not tried");
        return None;
    }
    assert!(compiled.status.success(), "{said}");
    Some(program)
}

fn run(link: Link, program: &Path, arguments: &[&str]) -> (Output, String) {
    let preloaded = ["libibverbs.so.1", "librdmacm.so.1"].map(|name| directory().join(name).display().to_string());
    let mut command = on_link(link, "env");
    command.arg(format!("LD_PRELOAD={}", preloaded.join(":"))).arg("ASAN_OPTIONS=detect_stack_use_after_return=1");
    command.arg(program).args(arguments);
    let output = command.output().unwrap();
    let said = library::show(&program.display().to_string(), &output);
    (output, said)
}

#[test]
fn sanitizers_start_and_find_what_is_wrong_and_nothing_else() {
    let _turn = alone();
    for (compiler, sanitizer) in BUILDS {
        let Some(program) = compile(compiler, sanitizer) else { continue };
        let is_reported = |said: &str| said.contains("Sanitizer") || said.contains("runtime error");
        for link in [Link::SharedMemory, Link::Udp] {
            let (ended, said) = run(link, &program, &[]);
            assert!(ended.status.success() && !is_reported(&said), "{said}");
        }
        let (_, said) = run(Link::SharedMemory, &program, &[sanitizer]);
        assert!(is_reported(&said), "{said}");
        // What only the NIC touches.
        let accesses =
            [("freed-send", "reads"), ("freed-receive", "writes"), ("late-receive", "writes"), ("stack", "reads")];
        for (mistake, access) in accesses.into_iter().filter(|_| sanitizer == "address") {
            for link in [Link::SharedMemory, Link::Udp] {
                let (ended, said) = run(link, &program, &[mistake]);
                let told =
                    said.contains("ERROR: AddressSanitizer") && said.contains(&format!("the NIC {access} 64 bytes"));
                assert!(!ended.status.success() && told, "{mistake}: {said}");
            }
        }
    }
}
