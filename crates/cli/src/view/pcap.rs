//! The packets of a run for Wireshark: what each queue pair sent, with a comment that names the process and the work
//! request. Headers are recorded, payload is not: it is zeros, and so is the ICRC computed over it.

use super::source::Source;
use crate::exit::Failure;
use hca::create_private;
use recording::{Entry, FileHeader};
use std::collections::HashMap;
use std::io::BufWriter;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use trace::{Call, Event, Kind, PcapNg};
use wire::{EncodeError, Ethernet, Frame, Gid, Headers, IpHeader, Packet, UdpHeader};

/// The source port of packets, which recordings do not have.
const SOURCE_PORT: u16 = 0xc000;

/// How many packets of a train are written, each as a frame.
const MAX_TRAIN_PACKETS: u32 = 4096;

/// The longest payload of a packet.
const MAX_MTU: u32 = 4096;

/// Writes the packets that were sent.
pub fn write(files: &[PathBuf], path: &Path) -> Result<(), Failure> {
    let failed = |source| Failure::Capture { path: path.to_owned(), source };
    let file = create_private(path).map_err(|source| Failure::Open { path: path.to_owned(), source })?;
    let mut capture = PcapNg::new(BufWriter::new(file)).map_err(failed)?;
    for path in files {
        let mut source = Source::open(path)?;
        let fact = |name: &str| source.header().fact(name).to_owned();
        let name = format!("{} {}", fact(FileHeader::PROGRAM), fact(FileHeader::PROCESS));
        let interface = capture.interface(&name).map_err(failed)?;
        let mut paths: HashMap<u32, [Gid; 2]> = HashMap::new();
        while let Some(entry) = source.next_entry()? {
            let Entry::Event(Event { at, qpn: Some(qpn), kind }) = entry else { continue };
            match kind {
                Kind::Called { call: Call::Path { sgid: Some(sgid), dgid, .. }, .. } => {
                    paths.insert(qpn.value(), [sgid, dgid].map(Gid::new));
                }
                Kind::PacketSent { headers, payload_len, packets, wr_id, retransmit } => {
                    let wall = source.ahead().map_or(0, |(_, wall)| wall) + i128::from(at);
                    let at = u64::try_from(wall).unwrap_or(0);
                    let ends = paths.get(&qpn.value()).copied().unwrap_or([Gid::from_ipv4(Ipv4Addr::LOCALHOST); 2]);
                    let again = if retransmit { ", sent again" } else { "" };
                    let work = wr_id.map_or_else(String::new, |wr_id| format!(", work request {wr_id}"));
                    let comment = format!("{name}, QP {qpn}{work}{again}");
                    let packets = packets.clamp(1, MAX_TRAIN_PACKETS);
                    let each = payload_len.div_ceil(packets).min(MAX_MTU);
                    for number in 0..packets {
                        let length = payload_len.saturating_sub(number * each).min(each);
                        let headers = in_train(&headers, number, packets);
                        // What no wire carries is left out: messages between processes of a host that need no headers.
                        if let Ok(frame) = frame(ends, &headers, length as usize) {
                            capture.frame(interface, at, &frame, Some(&comment)).map_err(failed)?;
                        }
                    }
                }
                _ => {}
            }
        }
    }
    capture.finish().map(drop).map_err(failed)
}

/// The headers of a packet of a train: those of the first, with the next number, and the opcode of its place.
fn in_train(first: &Headers, number: u32, count: u32) -> Headers {
    use wire::{Opcode, Position, Tail};
    let mut headers = *first;
    headers.bth.psn = first.bth.psn.add(number);
    let opcode = first.bth.opcode;
    if count > 1 {
        let (starts, ends) = (opcode.starts() && number == 0, opcode.ends() && number + 1 == count);
        let tail = if ends { opcode.tail() } else { Tail::Plain };
        let place = Position::of(starts, ends);
        if let Some(opcode) = Opcode::of(opcode.transport(), opcode.operation(), place, tail) {
            headers.bth.opcode = opcode;
        }
    }
    headers
}

fn frame([source, destination]: [Gid; 2], headers: &Headers, length: usize) -> Result<Vec<u8>, EncodeError> {
    let payload = vec![0; length];
    let mut headers = *headers;
    headers.bth.pad = (length.wrapping_neg() & 3) as u8;
    let packet = Packet { headers, payload: &payload };
    let length = packet.encoded_length();
    let ip = IpHeader::udp(source, destination, length)?;
    let udp = UdpHeader::roce(SOURCE_PORT, length)?;
    let mut datagram = vec![0; length];
    packet.encode(&ip, &udp, &mut datagram)?;
    let ethernet = Ethernet { destination: [0; 6], source: [0; 6], ethertype: ip.ethertype() };
    let frame = Frame { ethernet, ip, udp, payload: &datagram };
    let mut bytes = vec![0; frame.encoded_length()];
    frame.encode(&mut bytes)?;
    Ok(bytes)
}
