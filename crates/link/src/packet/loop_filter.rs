//! What a host sends and its NIC loops back. Hardware has a switch inside: a frame to the interface's own address, to a
//! group, or to an address that some program has flows for, comes back to the queue pairs of the host. A packet socket
//! is shown everything that its host sends; this says what of that is wanted, also to the kernel, as a filter (classic
//! BPF) that spares the process the rest.

use wire::flow::Loopback;

/// As many addresses the filter has; beyond that everything is looked at.
const MAX_NAMED: usize = 32;

/// `PACKET_OUTGOING`, as the filter sees it.
const PACKET_TYPE_OUTGOING: u32 = libc::PACKET_OUTGOING as u32;

/// What is wanted of that which the host sends.
#[derive(Debug)]
pub(super) struct LoopFilter {
    /// The interface's address; none where what is sent comes back anyway.
    own: Option<[u8; 6]>,
    /// Addresses that flows name, or have named.
    named: Vec<[u8; 6]>,
    all: bool,
}

impl LoopFilter {
    pub fn new(own: Option<[u8; 6]>) -> LoopFilter {
        LoopFilter { own, named: Vec::new(), all: false }
    }

    /// All of it is wanted, or no longer. Returns whether something changed.
    pub fn hear_all(&mut self, all: bool) -> bool {
        std::mem::replace(&mut self.all, all) != all
    }

    /// What is sent to this address is wanted. Returns whether something changed.
    pub fn name(&mut self, address: [u8; 6]) -> bool {
        let known = address[0] & 1 != 0 || self.own == Some(address) || self.named.contains(&address);
        let changes = self.own.is_some() && !known && self.named.len() <= MAX_NAMED;
        if changes {
            self.named.push(address);
        }
        changes
    }

    /// Whether anything is wanted.
    pub fn hears_any(&self) -> bool {
        self.all || self.own.is_some()
    }

    /// Whether there are more addresses than the filter has.
    fn is_crowded(&self) -> bool {
        self.named.len() > MAX_NAMED
    }

    /// Which flows get a frame that the host sends.
    pub fn loopback(&self, frame: &[u8]) -> Loopback {
        let (Some(own), Some(destination)) = (self.own, frame.first_chunk::<6>()) else { return Loopback::None };
        if destination[0] & 1 != 0 || *destination == own {
            Loopback::All
        } else if self.is_crowded() || self.named.contains(destination) {
            Loopback::Named
        } else {
            Loopback::None
        }
    }

    /// The filter: which frames the kernel shows.
    pub fn program(&self) -> Vec<libc::sock_filter> {
        let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
        let load = |size: u32, at: u32| instruction(libc::BPF_LD | size | libc::BPF_ABS, 0, 0, at);
        let equal = |value: u32, jt, jf| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, value);
        let answer = |bytes: u32| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, bytes);
        let (whole, nothing) = (answer(u32::MAX), answer(0));
        if self.all || self.is_crowded() {
            return vec![whole];
        }
        let kind = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
        let mut program = vec![load(libc::BPF_W, kind), equal(PACKET_TYPE_OUTGOING, 1, 0), whole];
        let group = instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, 1);
        program.extend([load(libc::BPF_B, 0), group, whole]);
        for address in self.own.iter().chain(&self.named) {
            let [a, b, c, d, e, f] = *address;
            let (first, rest) = (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f]));
            program.extend([load(libc::BPF_W, 2), equal(rest, 0, 3), load(libc::BPF_H, 0), equal(first.into(), 0, 1)]);
            program.push(whole);
        }
        program.push(nothing);
        program
    }
}
