//! The longest message in the smallest packets takes half of all sequence numbers. Its payload is never gathered, so it
//! costs nothing to run.

use crate::direct::{Pair, write};
use ubiverbs_transport::{Inbound, MAX_MESSAGE, SendFlags, Status};
use wire::{Aeth, Gid, Headers, Msn, Mtu, Opcode, Psn, Qpn, Syndrome};

#[test]
fn half_of_all_sequence_numbers_fit_into_one_message() {
    let mut pair = Pair::new(Mtu::B256, 0);
    let (now, end) = (pair.now, &mut pair.a);
    let first = end.qp.attributes().sq_psn;
    pair.post(1, write(), MAX_MESSAGE as u32, SendFlags::SIGNALED);
    pair.post(2, write(), 1, SendFlags::SIGNALED);
    let end = &mut pair.a;
    let mut packets = 0;
    while let Some(train) = end.qp.poll_transmit(now, &mut end.memory) {
        packets += train.count;
        let mut ack = Headers::new(Opcode::RcAcknowledge, Qpn::new(1), train.headers.bth.psn.add(train.count - 1));
        ack.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(0) });
        let from = Gid::from_ipv4([10, 0, 0, 2].into());
        let inbound = Inbound { headers: &ack, count: 1, payload: &[], from, grh: &[0; 40], congestion_marked: false };
        end.qp.handle(now, &inbound, &mut end.memory);
    }
    assert_eq!(packets, Psn::COUNT / 2 + 1);
    for (wr_id, bytes) in [(1, MAX_MESSAGE as u32), (2, 1)] {
        let completion = end.qp.poll_completion(now, &mut end.memory).expect("it was acknowledged");
        assert_eq!((completion.wr_id, completion.status, completion.bytes), (wr_id, Status::Success, bytes));
    }
    assert_eq!(end.qp.attributes().sq_psn, first.add(packets));
    assert_eq!(end.qp.poll_timeout(), None, "nothing is outstanding");
}
