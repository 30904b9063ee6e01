//! `librspreload.so`: functions in place of the C library's, for socket programs. Each is a few instructions that
//! pass a call on: to the C library, or to libibverbs.so.1, which has the table of descriptors and all the rest. A call
//! for a descriptor that is not ours goes to the C library without a frame of ours on the stack, so that threads are
//! cancelled in it as ever.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::dist::{self, NO_STACK};
use crate::toolchain::{Machine, Toolchain};

/// What the functions of libibverbs.so.1 that answer begin with.
const PREFIX: &str = "ubiverbs_rspreload_";

/// How many descriptors the table has, as a power of two. `crates/capi/src/preload/table.rs` has the table.
const TABLE_BITS: u32 = 20;

/// A function, and how a call of it is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stand<'a> {
    how: How,
    name: &'a str,
    answers: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// To ours, if the first argument is a descriptor of ours.
    Descriptor,
    /// To ours.
    Always,
    /// To the C library; ours is called before, if the first argument is a descriptor of ours.
    Plain,
    /// To the C library; this function is called before, and may refuse.
    After(&'static str),
    /// To another of ours.
    Other(&'static str),
}

/// Reads the table.
pub fn stands(text: &str) -> Result<Vec<Stand<'_>>, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let stand = |line| {
        let words: Vec<&str> = str::split_whitespace(line).collect();
        let (how, name, answers) = match words[..] {
            [how, name] => (how, name, name),
            [how, name, answers] => (how, name, answers),
            _ => return Err(format!("not a way and a name: {line}")),
        };
        let how = match how {
            "descriptor" => How::Descriptor,
            "always" => How::Always,
            "plain" => How::Plain,
            "exec" => How::After("before_exec"),
            "spawn" => How::After("before_spawn"),
            "vfork" => How::Other("fork"),
            other => return Err(format!("{other} is no way to pass a call on: {line}")),
        };
        Ok(Stand { how, name, answers })
    };
    lines.map(stand).collect()
}

