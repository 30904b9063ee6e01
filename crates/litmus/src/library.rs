//! The tests of ubiverbs, by what they are about.

use crate::parse::parse;
use crate::test::Test;

/// Files of tests: name and text.
const FILES: &[(&str, &str)] = &[
    ("told", include_str!("../library/told.litmus")),
    ("untold", include_str!("../library/untold.litmus")),
    ("source", include_str!("../library/source.litmus")),
    ("fence", include_str!("../library/fence.litmus")),
    ("atomic", include_str!("../library/atomic.litmus")),
    ("both", include_str!("../library/both.litmus")),
];

/// All tests that are built in, with the name of their file.
///
/// # Panics
/// Never: a test of this crate reads them all.
pub fn library() -> Vec<(&'static str, Test)> {
    let tests = FILES.iter().map(|(name, text)| {
        let tests = parse(text).unwrap_or_else(|error| panic!("library/{name}.litmus: {error}"));
        tests.into_iter().map(move |test| (*name, test))
    });
    tests.flatten().collect()
}
