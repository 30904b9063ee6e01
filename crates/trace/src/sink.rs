//! Where events go: the [`Sink`] trait, the [`Tracer`] that code on the data path holds, and [`Tee`]. What a sink does
//! with an event is its own module.

use alloc::boxed::Box;
use core::fmt;

use wire::Qpn;

use crate::event::{Event, Kind};

/// Something that takes events.
///
/// `record` is called on the data path and reports no errors: a sink that can fail keeps its first error and gives it
/// up at the end, as [`JsonLines::finish`](crate::JsonLines::finish) does.
pub trait Sink {
    /// Takes one event.
    fn record(&mut self, event: &Event);
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn record(&mut self, event: &Event) {
        (**self).record(event);
    }
}

impl<S: Sink + ?Sized> Sink for Box<S> {
    fn record(&mut self, event: &Event) {
        (**self).record(event);
    }
}

/// A collection of everything, for tests.
impl Sink for alloc::vec::Vec<Event> {
    fn record(&mut self, event: &Event) {
        self.push(*event);
    }
}

/// Nothing, or a sink: what a function that emits events takes.
///
/// It is as small as a reference to a sink. Off, an [`emit`](Tracer::emit) is one test for null, and the event is
/// never built.
#[derive(Default)]
pub struct Tracer<'a> {
    sink: Option<&'a mut dyn Sink>,
}

impl<'a> Tracer<'a> {
    /// Events go nowhere.
    #[must_use]
    pub const fn off() -> Self {
        Self { sink: None }
    }

    /// Events go to `sink`.
    #[must_use]
    pub const fn to(sink: &'a mut dyn Sink) -> Self {
        Self { sink: Some(sink) }
    }

    /// Whether anybody listens. Needed only where preparing for an event costs something outside the closure.
    #[inline(always)]
    #[must_use]
    pub const fn enabled(&self) -> bool {
        self.sink.is_some()
    }

    /// Builds the event and passes it on, if anybody listens.
    #[inline(always)]
    pub fn emit(&mut self, at: u64, qpn: Option<Qpn>, kind: impl FnOnce() -> Kind) {
        if let Some(sink) = &mut self.sink {
            deliver(*sink, at, qpn, kind);
        }
    }

    /// A tracer to the same place, for a callee that takes one by value.
    #[inline(always)]
    #[must_use]
    pub fn reborrow(&mut self) -> Tracer<'_> {
        match &mut self.sink {
            Some(sink) => Tracer { sink: Some(&mut **sink) },
            None => Tracer { sink: None },
        }
    }
}

impl fmt::Debug for Tracer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.enabled() { "Tracer(on)" } else { "Tracer(off)" })
    }
}

/// Out of line and cold, so that the code of an event site that is off stays small and falls through.
#[cold]
#[inline(never)]
fn deliver(sink: &mut dyn Sink, at: u64, qpn: Option<Qpn>, kind: impl FnOnce() -> Kind) {
    sink.record(&Event { at, qpn, kind: kind() });
}

/// Feeds two sinks; nest it for more.
#[derive(Clone, Debug, Default)]
pub struct Tee<A, B>(pub A, pub B);

impl<A: Sink, B: Sink> Sink for Tee<A, B> {
    fn record(&mut self, event: &Event) {
        self.0.record(event);
        self.1.record(event);
    }
}
