//! BTH, the base transport header of every packet (specification 9.2).

use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, Opcode, ParseError, Pkey, Psn, Qpn};

/// The base transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event: the receiver's completion is one to wake for.
    pub solicited: bool,
    /// Migration state of the path.
    pub mig_req: bool,
    /// How many bytes (0 to 3) of zeroes follow the payload to make it a multiple of four.
    pub pad: u8,
    /// Transport header version; only 0 exists.
    pub tver: u8,
    /// The partition.
    pub pkey: Pkey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Whom the packet is for.
    pub dest_qpn: Qpn,
    /// Whether the sender wants an acknowledgement.
    pub ack_req: bool,
    /// The packet's sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Its encoded length.
    pub const LEN: usize = 12;

    /// A header of the default partition with nothing set.
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Bth {
        Bth {
            opcode,
            solicited: false,
            mig_req: false,
            pad: 0,
            tver: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_req: false,
            psn,
        }
    }

    /// Reads it from the front of `bytes`; returns what follows. A version other than 0 is not judged here.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Bth, &[u8]), ParseError> {
        let mut bth = Bth::new(Opcode::RcSendOnly, Qpn::default(), Psn::default());
        let rest = bth.read(bytes)?;
        Ok((bth, rest))
    }

    /// Reads it from the front of `bytes` like [`parse`](Bth::parse), in place.
    #[inline]
    pub(crate) fn read<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ParseError> {
        let mut reader = Reader::new(Header::Bth, Bth::LEN, bytes)?;
        let opcode = reader.u8()?;
        let flags = reader.u8()?;
        let pkey = reader.u16()?;
        let qp = reader.u32()?;
        let sequence = reader.u32()?;
        self.opcode = Opcode::from_byte(opcode).ok_or(ParseError::UnknownOpcode(opcode))?;
        self.solicited = flags & 0x80 != 0;
        self.mig_req = flags & 0x40 != 0;
        self.pad = flags >> 4 & 0x3;
        self.tver = flags & 0xf;
        self.pkey = Pkey::new(pkey);
        self.fecn = qp & 1 << 31 != 0;
        self.becn = qp & 1 << 30 != 0;
        self.dest_qpn = Qpn::new(qp);
        self.ack_req = sequence & 1 << 31 != 0;
        self.psn = Psn::new(sequence);
        Ok(reader.rest())
    }

    /// Writes it to the front of `out`; returns its length.
    #[inline]
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Bth, Bth::LEN, out)?;
        let pad = writer.fit("pad count", self.pad, 2)?;
        let tver = writer.fit("transport version", self.tver, 4)?;
        let flags = u8::from(self.solicited) << 7 | u8::from(self.mig_req) << 6 | pad << 4 | tver;
        let [pkey_high, pkey_low] = self.pkey.value().to_be_bytes();
        // In words, as the code that copies it reads it in words: a processor is slow to read what was written in
        // smaller pieces a moment ago.
        writer.array([self.opcode.byte(), flags, pkey_high, pkey_low])?;
        writer.u32(u32::from(self.fecn) << 31 | u32::from(self.becn) << 30 | self.dest_qpn.value())?;
        writer.u32(u32::from(self.ack_req) << 31 | self.psn.value())?;
        Ok(writer.finish())
    }
}
