//! The connection manager of this process.

use super::Software;
use super::call_faults::{StruckCall, strike};
use hca::cm::{CmError, ConnectParameters, Id, IdOption};
use seam::{
    ConnectError, Error,
    connections::{ConnectionEvent, ConnectionId, Connections, EventChannel},
    own,
};
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
        strike(&self.nic, "rdma_create_event_channel").map_err(Error::create("a channel"))?;
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
        strike(&self.nic, "rdma_create_id").map_err(Error::create("an id"))?;
        let channel = own::<OurEvents>(&**channel, "event channel")?;
        Ok(Arc::new(OurId(Id::new(&self.nic, &channel.0, space, kind, 0))))
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
        let ours = |id| Arc::new(OurId(id)) as Arc<dyn ConnectionId>;
        Some(ConnectionEvent { id: ours(id), listener: listener.map(ours), kind, status, body })
    }

    fn observe(&self, observer: Box<dyn Fn() + Send + Sync>) {
        self.0.observe(observer);
    }
}

/// What an id refused, as programs know it.
fn refused(error: CmError) -> Error {
    let what = error.to_string();
    Error::Connect(match error {
        CmError::Id(error) => seam::refused_by_id(error),
        CmError::NoDevice(address) => ConnectError::NoDevice { address },
        CmError::NoRoute { to, source } => ConnectError::NoRoute { to, source },
        _ => ConnectError::Refused { what },
    })
}

/// A handle of an id.
#[derive(Debug)]
struct OurId(Arc<Id>);

impl OurId {
    /// The program makes this call: a script may let it fail.
    fn strike(&self, call: &'static str) -> Result<(), Error> {
        let refused = |struck: StruckCall| Error::Connect(ConnectError::Refused { what: struck.to_string() });
        strike(self.0.nic(), call).map_err(refused)
    }
}

impl ConnectionId for OurId {
    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn user(&self) -> u64 {
        self.0.user()
    }

    fn set_user(&self, user: u64) {
        self.0.set_user(user);
    }

    fn device(&self) -> Option<String> {
        self.0.device().map(|device| device.name().to_owned())
    }

    fn source(&self) -> Option<SocketAddr> {
        self.0.source()
    }

    fn destination(&self) -> Option<SocketAddr> {
        self.0.destination()
    }

    fn set(&self, option: IdOption) -> Result<(), Error> {
        self.strike("rdma_set_option")?;
        self.0.set(option).map_err(refused)
    }

    fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        self.strike("rdma_bind_addr")?;
        self.0.bind(address).map_err(refused)
    }

    fn listen(&self, backlog: u32) -> Result<(), Error> {
        self.strike("rdma_listen")?;
        self.0.listen(backlog).map_err(refused)
    }

    fn resolve_address(&self, source: Option<SocketAddr>, destination: SocketAddr) -> Result<(), Error> {
        self.strike("rdma_resolve_addr")?;
        self.0.resolve_address_within(source, destination, ADDRESS_TIMEOUT).map_err(refused)
    }

    fn resolve_route(&self) -> Result<(), Error> {
        self.strike("rdma_resolve_route")?;
        self.0.resolve_route().map_err(refused)
    }

    fn connect(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        self.strike("rdma_connect")?;
        self.0.connect(parameters).map_err(refused)
    }

    fn accept(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        self.strike("rdma_accept")?;
        self.0.accept(parameters).map_err(refused)
    }

    fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), Error> {
        self.strike("rdma_reject")?;
        self.0.reject(reason, private_data).map_err(refused)
    }

    fn establish(&self) -> Result<(), Error> {
        self.strike("rdma_establish")?;
        self.0.establish().map_err(refused)
    }

    fn notify_established(&self) -> Result<(), Error> {
        self.strike("rdma_notify")?;
        self.0.notify_established().map_err(refused)
    }

    fn disconnect(&self, private_data: &[u8]) -> Result<(), Error> {
        self.strike("rdma_disconnect")?;
        self.0.disconnect_with(private_data).map_err(refused)
    }

    fn modify_for(&self, state: State) -> Result<Modify, Error> {
        self.0.modify_for(state).map_err(refused)
    }

    fn join(&self, group: IpAddr, user: u64) -> Result<(), Error> {
        self.strike("rdma_join_multicast")?;
        self.0.join(group, user).map_err(refused)
    }

    fn leave(&self, group: IpAddr) -> Result<(), Error> {
        self.strike("rdma_leave_multicast")?;
        self.0.leave(group).map_err(refused)
    }

    fn migrate(&self, to: &Arc<dyn EventChannel>) -> Result<(), Error> {
        self.strike("rdma_migrate_id")?;
        let to = own::<OurEvents>(&**to, "event channel")?;
        self.0.migrate(&to.0).map_err(refused)
    }

    fn destroy(&self) {
        self.0.destroy();
    }
}
