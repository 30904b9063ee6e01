//! What simulated hosts offer their queue pairs: memory that takes and gives anything without having it, receives
//! without end, congestion windows.

use crate::recorder::Recorder;
use transport::congestion::Window;
use transport::{
    Access, Atomic, Bind, Port, ProtectionDomain, Range, ReceiveRequest, ReceiveWork, Refusal, Subject, TakenReceive,
    Toward,
};
use wire::{Feth, Key, Qpn, Srqn};

/// The window that never refuses.
pub(crate) const UNLIMITED_WINDOW: u32 = 0;

pub(crate) struct World {
    pub windows: Vec<Window>,
    /// The window of the queue pair that is driven.
    pub current: u32,
    /// Where events go, if anyone wants them.
    pub recorder: Option<Box<Recorder>>,
}

impl World {
    pub fn new() -> World {
        World { windows: vec![Window::unlimited()], current: UNLIMITED_WINDOW, recorder: None }
    }
}

impl Port for World {
    #[inline]
    fn check(&mut self, _: Subject, _: Range, _: Access) -> Result<(), Refusal> {
        Ok(())
    }

    fn read(&mut self, _: Subject, _: Range, _: &mut [u8]) -> Result<(), Refusal> {
        Ok(())
    }

    #[inline]
    fn write(&mut self, _: Subject, _: Range, _: &[u8]) -> Result<(), Refusal> {
        Ok(())
    }

    fn atomic(&mut self, _: Subject, _: Range, _: Atomic) -> Result<u64, Refusal> {
        Ok(0)
    }

    fn flush(&mut self, _: Subject, _: Range, _: Feth) -> Result<(), Refusal> {
        Ok(())
    }

    fn invalidate(&mut self, _: Subject, _: Key) -> Result<(), Refusal> {
        Ok(())
    }

    fn bind(&mut self, _: Subject, _: &Bind) -> Result<(), Refusal> {
        Ok(())
    }

    #[inline]
    fn take_receive(&mut self, _: Qpn, _: Srqn, into: &mut ReceiveWork) -> TakenReceive {
        into.fill(&ReceiveRequest { wr_id: 0, sges: &[] });
        TakenReceive::Taken
    }

    fn shared_domain(&mut self, _: Qpn, _: Srqn) -> Option<ProtectionDomain> {
        None
    }

    #[inline]
    fn window<R>(&mut self, _: Qpn, toward: Toward, f: impl FnOnce(&mut Window) -> R) -> R {
        let index = match toward {
            Toward::Peer => self.current,
            Toward::Here => UNLIMITED_WINDOW,
        };
        f(&mut self.windows[index as usize])
    }

    #[inline]
    fn tracing(&self) -> bool {
        self.recorder.is_some()
    }

    #[cold]
    fn record(&mut self, event: &trace::Event) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record(event);
        }
    }
}
