//! A capture of a run for Wireshark: every frame at the moment it is sent, on its sender's interface, with a comment
//! that says for which work request, whether again, and whether it got lost.

use std::io::Write;
use trace::{Error, Interface, PcapNg};
use transport::Time;

use crate::host::HostId;

pub(crate) struct Capture {
    writer: PcapNg<Box<dyn Write>>,
    interfaces: Vec<Interface>,
    /// The first thing that went wrong; nothing is written after it.
    failed: Option<Error>,
}

impl Capture {
    pub(crate) fn new<'a>(writer: Box<dyn Write>, hosts: impl Iterator<Item = &'a str>) -> Result<Capture, Error> {
        let mut writer = PcapNg::new(writer)?;
        let interfaces = hosts.map(|name| writer.interface(name)).collect::<Result<_, _>>()?;
        Ok(Capture { writer, interfaces, failed: None })
    }

    pub(crate) fn add_host(&mut self, name: &str) {
        match self.writer.interface(name) {
            Ok(interface) => self.interfaces.push(interface),
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
    }

    pub(crate) fn frame(&mut self, host: HostId, at: Time, bytes: &[u8], comment: &str) {
        let Some(&interface) = self.interfaces.get(host.index()) else { return };
        if self.failed.is_none() {
            self.failed = self.writer.frame(interface, at.as_nanos(), bytes, Some(comment)).err();
        }
    }

    pub(crate) fn finish(self) -> Result<(), Error> {
        match self.failed {
            Some(error) => Err(error),
            None => self.writer.finish().map(drop),
        }
    }
}
