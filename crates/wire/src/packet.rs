//! One packet as UDP carries it: headers, payload, pad and ICRC. Only its form is judged here; whether the opcode may
//! carry this payload to this queue pair is for the transport to say.

use crate::ip::{IpHeader, UdpHeader};
use crate::{EncodeError, Header, Headers, Icrc, ParseError};

/// A packet, its payload borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Its headers.
    pub headers: Headers,
    /// Its payload, without pad.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a UDP payload, from the BTH to the end of the ICRC. The ICRC is cut off and not looked at.
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let mut headers = Headers::NONE;
        let payload = Packet::read(bytes, &mut headers)?;
        Ok(Packet { headers, payload })
    }

    /// [Parses](Packet::parse) in place, and returns the payload. After an error the headers mean nothing.
    #[inline]
    pub fn read(bytes: &'a [u8], headers: &mut Headers) -> Result<&'a [u8], ParseError> {
        let rest = headers.read(bytes)?;
        let Some((padded, _)) = rest.split_last_chunk::<{ Icrc::LEN }>() else {
            return Err(ParseError::Truncated { header: Header::Icrc, need: Icrc::LEN, have: rest.len() });
        };
        let have = padded.len();
        refuse_if!(have % 4 != 0, ParseError::Misaligned { have });
        let pad = headers.bth.pad;
        match have.checked_sub(pad.into()).and_then(|length| padded.get(..length)) {
            Some(payload) => Ok(payload),
            None => Err(ParseError::BadPad { pad, have }),
        }
    }

    /// Reads a UDP payload and checks its ICRC against the headers it came with.
    pub fn parse_checked(ip: &IpHeader, udp: &UdpHeader, bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let packet = Packet::parse(bytes)?;
        if let Some((covered, &have)) = bytes.split_last_chunk() {
            let computed = Icrc::new(ip, udp).headers(covered).finish();
            refuse_if!(computed != have, ParseError::BadIcrc { have, computed });
        }
        Ok(packet)
    }

    /// How many zero bytes follow a payload of this length.
    #[inline]
    pub const fn pad(payload_len: usize) -> u8 {
        (payload_len.wrapping_neg() % 4) as u8
    }

    /// The encoded length, from the BTH to the end of the ICRC.
    #[inline]
    pub const fn encoded_length(&self) -> usize {
        self.headers.len() + self.payload.len() + Packet::pad(self.payload.len()) as usize + Icrc::LEN
    }

    /// Writes headers, payload, pad and ICRC to the front of `out`; returns their length. The pad count of the BTH and,
    /// for the ICRC, the length fields of `ip` and `udp` are those of this packet, whatever the arguments say.
    pub fn encode(&self, ip: &IpHeader, udp: &UdpHeader, out: &mut [u8]) -> Result<usize, EncodeError> {
        let length = self.encoded_length();
        let ip = ip.with_udp_payload(length)?;
        let udp = udp.with_payload(length)?;
        let covered = self.encode_covered(out)?;
        let crc = Icrc::new(&ip, &udp).headers(covered).finish();
        let at = covered.len();
        if let Some(place) = out.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *place = crc;
        }
        Ok(length)
    }

    /// Writes what the ICRC covers, having made sure that the ICRC fits behind it.
    fn encode_covered<'b>(&self, out: &'b mut [u8]) -> Result<&'b [u8], EncodeError> {
        let opcode = self.headers.bth.opcode;
        if !opcode.has_payload() && !self.payload.is_empty() {
            return Err(EncodeError::UnexpectedPayload { opcode: opcode.name(), have: self.payload.len() });
        }
        let (need, have) = (self.encoded_length(), out.len());
        let Some(out) = out.get_mut(..need).and_then(|out| out.split_last_chunk_mut::<{ Icrc::LEN }>()) else {
            return Err(EncodeError::NoRoom { header: Header::Icrc, need, have });
        };
        let (out, _) = out;
        let mut headers = self.headers;
        headers.bth.pad = Packet::pad(self.payload.len());
        let at = headers.encode(out)?;
        if let Some((payload, pad)) = out.get_mut(at..).and_then(|rest| rest.split_at_mut_checked(self.payload.len())) {
            payload.copy_from_slice(self.payload);
            pad.fill(0);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gid, Opcode, Psn, Qpn};
    use core::net::Ipv4Addr;

    fn outer() -> (IpHeader, UdpHeader) {
        let gid = Gid::from_ipv4(Ipv4Addr::LOCALHOST);
        (IpHeader::udp(gid, gid, 0).unwrap(), UdpHeader::roce(0xc000, 0).unwrap())
    }

    fn send(payload: &[u8]) -> Packet<'_> {
        Packet { headers: Headers::new(Opcode::RcSendOnly, Qpn::new(0x11), Psn::new(1)), payload }
    }

    #[test]
    fn a_payload_is_padded_to_four_bytes() {
        for length in 0..9 {
            let payload = &[1, 2, 3, 4, 5, 6, 7, 8, 9][..length];
            let (ip, udp) = outer();
            let mut out = [0xee; 40];
            let written = send(payload).encode(&ip, &udp, &mut out).unwrap();
            assert_eq!(written, 12 + length.next_multiple_of(4) + 4);
            let (ip, udp) = (ip.with_udp_payload(written).unwrap(), udp.with_payload(written).unwrap());
            let packet = Packet::parse_checked(&ip, &udp, &out[..written]).unwrap();
            assert_eq!(packet.payload, payload);
            assert_eq!(usize::from(packet.headers.bth.pad), length.next_multiple_of(4) - length);
            assert!(out[12 + length..written - 4].iter().all(|&byte| byte == 0), "pad bytes are zero");
            out[11] ^= 1;
            let error = Packet::parse_checked(&ip, &udp, &out[..written]).unwrap_err();
            assert!(matches!(error, ParseError::BadIcrc { .. }));
        }
    }

    #[test]
    fn form_errors_are_told_apart() {
        let mut bytes = [0; 24];
        bytes[0] = Opcode::RcSendOnly.byte();
        assert_eq!(Packet::parse(&bytes[..16]).unwrap().payload.len(), 0);
        assert_eq!(Packet::parse(&bytes[..15]), Err(ParseError::Truncated { header: Header::Icrc, need: 4, have: 3 }));
        assert_eq!(Packet::parse(&bytes[..18]), Err(ParseError::Misaligned { have: 2 }));
        bytes[1] = 0x30;
        assert_eq!(Packet::parse(&bytes[..16]), Err(ParseError::BadPad { pad: 3, have: 0 }));
        assert_eq!(Packet::parse(&bytes[..20]).unwrap().payload.len(), 1);
    }

    #[test]
    fn no_room_and_no_payload_are_refused() {
        let (ip, udp) = outer();
        let error = send(&[1]).encode(&ip, &udp, &mut [0; 19]).unwrap_err();
        assert_eq!(error, EncodeError::NoRoom { header: Header::Icrc, need: 20, have: 19 });
        let mut read = send(&[1, 2]);
        read.headers.bth.opcode = Opcode::RcReadRequest;
        let error = read.encode(&ip, &udp, &mut [0; 100]).unwrap_err();
        assert_eq!(error, EncodeError::UnexpectedPayload { opcode: "RC RDMA READ Request", have: 2 });
    }
}
