//! Looking on and interfering: events, captures, counters, scripts, and packets from nowhere.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use trace::{Event, Sink};
use wire::{EncodeError, Gid, Headers};

use super::Sim;
use crate::capture::Capture;
use crate::frame;
use crate::host::HostId;
use crate::network::{Counters, Passing};
use crate::parcel::{self, Parcel};
use crate::script::{Fate, Script, Sighting};

/// A sink that a test keeps a hold of, to look into after the run.
///
/// ```
/// let mut sim = sim::Sim::new(1);
/// let events = sim::Shared::new(Vec::<trace::Event>::new());
/// sim.trace(events.clone());
/// sim.run_until_idle();
/// assert!(events.borrow().is_empty());
/// ```
#[derive(Debug, Default)]
pub struct Shared<S>(Rc<RefCell<S>>);

impl<S> Shared<S> {
    /// Shares a sink.
    pub fn new(sink: S) -> Shared<S> {
        Shared(Rc::new(RefCell::new(sink)))
    }

    /// Looks into it.
    pub fn borrow(&self) -> std::cell::Ref<'_, S> {
        self.0.borrow()
    }

    /// Changes it.
    pub fn borrow_mut(&self) -> std::cell::RefMut<'_, S> {
        self.0.borrow_mut()
    }
}

impl<S> Clone for Shared<S> {
    fn clone(&self) -> Shared<S> {
        Shared(Rc::clone(&self.0))
    }
}

impl<S: Sink> Sink for Shared<S> {
    fn record(&mut self, event: &Event) {
        self.0.borrow_mut().record(event);
    }
}

impl Sim {
    /// Sends every event of every host to `sink` as well.
    pub fn trace(&mut self, sink: impl Sink + 'static) {
        let mut sink = sink;
        self.observe(move |_, event| sink.record(event));
    }

    /// Shows every event and its host to `observer` as well.
    pub fn observe(&mut self, observer: impl FnMut(HostId, &Event) + 'static) {
        self.net.observe(Box::new(observer));
        for host in &mut self.hosts {
            host.world.tracing = true;
        }
    }

    /// Shows every packet to `watcher` as it enters its link, with what will become of it.
    pub fn watch(&mut self, watcher: impl FnMut(&Passing<'_>) + 'static) {
        self.net.watch(Box::new(watcher));
    }

    /// From now on `script` decides what becomes of packets, in place of any other script.
    pub fn script(&mut self, script: Script) {
        self.net.script = Some(script);
    }

    /// From now on `script` decides what becomes of packets, in place of any other script.
    pub fn intercept(&mut self, script: impl FnMut(&Sighting<'_>) -> Fate + 'static) {
        self.script(Box::new(script));
    }

    /// From now on only the links decide what becomes of packets.
    pub fn end_script(&mut self) {
        self.net.script = None;
    }

    /// Captures every frame from now on, in pcapng.
    pub fn capture(&mut self, writer: impl Write + 'static) -> Result<(), trace::Error> {
        let names = self.hosts.iter().map(|host| host.name.as_str());
        self.net.capture = Some(Capture::new(Box::new(writer), names)?);
        Ok(())
    }

    /// Ends the capture; says what went wrong with it, if anything did.
    pub fn finish_capture(&mut self) -> Result<(), trace::Error> {
        self.net.capture.take().map_or(Ok(()), Capture::finish)
    }

    /// What the network did so far.
    pub fn counters(&self) -> &Counters {
        &self.net.counters
    }

    /// The frame of a packet from one address to another, good in every respect but what the test asks for.
    pub fn frame(
        &self,
        source: Gid,
        destination: Gid,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<Vec<u8>, EncodeError> {
        let to = self.net.routes.get(&destination).copied().unwrap_or(HostId(0));
        let path = self.net.injected_path(source, destination, to);
        let mut bytes = Vec::new();
        frame::encode(&path, headers, payload, false, &mut bytes)?;
        Ok(bytes)
    }

    /// A packet arrives at a host as if `source` had sent it to the host's address of the same family.
    pub fn inject(&mut self, to: HostId, source: Gid, headers: &Headers, payload: &[u8]) -> Result<(), EncodeError> {
        let bytes = self.frame(source, self.address_like(to, source), headers, payload)?;
        self.inject_bytes(to, bytes);
        Ok(())
    }

    /// A whole train arrives at a host as if `source` had put it on a ring in shared memory. Nothing checks what it
    /// says of itself: `count` may be anything.
    pub fn inject_train(&mut self, to: HostId, source: Gid, headers: &Headers, count: u32, payload: &[u8]) {
        let path = self.net.injected_path(source, self.address_like(to, source), to);
        let train = parcel::Train { headers: *headers, count, marked: false };
        self.net.arrive_now(Parcel { path, bytes: payload.to_vec(), train: Some(train) });
    }

    /// A host's address of the same family as `other`.
    fn address_like(&self, host: HostId, other: Gid) -> Gid {
        let gids = &self.hosts[host.index()].gids;
        let v4 = other.to_ip().is_ipv4();
        *gids.iter().find(|gid| gid.to_ip().is_ipv4() == v4).or(gids.first()).expect("a host has an address")
    }

    /// A frame of any bytes arrives at a host.
    pub fn inject_bytes(&mut self, to: HostId, bytes: Vec<u8>) {
        let own = self.hosts[to.index()].gids.first().copied().unwrap_or_default();
        let path = self.net.injected_path(own, own, to);
        self.net.inject(path, bytes);
    }
}
