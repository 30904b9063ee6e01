//! What rdma-core's library puts on the wire, between two kernel Soft-RoCE NICs: a capture of its `rstream`. The
//! connection data of both sides, and every message, are read and written again; and a stream of ours follows one side
//! through the whole conversation.

use crate::frames;
use std::collections::HashMap;
use ubiverbs_rsocket::{ConnectionData, Control, Local, Message, Sizes, Stream, Target};
use wire::cm::{CmDatagram, IpCm, Message as CmMessage};
use wire::{Frame, IpHeader, Packet, Qpn};

/// A WRITE with an immediate, or the private data of a connection.
enum Said {
    Request(Vec<u8>),
    Answer(Vec<u8>),
    Write { to: Qpn, address: u64, bytes: Vec<u8>, immediate: u32 },
}

fn conversation() -> Vec<Said> {
    let mut said = Vec::new();
    // WRITEs longer than a packet, by queue pair.
    let mut open: HashMap<Qpn, (u64, Vec<u8>)> = HashMap::new();
    for bytes in frames::of("rstream") {
        let Ok(frame) = Frame::parse(&bytes) else { continue };
        assert!(matches!(frame.ip, IpHeader::V4(_) | IpHeader::V6(_)));
        let Ok(packet) = Packet::parse(frame.payload) else { continue };
        let to = packet.headers.bth.dest_qpn;
        if to == Qpn::GSI {
            let Ok(datagram) = CmDatagram::parse(packet.payload) else { continue };
            match datagram.message {
                CmMessage::Req(request) => {
                    said.push(Said::Request(request.private_data.bytes()[IpCm::LEN..].to_vec()));
                }
                CmMessage::Rep(reply) => said.push(Said::Answer(reply.private_data.bytes().to_vec())),
                _ => {}
            }
            continue;
        }
        let name = format!("{:?}", packet.headers.bth.opcode);
        if !name.contains("Write") {
            continue;
        }
        if let Some(reth) = packet.headers.reth {
            open.insert(to, (reth.va, Vec::new()));
        }
        let Some((_, whole)) = open.get_mut(&to) else { continue };
        whole.extend_from_slice(packet.payload);
        if let Some(immediate) = packet.headers.immediate {
            let (address, bytes) = open.remove(&to).expect("it is there");
            said.push(Said::Write { to, address, bytes, immediate });
        }
    }
    said
}

#[test]
fn every_message_of_a_captured_stream_is_read_and_written_again() {
    let mut connections = Vec::new();
    let (mut data, mut credits, mut farewells) = (0, 0, 0);
    for said in conversation() {
        match said {
            Said::Request(bytes) | Said::Answer(bytes) => {
                let read = ConnectionData::from_bytes(&bytes).expect("connection data of version 1");
                assert_eq!(read.to_bytes(), bytes[..ConnectionData::LENGTH]);
                assert_eq!((read.credits, read.targets.length, read.io_mappings), (384, 2, 0));
                assert!(read.knows_io_mappings && !read.big_endian);
                connections.push(read);
            }
            Said::Write { bytes, immediate, .. } => {
                let message = Message::decode(immediate).expect("a message");
                assert_eq!(message.encode(), immediate);
                match message {
                    Message::Data(length) => {
                        assert_eq!(length as usize, bytes.len());
                        data += 1;
                    }
                    Message::Credits(_) => {
                        assert!(bytes.is_empty() || bytes.len() == Target::LENGTH);
                        credits += 1;
                    }
                    Message::Control(Control::Disconnect | Control::Shutdown) => farewells += 1,
                    other => panic!("{other:?} in a stream"),
                }
            }
        }
    }
    assert!(connections.len() >= 2 && data >= 4 && credits >= 2 && farewells >= 1, "{data} {credits} {farewells}");
}

/// Plays the side that accepted: it is told what the other's library wrote, and agrees with every byte of it.
#[test]
fn a_stream_of_ours_understands_a_captured_peer() {
    let said = conversation();
    let first = |wanted: fn(&Said) -> Option<&Vec<u8>>| said.iter().find_map(wanted).expect("both sides spoke").clone();
    let request = first(|said| if let Said::Request(bytes) = said { Some(bytes) } else { None });
    let answer = first(|said| if let Said::Answer(bytes) = said { Some(bytes) } else { None });
    let own = ConnectionData::from_bytes(&answer).expect("connection data");
    let local = Local { receive: own.buffer.place, targets: own.targets.place };
    let mut stream = Stream::new(Sizes { receive_buffer: 2 * own.buffer.length, ..Sizes::default() }, local);
    assert_eq!(stream.connection_data().to_bytes(), answer[..ConnectionData::LENGTH], "we would have said the same");
    stream.handle_connection_data(&request).expect("the peer's connection data");
    let _ = stream.poll_control();
    let mut list = [0; 2 * Target::LENGTH];
    let (mut received, mut expected_at) = (0, local.receive.address);
    let past = local.receive.address + 2 * u64::from(own.buffer.length);
    let is_own = |address: u64| (local.receive.address..past).contains(&address);
    let in_list = |address: u64| (local.targets.address..local.targets.address + 32).contains(&address);
    let mut own_qpn: Option<Qpn> = None;
    for said in &said {
        let Said::Write { to, address, bytes, immediate } = said else { continue };
        if is_own(*address) || in_list(*address) {
            own_qpn = Some(*to);
        }
        if own_qpn != Some(*to) {
            continue;
        }
        if in_list(*address) && !bytes.is_empty() {
            let at = (*address - local.targets.address) as usize;
            list[at..at + bytes.len()].copy_from_slice(bytes);
        }
        if let Ok(Message::Data(length)) = Message::decode(*immediate) {
            assert_eq!(*address, expected_at, "it writes where we would look");
            expected_at += u64::from(length);
            if expected_at == past {
                expected_at = local.receive.address;
            }
        }
        stream.handle_received(*immediate, bytes.len() as u32, &list).expect("a peer that keeps to the protocol");
        received += stream.unread();
        stream.consume(usize::MAX);
        while let Some(work) = stream.poll_control() {
            if let ubiverbs_rsocket::ControlWork::Message { immediate }
            | ubiverbs_rsocket::ControlWork::Target { immediate, .. } = work
            {
                stream.handle_sent(immediate.into(), true);
            }
        }
    }
    assert!(received > 300, "{received} bytes");
    assert!(stream.is_disconnected(), "the peer said that it ends");
}
