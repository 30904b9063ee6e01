//! What the transport does, told as scenarios on the simulator. One file per subject.
//!
//! - `rc_basics`: a reliable connection when nothing goes wrong
//! - `rc_work`: options and limits of its work requests
//! - `rc_windows`: keys that come and go on it
//! - `rc_large`: messages as long as they may be
//! - `rc_retry`: packets that are lost, damaged, doubled or late
//! - `rc_retry_limits`: how often and how long it tries
//! - `rc_errors`: requests that cannot be carried out
//! - `rc_error_state`: the way into the error state, and back
//! - `rc_drain`: a send queue that is stopped and goes on
//! - `uc`: unreliable connections
//! - `ud`: unreliable datagrams
//! - `xrc`: extended reliable connections
//! - `srq`: shared receive queues
//! - `states`: the life of a queue pair
//! - `links`: one queue pair, three links
//! - `pacing`: limits on what a queue pair sends
//! - `congestion`: how queue pairs share what a receiver can take
//! - `incast`: many to one
//! - `datagram_marks`: congestion and datagrams
//! - `tables`: what the transport gets out of a network
//! - `scale`: ten thousand queue pairs
//! - `hostile`: a peer that sends requests it should not
//! - `hostile_answers`: a peer that answers what it should not
//! - `nonsense`: a peer that sends nonsense
//! - `model`: random programs beside a plain model
//! - `model_finds`: what random programs found
//! - `fuzz_replay`: storms over live queue pairs
//! - `explanations`: what a checker makes of a simulation
//! - `connections`: how connections come and go
//! - `connection_ends`: every way a connection can end
//! - `connection_limits`: how much of anything there can be
//! - `connection_strays`: messages that fit nothing
//! - `connection_model`: random programs that connect, beside a model
//! - `id_model`: the same with ids, their ports and what two sides agree on
//! - `connection_storms`: storms over a connection manager
//! - `datagram_services`: how a datagram service is found
//! - `stream_sockets`: the protocol of sockets over RDMA

mod congestion;
mod connection_ends;
mod connection_limits;
mod connection_model;
mod connection_storms;
mod connection_strays;
mod connections;
mod datagram_marks;
mod datagram_services;
mod explanations;
mod fuzz_replay;
mod hostile;
mod hostile_answers;
mod id_model;
mod incast;
mod links;
mod model;
mod model_finds;
mod nonsense;
mod pacing;
mod rc_basics;
mod rc_drain;
mod rc_error_state;
mod rc_errors;
mod rc_large;
mod rc_retry;
mod rc_retry_limits;
mod rc_windows;
mod rc_work;
mod scale;
mod srq;
mod states;
mod stream_sockets;
mod tables;
mod uc;
mod ud;
mod xrc;
