//! What a request asks for, who answers it, and with which error if nobody can.

use crate::message::{Attributes, Header, MESSAGE_HEADER_BYTES, Message, aligned};
use crate::numbers::errno::{EINVAL, EOPNOTSUPP, EPERM};
use crate::numbers::{
    ACK, CAPPED, DONE, DUMP, ERROR, MIN_TYPE, MULTI, NLDEV, REQUEST, attribute, command, message_type,
};
use crate::{Device, Host, devices, resources, statistics};

/// The answers to a datagram of requests, each a datagram of its own. `port` is the asking socket's.
pub fn answer(datagram: &[u8], port: u32, host: &mut impl Host) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    let mut rest = datagram;
    // What is too short, or says that it is longer than it is, is not answered; nor is what follows it.
    while let Some(header) = Header::parse(rest) {
        let length = header.length as usize;
        let whole = rest.get(..length).unwrap_or_default();
        let mut exchange = Exchange { header, port, answers: &mut answers };
        let outcome = match header.flags & REQUEST != 0 && header.kind >= MIN_TYPE {
            true => exchange.serve(whole.get(MESSAGE_HEADER_BYTES..).unwrap_or_default(), host),
            // Netlink's own, and what is no request.
            false => Ok(Served::Once),
        };
        match outcome {
            Ok(Served::All) => {}
            Ok(Served::Once) if header.flags & ACK == 0 => {}
            Ok(Served::Once) => exchange.acknowledge(0, whole),
            Err(error) => exchange.acknowledge(error, whole),
        }
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    answers
}

/// How a request was served.
pub(crate) enum Served {
    /// By one answer, or none.
    Once,
    /// By a list, whose end is reported.
    All,
}

/// A number of an error.
pub(crate) type Errno = i32;

/// A request and its answers.
pub(crate) struct Exchange<'a> {
    header: Header,
    port: u32,
    answers: &'a mut Vec<Vec<u8>>,
}

impl Exchange<'_> {
    fn serve(&mut self, attributes: &[u8], host: &mut impl Host) -> Result<Served, Errno> {
        let (client, number) = (self.header.kind >> 10, self.header.kind & 0x3ff);
        if client != NLDEV {
            return Err(EINVAL);
        }
        let dumps = self.header.flags & DUMP != 0;
        match number {
            command::SET
            | command::NEWLINK
            | command::DELLINK
            | command::SYS_SET
            | command::STAT_SET
            | command::STAT_DEL => {
                // Devices are what interfaces are, and have nothing that could be set.
                return Err(if host.is_administrator() { EOPNOTSUPP } else { EPERM });
            }
            command::RES_QP_GET_RAW | command::RES_CQ_GET_RAW | command::RES_MR_GET_RAW => {
                return Err(if host.is_administrator() { EINVAL } else { EPERM });
            }
            _ => {}
        }
        // An error is reported where the list would end.
        let asked = Asked::parse(attributes);
        let served = match (number, dumps) {
            (command::GET, true) => asked.and_then(|_| devices::all(self, host)),
            (command::GET, false) => asked.and_then(|asked| devices::one(self, &asked, host)),
            (command::PORT_GET, _) => asked.and_then(|asked| devices::port(self, &asked, dumps, host)),
            (command::SYS_GET, false) => asked.and_then(|_| devices::system(self)),
            (command::GET_CHARDEV, false) => asked.and_then(|asked| devices::character_device(self, &asked, host)),
            (command::RES_GET, _) => asked.and_then(|asked| resources::summary(self, &asked, dumps, host)),
            (command::STAT_GET, true) => asked.and_then(|asked| statistics::all(self, &asked, host)),
            (command::STAT_GET, false) => asked.and_then(|asked| statistics::one(self, &asked, host)),
            (command::STAT_GET_STATUS, false) => asked.and_then(|asked| statistics::status(self, &asked, host)),
            _ => match resources::Kind::of(number) {
                Some(kind) => asked.and_then(|asked| resources::tell(self, kind, &asked, dumps, host)),
                None => return Err(EINVAL),
            },
        };
        match (served, dumps) {
            (Ok(()), false) => Ok(Served::Once),
            (Err(error), false) => Err(error),
            (outcome, true) => {
                self.done(outcome.err().unwrap_or(0));
                Ok(Served::All)
            }
        }
    }

    /// An answer of that command, to be filled.
    pub fn message(&self, number: u16) -> Message {
        let flags = if self.header.flags & DUMP != 0 { MULTI } else { 0 };
        Message::new(message_type(NLDEV, number), flags, self.header.sequence, self.port)
    }

    /// It is filled.
    pub fn send(&mut self, message: Message) {
        self.answers.push(message.finish());
    }

    fn done(&mut self, error: Errno) {
        let mut message = Message::new(DONE, MULTI, self.header.sequence, self.port);
        message.raw(&(-error).to_ne_bytes());
        self.send(message);
    }

    /// Says what came of a request: the whole of it comes back if that was an error, else its header.
    fn acknowledge(&mut self, error: Errno, request: &[u8]) {
        let (flags, echo) = match error {
            0 => (CAPPED, request.get(..MESSAGE_HEADER_BYTES).unwrap_or_default()),
            _ => (0, request),
        };
        let mut message = Message::new(ERROR, flags, self.header.sequence, self.port);
        message.raw(&(-error).to_ne_bytes()).raw(echo);
        self.send(message);
    }
}

