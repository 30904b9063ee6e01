//! An opened device of this process, chosen by name or by the address that the two sides talk over.

use crate::control::{ANSWER_TIMEOUT, Control};
use crate::exit::Failure;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use ubiverbs::{
    CompletionQueue, Context, Error, Gid, Operation, Outcome, PreparedQueuePair, ProtectionDomain, QueuePairBuilder,
    Status, Transport,
};

/// A device, and the address on it to talk from.
pub struct Station {
    pub context: Context,
    pub pd: ProtectionDomain,
    pub address: IpAddr,
}

impl Station {
    /// Opens the device of that name; without one, the device that has the address `near`; without one, loopback.
    pub fn open(device: Option<&str>, near: Option<IpAddr>) -> Result<Station, Failure> {
        let context = match (device, near) {
            (Some(name), _) => ubiverbs::device(name)?.open()?,
            (None, Some(near)) => holder(near)?,
            (None, None) => {
                let devices = ubiverbs::devices()?;
                let loopback = devices.iter().find(|device| device.name() == "ubi_lo");
                loopback.or(devices.first()).ok_or(Failure::NoDevice)?.open()?
            }
        };
        let gids = context.port().gids;
        let addresses = || gids.iter().flatten().map(|gid| gid.to_ip());
        let address = match near {
            Some(near) => addresses()
                .find(|address| *address == near)
                .or_else(|| addresses().find(|address| address.is_ipv4() == near.is_ipv4())),
            None => addresses().find(IpAddr::is_ipv4).or_else(|| addresses().next()),
        };
        let missing = || ubiverbs::Error::NoAddress {
            device: context.name().into(),
            what: near.map_or("at all".into(), |near| format!("to reach the peer at {near} from")),
        };
        let address = address.ok_or_else(missing)?;
        let pd = context.alloc_pd()?;
        Ok(Station { context, pd, address })
    }

    /// A queue pair at our address, about to be made.
    pub fn queue_pair<T: Transport>(&self, cq: &CompletionQueue) -> QueuePairBuilder<T> {
        self.pd.queue_pair::<T>(cq).source(self.address)
    }

    /// A queue pair with a completion queue of its own.
    pub fn prepare<T: Transport>(&self) -> Result<PreparedQueuePair<T>, Failure> {
        let cq = self.context.completion_queue(64).create()?;
        Ok(self.queue_pair::<T>(&cq).prepare()?)
    }
}

/// The device that has this address. An interface that has just come up carries packets a little before it says that it
/// is running, and only then is it a device; so look for a while.
fn holder(address: IpAddr) -> Result<Context, Failure> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        for device in ubiverbs::devices()? {
            let context = device.open()?;
            if context.port().gids.contains(&Some(Gid::from_ip(address))) {
                return Ok(context);
            }
        }
        if Instant::now() > deadline {
            return Err(Failure::NoDeviceFor(address));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for posted work, but neither for a dead peer nor for ever.
pub fn finish<R: Outcome>(mut work: Operation<R>, control: &Control) -> Result<R, Failure> {
    let begun = Instant::now();
    loop {
        if let Some(result) = work.wait_for(Duration::from_millis(100)) {
            // A dead peer answers no packet either; that it is dead says more.
            let unanswered =
                |error: &Error| matches!(error, Error::Completion(error) if error.status == Status::RetryExceeded);
            let why = |error| match unanswered(&error) && control.turns_out_gone() || control.is_gone() {
                true => Failure::PeerGone,
                false => Failure::Verbs(error),
            };
            return result.map_err(|failed| why(failed.error));
        }
        if control.is_gone() {
            return Err(Failure::PeerGone);
        }
        if begun.elapsed() > ANSWER_TIMEOUT {
            return Err(Failure::PeerSilent(ANSWER_TIMEOUT));
        }
    }
}
