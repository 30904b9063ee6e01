//! The Rust API, on the NIC of this process and on simulated ones. What wants a process of its own is beside this folder:
//! `connecting`, `leaks`, `over_udp`, `programs`, `steady`, and `hosts`, which is every process it starts.
//!
//! - `work`: every kind of work
//! - `windows`: memory windows, and work that came to verbs later
//! - `xrc`: extended reliable connections
//! - `device_memory`: memory of the device
//! - `own_memory`: memory of the program's own
//! - `ownership`: whose memory it is
//! - `features`: buffers of other crates
//! - `cancellation`: operations that are dropped before they are done
//! - `misuse`: what the compiler does not notice
//! - `arguments`: arguments that make no sense
//! - `encoding`: endpoints and remote slices as bytes and as text
//! - `errors`: how errors read, as `main` prints them
//! - `facts`: what a program can ask
//! - `events`: what a program hears of beside completions
//! - `ending`: how connections end, through shared memory
//! - `over_udp_too_late`: a NIC that is told how to attach after it has
//! - `scripts`: failure scripts
//! - `streams`: streams of bytes
//! - `scale`: ten thousand queue pairs
//! - `simulation`: programs on the simulated NIC, and how their runs fail
//! - `simulated_verbs`: every kind of queue pair and work there
//! - `simulated_programs`: three programs there, with loss and parties that are killed
//! - `ports`: connections over a NIC of several ports
//! - `peers`: two processes with a connection between them

mod arguments;
mod cancellation;
mod device_memory;
mod encoding;
mod ending;
mod errors;
mod events;
mod facts;
mod features;
mod misuse;
mod over_udp_too_late;
mod own_memory;
mod ownership;
mod peers;
mod ports;
mod scale;
mod scripts;
mod simulated_programs;
mod simulated_verbs;
mod simulation;
mod streams;
mod windows;
mod work;
mod xrc;
