//! The connection manager, sans-IO: how two queue pairs find each other (specification chapter 12), without sockets,
//! clocks, threads, globals or `unsafe`. Calls, messages and time go in; messages, deadlines and events come out.
//!
//! What a program of librdmacm calls is [`id`]: ids with addresses and ports, and their events, over the rest.
//!
//! A [`Manager`] serves a whole process. A connection is named by its local communication id, and so is a request for a
//! datagram service. Queue pairs are none of its business: it carries their numbers.
//!
//! # Driving it
//!
//! **After everything that goes in, send what comes out, take the events, and wake up at the deadline.** This is the
//! whole loop:
//!
//! ```
//! use ubiverbs_cm as cm;
//! use cm::{Event, Manager, Route, Time, Transmit};
//! use wire::cm::CmDatagram;
//!
//! /// What a driver needs beside the manager.
//! trait Outside {
//!     fn send(&mut self, transmit: &Transmit);
//!     fn tell(&mut self, event: Event);
//!     fn wake_at(&mut self, deadline: Option<Time>);
//! }
//!
//! fn drive(manager: &mut Manager, outside: &mut impl Outside) {
//!     while let Some(transmit) = manager.poll_transmit() {
//!         outside.send(&transmit);
//!     }
//!     while let Some(event) = manager.poll_event() {
//!         outside.tell(event); // which may call the manager again, and then drives again
//!     }
//!     outside.wake_at(manager.poll_timeout());
//! }
//!
//! fn arrived(manager: &mut Manager, now: Time, from: Route, datagram: &CmDatagram, outside: &mut impl Outside) {
//!     manager.handle(now, from, datagram);
//!     drive(manager, outside);
//! }
//!
//! fn woke_up(manager: &mut Manager, now: Time, outside: &mut impl Outside) {
//!     manager.handle_timeout(now);
//!     drive(manager, outside);
//! }
//! ```
//!
//! # A connection
//!
//! | active | | passive |
//! |---|---|---|
//! | [`connect`](Manager::connect) | REQ → | [`Event::Request`] |
//! | [`Event::Reply`] | ← REP | [`accept`](Manager::accept) |
//! | [`confirm`](Manager::confirm) | RTU → | [`Event::Established`] |
//! | [`disconnect`](Manager::disconnect) | DREQ → | [`Event::DisconnectRequested`] |
//! | [`Event::Disconnected`] | ← DREP | [`answer_disconnect`](Manager::answer_disconnect) |
//! | [`Event::TimewaitEnded`] | | [`Event::TimewaitEnded`] |
//!
//! Either side may disconnect. A side that loses interest calls [`abandon`](Manager::abandon) in any state; what the
//! peer must be told is told.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod audit;
mod calls;
mod comm_ids;
mod connection;
mod error;
mod event;
pub mod id;
mod inbound;
mod listeners;
mod manager;
mod messages;
mod output;
mod parameters;
mod proof;
mod sidr;
mod timeouts;

pub use connection::State;
pub use error::{CmError, ListenError};
pub use event::{Event, Transmit, Unanswered};
pub use id::{IdError, IdKey, Ids};
pub use manager::Manager;
pub use messages::{PROCESS_ENDED, process_ended};
pub use parameters::{Accept, Config, Connect, Ece, Families, Listen, ListenerId, Orphan, Resolve, Route, SidrAnswer};
pub use trace::Time;
