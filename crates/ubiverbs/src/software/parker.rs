//! How a thread waits for a future: it looks a little, then sleeps on the NIC until something happens.

use hca::{CompletionChannel, CompletionQueue, Nic};
use seam::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// How often it looks before it sleeps: for some ten microseconds.
const LOOKS_BEFORE_SLEEP: u32 = 200;

/// How long it sleeps where nothing can wake it, because the descriptor is gone.
const BLIND_SLEEP: Duration = Duration::from_millis(1);

const STATE_AWAKE: u8 = 0;
const STATE_ASLEEP: u8 = 1;
const STATE_WOKEN: u8 = 2;

#[derive(Debug)]
struct Parker {
    state: AtomicU8,
    nic: Arc<Nic>,
    /// A queue that nothing completes in: a thread that polls an empty queue will look again, and for it not everything
    /// that costs a system call is looked at each time.
    nothing: CompletionQueue,
    /// On which the NIC's waiting call is ended.
    channel: Arc<CompletionChannel>,
}

pub(super) fn create(nic: &Arc<Nic>) -> Result<Arc<dyn seam::Parker>, Error> {
    let nothing = CompletionQueue::new(0, 1, None).map_err(Error::create("a completion queue"))?;
    let channel = nic.create_channel().map_err(create_channel)?;
    Ok(Arc::new(Parker { state: AtomicU8::new(STATE_AWAKE), nic: Arc::clone(nic), nothing, channel }))
}

fn create_channel(source: std::io::Error) -> Error {
    Error::System { what: "cannot make a channel", source }
}

impl seam::Parker for Parker {
    fn park(&self, limit: Option<Duration>) {
        for _ in 0..LOOKS_BEFORE_SLEEP {
            if self.state.swap(STATE_AWAKE, Ordering::Acquire) == STATE_WOKEN {
                return;
            }
            self.nic.poll(&self.nothing, 0, |_, _| {});
        }
        if self.state.compare_exchange(STATE_AWAKE, STATE_ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            match self.nic.wait_for(&self.channel, limit) {
                Ok(Some(event)) => self.nic.took_event(&self.channel, event),
                Ok(None) => {}
                Err(_) => std::thread::sleep(BLIND_SLEEP),
            }
        }
        self.state.swap(STATE_AWAKE, Ordering::AcqRel);
    }

    fn unpark(&self) {
        if self.state.swap(STATE_WOKEN, Ordering::AcqRel) == STATE_ASLEEP {
            self.channel.push(0);
        }
    }
}

impl Drop for Parker {
    fn drop(&mut self) {
        self.nic.destroy_channel(&self.channel);
    }
}
