//! Every mirror against the installed headers: a C program prints sizes, offsets and numbers as the compiler sees them,
//! and each must be ours.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Fields that came after the release whose header is installed.
const LATER_FIELDS: &[(&str, &str)] = &[
    ("ibv_port_attr", "active_speed_ex"),
    ("ibv_qp_ex", "wr_flush"),
    ("verbs_context", "free_buf"),
    ("verbs_context", "alloc_buf"),
    ("verbs_context", "dm_export_dmabuf_fd"),
    ("verbs_context", "reg_mr_ex"),
    ("verbs_context", "dealloc_dmah"),
    ("verbs_context", "alloc_dmah"),
];

fn is_later(layout: &str, field: &str) -> bool {
    LATER_FIELDS.contains(&(layout, field))
}

fn has_later_fields(layout: &str) -> bool {
    LATER_FIELDS.iter().any(|(name, _)| *name == layout)
}

/// The name in C: Rust's keywords carry an underscore here.
fn in_c(field: &str) -> &str {
    field.strip_suffix('_').unwrap_or(field)
}

fn numbers() -> impl Iterator<Item = &'static (&'static str, u32)> {
    abi::NUMBERS.iter().chain(abi::CONNECTION_NUMBERS)
}

fn program() -> String {
    let mut program = String::from(
        "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include <stddef.h>\n#include <stdio.h>\n\
         #define SAY(name, value) printf(\"%s %lld\\n\", name, (long long)(value))\nint main(void) {\n",
    );
    for layout in abi::LAYOUTS.iter().copied().flatten() {
        let (kind, name) = (layout.kind, layout.name);
        writeln!(program, "SAY(\"{name}\", sizeof({kind} {name}));").unwrap();
        for field in layout.fields.iter().filter(|field| !is_later(name, field.name)) {
            let member = in_c(field.name);
            writeln!(program, "SAY(\"{name}.{member}\", offsetof({kind} {name}, {member}));").unwrap();
        }
    }
    for (name, _) in numbers() {
        writeln!(program, "SAY(\"{name}\", {name});").unwrap();
    }
    program.push_str("return 0;\n}\n");
    program
}

/// What the C compiler says.
fn facts() -> HashMap<String, i64> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (directory.join("header.c"), directory.join("header"));
    std::fs::write(&source, program()).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&source).output();
    let compiled = compiled.expect("a C compiler is needed: apt-get install gcc");
    assert!(
        compiled.status.success(),
        "the header did not compile; is it there? apt-get install libibverbs-dev librdmacm-dev\n{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let said = Command::new(&binary).output().expect("the compiled program runs");
    let said = String::from_utf8(said.stdout).unwrap();
    said.lines()
        .map(|line| {
            let (name, value) = line.split_once(' ').unwrap();
            (name.to_string(), value.parse().unwrap())
        })
        .collect()
}

#[test]
fn layouts_and_numbers_are_those_of_the_header() {
    let facts = facts();
    let mut wrong = Vec::new();
    let mut compared = 0;
    let mut compare = |name: String, ours: i64| {
        compared += 1;
        if facts.get(&name) != Some(&ours) {
            wrong.push(format!("{name}: {ours} here, {:?} in C", facts.get(&name)));
        }
    };
    for layout in abi::LAYOUTS.iter().copied().flatten() {
        let name = layout.name;
        // A table that grows upwards keeps its distances from the end.
        let (ours, theirs) = match name {
            "verbs_context" => (layout.size as i64, facts["verbs_context"]),
            _ => (0, 0),
        };
        if !has_later_fields(name) {
            compare(name.to_string(), layout.size as i64);
        }
        for field in layout.fields.iter().filter(|field| !is_later(name, field.name)) {
            compare(format!("{name}.{}", in_c(field.name)), field.offset as i64 - ours + theirs);
        }
    }
    for (name, value) in numbers() {
        compare((*name).to_string(), i64::from(*value));
    }
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 600, "only {compared} facts were compared");
}

#[test]
fn what_came_later_stands_where_later_headers_have_it() {
    let find = |name: &str| *abi::LAYOUTS.iter().copied().flatten().find(|layout| layout.name == name).unwrap();
    assert_eq!(find("verbs_context").size, 696);
    assert_eq!(find("ibv_qp_ex").size, 360);
    assert_eq!(find("ibv_port_attr").size, 56);
    let flush = find("ibv_qp_ex").fields.iter().find(|field| field.name == "wr_flush").unwrap().offset;
    assert_eq!(flush, 352);
}