/// What libibverbs.so.1 exports for it, in its private node.
pub fn private_names(stands: &[Stand<'_>]) -> Vec<String> {
    let mut names = vec!["begin", "before_plain", "before_exec", "before_spawn", "fork", "kinds", "prepare"];
    let answers = |stand: &&Stand<'_>| matches!(stand.how, How::Descriptor | How::Always);
    names.extend(stands.iter().filter(answers).map(|stand| stand.answers));
    names.sort_unstable();
    names.dedup();
    names.iter().map(|name| format!("{PREFIX}{name}")).collect()
}

/// Links it beside the library that it jumps into, and gives it the names by which people know it.
pub fn link(toolchain: &Toolchain, stands: &[Stand<'_>], verbs: &Path, work: &Path) -> Result<PathBuf, String> {
    let names: Vec<&str> = stands.iter().map(|stand| stand.name).collect();
    let script = dist::write(work, "rspreload.map", &format!("{{ global: {}; local: *; }};\n", names.join("; ")))?;
    let code = dist::write(work, "rspreload.s", &code(toolchain.machine, stands))?;
    let library = verbs.with_file_name("librspreload.so");
    dist::link_jumps(toolchain, &library, "librspreload.so", &script, &code, verbs)?;
    // Where rdma-core has it, and by the names which it has there.
    let directory = library.with_file_name("rsocket");
    std::fs::create_dir_all(&directory).map_err(|e| format!("cannot make {}: {e}", directory.display()))?;
    for name in ["librspreload.so", "librspreload.so.1", "librspreload.so.1.0.0"] {
        dist::replace(&directory.join(name), |to| std::os::unix::fs::symlink("../librspreload.so", to))?;
    }
    dist::replace(&library.with_file_name("librspreload.so.1"), |to| {
        std::os::unix::fs::symlink("librspreload.so", to)
    })?;
    Ok(library)
}

/// The functions.
///
/// `real_NAME` is where the C library's function is; it leads to `first_NAME` until that is known. Other libraries'
/// constructors may call before ours has run.
fn code(machine: Machine, stands: &[Stand<'_>]) -> String {
    let assembler = match machine {
        Machine::X86_64 => Assembler::X86_64,
        Machine::Aarch64 => Assembler::Aarch64,
    };
    let mut code = String::from(NO_STACK);
    code.push_str("\t.text\n");
    for Stand { how, name, answers } in stands {
        let _ = write!(code, "\t.globl {name}\n\t.type {name}, %function\n\t.p2align 4\n{name}:\n");
        let is_ours = assembler.unless_descriptor_is_ours();
        let own = assembler.if_called_by_libibverbs();
        let _ = match how {
            How::Descriptor => write!(code, "{is_ours}{own}{}", assembler.jump(&format!("{PREFIX}{answers}"))),
            How::Always => write!(code, "{own}{}", assembler.jump(&format!("{PREFIX}{answers}"))),
            How::Plain => write!(code, "{is_ours}{own}{}", assembler.call(&format!("{PREFIX}before_plain"), None)),
            How::After(first) => write!(code, "{own}{}", assembler.call(&format!("{PREFIX}{first}"), None)),
            How::Other(other) => write!(code, "{own}{}", assembler.jump(&format!("{PREFIX}{other}"))),
        };
        let _ = writeln!(code, "1:{}\t.size {name}, .-{name}", assembler.jump_to(&format!("real_{name}")));
        let first = assembler.call(&format!("{PREFIX}begin"), Some("table"));
        let _ = write!(code, "first_{name}:\n{first}{}", assembler.jump_to(&format!("real_{name}")));
    }
    let [begin, prepare] = ["begin", "prepare"].map(|name| assembler.call(&format!("{PREFIX}{name}"), Some("table")));
    let _ = write!(code, "begin_now:\n{begin}{prepare}\tret\n");
    code.push_str("\t.section .init_array,\"aw\"\n\t.p2align 3\n\t.quad begin_now\n");
    // What `begin` fills: where libibverbs.so.1 has its code, and where each function is.
    code.push_str("\t.data\n\t.p2align 3\ntable:\nown_start:\n\t.quad 0\nown_length:\n\t.quad 0\n");
    for Stand { name, .. } in stands {
        let _ = write!(code, "\t.quad name_{name}\nreal_{name}:\n\t.quad first_{name}\n");
    }
    code.push_str("\t.quad 0\n\t.section .rodata\n");
    for Stand { name, .. } in stands {
        let _ = write!(code, "name_{name}:\n\t.asciz \"{name}\"\n");
    }
    code
}

/// How it is said to a processor. What comes to `1:` goes to the C library.
#[derive(Clone, Copy, Debug)]
enum Assembler {
    X86_64,
    Aarch64,
}

impl Assembler {
    fn unless_descriptor_is_ours(self) -> String {
        match self {
            Assembler::X86_64 => format!(
                "\tcmpl ${}, %edi\n\tja 1f\n\tmovq {PREFIX}kinds@GOTPCREL(%rip), %r11\n\tmovl %edi, %r10d\n\
                 \tcmpb $0, (%r11,%r10)\n\tje 1f\n",
                (1 << TABLE_BITS) - 1
            ),
            Assembler::Aarch64 => format!(
                "\tlsr w16, w0, #{TABLE_BITS}\n\tcbnz w16, 1f\n\tadrp x17, :got:{PREFIX}kinds\n\
                 \tldr x17, [x17, :got_lo12:{PREFIX}kinds]\n\tldrb w17, [x17, w0, uxtw]\n\tcbz w17, 1f\n"
            ),
        }
    }

    fn if_called_by_libibverbs(self) -> &'static str {
        match self {
            Assembler::X86_64 => {
                "\tmovq (%rsp), %r11\n\tsubq own_start(%rip), %r11\n\tcmpq own_length(%rip), %r11\n\tjb 1f\n"
            }
            Assembler::Aarch64 => {
                "\tadrp x16, own_start\n\tldr x16, [x16, :lo12:own_start]\n\tsub x16, x30, x16\n\
                 \tadrp x17, own_length\n\tldr x17, [x17, :lo12:own_length]\n\tcmp x16, x17\n\tb.lo 1f\n"
            }
        }
    }

    fn jump(self, to: &str) -> String {
        match self {
            Assembler::X86_64 => format!("\tjmp {to}@PLT\n"),
            Assembler::Aarch64 => format!("\tb {to}\n"),
        }
    }

    /// Through a pointer.
    fn jump_to(self, pointer: &str) -> String {
        match self {
            Assembler::X86_64 => format!("\tjmpq *{pointer}(%rip)\n"),
            Assembler::Aarch64 => {
                format!("\tadrp x16, {pointer}\n\tldr x16, [x16, :lo12:{pointer}]\n\tbr x16\n")
            }
        }
    }

    /// Calls a function with the same arguments, or with the address of something, and keeps the arguments. If it
    /// answers something else than zero, that is the end: minus one.
    fn call(self, function: &str, with: Option<&str>) -> String {
        let mut code = String::new();
        match self {
            Assembler::X86_64 => {
                const WORDS: [&str; 7] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax"];
                code.push_str("\tpushq %rbp\n\tmovq %rsp, %rbp\n\tsubq $192, %rsp\n");
                for (index, word) in WORDS.iter().enumerate() {
                    let _ = writeln!(code, "\tmovq %{word}, {}(%rsp)", index * 8);
                }
                for index in 0..8 {
                    let _ = writeln!(code, "\tmovups %xmm{index}, {}(%rsp)", 64 + index * 16);
                }
                if let Some(with) = with {
                    let _ = writeln!(code, "\tleaq {with}(%rip), %rdi");
                }
                let _ = writeln!(code, "\tcall {function}@PLT\n\tmovl %eax, %r11d");
                for (index, word) in WORDS.iter().enumerate() {
                    let _ = writeln!(code, "\tmovq {}(%rsp), %{word}", index * 8);
                }
                for index in 0..8 {
                    let _ = writeln!(code, "\tmovups {}(%rsp), %xmm{index}", 64 + index * 16);
                }
                code.push_str("\tleave\n\ttestl %r11d, %r11d\n\tje 1f\n\tmovq $-1, %rax\n\tret\n1:\n");
            }
            Assembler::Aarch64 => {
                code.push_str("\tstp x29, x30, [sp, #-224]!\n\tmov x29, sp\n");
                for index in (0..8).step_by(2) {
                    let _ = writeln!(code, "\tstp x{index}, x{}, [sp, #{}]", index + 1, 16 + index * 8);
                }
                code.push_str("\tstr x8, [sp, #80]\n");
                for index in (0..8).step_by(2) {
                    let _ = writeln!(code, "\tstp q{index}, q{}, [sp, #{}]", index + 1, 96 + index * 16);
                }
                if let Some(with) = with {
                    let _ = writeln!(code, "\tadrp x0, {with}\n\tadd x0, x0, :lo12:{with}");
                }
                let _ = writeln!(code, "\tbl {function}\n\tmov w17, w0");
                for index in (0..8).step_by(2) {
                    let _ = writeln!(code, "\tldp x{index}, x{}, [sp, #{}]", index + 1, 16 + index * 8);
                }
                code.push_str("\tldr x8, [sp, #80]\n");
                for index in (0..8).step_by(2) {
                    let _ = writeln!(code, "\tldp q{index}, q{}, [sp, #{}]", index + 1, 96 + index * 16);
                }
                code.push_str("\tldp x29, x30, [sp], #224\n\tcbz w17, 1f\n\tmov x0, #-1\n\tret\n1:\n");
            }
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# a comment\ndescriptor read\nalways _Exit _exit\nplain fdopen\nexec execv\nvfork vfork\n";

    #[test]
    fn every_function_leads_to_ours_and_to_the_c_librarys() {
        let stands = stands(TABLE).unwrap();
        for machine in [Machine::X86_64, Machine::Aarch64] {
            let code = code(machine, &stands);
            for name in ["read", "_Exit", "fdopen", "execv", "vfork"] {
                assert!(code.contains(&format!("\t.globl {name}\n")), "{code}");
                assert!(code.contains(&format!("real_{name}:\n\t.quad first_{name}\n")), "{code}");
            }
            for target in ["read", "_exit", "before_plain", "before_exec", "begin"] {
                assert!(code.contains(&format!("ubiverbs_rspreload_{target}")), "{code}");
            }
            assert!(!code.contains("ubiverbs_rspreload__Exit"), "{code}");
        }
    }

    #[test]
    fn what_answers_is_exported_once() {
        let names = private_names(&stands(TABLE).unwrap());
        let ours = |name: &str| names.iter().filter(|it| **it == format!("ubiverbs_rspreload_{name}")).count();
        assert_eq!((ours("read"), ours("_exit"), ours("begin"), ours("vfork"), ours("execv")), (1, 1, 1, 0, 0));
    }

    #[test]
    fn lines_that_say_nothing_are_refused() {
        assert!(stands("descriptor").is_err());
        assert!(stands("sometimes read").is_err());
        assert!(stands("always a b c").is_err());
    }
}
