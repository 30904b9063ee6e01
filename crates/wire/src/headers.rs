//! The headers of one packet: the BTH and those its opcode demands. [`Headers`] holds them by value and knows their
//! order on the wire; the single headers are in modules of their own. What a header asks for is not judged here.

mod aeth;
mod atomic;
mod bth;
mod deth;
mod feth;
mod reth;

pub use aeth::{Aeth, NakCode, RnrTimer, Syndrome};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use deth::Deth;
pub use feth::{Feth, Placement, Selectivity};
pub use reth::Reth;

use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, HeaderSet, Key, Opcode, ParseError, Psn, Qpn, Srqn};

/// All headers of one packet.
///
/// Parsing fills exactly those the opcode demands; encoding writes exactly those, refuses when one is missing, and
/// ignores any other. Reserved bits are dropped on the way in and zero on the way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    /// The base transport header, which every packet has.
    pub bth: Bth,
    /// XRCETH: the shared receive queue an XRC request is for.
    pub xrc: Option<Srqn>,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// Flush header.
    pub feth: Option<Feth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Atomic header.
    pub atomic: Option<AtomicEth>,
    /// Acknowledgement header.
    pub aeth: Option<Aeth>,
    /// Atomic acknowledgement header.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data, as the number whose big-endian bytes are on the wire.
    pub immediate: Option<u32>,
    /// IETH: the key to invalidate.
    pub invalidate: Option<Key>,
}

// The encoded length; headers are never empty.
#[allow(clippy::len_without_is_empty)]
impl Headers {
    /// The longest headers of any opcode.
    pub const MAX_LEN: usize = {
        let mut longest = 0;
        let mut at = 0;
        while at < Opcode::ALL.len() {
            if Opcode::ALL[at].header_length() > longest {
                longest = Opcode::ALL[at].header_length();
            }
            at += 1;
        }
        longest
    };

    /// A BTH of the default partition with nothing set, and no other header yet.
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Headers {
        Headers {
            bth: Bth::new(opcode, dest_qpn, psn),
            xrc: None,
            deth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            immediate: None,
            invalidate: None,
        }
    }

    /// No header but a BTH to be filled in.
    pub const NONE: Headers = Headers::new(Opcode::RcSendOnly, Qpn::new(0), Psn::new(0));

    /// The headers of a congestion notification: BECN set, and sixteen bytes of zeroes, [`Headers::CNP_PAYLOAD`], to
    /// follow (RoCEv2 annex).
    pub const fn cnp(dest_qpn: Qpn) -> Headers {
        let mut headers = Headers::new(Opcode::Cnp, dest_qpn, Psn::new(0));
        headers.bth.becn = true;
        headers
    }

    /// What follows the BTH of a congestion notification.
    pub const CNP_PAYLOAD: [u8; 16] = [0; 16];

