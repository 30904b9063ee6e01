//! Tests of litmus tests.

mod files;
mod simulated;
