//! What a peer of a socket over RDMA says: connection data, messages with any immediate and length, entries of the
//! target list, headers of datagrams. Whatever it says, the bytes to read lie inside the receive buffer, the peer is
//! never lent more than there is, and what is sent stays inside what the peer has lent.

use crate::choices::Choices;
use rsocket::{
    ConnectionData, DatagramHeader, DiscoveryHeader, IoMapping, Local, MAX_DATAGRAM_HEADER, Shutdown, Sizes, Span,
    Stream, TransferMemory,
};
use wire::Key;

/// See the module.
pub fn socket_messages(bytes: &[u8]) {
    headers(bytes);
    let mut choices = Choices { bytes };
    let sizes = Sizes {
        send_buffer: choices.word() % 100_000,
        receive_buffer: choices.word() % 100_000,
        send_queue: choices.short(),
        receive_queue: choices.short(),
        inline: choices.short() % 1024,
        io_mappings: choices.short() % 8,
    }
    .fitted(1 << 10);
    let local = Local {
        receive: Span { address: 0x10_0000, key: Key::new(1) },
        targets: Span { address: 0x20_0000, key: Key::new(2) },
    };
    let mut stream = Stream::new(sizes, local);
    let said = choices.take::<{ ConnectionData::LENGTH }>();
    let mut data = ConnectionData::from_bytes(&said);
    if data.is_err() {
        // Mostly it is fine.
        data = Ok(Stream::new(sizes, local).connection_data());
    }
    let Ok(data) = data else { return };
    assert_eq!(ConnectionData::from_bytes(&data.to_bytes()).map(|again| again.credits), Ok(data.credits));
    if stream.handle_connection_data(&data.to_bytes()).is_err() {
        return;
    }
    let mut outstanding = Vec::new();
    while !choices.bytes.is_empty() {
        match choices.byte() % 8 {
            0..=2 => {
                let (immediate, length) = (choices.word(), choices.word());
                let length = if choices.one_in(2) { immediate & 0x1FFF_FFFF } else { length };
                let _ = stream.handle_received(immediate, length, &choices.take::<32>());
            }
            3 => {
                stream.begin_send();
                while let Some(transfer) = stream.next_transfer(choices.short().into()) {
                    assert!(transfer.length > 0);
                    check_place(transfer.place, transfer.length, &sizes);
                    outstanding.push(transfer.wr_id());
                }
            }
            4 => {
                let mapping = IoMapping::from_memory(&choices.take::<{ IoMapping::LENGTH }>());
                if let Some(transfer) = stream.next_direct_transfer(&mapping, choices.long(), choices.short().into()) {
                    assert!(transfer.length <= mapping.target.length);
                    check_place(transfer.place, transfer.length, &sizes);
                    outstanding.push(transfer.wr_id());
                }
                if let Some(work) = stream.next_io_mapping(choices.short() % 8, &mapping) {
                    outstanding.push(work.immediate.into());
                }
            }
            5 => {
                if !outstanding.is_empty() {
                    let wr_id = outstanding.remove(usize::from(choices.byte()) % outstanding.len());
                    stream.handle_sent(wr_id, !choices.one_in(16));
                }
            }
            6 => {
                let runs = stream.unread_runs(choices.short().into());
                for run in runs {
                    assert!(run.offset + run.length <= sizes.receive_buffer);
                }
                stream.consume(runs.iter().map(|run| run.length as usize).sum());
            }
            _ => match choices.byte() % 4 {
                0 => {
                    stream.shutdown(choices.of(&[Shutdown::Read, Shutdown::Write, Shutdown::Both]));
                }
                1 => stream.keep_alive(),
                _ => {}
            },
        }
        assert!(stream.unread() <= sizes.receive_buffer as usize, "more than the buffer holds");
        while let Some(work) = stream.poll_control() {
            use rsocket::ControlWork::{KeepAlive, Message, Target};
            outstanding.push(match work {
                Message { immediate } | Target { immediate, .. } => immediate.into(),
                KeepAlive { wr_id } => wr_id,
            });
        }
        assert!(outstanding.len() <= sizes.send_queue.into(), "more work than the queue holds");
    }
}

fn check_place(place: TransferMemory, length: u32, sizes: &Sizes) {
    match place {
        TransferMemory::Inline => assert!(length <= sizes.inline.into()),
        TransferMemory::Buffer(runs) => {
            assert_eq!(runs.iter().map(|run| run.length).sum::<u32>(), length);
            assert!(runs.iter().all(|run| run.offset + run.length <= sizes.send_buffer));
        }
    }
}

/// Headers of datagrams that are read are written again as they were.
fn headers(bytes: &[u8]) {
    if let Some((header, length)) = DatagramHeader::decode(bytes) {
        let mut again = [0; MAX_DATAGRAM_HEADER];
        assert_eq!(header.encode(&mut again), length);
        assert_eq!(again[..length], bytes[..length]);
    }
    for over_ipv4 in [true, false] {
        if let Some((header, length)) = DiscoveryHeader::decode(bytes, over_ipv4) {
            let mut again = [0; DiscoveryHeader::MAX_LENGTH];
            assert_eq!(header.encode(&mut again), length);
            assert_eq!(DiscoveryHeader::decode(&again, over_ipv4), Some((header, length)));
        }
    }
}
