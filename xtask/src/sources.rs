//! What the modules of a crate name of each other, read from the tokens of its files. Types and traits are not resolved: a
//! method that another module has is not seen, only the paths that a file writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A module that is no test. Paths begin below the crate's root.
#[derive(Default, Debug)]
pub struct Module {
    pub path: Vec<String>,
    pub file: String,
    pub file_stem: String,
    /// Paths into the crate that it writes; `*` is everything.
    pub uses: Vec<Vec<String>>,
    /// Those that it hands on, with `pub use`.
    pub hands_on: Vec<Vec<String>>,
    /// Names that stand for paths into the crate, or for something outside of it.
    pub aliases: BTreeMap<String, Option<Vec<String>>>,
    pub macros: BTreeSet<String>,
    children: BTreeSet<String>,
}

/// The lines of a crate's sources, and its modules. A crate of programs alone has none.
pub fn read(folder: &Path) -> Result<(usize, Vec<Module>), String> {
    let open = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let mut modules = Vec::new();
    if let Some(face) = ["lib.rs", "main.rs"].into_iter().find(|name| folder.join(name).exists()) {
        walk(face, Vec::new(), &open, &mut modules)?;
    }
    Ok((lines(folder)?, modules))
}

fn lines(folder: &Path) -> Result<usize, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut sum = 0;
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.is_dir() {
            sum += lines(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sum += fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?.lines().count();
        }
    }
    Ok(sum)
}

/// Reads the module at `path`, which is the file `name`, and those below it.
fn walk(
    name: &str,
    path: Vec<String>,
    open: &dyn Fn(&str) -> Option<String>,
    modules: &mut Vec<Module>,
) -> Result<(), String> {
    let text = open(name).ok_or_else(|| format!("{name}: no such file"))?;
    let tokens: TokenStream = text.parse().map_err(|e| format!("{name}: {e}"))?;
    let stem = name.rsplit('/').next().unwrap_or(name).trim_end_matches(".rs");
    let file = Module { path, file: name.to_string(), file_stem: stem.to_string(), ..Module::default() };
    let mut files = Vec::new();
    read_module(tokens, file, modules, &mut files);
    for (path, named) in files {
        let below = path.join("/");
        let names = match named {
            Some(named) => {
                let folder = name.rsplit_once('/').map(|(folder, _)| format!("{folder}/")).unwrap_or_default();
                vec![format!("{folder}{named}")]
            }
            None => vec![format!("{below}.rs"), format!("{below}/mod.rs")],
        };
        let name = names.iter().find(|name| open(name).is_some());
        walk(name.ok_or_else(|| format!("{name}: no file of mod {below}", name = names[0]))?, path, open, modules)?;
    }
    Ok(())
}

/// Files that `mod name;` asks for: the module's path, and the file if an attribute says it.
type Files = Vec<(Vec<String>, Option<String>)>;

fn read_module(tokens: TokenStream, mut module: Module, modules: &mut Vec<Module>, files: &mut Files) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    module.children = children(&tokens);
    read_tokens(&tokens, &mut module, modules, files);
    modules.push(module);
}

fn children(tokens: &[TokenTree]) -> BTreeSet<String> {
    let mods = tokens.windows(2).filter(|pair| is_word(pair.first(), "mod"));
    mods.filter_map(|pair| word(pair.get(1))).collect()
}

fn read_tokens(tokens: &[TokenTree], module: &mut Module, modules: &mut Vec<Module>, files: &mut Files) {
    let (mut at, mut named, mut handed_on) = (0, None, false);
    while let Some(token) = tokens.get(at) {
        let next = tokens.get(at + 1);
        match (token, next) {
            (TokenTree::Punct(mark), Some(TokenTree::Group(attribute))) if mark.as_char() == '#' => {
                let text = attribute.stream().to_string();
                if ["cfg(test", "cfg(all(test"].iter().any(|test| text.replace(' ', "").starts_with(test)) {
                    at = end_of_item(tokens, at + 2);
                    continue;
                }
                if let Some(("path ", file)) = text.split_once("= ") {
                    named = Some(file.trim_matches('"').to_string());
                }
                read_tokens(&attribute.stream().into_iter().collect::<Vec<_>>(), module, modules, files);
                at += 2;
                continue;
            }
            (TokenTree::Ident(mark), Some(TokenTree::Ident(name))) if mark == "mod" => {
                let path = [&module.path[..], &[name.to_string()]].concat();
                match tokens.get(at + 2) {
                    Some(TokenTree::Group(body)) => {
                        let inner = Module {
                            path,
                            file: module.file.clone(),
                            file_stem: module.file_stem.clone(),
                            ..Module::default()
                        };
                        read_module(body.stream(), inner, modules, files);
                    }
                    _ => files.push((path, named.take())),
                }
                at += 3;
                continue;
            }
            (TokenTree::Ident(mark), _) if mark == "pub" => {
                handed_on = true;
                at += if matches!(next, Some(TokenTree::Group(_))) { 2 } else { 1 };
                continue;
            }
            (TokenTree::Ident(mark), _) if mark == "use" => {
                let end = end_of_item(tokens, at + 1);
                let mut found = Vec::new();
                let tree: TokenStream = tokens[at + 1..end].iter().cloned().collect();
                read_tree(&tree.into_iter().collect::<Vec<_>>(), &[], &mut found);
                for (name, path) in found {
                    let path = module.absolute(&path);
                    let paths = if handed_on { &mut module.hands_on } else { &mut module.uses };
                    paths.extend(path.clone());
                    module.aliases.insert(name, path);
                }
                at = end;
            }
            (TokenTree::Ident(mark), Some(TokenTree::Punct(_))) if mark == "macro_rules" => {
                module.macros.extend(word(tokens.get(at + 2)));
                at += 3;
            }
            (TokenTree::Ident(_), _) if !follows_path(tokens, at) => {
                let (path, end) = read_path(tokens, at);
                if path.len() > 1
                    && let Some(path) = module.absolute(&path)
                {
                    module.uses.push(path);
                }
                at = end;
            }
            (TokenTree::Group(group), _) => {
                read_tokens(&group.stream().into_iter().collect::<Vec<_>>(), module, modules, files);
                at += 1;
            }
            _ => at += 1,
        }
        handed_on = false;
    }
}

