//! The public interface of the crate `ubiverbs` as a list of lines, kept in `crates/ubiverbs/public-api.txt`: a change of
//! it is seen in review. Also that no type of an inner crate is in it that is not exported on purpose. Reads what
//! rustdoc knows (its JSON), in whatever version this toolchain writes.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::process::{self, cargo};

/// The crate whose interface it is, and those of which it exports items as its own: they are told where it has them. The
/// names of the libraries, and of the packages.
const PARTS: [(&str, &str); 3] =
    [("ubiverbs", "ubiverbs"), ("seam", "ubiverbs-seam"), ("simulation", "ubiverbs-simulation")];

/// Where the list is.
const SNAPSHOT: &str = "crates/ubiverbs/public-api.txt";

#[derive(clap::Args)]
pub struct Options {
    /// Write the list anew, instead of comparing.
    #[arg(long)]
    write: bool,
}

/// What `cargo xtask test` checks.
pub fn check(root: &Path) -> Result<String, String> {
    run(root, &Options { write: false })
}

pub fn run(root: &Path, options: &Options) -> Result<String, String> {
    let documents = documents(root)?;
    let api = Api::of(&documents, inner_crates(root)?);
    let leaks = api.leaks();
    if !leaks.is_empty() {
        return Err(format!("types of inner crates that are used and not exported:\n{}", leaks.join("\n")));
    }
    let lines: String = api.lines.iter().map(|line| format!("{line}\n")).collect();
    let path = root.join(SNAPSHOT);
    if options.write {
        fs::write(&path, &lines).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let old = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    if old != lines {
        let (old, new): (BTreeSet<&str>, BTreeSet<&str>) = (old.lines().collect(), lines.lines().collect());
        let gone = old.difference(&new).map(|line| format!("- {line}"));
        let come = new.difference(&old).map(|line| format!("+ {line}"));
        let changes: Vec<String> = gone.chain(come).collect();
        return Err(format!(
            "the public interface changed; if that is meant: cargo xtask api --write\n{}",
            changes.join("\n")
        ));
    }
    Ok(format!(
        "{} lines of public interface, as {SNAPSHOT} has them; {} types of inner crates, all exported",
        api.lines.len(),
        api.used.borrow().len()
    ))
}

/// What rustdoc knows of the crates, by their names.
fn documents(root: &Path) -> Result<BTreeMap<String, Value>, String> {
    let packages = PARTS.iter().flat_map(|(_, package)| ["--package", package]);
    process::run(rustdoc(root)?.args(["--quiet", "--lib"]).args(packages))?;
    let folder = process::target_directory(root)?.join("doc");
    let read = |name: &str| {
        let path = folder.join(format!("{name}.json"));
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    };
    PARTS.iter().map(|(name, _)| Ok(((*name).to_owned(), read(name)?))).collect()
}

/// Documents the whole workspace; a warning fails. Programs first: one of them has the name of a library.
pub fn document_all(root: &Path) -> Result<(), String> {
    process::run(rustdoc(root)?.args(["--workspace", "--bins"]))?;
    process::run(rustdoc(root)?.args(["--workspace", "--lib"]))
}

/// Cargo that documents as JSON: an output that is unstable, so rustdoc of a stable toolchain must be told that we know.
/// Only rustdoc: build scripts look at the variable, too, and all that uses them would be built anew.
fn rustdoc(root: &Path) -> Result<Command, String> {
    let place = process::target_directory(root)?.join("test");
    let started = fs::create_dir_all(&place).and_then(|()| {
        let script = place.join("rustdoc");
        fs::write(&script, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
        fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).map(|()| script)
    });
    let script = started.map_err(|e| format!("cannot write to {}: {e}", place.display()))?;
    let mut command = cargo(root);
    command.env("RUSTDOC", script);
    command.env("RUSTDOCFLAGS", "-D warnings -Z unstable-options --output-format json");
    command.args(["doc", "--all-features", "--no-deps"]);
    Ok(command)
}

/// Names of the workspace's other libraries, as the code has them.
fn inner_crates(root: &Path) -> Result<BTreeSet<String>, String> {
    let metadata = process::metadata(root)?;
    let targets = list(&metadata["packages"]).iter().flat_map(|package| list(&package["targets"]));
    let libraries = targets.filter(|target| list(&target["kind"]).iter().any(|kind| kind == "lib"));
    let names = libraries.filter_map(|target| target["name"].as_str()).filter(|name| *name != "ubiverbs");
    Ok(names.map(str::to_owned).collect())
}

struct Api<'a> {
    documents: &'a BTreeMap<String, Value>,
    /// The crate that is told at the moment, and its document.
    part: &'a str,
    document: &'a Value,
    /// Names of our other crates, as the code has them.
    inner: BTreeSet<String>,
    lines: BTreeSet<String>,
    /// Items and the paths they were told under, so that none is told twice.
    seen: BTreeSet<(String, String)>,
    /// Items of other crates that are exported: the crate's name and theirs.
    exported: BTreeSet<String>,
    /// Items of our inner crates that are used, likewise, and where first.
    used: RefCell<BTreeMap<String, String>>,
}

