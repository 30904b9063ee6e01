//! Receive side scaling: the hash of a frame's addresses and ports, by which it is given to one of several work queues.
//! Frames of one connection have the same hash.

use super::{Internet, Layers, Ports, Stack, Upper};

/// The bytes of a hash key.
pub const HASH_KEY_LENGTH: usize = 40;

bitflags::bitflags! {
    /// Which fields of a frame are hashed, with the numbers of `ibv_rx_hash_fields`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct HashFields: u64 {
        /// The source address of IPv4.
        const SRC_IPV4 = 1;
        /// The destination address of IPv4.
        const DST_IPV4 = 1 << 1;
        /// The source address of IPv6.
        const SRC_IPV6 = 1 << 2;
        /// The destination address of IPv6.
        const DST_IPV6 = 1 << 3;
        /// The source port of TCP.
        const SRC_PORT_TCP = 1 << 4;
        /// The destination port of TCP.
        const DST_PORT_TCP = 1 << 5;
        /// The source port of UDP.
        const SRC_PORT_UDP = 1 << 6;
        /// The destination port of UDP.
        const DST_PORT_UDP = 1 << 7;
        /// The association of ESP.
        const IPSEC_SPI = 1 << 8;
        /// The fields are those of the frame inside a tunnel.
        const INNER = 1 << 31;
    }
}

impl HashFields {
    /// Whether hardware could hash them: not of both versions of IP, not of both TCP and UDP, and ports not beside an
    /// association of ESP.
    pub fn is_consistent(self) -> bool {
        let any = |fields: HashFields| self.intersects(fields);
        let (v4, v6) = (HashFields::SRC_IPV4 | HashFields::DST_IPV4, HashFields::SRC_IPV6 | HashFields::DST_IPV6);
        let tcp = HashFields::SRC_PORT_TCP | HashFields::DST_PORT_TCP;
        let udp = HashFields::SRC_PORT_UDP | HashFields::DST_PORT_UDP;
        let upper = [tcp, udp, HashFields::IPSEC_SPI].into_iter().filter(|fields| any(*fields)).count();
        !(any(v4) && any(v6)) && upper <= 1
    }
}

/// The hash of `input` that Microsoft defined for receive side scaling, after Toeplitz: for every bit that is set, 32
/// bits of the key from the place of that bit on.
pub fn toeplitz(key: &[u8; HASH_KEY_LENGTH], input: &[u8]) -> u32 {
    let mut window = u64::from_be_bytes([key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]]);
    let mut rest = key.iter().skip(8);
    let mut hash = 0;
    for byte in input {
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                // The window begins with the byte's highest bit.
                hash ^= (window >> (25 + bit)) as u32;
            }
        }
        window = window << 8 | u64::from(rest.next().copied().unwrap_or(0));
    }
    hash
}

/// How a queue pair hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rss {
    /// The key.
    pub key: [u8; HASH_KEY_LENGTH],
    /// What is hashed.
    pub fields: HashFields,
}

impl Rss {
    /// The hash of a frame; 0 if it has nothing that is hashed, such as a frame without IP.
    pub fn hash(&self, layers: &Layers) -> u32 {
        let inner = self.fields.contains(HashFields::INNER);
        let Some(stack) = (if inner { layers.inner } else { Some(layers.outer) }) else { return 0 };
        let mut input = Input { bytes: [0; 40], length: 0 };
        self.gather(&stack, &mut input);
        toeplitz(&self.key, input.bytes.get(..input.length).unwrap_or_default())
    }

    /// The fields in the order of the definition: addresses, then ports, each source first.
    fn gather(&self, stack: &Stack, input: &mut Input) {
        use HashFields as F;
        let wants = |fields: HashFields| self.fields.contains(fields);
        match stack.internet {
            Some(Internet::V4 { source, destination, .. }) => {
                input.push(wants(F::SRC_IPV4), &source);
                input.push(wants(F::DST_IPV4), &destination);
            }
            Some(Internet::V6 { source, destination, .. }) => {
                input.push(wants(F::SRC_IPV6), &source);
                input.push(wants(F::DST_IPV6), &destination);
            }
            None => {}
        }
        let mut ports = |ports: Ports, source: HashFields, destination: HashFields| {
            input.push(wants(source), &ports.source.to_be_bytes());
            input.push(wants(destination), &ports.destination.to_be_bytes());
        };
        match stack.upper {
            Some(Upper::Tcp(found)) => ports(found, F::SRC_PORT_TCP, F::DST_PORT_TCP),
            Some(Upper::Udp(found)) => ports(found, F::SRC_PORT_UDP, F::DST_PORT_UDP),
            Some(Upper::Esp { spi, .. }) => input.push(wants(F::IPSEC_SPI), &spi.to_be_bytes()),
            _ => {}
        }
    }
}

/// What is hashed: at most two addresses of IPv6 and two ports.
struct Input {
    bytes: [u8; 40],
    length: usize,
}

impl Input {
    fn push(&mut self, wanted: bool, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.length..self.length + bytes.len()).filter(|_| wanted) {
            place.copy_from_slice(bytes);
            self.length += bytes.len();
        }
    }
}
