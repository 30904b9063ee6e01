//! Devices, and opened devices.

use crate::backend;
use seam::{AsyncEvent, Backend, DeviceInfo, DeviceLimits, Error, Port};
use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use transport::Counters;
use wire::Gid;

/// The devices of this host: one per network interface that is up and has an address.
///
/// ```
/// for device in ubiverbs::devices()? {
///     println!("{} {:016x}", device.name(), device.guid());
/// }
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Vec<Device>, Error> {
    Ok(devices_of(&backend::current()?))
}

/// The device of that name.
///
/// ```
/// let loopback = ubiverbs::device("ubi_lo")?;
/// assert!(ubiverbs::device("ubi_nonsense").is_err());
/// # Ok::<(), ubiverbs::Error>(())
/// ```
pub fn device(name: &str) -> Result<Device, Error> {
    let devices = devices()?;
    let available = || devices.iter().map(|device| device.name().to_owned()).collect();
    let found = devices.iter().find(|device| device.name() == name);
    found.cloned().ok_or_else(|| Error::NoDevice { name: name.to_owned(), available: available() })
}

/// The device for an address: the one that has it, or by which this host would send to it.
///
/// ```
/// let loopback = ubiverbs::device_for("127.0.0.1".parse().unwrap())?;
/// assert_eq!(loopback.name(), "ubi_lo");
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// # Errors
/// [`Error::System`] if no route leads there; [`Error::NoDevice`] if the route leads over an interface that is no
/// device.
#[doc(alias = "rdma_resolve_addr")]
pub fn device_for(address: IpAddr) -> Result<Device, Error> {
    let devices = devices()?;
    let with = |address: IpAddr| devices.iter().find(|device| device.has(address)).cloned();
    if let Some(device) = with(address) {
        return Ok(device);
    }
    let system = |source| Error::System { what: "no route leads to the address", source };
    let source = backend::current()?.source_towards(address).map_err(system)?;
    let available = || devices.iter().map(|device| device.name().to_owned()).collect();
    with(source).ok_or_else(|| Error::NoDevice { name: format!("with address {source}"), available: available() })
}

/// The devices of a NIC that is not the usual one.
pub fn devices_of(backend: &Arc<dyn Backend>) -> Vec<Device> {
    let infos = backend.devices().into_iter();
    infos.map(|info| Device { backend: Arc::clone(backend), info }).collect()
}

/// A device. A handle, cheap to clone.
#[derive(Clone)]
#[doc(alias = "ibv_device")]
pub struct Device {
    backend: Arc<dyn Backend>,
    info: DeviceInfo,
}

impl Device {
    /// Its name: `ubi_` and the name of its network interface.
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Its globally unique identifier.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> u64 {
        self.info.guid
    }

    /// Whether its port has this address.
    fn has(&self, address: IpAddr) -> bool {
        self.backend.addresses(&self.info.name).contains(&Gid::from_ip(address))
    }

    /// Opens it.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context, Error> {
        Context::open(&self.backend, &self.info.name)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.info.name)
    }
}

/// An opened device: where everything else is made. A handle; clones are the same opened device, and whatever was made
/// of it keeps it open.
#[derive(Clone)]
#[doc(alias = "ibv_context")]
pub struct Context {
    pub(crate) core: Arc<ContextCore>,
}

pub(crate) struct ContextCore {
    pub backend: Arc<dyn Backend>,
    pub opened: Arc<dyn seam::Context>,
    pub name: String,
}

impl Context {
    pub(crate) fn open(backend: &Arc<dyn Backend>, device: &str) -> Result<Context, Error> {
        let opened = backend.open(device)?;
        let core = ContextCore { backend: Arc::clone(backend), opened, name: device.to_owned() };
        Ok(Context { core: Arc::new(core) })
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Its port as it is now: whether it is up, its MTU and its addresses.
    #[doc(alias = "ibv_query_port")]
    #[doc(alias = "ibv_query_gid")]
    pub fn port(&self) -> Port {
        self.core.opened.port()
    }

    /// What this process has counted on the device's port since it opened its NIC; what belongs to no queue pair counts
    /// for the device that it opened first.
    ///
    /// ```
    /// let context = ubiverbs::device("ubi_lo")?.open()?;
    /// println!("{} packets sent", context.counters().traffic.sent_packets);
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    pub fn counters(&self) -> Counters {
        self.core.opened.counters()
    }

    /// The device's clock as it is now, by which [completions are stamped](crate::CompletionQueueBuilder::timestamps).
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn clock(&self) -> Duration {
        Duration::from_nanos(self.core.opened.clock())
    }

    /// What the device allows.
    #[doc(alias = "ibv_query_device")]
    #[doc(alias = "ibv_query_device_ex")]
    pub fn limits(&self) -> DeviceLimits {
        self.core.opened.limits()
    }

    /// The oldest event that has not been taken: what happened to queues and ports beside completions.
    #[doc(alias = "ibv_get_async_event")]
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.core.opened.poll_event()
    }

    /// A descriptor that is readable while events wait.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.core.opened.event_fd()
    }
}

impl ContextCore {
    /// The entry of the address table that holds `address`; without one, the first IPv4 address, or else the first
    /// address.
    pub fn source(&self, address: Option<IpAddr>) -> Result<(u8, Gid), Error> {
        let port = self.opened.port();
        let entries =
            || port.gids.iter().enumerate().filter_map(|(index, gid)| Some((u8::try_from(index).ok()?, (*gid)?)));
        let found = match address {
            Some(address) => entries().find(|(_, gid)| *gid == Gid::from_ip(address)),
            None => entries().find(|(_, gid)| gid.to_ip().is_ipv4()).or_else(|| entries().next()),
        };
        let what = || address.map_or_else(|| "at all".to_owned(), |address| address.to_string());
        found.ok_or_else(|| Error::NoAddress { device: self.name.clone(), what: what() })
    }

    /// An entry of the address table.
    pub fn gid(&self, index: u8) -> Option<Gid> {
        self.opened.port().gids.get(usize::from(index)).copied().flatten()
    }

    /// The entry of the address table to reach `destination` from: the same address, or one of its family.
    pub fn source_for(&self, destination: Gid) -> Result<(u8, Gid), Error> {
        let family = |gid: Gid| gid.to_ip().is_ipv4();
        let port = self.opened.port();
        let entries =
            || port.gids.iter().enumerate().filter_map(|(index, gid)| Some((u8::try_from(index).ok()?, (*gid)?)));
        let same = entries().find(|(_, gid)| *gid == destination);
        let found = same.or_else(|| entries().find(|(_, gid)| family(*gid) == family(destination)));
        let what = || format!("to reach {} from", destination.to_ip());
        found.ok_or_else(|| Error::NoAddress { device: self.name.clone(), what: what() })
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.core.name)
    }
}
