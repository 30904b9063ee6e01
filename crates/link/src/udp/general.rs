//! A train of any link as the UDP sender wants it.

use super::send::Cargo;
use crate::carrier::{Destination, NoPayload, Train};
use crate::udp::Route;
use wire::Headers;

impl Cargo for Train<'_> {
    type Error = NoPayload;

    fn count(&self) -> u32 {
        self.count
    }

    fn packet(&self, index: u32) -> (Headers, usize) {
        let (_, length) = wire::slice_of(self.count, index, self.length as u32, self.mtu);
        (wire::packet_of(self.headers, self.count, index, self.length as u32, self.mtu), length as usize)
    }

    fn payload(&mut self, index: u32, out: &mut [u8]) -> Result<(), NoPayload> {
        let (from, _) = wire::slice_of(self.count, index, self.length as u32, self.mtu);
        (self.fill)(from as usize, out)
    }
}

impl From<&Destination> for Route {
    fn from(to: &Destination) -> Route {
        Route {
            source: to.source.to_ip(),
            destination: to.destination.to_ip(),
            scope: to.scope,
            traffic_class: to.traffic_class,
            hop_limit: to.hop_limit,
        }
    }
}