    /// Reads the BTH and the headers its opcode demands; also returns what follows them: payload, pad, and the ICRC if
    /// it is there.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Headers, &[u8]), ParseError> {
        let mut headers = Headers::NONE;
        let rest = headers.read(bytes)?;
        Ok((headers, rest))
    }

    /// [Parses](Headers::parse) in place: headers are long, and a copy of them costs as much as reading them. After an
    /// error they mean nothing.
    #[inline]
    pub fn read<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ParseError> {
        let rest = self.bth.read(bytes)?;
        refuse_if!(self.bth.tver != 0, ParseError::BadVersion(self.bth.tver));
        // One by one, and so where they are.
        (self.xrc, self.deth, self.feth) = (None, None, None);
        (self.reth, self.atomic) = (None, None);
        (self.aeth, self.atomic_ack) = (None, None);
        (self.immediate, self.invalidate) = (None, None);
        match self.bth.opcode.header_length() {
            Bth::LEN => Ok(rest),
            _ => self.read_extended(rest),
        }
    }

    /// The headers after the BTH.
    fn read_extended<'a>(&mut self, mut rest: &'a [u8]) -> Result<&'a [u8], ParseError> {
        let demanded = self.bth.opcode.headers();
        // One alone, mostly: of a WRITE or READ, or of an acknowledgement.
        match demanded.difference(HeaderSet::PAYLOAD) {
            HeaderSet::RETH => {
                let (reth, rest) = Reth::parse(rest)?;
                self.reth = Some(reth);
                return Ok(rest);
            }
            HeaderSet::AETH => {
                let (aeth, rest) = Aeth::parse(rest)?;
                self.aeth = Some(aeth);
                return Ok(rest);
            }
            _ => {}
        }
        self.xrc = optional(demanded, HeaderSet::XRCETH, &mut rest, parse_xrceth)?;
        self.deth = optional(demanded, HeaderSet::DETH, &mut rest, Deth::parse)?;
        self.feth = optional(demanded, HeaderSet::FETH, &mut rest, Feth::parse)?;
        self.reth = optional(demanded, HeaderSet::RETH, &mut rest, Reth::parse)?;
        self.atomic = optional(demanded, HeaderSet::ATOMIC_ETH, &mut rest, AtomicEth::parse)?;
        self.aeth = optional(demanded, HeaderSet::AETH, &mut rest, Aeth::parse)?;
        self.atomic_ack = optional(demanded, HeaderSet::ATOMIC_ACK_ETH, &mut rest, AtomicAckEth::parse)?;
        self.immediate = optional(demanded, HeaderSet::IMMEDIATE, &mut rest, |bytes| parse_u32(Header::ImmDt, bytes))?;
        self.invalidate = optional(demanded, HeaderSet::IETH, &mut rest, |bytes| {
            parse_u32(Header::Ieth, bytes).map(|(key, rest)| (Key::new(key), rest))
        })?;
        Ok(rest)
    }

    /// The encoded length, which the opcode alone decides.
    #[inline]
    pub const fn len(&self) -> usize {
        self.bth.opcode.header_length()
    }

    /// Writes the BTH and the headers its opcode demands to the front of `out`; returns their length.
    #[inline]
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let (need, have) = (self.len(), out.len());
        let Some(out) = out.get_mut(..need) else {
            return Err(EncodeError::NoRoom { header: Header::Bth, need, have });
        };
        let at = self.bth.encode(out)?;
        if at == need { Ok(at) } else { self.encode_extended(out, at) }
    }

    /// Writes the headers after the BTH.
    fn encode_extended(&self, out: &mut [u8], at: usize) -> Result<usize, EncodeError> {
        match (self.bth.opcode.headers().difference(HeaderSet::PAYLOAD), &self.reth, &self.aeth) {
            (HeaderSet::RETH, Some(reth), _) => {
                return Ok(at + reth.encode(out.get_mut(at..).unwrap_or_default())?);
            }
            (HeaderSet::AETH, _, Some(aeth)) => {
                return Ok(at + aeth.encode(out.get_mut(at..).unwrap_or_default())?);
            }
            _ => {}
        }
        let mut encoder = Encoder { opcode: self.bth.opcode, out, at };
        encoder.put(HeaderSet::XRCETH, Header::XrcEth, self.xrc, |srqn, out| {
            encode_u32(Header::XrcEth, srqn.value(), out)
        })?;
        encoder.put(HeaderSet::DETH, Header::Deth, self.deth, |deth, out| deth.encode(out))?;
        encoder.put(HeaderSet::FETH, Header::Feth, self.feth, |feth, out| feth.encode(out))?;
        encoder.put(HeaderSet::RETH, Header::Reth, self.reth, |reth, out| reth.encode(out))?;
        encoder.put(HeaderSet::ATOMIC_ETH, Header::AtomicEth, self.atomic, |atomic, out| atomic.encode(out))?;
        encoder.put(HeaderSet::AETH, Header::Aeth, self.aeth, |aeth, out| aeth.encode(out))?;
        encoder.put(HeaderSet::ATOMIC_ACK_ETH, Header::AtomicAckEth, self.atomic_ack, |ack, out| ack.encode(out))?;
        encoder.put(HeaderSet::IMMEDIATE, Header::ImmDt, self.immediate, |value, out| {
            encode_u32(Header::ImmDt, value, out)
        })?;
        encoder.put(HeaderSet::IETH, Header::Ieth, self.invalidate, |key, out| {
            encode_u32(Header::Ieth, key.value(), out)
        })?;
        Ok(encoder.at)
    }
}

/// Where the headers of one packet are being written.
struct Encoder<'a> {
    opcode: Opcode,
    out: &'a mut [u8],
    at: usize,
}

impl Encoder<'_> {
    /// Writes one header if the opcode demands it.
    #[inline]
    fn put<T>(
        &mut self,
        set: HeaderSet,
        header: Header,
        value: Option<T>,
        encode: impl FnOnce(T, &mut [u8]) -> Result<usize, EncodeError>,
    ) -> Result<(), EncodeError> {
        if self.opcode.headers().contains(set) {
            let value = value.ok_or(EncodeError::Missing { opcode: self.opcode.name(), header })?;
            self.at += encode(value, self.out.get_mut(self.at..).unwrap_or_default())?;
        }
        Ok(())
    }
}

/// Parses one header if the opcode demands it, and moves on behind it.
#[inline]
fn optional<'a, T>(
    demanded: HeaderSet,
    header: HeaderSet,
    rest: &mut &'a [u8],
    parse: impl FnOnce(&'a [u8]) -> Result<(T, &'a [u8]), ParseError>,
) -> Result<Option<T>, ParseError> {
    if !demanded.contains(header) {
        return Ok(None);
    }
    let (value, behind) = parse(rest)?;
    *rest = behind;
    Ok(Some(value))
}

#[inline]
fn parse_u32(header: Header, bytes: &[u8]) -> Result<(u32, &[u8]), ParseError> {
    let mut reader = Reader::new(header, 4, bytes)?;
    Ok((reader.u32()?, reader.rest()))
}

#[inline]
fn encode_u32(header: Header, value: u32, out: &mut [u8]) -> Result<usize, EncodeError> {
    let mut writer = Writer::new(header, 4, out)?;
    writer.u32(value)?;
    Ok(writer.finish())
}

/// XRCETH: 8 reserved bits and the number of the shared receive queue.
#[inline]
fn parse_xrceth(bytes: &[u8]) -> Result<(Srqn, &[u8]), ParseError> {
    let (word, rest) = parse_u32(Header::XrcEth, bytes)?;
    Ok((Srqn::new(word), rest))
}
