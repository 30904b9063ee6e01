//! The connection manager of this process.

use super::Software;
use crate::seam::{
    ConnectError, Error,
    connections::{ConnectionEvent, ConnectionId, Connections, EventChannel},
    own,
};
use hca::cm::{CmError, ConnectParameters, Id, IdOption};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use transport::{Kind, Modify, State};
use wire::cm::{PortSpace, RejectReason};

/// How long the network has to say where a peer is: as long as programs of librdmacm usually give it.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(2);

impl Connections for Software {
    fn create_event_channel(&self) -> Result<Arc<dyn EventChannel>, Error> {
        let made = hca::cm::EventChannel::new();
        let channel = made.map_err(|source| Error::System { what: "cannot make a channel", source })?;
        Ok(Arc::new(OurEvents(Arc::new(channel))))
    }

    fn create_id(
        &self,
        channel: &Arc<dyn EventChannel>,
        space: PortSpace,
        kind: Kind,
    ) -> Result<Arc<dyn ConnectionId>, Error> {
        let channel = own::<OurEvents>(&**channel, "event channel")?;
        Ok(Id::new(&self.nic, &channel.0, space, kind, 0))
    }
}

#[derive(Debug)]
struct OurEvents(Arc<hca::cm::EventChannel>);

impl EventChannel for OurEvents {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn is_nonblocking(&self) -> io::Result<bool> {
        self.0.is_nonblocking()
    }

    fn try_take(&self) -> Option<ConnectionEvent> {
        let hca::cm::Event { id, listener, kind, status, body } = self.0.try_take()?;
        let listener = listener.map(|listener| listener as Arc<dyn ConnectionId>);
        Some(ConnectionEvent { id, listener, kind, status, body })
    }

    fn observe(&self, observer: Box<dyn Fn() + Send + Sync>) {
        self.0.observe(observer);
    }
}

/// What an id refused, as programs know it.
fn refused(error: CmError) -> Error {
    let what = error.to_string();
    Error::Connect(match error {
        CmError::NotLocal(address) => ConnectError::NotLocal { address },
        CmError::NoDevice(address) => ConnectError::NoDevice { address },
        CmError::NoRoute { to, source } => ConnectError::NoRoute { to, source },
        CmError::PrivateData { length, room } => ConnectError::PrivateData { length, room },
        CmError::State { .. } => ConnectError::State { what },
        CmError::InUse { .. } => ConnectError::InUse { what },
        _ => ConnectError::Refused { what },
    })
}

impl ConnectionId for Id {
    fn user(&self) -> u64 {
        Id::user(self)
    }

    fn set_user(&self, user: u64) {
        Id::set_user(self, user);
    }

    fn device(&self) -> Option<String> {
        Id::device(self).map(|device| device.name().to_owned())
    }

    fn source(&self) -> Option<SocketAddr> {
        Id::source(self)
    }

    fn destination(&self) -> Option<SocketAddr> {
        Id::destination(self)
    }

    fn set(&self, option: IdOption) -> Result<(), Error> {
        Id::set(self, option).map_err(refused)
    }

    fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        Id::bind(self, address).map_err(refused)
    }

    fn listen(&self, backlog: u32) -> Result<(), Error> {
        Id::listen(self, backlog).map_err(refused)
    }

    fn resolve_address(&self, source: Option<SocketAddr>, destination: SocketAddr) -> Result<(), Error> {
        Id::resolve_address_within(self, source, destination, ADDRESS_TIMEOUT).map_err(refused)
    }

    fn resolve_route(&self) -> Result<(), Error> {
        Id::resolve_route(self).map_err(refused)
    }

    fn connect(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        Id::connect(self, parameters).map_err(refused)
    }

    fn accept(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        Id::accept(self, parameters).map_err(refused)
    }

    fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), Error> {
        Id::reject(self, reason, private_data).map_err(refused)
    }

    fn establish(&self) -> Result<(), Error> {
        Id::establish(self).map_err(refused)
    }

    fn notify_established(&self) -> Result<(), Error> {
        Id::notify_established(self).map_err(refused)
    }

    fn disconnect(&self, private_data: &[u8]) -> Result<(), Error> {
        self.disconnect_with(private_data).map_err(refused)
    }

    fn modify_for(&self, state: State) -> Result<Modify, Error> {
        Id::modify_for(self, state).map_err(refused)
    }

    fn join(&self, group: IpAddr, user: u64) -> Result<(), Error> {
        Id::join(self, group, user).map_err(refused)
    }

    fn leave(&self, group: IpAddr) -> Result<(), Error> {
        Id::leave(self, group).map_err(refused)
    }

    fn migrate(&self, to: &Arc<dyn EventChannel>) -> Result<(), Error> {
        let to = own::<OurEvents>(&**to, "event channel")?;
        Id::migrate(self, &to.0).map_err(refused)
    }

    fn destroy(&self) {
        Id::destroy(self);
    }
}
