//! Links as the trait has them: how a train of a queue pair gets onto one.

use crate::ground::Ground;
use crate::links::path::Path;
use crate::queue_pair::port::NicPort;
use link::{Destination, Link, NoPayload, SendError};
use trace::DropReason;
use transport::Train;
use wire::access::Refusal;
use wire::{Headers, Qpn};

impl Ground {
    /// Puts a train on a link. What the link does not take is lost, as in any network; a payload that is gone is an
    /// error.
    pub(crate) fn send_through(
        &self,
        link: &dyn Link,
        from: Qpn,
        path: &Path,
        train: &Train<'_>,
        port: &mut NicPort<'_>,
    ) -> Result<(), Refusal> {
        let (scope, traffic_class, hop_limit) = path
            .route_of(&train.headers)
            .map_or((0, 0, 64), |route| (route.scope, route.traffic_class, route.hop_limit));
        let to =
            Destination { source: path.source, destination: path.destination, from, scope, traffic_class, hop_limit };
        let length = train.payload.len() as usize;
        if length <= link.largest_train() || train.count == 1 {
            return self.send_part(link, &to, &train.headers, train, (0, length, train.count), port);
        }
        for index in 0..train.count {
            let (at, length) = train.slice(index);
            self.send_part(link, &to, &train.packet(index), train, (at as usize, length as usize, 1), port)?;
        }
        Ok(())
    }

    /// Sends so many packets of a train, whose payload begins there and is so long.
    fn send_part(
        &self,
        link: &dyn Link,
        to: &Destination,
        headers: &Headers,
        train: &Train<'_>,
        (at, length, count): (usize, usize, u32),
        port: &mut NicPort<'_>,
    ) -> Result<(), Refusal> {
        let mut refused = Ok(());
        let mut fill = |from: usize, out: &mut [u8]| {
            refused = train.payload.copy((at + from) as u32, out, port);
            refused.map_err(|_| NoPayload)
        };
        let sent = link.send(to, &mut link::Train { headers, count, mtu: train.mtu, length, fill: &mut fill });
        match sent {
            Ok(()) | Err(SendError::Payload(_)) => refused,
            Err(_) => {
                self.dropped(self.now(), Some(to.from), Some(headers), DropReason::Overflow);
                Ok(())
            }
        }
    }
}
