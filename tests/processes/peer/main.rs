//! The other process of the tests in this package: `peer ROLE [ARGUMENT]`. What it says and hears are lines of text; a role
//! that fails panics, which its exit status shows.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Each role is told in the module that it is named after, beside what the test shares with it.
const ROLES: &[(&str, fn(&str))] = &[
    ("answers", stage::answers::peer),
    ("connecting", stage::connecting::peer),
    ("datagrams", stage::datagrams::peer),
    ("direct", stage::direct::peer),
    ("drops", stage::drops::peer),
    ("faults", stage::faults::peer),
    ("giving_up", stage::ids::giving_up),
    ("ids", stage::ids::peer),
    ("interfaces", stage::interfaces::follow),
    ("killed", stage::killed::peer),
    ("neighbour", stage::neighbours::neighbour),
    ("neighbours_receiver", stage::neighbours::receiver),
    ("neighbours_sender", stage::neighbours::sender),
    ("progress", stage::progress::peer),
    ("rates", stage::rates::peer),
    ("removal", stage::ids::removal),
    ("scripts", stage::scripts::peer),
    ("shared_memory", stage::shared_memory::peer),
    ("two_processes", stage::two_processes::peer),
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some((_, role)) = ROLES.iter().find(|(known, _)| *known == name) else {
        let names: Vec<_> = ROLES.iter().map(|(name, _)| *name).collect();
        eprintln!("the other process of a test, which has no role {name:?}; there are: {}", names.join(", "));
        return ExitCode::from(2);
    };
    role(&arguments.next().unwrap_or_default());
    ExitCode::SUCCESS
}
