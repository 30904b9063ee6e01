//! The protocol of a queue pair, without sockets, clocks or threads.
