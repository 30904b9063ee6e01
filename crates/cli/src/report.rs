//! Reports for CI systems: JUnit and SARIF 2.1.0, whatever they are about. Who has something to report says what
//! ([`crate::run`], [`crate::torture`]); how it is written is here.

pub mod junit;
pub mod sarif;