/// The kind of an item, and what is in it.
fn inner(item: &Value) -> Option<(&str, &Value)> {
    item["inner"].as_object()?.iter().next().map(|(kind, value)| (kind.as_str(), value))
}

fn is_public(item: &Value) -> bool {
    matches!(item["visibility"].as_str(), Some("public" | "default"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

impl<'a> Api<'a> {
    fn of(documents: &'a BTreeMap<String, Value>, inner: BTreeSet<String>) -> Api<'a> {
        let (lines, seen, exported, used) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), RefCell::default());
        let (part, document) = (PARTS[0].0, &documents[PARTS[0].0]);
        let mut api = Api { documents, part, document, inner, lines, seen, exported, used };
        api.module(&document["root"].to_string(), part);
        api
    }

    fn item(&self, id: &str) -> Option<&'a Value> {
        self.document["index"].get(id)
    }

    fn module(&mut self, id: &str, path: &str) {
        let Some((_, module)) = self.item(id).and_then(inner) else { return };
        for child in list(&module["items"]) {
            self.tell(&child.to_string(), path, None);
        }
    }

    /// Tells an item of a module, under another name where it is exported so.
    fn tell(&mut self, id: &str, path: &str, name: Option<&str>) {
        let Some(item) = self.item(id).filter(|item| is_public(item)) else { return };
        let Some((kind, what)) = inner(item) else { return };
        let name = name.or(item["name"].as_str()).unwrap_or_default();
        let at = format!("{path}::{name}");
        if kind != "use" && !self.seen.insert((id.to_owned(), at.clone())) {
            return;
        }
        self.exported.insert(self.name_with_crate(id));
        match kind {
            "use" => self.export(what, path),
            "module" => {
                self.lines.insert(format!("mod {at}"));
                self.module(id, &at);
            }
            "struct" => {
                self.lines.insert(format!("struct {at}{}", self.generics(&what["generics"], &at)));
                for field in list(&what["kind"]["plain"]["fields"]).iter().chain(list(&what["kind"]["tuple"])) {
                    self.field(&field.to_string(), &at);
                }
                self.implementations(what, &at);
            }
            "enum" => {
                let open = item["attrs"].to_string().contains("non_exhaustive");
                let open = if open { ", non-exhaustive" } else { "" };
                self.lines.insert(format!("enum {at}{}{open}", self.generics(&what["generics"], &at)));
                for variant in list(&what["variants"]) {
                    self.variant(&variant.to_string(), &at);
                }
                self.implementations(what, &at);
            }
            "trait" => {
                let bounds = self.bounds(&what["bounds"], &at);
                self.lines.insert(format!("trait {at}{}{bounds}", self.generics(&what["generics"], &at)));
                for member in list(&what["items"]) {
                    self.member(&member.to_string(), &at);
                }
            }
            "type_alias" => {
                let line = format!("type {at} = {}", self.name_of(&what["type"], &at));
                self.lines.insert(line);
            }
            "function" => self.function(what, &at),
            "constant" => {
                let line = format!("const {at}: {}", self.name_of(&what["type"], &at));
                self.lines.insert(line);
            }
            other => drop(self.lines.insert(format!("{other} {at}"))),
        }
    }

    fn export(&mut self, what: &'a Value, path: &str) {
        let (id, name) = (what["id"].to_string(), what["name"].as_str().unwrap_or_default());
        if what["is_glob"].as_bool() == Some(true) {
            return self.module(&id, path);
        }
        if self.item(&id).is_some() {
            return self.tell(&id, path, Some(name));
        }
        let source = what["source"].as_str().unwrap_or_default();
        let (first, rest) = source.split_once("::").unwrap_or((source, ""));
        let part = self.documents.get_key_value(first);
        if let Some((part, document, item)) = part.and_then(|(part, other)| Some((part, other, find(other, rest)?))) {
            let before = (self.part, self.document);
            (self.part, self.document) = (part, document);
            self.tell(&item, path, Some(name));
            (self.part, self.document) = before;
            return;
        }
        self.exported.insert(self.name_with_crate(&id));
        self.lines.insert(format!("use {path}::{name} = {source}"));
    }

    fn field(&mut self, id: &str, at: &str) {
        let Some(item) = self.item(id).filter(|item| is_public(item)) else { return };
        let line = format!(
            "field {at}::{}: {}",
            item["name"].as_str().unwrap_or_default(),
            self.name_of(&item["inner"]["struct_field"], at)
        );
        self.lines.insert(line);
    }

    fn variant(&mut self, id: &str, at: &str) {
        let Some(item) = self.item(id) else { return };
        let kind = &item["inner"]["variant"]["kind"];
        let fields = list(&kind["tuple"]).iter().chain(list(&kind["struct"]["fields"]));
        let fields: Vec<String> = fields
            .filter_map(|field| self.item(&field.to_string()))
            .map(|field| {
                format!(
                    "{}: {}",
                    field["name"].as_str().unwrap_or_default(),
                    self.name_of(&field["inner"]["struct_field"], at)
                )
            })
            .collect();
        self.lines.insert(format!(
            "variant {at}::{}({})",
            item["name"].as_str().unwrap_or_default(),
            fields.join(", ")
        ));
    }

    /// Methods, and traits that are implemented by hand or derived.
    fn implementations(&mut self, what: &'a Value, at: &str) {
        for id in list(&what["impls"]) {
            let Some((_, block)) = self.item(&id.to_string()).and_then(inner) else { continue };
            if block["is_synthetic"].as_bool() == Some(true) || !block["blanket_impl"].is_null() {
                continue;
            }
            if block["trait"].is_null() {
                for member in list(&block["items"]) {
                    self.member(&member.to_string(), at);
                }
            } else {
                let line = format!("impl {} for {}", self.path(&block["trait"], at), self.name_of(&block["for"], at));
                self.lines.insert(line);
            }
        }
    }

    fn member(&mut self, id: &str, at: &str) {
        let Some(item) = self.item(id).filter(|item| is_public(item)) else { return };
        let (Some((kind, what)), at) = (inner(item), format!("{at}::{}", item["name"].as_str().unwrap_or_default()))
        else {
            return;
        };
        match kind {
            "function" => self.function(what, &at),
            "assoc_const" => {
                let line = format!("const {at}: {}", self.name_of(&what["type"], &at));
                self.lines.insert(line);
            }
            "assoc_type" => {
                let line = format!("type {at}{}", self.bounds(&what["bounds"], &at));
                self.lines.insert(line);
            }
            other => drop(self.lines.insert(format!("{other} {at}"))),
        }
    }

    fn function(&mut self, what: &'a Value, at: &str) {
        let asynchronous = if what["header"]["is_async"].as_bool() == Some(true) { "async " } else { "" };
        let signature = self.signature(&what["sig"], at);
        let line = format!("{asynchronous}fn {at}{}{signature}", self.generics(&what["generics"], at));
        self.lines.insert(line);
    }

    fn signature(&self, signature: &'a Value, at: &str) -> String {
        let inputs = list(&signature["inputs"]).iter().map(|input| {
            let name = input[0].as_str().unwrap_or_default();
            format!("{name}: {}", self.name_of(&input[1], at))
        });
        let inputs: Vec<String> = inputs.collect();
        let output = &signature["output"];
        let output = if output.is_null() { String::new() } else { format!(" -> {}", self.name_of(output, at)) };
        format!("({}){output}", inputs.join(", "))
    }

    fn generics(&self, generics: &'a Value, at: &str) -> String {
        let mut words = Vec::new();
        for parameter in list(&generics["params"]) {
            // Those of `impl Trait` in arguments are in the arguments.
            if parameter["kind"]["type"]["is_synthetic"].as_bool() == Some(true) {
                continue;
            }
            let name = parameter["name"].as_str().unwrap_or_default();
            words.push(format!("{name}{}", self.bounds(&parameter["kind"]["type"]["bounds"], at)));
        }
        for condition in list(&generics["where_predicates"]) {
            let bound = &condition["bound_predicate"];
            if !bound.is_null() {
                words.push(format!("{}{}", self.name_of(&bound["type"], at), self.bounds(&bound["bounds"], at)));
            }
        }
        if words.is_empty() { String::new() } else { format!("<{}>", words.join(", ")) }
    }

    fn bounds(&self, bounds: &'a Value, at: &str) -> String {
        let words: Vec<String> = list(bounds)
            .iter()
            .map(|bound| match (&bound["trait_bound"]["trait"], bound["outlives"].as_str()) {
                (_, Some(lifetime)) => lifetime.to_owned(),
                (Value::Null, None) => "?".to_owned(),
                (path, None) => self.path(path, at),
            })
            .collect();
        if words.is_empty() { String::new() } else { format!(": {}", words.join(" + ")) }
    }

    /// A path with its arguments; only its last name, as the crate's users write it.
    fn path(&self, path: &'a Value, at: &str) -> String {
        let id = path["id"].to_string();
        if self.is_of_an_inner_crate(&id) {
            self.used.borrow_mut().entry(self.name_with_crate(&id)).or_insert_with(|| at.to_owned());
        }
        let name = path["path"].as_str().or(path["name"].as_str()).unwrap_or_default();
        let name = name.rsplit("::").next().unwrap_or_default().to_owned();
        let arguments = &path["args"]["angle_bracketed"];
        let mut words: Vec<String> = Vec::new();
        for argument in list(&arguments["args"]) {
            match (argument["lifetime"].as_str(), &argument["type"]) {
                (Some(lifetime), _) => words.push(lifetime.to_owned()),
                (None, Value::Null) => words.push("_".to_owned()),
                (None, kind) => words.push(self.name_of(kind, at)),
            }
        }
        for constraint in list(&arguments["constraints"]) {
            let kind = &constraint["binding"]["equality"]["type"];
            let value = if kind.is_null() { "_".to_owned() } else { self.name_of(kind, at) };
            words.push(format!("{} = {value}", constraint["name"].as_str().unwrap_or_default()));
        }
        let parenthesized = &path["args"]["parenthesized"];
        if !parenthesized.is_null() {
            let inputs: Vec<String> =
                list(&parenthesized["inputs"]).iter().map(|kind| self.name_of(kind, at)).collect();
            return format!("{name}({})", inputs.join(", "));
        }
        if words.is_empty() { name } else { format!("{name}<{}>", words.join(", ")) }
    }

    fn name_of(&self, kind: &'a Value, at: &str) -> String {
        let Some((word, what)) = kind.as_object().and_then(|object| object.iter().next()) else {
            return kind.as_str().unwrap_or("_").to_owned();
        };
        match word.as_str() {
            "resolved_path" => self.path(what, at),
            "primitive" | "generic" => what.as_str().unwrap_or_default().to_owned(),
            "borrowed_ref" => {
                let lifetime = what["lifetime"].as_str().map(|name| format!("{name} ")).unwrap_or_default();
                let mutable = if what["is_mutable"].as_bool() == Some(true) { "mut " } else { "" };
                format!("&{lifetime}{mutable}{}", self.name_of(&what["type"], at))
            }
            "tuple" => {
                let parts: Vec<String> = list(what).iter().map(|part| self.name_of(part, at)).collect();
                format!("({})", parts.join(", "))
            }
            "slice" => format!("[{}]", self.name_of(what, at)),
            "array" => format!("[{}; {}]", self.name_of(&what["type"], at), what["len"].as_str().unwrap_or("_")),
            "impl_trait" => format!("impl{}", self.bounds(what, at)),
            "dyn_trait" => {
                let traits: Vec<String> =
                    list(&what["traits"]).iter().map(|part| self.path(&part["trait"], at)).collect();
                format!("dyn {}", traits.join(" + "))
            }
            "qualified_path" => {
                let own = self.name_of(&what["self_type"], at);
                format!("{own}::{}", what["name"].as_str().unwrap_or_default())
            }
            "function_pointer" => format!("fn{}", self.signature(&what["sig"], at)),
            "raw_pointer" => format!("*{}", self.name_of(&what["type"], at)),
            other => other.to_owned(),
        }
    }

    /// The crate that has an item.
    fn crate_of(&self, id: &str) -> Option<&'a str> {
        match &self.document["paths"][id]["crate_id"] {
            number if *number == 0 => Some(self.part),
            number => self.document["external_crates"][number.to_string()]["name"].as_str(),
        }
    }

    /// The crate that has an item, and the item's name: the same in each document, as paths through modules are not.
    fn name_with_crate(&self, id: &str) -> String {
        let name = list(&self.document["paths"][id]["path"]).last().and_then(Value::as_str);
        format!("{}::{}", self.crate_of(id).unwrap_or_default(), name.unwrap_or_default())
    }

    fn is_of_an_inner_crate(&self, id: &str) -> bool {
        self.crate_of(id).is_some_and(|name| self.inner.contains(name))
    }

    fn leaks(&self) -> Vec<String> {
        let used = self.used.borrow();
        let unexported = used.iter().filter(|(name, _)| !self.exported.contains(*name));
        unexported.map(|(name, at)| format!("{name} in {at}")).collect()
    }
}

