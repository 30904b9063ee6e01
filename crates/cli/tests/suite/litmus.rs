//! `ubiverbs litmus`: small programs that show in which order a NIC may do things.

use crate::program::{code, document, stderr, stdout, ubiverbs};
use std::fs;

#[test]
fn tests_of_the_library_are_listed_and_run_on_the_simulator() {
    let list = stdout(&ubiverbs(&["litmus", "--list"]));
    assert!(list.lines().count() >= 60, "{list}");
    let output = ubiverbs(&["litmus", "--test", "write-then-send", "--runs", "500", "--all-seen"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("2 tests, 500 runs each with the NIC weakest: 0 failed"), "{}", stdout(&output));
}

#[test]
fn the_software_nic_shows_nothing_that_is_forbidden() {
    for on in ["inside", "shared", "udp"] {
        for nic in ["default", "weakest"] {
            let output = ubiverbs(&["litmus", "--on", on, "--nic", nic, "--runs", "3", "--json"]);
            let document = document(&output);
            assert_eq!((code(&output), &document["failed"]), (0, &0.into()), "{on} {nic}: {document:#}");
        }
    }
}

#[test]
fn what_was_seen_and_must_not_be_is_told_with_its_seed() {
    let directory = std::env::temp_dir().join(format!("ubiverbs-litmus-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("mine.litmus");
    let path_text = path.to_str().expect("text");
    // It takes a WRITE for something that another WRITE tells of.
    let text = "test mine\nprocess A\nmemory a = 1, b = 2\nwrite a -> B.x\nwrite b -> B.y\nprocess B\nmemory x, y\n\
                spin y 2\nload x -> r0\nallowed r0=1 -- both\nforbidden r0=0 -- so we think\n";
    fs::write(&path, text).expect("written");
    let output = ubiverbs(&["litmus", path_text, "--runs", "2000", "--json"]);
    let wrong = &document(&output)["tests"][0]["outcomes"][1];
    assert_eq!((code(&output), wrong["verdict"].as_str()), (1, Some("forbidden")), "{wrong}");
    let seed = wrong["first_seed"].as_u64().expect("it was seen").to_string();
    let again = ubiverbs(&["litmus", path_text, "--runs", "1", "--seed", &seed]);
    assert_eq!(code(&again), 1, "one run with the seed shows it again: {}", stdout(&again));
    assert_eq!(code(&ubiverbs(&["litmus", path_text, "--nic", "default", "--runs", "200"])), 0);
    fs::write(&path, text.replace("load", "laod")).expect("written");
    let output = ubiverbs(&["litmus", path_text]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("mine.litmus: line 9: `laod x -> r0` is not understood"), "{}", stderr(&output));
    assert_eq!(code(&ubiverbs(&["litmus", "--test", "no such test"])), 2);
    fs::remove_dir_all(&directory).expect("removed");
}
