//! Files of litmus tests that are wrong, and what is said of them.

use litmus::parse;

fn said(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let begin = "test t\nprocess A\nmemory x, y\nprocess B\nmemory z\n";
    let cases = [
        ("", "line 1: there is no `test NAME` in it"),
        ("store x 1", "line 1: store stands before the first `test NAME`"),
        ("test", "line 1: expected the name of a test"),
        ("test 1st", "line 1: 1st is no name; expected the name of a test: a letter, then letters, digits, - + or _"),
        ("test t\nmemory x", "line 2: memory stands before the first `process NAME`"),
        ("test t\nprocess A\nprocess A", "line 3: there is a process A already"),
        ("test t\nprocess A\nmemory x = one", "line 3: one is no number of 64 bits"),
        ("test t\npair 2 ud", "line 2: ud is no kind of queue pair; there are rc and uc"),
        ("test t\nprocess A\nallowed r0=1", "line 3: expected `CONDITIONS -- WHY`"),
        ("test t", "line 1: test t has no process"),
        ("test t\nprocess A", "line 1: test t allows nothing"),
    ];
    for (text, expected) in cases {
        assert_eq!(said(text), expected, "{text}");
    }
    let cases = [
        ("load q -> r0", "line 6: B has no cell q; it has z"),
        ("load z into r0", "line 6: `load z into r0` is not understood; expected `load CELL -> REGISTER`"),
        ("jump", "`jump` is not understood; expected store, load, fence"),
        ("write z -> C.x", "line 6: there is no process C; there are A, B"),
        ("write z -> B.z", "line 6: a process has no connection with itself here"),
        ("write z -> A.y on", "line 6: expected the label of a connection behind `on`"),
        ("write z -> A.y twice", "line 6: twice is not understood; expected on, as, imm"),
        ("send z -> A imm 1", "line 6: only a write has immediate data here"),
        ("wait w", "line 6: B has posted nothing before that is named w (`as w`)"),
        ("store z r7", "line 6: there is no register r7; a load or a poll makes one"),
        ("read A.x -> z inline", "line 6: only send and write may be inline"),
    ];
    for (step, expected) in cases {
        let told = said(&format!("{begin}{step}\nallowed A.x=0 -- nothing\n"));
        assert!(told.contains(expected), "{step}: {told}");
    }
    let told = said(&format!("{begin}allowed q=0 -- nothing\n"));
    assert_eq!(told, "line 6: there is no register q; a load or a poll makes one");
}

#[test]
fn a_span_of_cells_must_fit_where_it_goes() {
    let told = said("test t\nprocess A\nmemory x, y\nwrite x..y -> B.z\nprocess B\nmemory z\nallowed B.z=0 -- no\n");
    assert_eq!(told, "line 4: B.z and what follows it are fewer than 2 cells");
}
