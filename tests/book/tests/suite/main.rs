//! The book, beside what it is about.
//!
//! - `chapters`: chapters are the examples; links lead somewhere
//! - `figures`: what pages say about the code is what the code has
//! - `serialized`: the feature `serde`

mod chapters;
mod figures;
mod serialized;
