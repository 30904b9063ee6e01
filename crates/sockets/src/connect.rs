//! Connecting, and what the connection manager says to a socket.

use crate::endpoint::{Endpoint, Plan};
use crate::error::Error;
use crate::events::Letter;
use crate::shutdown::Broken;
use crate::socket::{Phase, Socket, State};
use hca::cm::{Body, ConnectParameters, ConnectionEnd, Event, EventKind};
use rsocket::ConnectionData;
use std::net::SocketAddr;
use wire::Qpn;
use wire::cm::RejectReason;

/// Retries, of requests and of a receiver that is not ready: for ever, as long as the peer is there.
const ENDLESS_RETRIES: u8 = 7;

/// Why a request for a socket is refused.
pub(crate) const REFUSAL_REASON: RejectReason = RejectReason::Consumer;

impl Socket {
    /// Asks a peer for a connection. The answer comes later: [`outcome`](Socket::outcome).
    pub fn connect(&self, address: SocketAddr) -> Result<(), Error> {
        let mut state = self.lock();
        match &state.phase {
            Phase::Idle | Phase::Bound | Phase::Stopped => {}
            Phase::Connecting(_) => return Err(Error(libc::EALREADY)),
            Phase::Connected(_) => return Err(Error(libc::EISCONN)),
            Phase::Listening(_) => return Err(Error::INVALID),
            Phase::Failed => return Err(Error::NOT_CONNECTED),
        }
        let asked = self.ask(&mut state, address);
        if let Err(error) = asked {
            self.fail(&mut state, error);
        }
        asked
    }

    /// Waits until the network knows the way to a peer, a second at most: where a program waits for its connection it
    /// hears soon that no host has the address.
    pub fn await_neighbour(&self, address: SocketAddr) -> Result<(), Error> {
        Ok(self.id.await_neighbour(address)?)
    }

    fn ask(&self, state: &mut State, address: SocketAddr) -> Result<(), Error> {
        self.id.resolve_address(None, address)?;
        let device = self.id.device().ok_or(Error(libc::EADDRNOTAVAIL))?;
        self.id.resolve_route()?;
        let plan = Plan::new(&self.nic, &self.hub.context(&device)?, state.sizes)?;
        state.sizes = plan.sizes;
        let offer = plan.connection_data();
        let endpoint = Endpoint::new(&self.nic, plan, &self.channel)?;
        if self.is_observed() {
            self.watch_completions(&endpoint);
        }
        self.id.connect(&parameters(&offer, endpoint.parts.qp.qpn()))?;
        state.phase = Phase::Connecting(Box::new(endpoint));
        Ok(())
    }

    /// What has become of a connection that was asked for: `EINPROGRESS` as long as nothing has.
    pub fn outcome(&self) -> Result<(), Error> {
        let mut state = self.lock();
        match &state.phase {
            Phase::Connected(_) => Ok(()),
            Phase::Connecting(_) => Err(Error::IN_PROGRESS),
            Phase::Failed => match std::mem::take(&mut state.error) {
                0 => Err(Error::NOT_CONNECTED),
                code => Err(Error(code)),
            },
            _ => Err(Error::NOT_CONNECTED),
        }
    }

    /// There will be no connection.
    fn fail(&self, state: &mut State, error: Error) {
        state.phase = Phase::Failed;
        state.error = error.0;
        state.mark_changed();
        self.hub.tell_listener(self.key, false);
    }