/// The attributes of a request that matter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Asked {
    pub device: Option<u32>,
    pub port: Option<u32>,
    /// Other numbers, by their attribute.
    numbers: Vec<(u16, u32)>,
    pub chardev: Option<String>,
}

impl Asked {
    /// Attributes of unknown types are left out, the last of several counts, and one of a known type that cannot be one
    /// spoils all.
    fn parse(bytes: &[u8]) -> Result<Asked, Errno> {
        let mut asked = Asked::default();
        for (kind, value) in Attributes(bytes) {
            let number = || value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)).ok_or(EINVAL);
            match kind {
                attribute::DEV_INDEX => asked.device = Some(number()?),
                attribute::PORT_INDEX => asked.port = Some(number()?),
                attribute::RES_LQPN
                | attribute::RES_PDN
                | attribute::RES_CQN
                | attribute::RES_MRN
                | attribute::RES_CM_IDN
                | attribute::RES_CTXN
                | attribute::RES_SRQN
                | attribute::STAT_MODE
                | attribute::STAT_RES
                | attribute::STAT_COUNTER_ID => asked.numbers.push((kind, number()?)),
                attribute::DEV_NAME => drop(text(value, 63)?),
                attribute::CHARDEV_TYPE => asked.chardev = Some(text(value, 64)?),
                _ => {}
            }
        }
        Ok(asked)
    }

    /// A number that is asked for.
    pub fn number(&self, kind: u16) -> Option<u32> {
        self.numbers.iter().rev().find(|(other, _)| *other == kind).map(|(_, number)| *number)
    }

    /// The device that is asked for, with its number.
    pub fn device(&self, host: &mut impl Host) -> Result<(u32, Device), Errno> {
        let number = self.device.ok_or(EINVAL)?;
        let device = host.devices().into_iter().find(|device| device.number == number).ok_or(EINVAL)?;
        Ok((number, device))
    }

    /// The port of the device that is asked for, if one is.
    pub fn port(&self, device: &Device) -> Result<Option<u32>, Errno> {
        match self.port {
            Some(port) if port == 0 || port as usize > device.ports.len() => Err(EINVAL),
            port => Ok(port),
        }
    }

    /// The port that must be asked for.
    pub fn needed_port(&self, device: &Device) -> Result<u32, Errno> {
        self.port(device)?.ok_or(EINVAL)
    }
}

/// A text that ends with a zero and is no longer than that.
fn text(value: &[u8], most: usize) -> Result<String, Errno> {
    let end = value.iter().position(|byte| *byte == 0).filter(|end| *end <= most).ok_or(EINVAL)?;
    let bytes = value.get(..end).unwrap_or_default();
    Ok(String::from_utf8_lossy(bytes).into_owned())
}
