//! Management datagrams: the 24 bytes that begin every one (specification 13.4.2), and the classes and methods that a
//! RoCE port meets. The bodies of connection management are in [`cm`](crate::cm).

use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError};

/// The length of a management datagram.
pub const MAD_LEN: usize = 256;

/// The header of a management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MadHeader {
    /// Version of the datagram format: 1.
    pub base_version: u8,
    /// What is managed.
    pub management_class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// What is asked; the top bit marks a response.
    pub method: u8,
    /// How it went.
    pub status: u16,
    /// Depends on the class.
    pub class_specific: u16,
    /// Pairs responses with requests.
    pub transaction_id: u64,
    /// What the body is.
    pub attribute_id: u16,
    /// More about the body; connection management keeps vendor options there.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// Its encoded length.
    pub const LEN: usize = 24;
    /// The base version that exists.
    pub const BASE_VERSION: u8 = 1;
    /// The class of subnet management by LID: queue pair 0 only.
    pub const CLASS_SUBNET: u8 = 1;
    /// The class of subnet management by directed route: queue pair 0 only.
    pub const CLASS_SUBNET_DIRECTED: u8 = 0x81;
    /// The class of subnet administration: path records and the like.
    pub const CLASS_SUBNET_ADMINISTRATION: u8 = 3;
    /// The class of performance management: counters of ports.
    pub const CLASS_PERFORMANCE: u8 = 4;
    /// The class of baseboard management.
    pub const CLASS_BASEBOARD: u8 = 5;
    /// The class of device management.
    pub const CLASS_DEVICE_MANAGEMENT: u8 = 6;
    /// The class of connection management.
    pub const CLASS_CM: u8 = 7;
    /// The class of device administration.
    pub const CLASS_DEVICE_ADMINISTRATION: u8 = 0x10;
    /// The class of the boot information service.
    pub const CLASS_BOOT_INFORMATION: u8 = 0x12;
    /// The classes of vendors that name themselves in each datagram (an OUI behind the header of RMPP).
    pub const CLASSES_WITH_OUI: core::ops::RangeInclusive<u8> = 0x30..=0x4f;

    /// The method that asks for an attribute.
    pub const METHOD_GET: u8 = 1;
    /// The method that sets an attribute.
    pub const METHOD_SET: u8 = 2;
    /// The method of connection management: Send.
    pub const METHOD_SEND: u8 = 3;
    /// The method that ends the repetition of a trap; it is a response although its top bit is clear.
    pub const METHOD_TRAP_REPRESS: u8 = 7;
    /// The bit of a method that marks a response.
    pub const RESPONSE: u8 = 0x80;
    /// The answer to Get and to Set.
    pub const METHOD_GET_RESPONSE: u8 = 0x81;

    /// The attribute that every class has: what the port can do in this class.
    pub const ATTRIBUTE_CLASS_PORT_INFO: u16 = 1;

    /// Status: nobody here does this method with this attribute.
    pub const STATUS_UNSUPPORTED: u16 = 0x000c;
    /// Status: a field of the attribute, or its modifier, makes no sense.
    pub const STATUS_INVALID_FIELD: u16 = 0x001c;

    /// Whether it answers another datagram. Baseboard management says so in the modifier.
    pub const fn is_response(&self) -> bool {
        self.method & MadHeader::RESPONSE != 0
            || self.method == MadHeader::METHOD_TRAP_REPRESS
            || self.management_class == MadHeader::CLASS_BASEBOARD && self.attribute_modifier & 1 != 0
    }

    /// The part of the transaction id that names the agent which asked: the upper half.
    pub const fn agent(&self) -> u32 {
        (self.transaction_id >> 32) as u32
    }

    /// Reads it from the front of `bytes`; returns what follows.
    pub fn parse(bytes: &[u8]) -> Result<(MadHeader, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::Mad, MadHeader::LEN, bytes)?;
        let mut header = MadHeader {
            base_version: reader.u8()?,
            management_class: reader.u8()?,
            class_version: reader.u8()?,
            method: reader.u8()?,
            status: reader.u16()?,
            class_specific: reader.u16()?,
            transaction_id: reader.u64()?,
            attribute_id: reader.u16()?,
            attribute_modifier: 0,
        };
        let _reserved = reader.u16()?;
        header.attribute_modifier = reader.u32()?;
        Ok((header, reader.rest()))
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Mad, MadHeader::LEN, out)?;
        writer.u8(self.base_version)?;
        writer.u8(self.management_class)?;
        writer.u8(self.class_version)?;
        writer.u8(self.method)?;
        writer.u16(self.status)?;
        writer.u16(self.class_specific)?;
        writer.u64(self.transaction_id)?;
        writer.u16(self.attribute_id)?;
        writer.u16(0)?;
        writer.u32(self.attribute_modifier)?;
        Ok(writer.finish())
    }
}
