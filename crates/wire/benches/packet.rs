//! What the wire costs per packet: parsing, encoding with ICRC, the ICRC alone, and solving for the identification.
//! `crc32` over the same number of bytes is there to compare with: the ICRC can be no faster.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use wire::{
    Gid, Headers, Icrc, IpHeader, Ipv4Header, Key, Opcode, Packet, Psn, Qpn, Reth, UdpHeader, solve_identification,
};

const SIZES: [usize; 3] = [64, 1024, 4096];

fn main() {
    divan::main();
}

fn headers() -> Headers {
    let mut headers = Headers::new(Opcode::RcWriteOnly, Qpn::new(0x11), Psn::new(5));
    headers.reth = Some(Reth { va: 0x7f00_0000_1000, rkey: Key::new(0x1234), len: 4096 });
    headers
}

fn outer(length: usize) -> (Ipv4Header, UdpHeader) {
    let ip = Ipv4Header::udp([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), length).unwrap();
    (ip, UdpHeader::roce(0xc001, length).unwrap())
}

fn encoded(size: usize) -> (Ipv4Header, UdpHeader, Vec<u8>) {
    let payload = vec![0x5a; size];
    let packet = Packet { headers: headers(), payload: &payload };
    let (ip, udp) = outer(packet.encoded_length());
    let mut out = vec![0; packet.encoded_length()];
    packet.encode(&IpHeader::V4(ip), &udp, &mut out).unwrap();
    (ip, udp, out)
}

#[divan::bench(args = SIZES)]
fn parse(bencher: Bencher<'_, '_>, size: usize) {
    let (_, _, bytes) = encoded(size);
    bencher.counter(BytesCount::new(size)).bench(|| Packet::parse(black_box(&bytes)).unwrap().payload.len());
}

#[divan::bench(args = SIZES)]
fn parse_and_check_icrc(bencher: Bencher<'_, '_>, size: usize) {
    let (ip, udp, bytes) = encoded(size);
    let ip = IpHeader::V4(ip);
    bencher
        .counter(BytesCount::new(size))
        .bench(|| Packet::parse_checked(black_box(&ip), black_box(&udp), black_box(&bytes)).unwrap().payload.len());
}

#[divan::bench]
fn encode_headers(bencher: Bencher<'_, '_>) {
    let headers = headers();
    let mut out = [0; Headers::MAX_LEN];
    bencher.bench_local(|| black_box(&headers).encode(black_box(&mut out)).unwrap());
}

#[divan::bench(args = SIZES)]
fn encode_with_icrc(bencher: Bencher<'_, '_>, size: usize) {
    let payload = vec![0x5a; size];
    let headers = headers();
    let address = Gid::from_ipv4([10, 0, 0, 1].into());
    let ip = IpHeader::udp(address, address, 0).unwrap();
    let udp = UdpHeader::roce(0xc001, 0).unwrap();
    let mut out = vec![0; 8192];
    bencher.counter(BytesCount::new(size)).bench_local(|| {
        let packet = Packet { headers: black_box(headers), payload: black_box(&payload) };
        packet.encode(black_box(&ip), black_box(&udp), &mut out).unwrap()
    });
}

#[divan::bench(args = SIZES)]
fn icrc(bencher: Bencher<'_, '_>, size: usize) {
    let (ip, udp, bytes) = encoded(size);
    let (headers, payload) = bytes[..bytes.len() - Icrc::LEN].split_at(28);
    bencher
        .counter(BytesCount::new(size))
        .bench(|| Icrc::v4(black_box(&ip), &udp).headers(black_box(headers)).payload(black_box(payload)).finish());
}

#[divan::bench(args = SIZES)]
fn crc32(bencher: Bencher<'_, '_>, size: usize) {
    let bytes = vec![0x5a; size];
    bencher.counter(BytesCount::new(size)).bench(|| crc32fast::hash(black_box(&bytes)));
}

#[divan::bench(args = SIZES)]
fn solve(bencher: Bencher<'_, '_>, size: usize) {
    let (ip, udp, bytes) = encoded(size);
    let blind = Ipv4Header { identification: 0x1234, dont_fragment: false, ..ip };
    bencher.bench(|| solve_identification(black_box(&blind), &udp, black_box(&bytes)).unwrap());
}
