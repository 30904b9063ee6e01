//! Which room of a house may use which: `xtask/rooms.toml`. A house is a crate, or a folder of one, and a room is a module
//! right below its face (`lib.rs`, `main.rs`, `mod.rs`). The table has exactly the arrows that the sources have, and a circle
//! has a sentence. What a room takes from the face counts as taken from the room that the face has it from. Tests may use
//! everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::sources::{self, Module};

/// A crate with more lines than this is a house of the table.
const MAX_LINES_WITHOUT_ROOMS: usize = 5_000;

const ROOMS_FILE: &str = "xtask/rooms.toml";

/// What the table says of a house.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct House {
    /// Each room, and the rooms it uses.
    rooms: BTreeMap<String, BTreeSet<String>>,
    /// The names of rooms that use each other, in the order of the alphabet, and why they do.
    #[serde(default)]
    circles: BTreeMap<String, String>,
}

/// From each room to the rooms that it uses, with the files that do.
type Arrows = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Reads the sources and returns what it found, or everything in which they and the table differ.
pub fn check(root: &Path) -> Result<String, String> {
    let text = fs::read_to_string(root.join(ROOMS_FILE)).map_err(|e| format!("{ROOMS_FILE}: {e}"))?;
    let table: BTreeMap<String, House> = toml::from_str(&text).map_err(|e| format!("{ROOMS_FILE}: {e}"))?;
    let mut wrong = Vec::new();
    let crates = fs::read_dir(root.join("crates")).map_err(|e| format!("crates: {e}"))?;
    let mut crates: Vec<_> =
        crates.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    crates.sort();
    for name in &crates {
        let (lines, modules) = sources::read(&root.join("crates").join(name).join("src"))?;
        if lines > MAX_LINES_WITHOUT_ROOMS && !table.contains_key(name) {
            wrong.push(format!("{name} has {lines} lines and no table of rooms ({ROOMS_FILE})"));
        }
        for (place, house) in &table {
            let mut way = place.split('/').map(str::to_string);
            if way.next().as_ref() == Some(name) {
                let differences = differences(house, &arrows(&modules, &way.collect::<Vec<_>>()));
                wrong.extend(differences.into_iter().map(|what| format!("{place}: {what}")));
            }
        }
    }
    for place in table.keys().filter(|place| !crates.iter().any(|name| place.split('/').next() == Some(name))) {
        wrong.push(format!("{place}: no such crate"));
    }
    if wrong.is_empty() {
        let rooms: usize = table.values().map(|house| house.rooms.len()).sum();
        let circles: usize = table.values().map(|house| house.circles.len()).sum();
        Ok(format!("{rooms} rooms in {} houses, {circles} circles with a reason", table.len()))
    } else {
        Err(wrong.join("\n"))
    }
}

/// The arrows between the rooms of the house whose face is the module `face`.
fn arrows(modules: &[Module], face: &[String]) -> Arrows {
    let Some(hall) = modules.iter().find(|module| module.path == face) else { return Arrows::new() };
    let rooms: BTreeSet<&String> =
        modules.iter().filter(|module| is_below(&module.path, face)).map(|module| &module.path[face.len()]).collect();
    let mut arrows: Arrows = rooms.iter().map(|&room| (room.clone(), BTreeMap::new())).collect();
    for module in modules.iter().filter(|module| module.path.starts_with(face)) {
        let room = module.path.get(face.len()).unwrap_or(&hall.file_stem);
        let handed_on = if module.path == face { &[][..] } else { &module.hands_on };
        for path in module.uses.iter().chain(handed_on) {
            if let Some(other) = room_of(path, hall, &rooms, modules)
                && other != *room
            {
                let files = arrows.entry(room.clone()).or_default().entry(other).or_default();
                files.insert(module.file.clone());
            }
        }
    }
    // A face whose words nobody uses, and which only hands on, is no room.
    if arrows.values().any(|used| used.contains_key(&hall.file_stem)) {
        arrows.entry(hall.file_stem.clone()).or_default();
    }
    arrows
}

fn is_below(path: &[String], face: &[String]) -> bool {
    path.len() > face.len() && path.starts_with(face)
}

/// The room that a path of the crate leads to; none if it leads out of the house.
fn room_of(path: &[String], hall: &Module, rooms: &BTreeSet<&String>, modules: &[Module]) -> Option<String> {
    let inside = path.strip_prefix(&hall.path[..])?;
    let Some(name) = inside.first() else { return Some(hall.file_stem.clone()) };
    if rooms.contains(name) {
        return Some(name.clone());
    }
    if let Some(behind) = hall.aliases.get(name) {
        return room_of(behind.as_ref()?, hall, rooms, modules);
    }
    let mut makers = modules.iter().filter(|module| module.macros.contains(name));
    let maker = makers.find(|module| is_below(&module.path, &hall.path));
    Some(maker.map_or_else(|| hall.file_stem.clone(), |module| module.path[hall.path.len()].clone()))
}

/// Everything in which a house and what the table says of it differ.
fn differences(house: &House, arrows: &Arrows) -> Vec<String> {
    let mut wrong = Vec::new();
    for (room, used) in arrows {
        let Some(allowed) = house.rooms.get(room) else {
            let used: Vec<_> = used.keys().collect();
            wrong.push(format!("{room} is no room of {ROOMS_FILE}; it uses {used:?}"));
            continue;
        };
        for (other, files) in used.iter().filter(|(other, _)| !allowed.contains(*other)) {
            let files: Vec<_> = files.iter().map(String::as_str).collect();
            wrong.push(format!("{room} may not use {other}, but does in {}", files.join(", ")));
        }
        let unused = allowed.iter().filter(|other| !used.contains_key(*other));
        wrong.extend(unused.map(|other| format!("{room} does not use {other}: {ROOMS_FILE} need not allow it")));
    }
    wrong.extend(house.rooms.keys().filter(|room| !arrows.contains_key(*room)).map(|room| format!("{room} is gone")));
    let circles = circles(&house.rooms);
    for circle in circles.iter().filter(|circle| house.circles.get(*circle).is_none_or(|why| why.trim().is_empty())) {
        wrong.push(format!("a circle without a reason: \"{circle}\""));
    }
    let broken = house.circles.keys().filter(|circle| !circles.contains(*circle));
    wrong.extend(broken.map(|circle| format!("\"{circle}\" is no circle any more")));
    wrong
}

