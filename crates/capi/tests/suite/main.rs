//! The libraries in C, as people get them, with programs on them.
//!
//! - `symbols`: what the libraries export, and that they can be copied, loaded and linked against
//! - `programs`: programs in C and C++, compiled here
//! - `sockets`: socket programs on `librspreload.so`
//! - `streams`: programs in C and streams of the Rust API talk to each other
//! - `pyverbs`: rdma-core's own tests, in Python
//! - `sanitizers`: programs built with sanitizers
//! - `scripts`: a program that failure scripts break
//! - `cards`: a program on NICs that are like cards
//! - `nccl`: a program that calls NCCL's profiler plugin as NCCL does
//! - `library`: where the libraries are, and how programs are run on them

mod cards;
mod library;
mod nccl;
mod programs;
mod pyverbs;
mod sanitizers;
mod scripts;
mod sockets;
mod streams;
mod symbols;
