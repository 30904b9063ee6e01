//! Each promise of the API that the compiler keeps, as a program it refuses, with what it says.

#[test]
fn what_must_not_compile_does_not() {
    trybuild::TestCases::new().compile_fail("tests/promises/*.rs");
}