/// The rooms that use each other, straight or through others: each circle's names, separated by spaces.
fn circles(rooms: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let reached = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&String> = rooms.get(from).into_iter().flatten().collect();
        while let Some(room) = next.pop() {
            if seen.insert(room) {
                next.extend(rooms.get(room).into_iter().flatten());
            }
        }
        seen
    };
    let reach: BTreeMap<_, _> = rooms.keys().map(|room| (room, reached(room))).collect();
    let circle_of = |room: &String| {
        let mates = rooms.keys().filter(|other| reach[room].contains(other) && reach[other].contains(room));
        mates.map(String::as_str).collect::<Vec<_>>().join(" ")
    };
    rooms.keys().map(circle_of).filter(|circle| !circle.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "mod links; mod nic; mod tuning; #[cfg(test)] mod probe;
        pub use nic::{Nic, calls::Call as Asked}; pub use std::sync::Arc; fn lock() {}";

    fn house(links: &str) -> Arrows {
        let files = [
            ("lib.rs", LIB),
            ("links.rs", links),
            ("links/udp.rs", ""),
            ("nic/mod.rs", "mod calls; macro_rules! counted { () => {} }"),
            ("nic/calls.rs", ""),
            ("tuning.rs", ""),
        ];
        arrows(&sources::tests::crate_of(&files), &[])
    }

    fn used(links: &str) -> Vec<String> {
        house(links)["links"].keys().cloned().collect()
    }

    #[test]
    fn a_name_is_of_the_room_that_the_face_has_it_from() {
        assert_eq!(used("use crate::tuning::SOCKETS;"), ["tuning"]);
        assert_eq!(used("use crate::Nic;"), ["nic"]);
        assert_eq!(used("fn f(_: crate::Asked) {}"), ["nic"]);
        assert_eq!(used("use crate::{tuning, Nic as Card};"), ["nic", "tuning"]);
        assert_eq!(used("use super::tuning;"), ["tuning"]);
        assert_eq!(used("fn f() { crate::lock(); }"), ["lib"]);
        assert_eq!(used("fn f() { crate::counted!(); }"), ["nic"]);
        assert!(used("use crate::Arc;").is_empty(), "from outside");
    }

    #[test]
    fn comments_tests_and_the_room_itself_do_not_count() {
        assert!(used("mod udp; use crate::links::udp; use self::udp::Path;").is_empty());
        assert!(used("//! `crate::nic`\nconst A: &str = \"crate::nic\"; // crate::nic").is_empty());
        assert!(used("#[cfg(test)] mod tests { use crate::nic::Nic; } #[cfg(test)] use crate::nic;").is_empty());
        assert_eq!(used("#[cfg(test)] mod tests { } mod inner { use super::super::tuning; }"), ["tuning"]);
    }

    #[test]
    fn the_table_has_the_arrows_of_the_sources_and_no_others() {
        let table = |text: &str| toml::from_str::<House>(text).unwrap();
        let real = house("use crate::tuning;");
        let wrong = |text: &str| differences(&table(text), &real);
        assert!(wrong("rooms = { links = ['tuning'], nic = [], tuning = [] }").is_empty());
        assert_eq!(wrong("rooms = { links = [], nic = [], tuning = [] }").len(), 1, "not allowed");
        assert_eq!(wrong("rooms = { links = ['tuning', 'nic'], nic = [], tuning = [] }").len(), 1, "not used");
        assert_eq!(wrong("rooms = { links = ['tuning'], tuning = [] }").len(), 1, "not in the table");
        assert_eq!(wrong("rooms = { links = ['tuning'], nic = [], tuning = [], attic = [] }").len(), 1, "gone");
    }

    #[test]
    fn a_circle_has_a_reason_and_a_reason_has_a_circle() {
        let files = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", "use crate::a;")];
        let real = arrows(&sources::tests::crate_of(&files), &[]);
        let wrong = |circles: &str| {
            let table = format!("rooms = {{ a = ['b'], b = ['a'] }}\ncircles = {{ {circles} }}");
            differences(&toml::from_str::<House>(&table).unwrap(), &real)
        };
        assert!(wrong("'a b' = 'They cannot part.'").is_empty());
        assert_eq!(wrong("").len(), 1);
        assert_eq!(wrong("'a b' = ''").len(), 1);
        assert_eq!(wrong("'a b' = 'Why.', 'a c' = 'Why.'").len(), 1);
    }

    #[test]
    fn a_folder_is_a_house_of_its_own() {
        let files = [
            ("lib.rs", "mod preload; mod log;"),
            ("log.rs", ""),
            ("preload/mod.rs", "mod table; mod start;"),
            ("preload/table.rs", "use crate::log;"),
            ("preload/start.rs", "use super::table; use crate::preload::table::Entry;"),
        ];
        let real = arrows(&sources::tests::crate_of(&files), &["preload".to_string()]);
        assert_eq!(real["start"].keys().collect::<Vec<_>>(), ["table"]);
        assert!(real["table"].is_empty());
    }
}