    /// Reads a letter.
    pub(crate) fn open(&self, state: &mut State, letter: Letter) {
        match letter {
            Letter::Accepted(key, connected) => {
                if let Phase::Listening(listening) = &mut state.phase {
                    listening.settle(key, connected);
                }
            }
            Letter::Forget(key) => {
                if let Phase::Listening(listening) = &mut state.phase {
                    listening.forget(key);
                }
            }
            Letter::Event(event) if event.kind != EventKind::ConnectRequest && event.id.user() != self.key => {
                self.settled(state, event);
            }
            Letter::Event(event) => match event.kind {
                EventKind::ConnectRequest => self.requested(state, event),
                EventKind::ConnectResponse => self.answered(state, &event),
                EventKind::Established => self.established(state),
                EventKind::AddressError | EventKind::RouteError | EventKind::ConnectError => {
                    self.refused(state, Error(event.status.checked_neg().unwrap_or(libc::EIO)));
                }
                EventKind::Unreachable => self.refused(state, Error(libc::ETIMEDOUT)),
                EventKind::Rejected => self.refused(state, Error(libc::ECONNREFUSED)),
                EventKind::Disconnected => self.left(state, &event),
                EventKind::DeviceRemoval => {
                    self.refused(state, Error(libc::ENETDOWN));
                    if let Phase::Connected(endpoint) = &mut state.phase {
                        endpoint.protocol.handle_failure();
                        state.error = libc::ENETDOWN;
                        state.broken.get_or_insert(Broken::DeviceGone);
                    }
                }
                // Addresses and routes are found at once, and asked for.
                _ => {}
            },
        }
    }

    /// The peer accepted.
    fn answered(&self, state: &mut State, event: &Event) {
        let Phase::Connecting(endpoint) = &mut state.phase else { return };
        let Body::Connection(body) = &event.body else { return };
        let mut ready = || -> Result<(), Error> {
            endpoint.protocol.handle_connection_data(&body.private_data)?;
            endpoint.make_ready(&self.id)?;
            Ok(self.id.establish()?)
        };
        match ready() {
            Ok(()) => self.established(state),
            Err(error) => {
                let _ = self.id.reject(REFUSAL_REASON, &[]);
                self.refused(state, error);
            }
        }
    }

    /// The connection stands.
    fn established(&self, state: &mut State) {
        if !matches!(state.phase, Phase::Connecting(_)) {
            return;
        }
        if let Phase::Connecting(mut endpoint) = std::mem::take(&mut state.phase) {
            endpoint.post_due();
            state.phase = Phase::Connected(endpoint);
        }
        self.hub.tell_listener(self.key, true);
    }

    fn refused(&self, state: &mut State, error: Error) {
        if matches!(state.phase, Phase::Connecting(_)) {
            self.fail(state, error);
        }
    }

    /// The peer has gone, or we have. What it sent before can be read.
    fn left(&self, state: &mut State, event: &Event) {
        let body = match &event.body {
            Body::Connection(body) => Some(body),
            _ => None,
        };
        let by_us = body.is_some_and(|body| body.end == Some(ConnectionEnd::Local));
        let lost = body.is_some_and(|body| body.private_data.starts_with(CONNECTION_BROKE));
        self.refused(state, Error(libc::ECONNRESET));
        if let Phase::Connected(endpoint) = &state.phase {
            // A thread may be about to show what the peer sent last: its acknowledgement is under way before its
            // completion is there. The queue pair is locked until it is.
            let _ = endpoint.parts.qp.state();
        }
        state.progress();
        if let Phase::Connected(endpoint) = &mut state.phase {
            let open = endpoint.protocol.is_connected() && endpoint.protocol.is_readable();
            // Work that failed because the peer was gone failed for that reason.
            if open || endpoint.protocol.has_failed() && !by_us {
                state.broken.get_or_insert(Broken::Reset);
            }
            if open && lost {
                // The end of what came is not the end of what was sent.
                endpoint.protocol.handle_failure();
                state.error = libc::ECONNRESET;
            }
            endpoint.protocol.handle_disconnected();
            endpoint.stop();
            let _ = self.id.disconnect();
        }
    }
}

/// What a side tells its peer when its queue pair has failed, in the private data of its DREQ.
pub(crate) const CONNECTION_BROKE: &[u8] = b"ubiverbs: the queue pair of this socket failed";

/// What one side offers its peer.
pub(crate) fn parameters(private_data: &[u8; ConnectionData::LENGTH], qpn: Qpn) -> ConnectParameters<'_> {
    ConnectParameters {
        private_data,
        flow_control: true,
        retry_count: ENDLESS_RETRIES,
        rnr_retry_count: ENDLESS_RETRIES,
        qpn,
        ..ConnectParameters::default()
    }
}