/// The item of a crate that a path leads to, from its root.
fn find(document: &Value, path: &str) -> Option<String> {
    let mut id = document["root"].to_string();
    for word in path.split("::").filter(|word| !word.is_empty()) {
        let (_, module) = inner(&document["index"][&id])?;
        id = list(&module["items"]).iter().map(Value::to_string).find_map(|child| {
            let item = &document["index"][&child];
            match inner(item)? {
                ("use", what) => (what["name"] == word).then(|| what["id"].to_string()),
                _ => (item["name"] == word).then_some(child),
            }
        })?;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A crate with a function that takes a type of `wire`, which is exported or not.
    fn of_a_crate(exported: bool) -> (BTreeSet<String>, Vec<String>) {
        let mut items = vec![json!(1)];
        if exported {
            items.push(json!(2));
        }
        let document = json!({
            "root": 0,
            "index": {
                "0": {"name": "ubiverbs", "visibility": "public", "inner": {"module": {"items": items}}},
                "1": {"name": "look", "visibility": "public", "inner": {"function": {
                    "sig": {"inputs": [["at", {"borrowed_ref": {"lifetime": null, "is_mutable": false,
                        "type": {"resolved_path": {"path": "Psn", "id": 9, "args": null}}}}]],
                        "output": {"primitive": "bool"}},
                    "generics": {"params": [], "where_predicates": []}, "header": {"is_async": false}}}},
                "2": {"name": null, "visibility": "public",
                    "inner": {"use": {"source": "wire::Psn", "name": "Psn", "id": 9, "is_glob": false}}},
            },
            "paths": {"9": {"crate_id": 5, "path": ["wire", "Psn"]}},
            "external_crates": {"5": {"name": "wire"}},
        });
        told(BTreeMap::from([("ubiverbs".to_owned(), document)]))
    }

    fn told(documents: BTreeMap<String, Value>) -> (BTreeSet<String>, Vec<String>) {
        let api = Api::of(&documents, ["wire", "seam"].map(str::to_owned).into());
        let leaks = api.leaks();
        (api.lines, leaks)
    }

    #[test]
    fn an_item_of_a_part_is_told_as_an_item_of_the_crate() {
        let module = |items: Value| json!({"name": "x", "visibility": "public", "inner": {"module": {"items": items}}});
        let export = |source: &str, id: u32| {
            json!({"name": null, "visibility": "public",
                "inner": {"use": {"source": source, "name": "Port", "id": id, "is_glob": false}}})
        };
        let face = json!({
            "root": 0,
            "index": {"0": module(json!([1])), "1": export("seam::Port", 7)},
            "paths": {"7": {"crate_id": 3, "path": ["seam", "port", "Port"]}},
            "external_crates": {"3": {"name": "seam"}},
        });
        let part = json!({
            "root": 0,
            "index": {
                "0": module(json!([1])),
                "1": export("port::Port", 2),
                "2": {"name": "Port", "visibility": "public", "attrs": [], "inner": {"struct": {
                    "kind": {"plain": {"fields": [3]}}, "generics": {}, "impls": []}}},
                "3": {"name": "next", "visibility": "public",
                    "inner": {"struct_field": {"resolved_path": {"path": "Port", "id": 2, "args": null}}}},
            },
            "paths": {"2": {"crate_id": 0, "path": ["seam", "Port"]}},
            "external_crates": {},
        });
        let (lines, leaks) = told(BTreeMap::from([("ubiverbs".to_owned(), face), ("seam".to_owned(), part)]));
        let wanted = ["field ubiverbs::Port::next: Port", "struct ubiverbs::Port"].map(str::to_owned);
        assert_eq!((lines, leaks), (wanted.into(), Vec::new()));
    }

    #[test]
    fn functions_are_told_as_they_are_written() {
        let (lines, leaks) = of_a_crate(true);
        assert!(lines.contains("fn ubiverbs::look(at: &Psn) -> bool"), "{lines:?}");
        assert!(lines.contains("use ubiverbs::Psn = wire::Psn") && leaks.is_empty(), "{lines:?}");
    }

    #[test]
    fn a_type_of_an_inner_crate_must_be_exported() {
        assert_eq!(of_a_crate(false).1, ["wire::Psn in ubiverbs::look"]);
    }
}
