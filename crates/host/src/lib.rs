//! The processes of one host: how they share one NIC without a daemon. The network namespace is the registry: abstract
//! Unix socket names are atomic, need no files and no privileges, and vanish with their process. This crate knows
//! names, numbers, ports and processes; how packets move is `link`'s.
//!
//! | module | what |
//! |---|---|
//! | [`names`] | abstract socket names, and the processes that have them |
//! | [`slots`], [`ports`] | which process has which queue pair numbers, and which ports of the connection manager |
//! | [`holders`], [`socket_table`] | which user holds the host's UDP port; the kernel's table of sockets |
//! | [`callers`] | other processes that connect to this one, and other users off the data path |
//! | [`forward`] | packets that came to the wrong process of the host go on to the right one |
//! | [`steering`] | and seldom come to the wrong one |
//! | [`process_watch`], [`connection_records`] | which processes have ended, and which connections they had |
//! | [`process_stop`] | how this process stops for a while |
//! | [`neighbours`] | whether other hosts of the network can be reached |
//! | [`inquiry`] | what other processes have |
//! | [`offer`], [`greeting`], [`passing`] | what two processes say to each other, with descriptors |
//! | [`arrival`], [`target`], [`family`] | a packet, the process that it is for, and the sockets that receive it |
//! | [`descriptor`], [`event_fd`], [`event_set`], [`ready_pipe`] | what a forked child must not keep; bells; what threads and programs wait for |
//! | [`thread`], [`standard_error`], [`stamp`], [`environment`] | threads that take no signals; lines for a person, and when they were written; what is believed of variables |
//! | [`file_size`] | how long a file may become |
//! | [`memory_faults`] | what is said before a process dies by touching registered memory that it has unmapped |

pub mod arrival;
pub mod descriptor;
pub mod environment;
pub mod event_fd;
pub mod event_set;
pub mod family;
pub mod file_size;
pub mod forward;
pub mod greeting;
pub mod holders;
pub mod inquiry;
pub mod memory_faults;
pub mod process_watch;
pub mod ready_pipe;

pub mod callers;
pub mod classes;
pub mod connection_records;
pub mod names;
pub mod neighbours;
pub mod offer;
pub mod passing;
pub mod ports;
pub mod process_stop;
pub mod shares;
mod slot;
pub mod slots;
pub mod socket_table;
pub mod stamp;
pub mod standard_error;
pub mod steering;
pub mod target;
pub mod thread;
pub mod timer_fd;

pub use slots::random;
