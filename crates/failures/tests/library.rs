//! The files of the library.

use failures::library::DISASTERS;

#[test]
fn every_file_is_in_the_list() {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/library")).unwrap();
    assert_eq!(files.count(), DISASTERS.len());
}
