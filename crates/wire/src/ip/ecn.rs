//! Explicit congestion notification: the last two bits of the type of service (IPv4) or traffic class (IPv6), RFC 3168.
//! The six before them (DSCP) are the program's, these are the NIC's.

use crate::{Opcode, Operation};

/// What the two bits say.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Ecn {
    /// A switch that is congested drops the packet.
    NotCapable = 0b00,
    /// ECT(1).
    Capable1 = 0b01,
    /// ECT(0): a switch that is congested marks the packet instead.
    Capable0 = 0b10,
    /// CE: a switch has marked it.
    Experienced = 0b11,
}

impl Ecn {
    /// What this type of service or traffic class says.
    pub const fn of(class: u8) -> Ecn {
        match class & 0b11 {
            0b00 => Ecn::NotCapable,
            0b01 => Ecn::Capable1,
            0b10 => Ecn::Capable0,
            _ => Ecn::Experienced,
        }
    }

    /// What a packet says when it is sent: ECT(0), but a congestion notification nothing, as nobody is to be notified
    /// of its own congestion.
    pub const fn of_sent(opcode: Opcode) -> Ecn {
        match opcode.operation() {
            Operation::Cnp => Ecn::NotCapable,
            _ => Ecn::Capable0,
        }
    }

    /// A traffic class with these bits in place of its own.
    pub const fn in_class(self, class: u8) -> u8 {
        class & !0b11 | self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_the_last_two_and_the_others_stay() {
        for class in 0..=u8::MAX {
            assert_eq!(Ecn::of(class) as u8, class & 3);
            for ecn in [Ecn::NotCapable, Ecn::Capable1, Ecn::Capable0, Ecn::Experienced] {
                let with = ecn.in_class(class);
                assert_eq!((Ecn::of(with), with >> 2), (ecn, class >> 2));
            }
        }
        assert_eq!(Ecn::of_sent(Opcode::RcSendOnly), Ecn::Capable0);
        assert_eq!(Ecn::of_sent(Opcode::Cnp), Ecn::NotCapable);
    }
}
