//! Every mirror against the installed headers, and against those of the newest release: a C program prints sizes,
//! offsets and numbers as the compiler sees them, and each must be ours.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The newest release whose headers were looked at.
const KNOWN: &str = "65.";

/// Whose headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Release {
    Installed,
    Newest,
}

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

impl Release {
    fn has(self, layout: &str, field: &str) -> bool {
        self == Release::Newest || !LATER_FIELDS.contains(&(layout, field))
    }

    fn has_all_of(self, layout: &str) -> bool {
        self == Release::Newest || !LATER_FIELDS.iter().any(|(name, _)| *name == layout)
    }

    fn layouts(self) -> impl Iterator<Item = &'static abi::Layout> {
        let later = if self == Release::Newest { abi::later::LAYOUTS } else { &[] };
        abi::LAYOUTS.iter().copied().flatten().chain(later)
    }

    fn numbers(self) -> impl Iterator<Item = &'static (&'static str, u32)> {
        let later = if self == Release::Newest { abi::LATER_NUMBERS } else { &[] };
        abi::NUMBERS.iter().chain(abi::CONNECTION_NUMBERS).chain(abi::MANAGEMENT_NUMBERS).chain(later)
    }

    /// Whether its header was looked at when the layouts were written. A later one may have more, which is no error.
    fn is_known(self) -> bool {
        let version = |place: &Path| std::fs::read_to_string(place.join("version"));
        self.unpacked().is_none_or(|place| version(&place).is_ok_and(|version| version.starts_with(KNOWN)))
    }

    /// Where the headers are, if not where the compiler looks.
    fn headers(self) -> Option<PathBuf> {
        self.unpacked().map(|place| place.join("root/usr/include"))
    }

    fn unpacked(self) -> Option<PathBuf> {
        if self == Release::Installed {
            return None;
        }
        // A caller that has it already says so.
        if let Some(place) = std::env::var_os("UBIVERBS_TEST_NEWEST") {
            return Some(place.into());
        }
        let mut get = Command::new(env!("CARGO"));
        get.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        get.args(["run", "--quiet", "--package", "xtask", "--", "newest"]);
        let output = get.stderr(Stdio::inherit()).output().expect("cargo runs");
        assert!(output.status.success(), "cargo xtask newest failed");
        let place = String::from_utf8_lossy(&output.stdout).lines().last().expect("a path").trim().to_owned();
        Some(PathBuf::from(place))
    }
}

/// The name in C: Rust's keywords carry an underscore here.
fn in_c(field: &str) -> &str {
    field.strip_suffix('_').unwrap_or(field)
}

fn program(release: Release) -> String {
    let mut program = String::from(
        "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include <infiniband/umad.h>\n\
         #include <infiniband/umad_types.h>\n#include <stddef.h>\n#include <stdio.h>\n\
         #define SAY(name, value) printf(\"%s %lld\\n\", name, (long long)(value))\nint main(void) {\n",
    );
    for layout in release.layouts() {
        let (kind, name) = (layout.kind, layout.name);
        writeln!(program, "SAY(\"{name}\", sizeof({kind} {name}));").unwrap();
        for field in layout.fields.iter().filter(|field| release.has(name, field.name)) {
            let member = in_c(field.name);
            writeln!(program, "SAY(\"{name}.{member}\", offsetof({kind} {name}, {member}));").unwrap();
        }
    }
    for (name, _) in release.numbers() {
        writeln!(program, "SAY(\"{name}\", {name});").unwrap();
    }
    program.push_str("return 0;\n}\n");
    program
}

/// What the C compiler says.
fn facts(release: Release) -> HashMap<String, i64> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) =
        (directory.join(format!("header-{release:?}.c")), directory.join(format!("header-{release:?}")));
    std::fs::write(&source, program(release)).unwrap();
    let mut compiler = Command::new("cc");
    if let Some(headers) = release.headers() {
        // Only what is rdma-core's: the rest is of another C library.
        for part in ["infiniband", "rdma"] {
            let (from, to) = (headers.join(part), directory.join("newest-headers").join(part));
            std::fs::create_dir_all(&to).unwrap();
            for file in std::fs::read_dir(from).expect("headers").flatten().filter(|entry| entry.path().is_file()) {
                std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
            }
        }
        compiler.arg("-I").arg(directory.join("newest-headers"));
    }
    let compiled = compiler.arg("-o").arg(&binary).arg(&source).output();
    let compiled = compiled.expect("a C compiler is needed: apt-get install gcc");
    assert!(
        compiled.status.success(),
        "the header did not compile; is it there? apt-get install libibverbs-dev librdmacm-dev libibumad-dev\n{}",
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
    compare_with(Release::Installed);
}

#[test]
fn layouts_and_numbers_are_those_of_the_newest_header() {
    compare_with(Release::Newest);
}

fn compare_with(release: Release) {
    let facts = facts(release);
    let mut wrong = Vec::new();
    let mut compared = 0;
    let mut compare = |name: String, ours: i64| {
        compared += 1;
        if facts.get(&name) != Some(&ours) {
            wrong.push(format!("{name}: {ours} here, {:?} in C", facts.get(&name)));
        }
    };
    for layout in release.layouts() {
        let name = layout.name;
        // A table that grows upwards keeps its distances from the end.
        let (ours, theirs) = match name {
            "verbs_context" => (layout.size as i64, facts["verbs_context"]),
            _ => (0, 0),
        };
        if release.has_all_of(name) {
            compare(name.to_string(), layout.size as i64);
        }
        for field in layout.fields.iter().filter(|field| release.has(name, field.name)) {
            compare(format!("{name}.{}", in_c(field.name)), field.offset as i64 - ours + theirs);
        }
    }
    for (name, value) in release.numbers() {
        compare((*name).to_string(), i64::from(*value));
    }
    let differing = format!("{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
    match release.is_known() {
        true => assert!(wrong.is_empty(), "{differing}"),
        false => println!("a release after {KNOWN}: {differing}"),
    }
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
    let later = |name: &str| abi::later::LAYOUTS.iter().find(|layout| layout.name == name).unwrap().size;
    assert_eq!(later("ibv_dmah"), 8);
    assert_eq!(later("ibv_dmah_init_attr"), 12);
    assert_eq!(later("ibv_mr_init_attr"), 72);
    assert_eq!(later("ibv_comp_cntr_caps"), 16);
    assert_eq!(later("ibv_comp_cntr"), 16);
    assert_eq!(later("ibv_comp_cntr_init_attr"), 12);
    assert_eq!(later("ibv_qp_attach_comp_cntr_attr"), 8);
}
