//! A path as the messages describe it. On RoCE the GIDs count and the LIDs are filled with ones; REQ and LAP hold the
//! same fields in a different order.

use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Gid, ParseError, Timeout};

/// A path between two ports, seen from the sender of the message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Path {
    /// The sender's local identifier.
    pub local_lid: u16,
    /// The receiver's local identifier.
    pub remote_lid: u16,
    /// The sender's address.
    pub local_gid: Gid,
    /// The receiver's address.
    pub remote_gid: Gid,
    /// Flow label, 20 bits. Folded, it is the UDP source port of the connection.
    pub flow_label: u32,
    /// Static rate, six bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, four bits.
    pub service_level: u8,
    /// Whether both ends are in one subnet.
    pub subnet_local: bool,
    /// How long the sender's queue pair waits for an acknowledgement.
    pub local_ack_timeout: Timeout,
}

impl Path {
    /// Reads it in the order of a REQ; the last byte's low three bits, which differ between primary and alternate, are
    /// returned too.
    pub(super) fn parse_req(reader: &mut Reader<'_>) -> Result<(Path, u8), ParseError> {
        let mut path = Path::parse_ends(reader)?;
        let word = reader.u32()?;
        path.flow_label = word >> 12;
        path.packet_rate = word as u8 & 0x3f;
        path.traffic_class = reader.u8()?;
        path.hop_limit = reader.u8()?;
        let extra = path.parse_tail(reader)?;
        Ok((path, extra))
    }

    /// Reads it in the order of a LAP.
    pub(super) fn parse_lap(reader: &mut Reader<'_>) -> Result<Path, ParseError> {
        let mut path = Path::parse_ends(reader)?;
        let word = reader.u32()?;
        path.flow_label = word >> 12;
        path.traffic_class = word as u8;
        path.hop_limit = reader.u8()?;
        path.packet_rate = reader.u8()? & 0x3f;
        path.parse_tail(reader)?;
        Ok(path)
    }

    fn parse_ends(reader: &mut Reader<'_>) -> Result<Path, ParseError> {
        Ok(Path {
            local_lid: reader.u16()?,
            remote_lid: reader.u16()?,
            local_gid: Gid::new(reader.array()?),
            remote_gid: Gid::new(reader.array()?),
            ..Path::default()
        })
    }

    fn parse_tail(&mut self, reader: &mut Reader<'_>) -> Result<u8, ParseError> {
        let level = reader.u8()?;
        self.service_level = level >> 4;
        self.subnet_local = level & 0x08 != 0;
        let timeout = reader.u8()?;
        self.local_ack_timeout = Timeout::new(timeout >> 3);
        Ok(timeout & 0x7)
    }

    /// Writes it in the order of a REQ, with the last byte's low three bits.
    pub(super) fn encode_req(&self, writer: &mut Writer<'_>, extra: u8) -> Result<(), EncodeError> {
        self.encode_ends(writer)?;
        let rate = writer.fit("packet rate", self.packet_rate, 6)?;
        writer.u32(writer.fit("flow label", self.flow_label, 20)? << 12 | u32::from(rate))?;
        writer.u8(self.traffic_class)?;
        writer.u8(self.hop_limit)?;
        self.encode_tail(writer, extra)
    }

    /// Writes it in the order of a LAP.
    pub(super) fn encode_lap(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.encode_ends(writer)?;
        let label = writer.fit("flow label", self.flow_label, 20)?;
        writer.u32(label << 12 | u32::from(self.traffic_class))?;
        writer.u8(self.hop_limit)?;
        writer.u8(writer.fit("packet rate", self.packet_rate, 6)?)?;
        self.encode_tail(writer, 0)
    }

    fn encode_ends(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.u16(self.local_lid)?;
        writer.u16(self.remote_lid)?;
        writer.array(self.local_gid.octets())?;
        writer.array(self.remote_gid.octets())
    }

    fn encode_tail(&self, writer: &mut Writer<'_>, extra: u8) -> Result<(), EncodeError> {
        let level = writer.fit("service level", self.service_level, 4)?;
        writer.u8(level << 4 | u8::from(self.subnet_local) << 3)?;
        writer.u8(self.local_ack_timeout.value() << 3 | extra)
    }
}
