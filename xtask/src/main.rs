//! Build, test and check tasks of the workspace.
fn main() {}