impl Module {
    /// A path that this module writes, as it is from the root; none if it leads out of the crate.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let mut place = self.path.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                place.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {}
            child if self.children.contains(child) => {}
            _ => return None,
        }
        while let Some(("super", below)) = rest.split_first().map(|(first, below)| (first.as_str(), below)) {
            place.pop();
            rest = below;
        }
        place.extend_from_slice(rest);
        Some(place)
    }
}

/// The names and paths of a `use`, whose tokens end with a semicolon or not.
fn read_tree(tokens: &[TokenTree], before: &[String], found: &mut Vec<(String, Vec<String>)>) {
    let parts = tokens.split(|token| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ','));
    for part in parts {
        let mut path = before.to_vec();
        let mut name = None;
        for (at, token) in part.iter().enumerate() {
            match token {
                TokenTree::Ident(mark) if mark == "as" => name = word(part.get(at + 1)),
                TokenTree::Ident(_) if name.is_some() => {}
                TokenTree::Ident(mark) if mark == "self" && !path.is_empty() => {}
                TokenTree::Ident(step) => path.push(step.to_string()),
                TokenTree::Punct(mark) if mark.as_char() == '*' => path.push("*".into()),
                TokenTree::Group(group) => {
                    read_tree(&group.stream().into_iter().collect::<Vec<_>>(), &path, found);
                    path.clear();
                }
                // `::std` is a crate outside, whatever the modules are called.
                TokenTree::Punct(_) if at == 0 && before.is_empty() => path.push("::".into()),
                _ => {}
            }
        }
        if let Some(last) = path.last() {
            found.push((name.unwrap_or_else(|| last.clone()), path));
        }
    }
}

/// The path that begins with a word, as far as `::` goes on, and where it ends.
fn read_path(tokens: &[TokenTree], mut at: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    while let Some(step) = word(tokens.get(at)) {
        path.push(step);
        at += 1;
        if !(is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1))) {
            break;
        }
        at += 2;
    }
    (path, at)
}

/// Whether the word stands behind `.` or `::`, and so begins no path.
fn follows_path(tokens: &[TokenTree], at: usize) -> bool {
    let before = |steps| at.checked_sub(steps).and_then(|at| tokens.get(at));
    let is_dot = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(mark)) if mark.as_char() == '.');
    (is_colon(before(1)) && is_colon(before(2))) || (is_dot(before(1)) && !is_dot(before(2)))
}

/// Behind the semicolon or the braces that end an item.
fn end_of_item(tokens: &[TokenTree], from: usize) -> usize {
    let is_use = is_word(tokens.get(from.wrapping_sub(1)), "use") || is_word(tokens.get(from), "use");
    let ends = |token: &TokenTree| match token {
        TokenTree::Punct(mark) => mark.as_char() == ';',
        TokenTree::Group(group) => !is_use && group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    tokens[from..].iter().position(ends).map_or(tokens.len(), |end| from + end + 1)
}

fn word(token: Option<&TokenTree>) -> Option<String> {
    if let Some(TokenTree::Ident(word)) = token { Some(word.to_string()) } else { None }
}

fn is_word(token: Option<&TokenTree>, text: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(word)) if word == text)
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(mark)) if mark.as_char() == ':')
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The modules of a crate whose files are these.
    pub fn crate_of(files: &[(&str, &str)]) -> Vec<Module> {
        let open = |name: &str| files.iter().find(|(known, _)| *known == name).map(|(_, text)| text.to_string());
        let mut modules = Vec::new();
        walk("lib.rs", Vec::new(), &open, &mut modules).unwrap();
        modules
    }

    #[test]
    fn a_use_is_read_with_its_names() {
        let modules = crate_of(&[("lib.rs", "pub mod a { use super::b::{self, C as D, e::*}; } mod b {}")]);
        let uses: Vec<_> = modules[0].uses.iter().map(|path| path.join(" ")).collect();
        assert_eq!(uses, ["b", "b C", "b e *"]);
        assert_eq!(modules[0].aliases["D"], Some(vec!["b".to_string(), "C".to_string()]));
    }

    #[test]
    fn modules_are_found_where_the_compiler_finds_them() {
        let files =
            [("lib.rs", "mod a; #[path = \"other.rs\"] mod b;"), ("a.rs", "mod c;"), ("a/c.rs", ""), ("other.rs", "")];
        let mut paths: Vec<_> = crate_of(&files).into_iter().map(|module| module.path.join("/")).collect();
        paths.sort();
        assert_eq!(paths, ["", "a", "a/c", "b"]);
    }
}
