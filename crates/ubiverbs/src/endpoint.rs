//! What two queue pairs must know of each other, in a form that any channel carries.

use seam::Error;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use transport::Kind;
use wire::{Gid, Mtu, Psn, Qkey, Qpn, refuse_if};

/// One end of a connection, or where a datagram queue pair is: address, number, first sequence number and MTU.
///
/// [`PreparedQueuePair::endpoint`](crate::PreparedQueuePair::endpoint) gives it; the peer passes it to
/// [`connect`](crate::PreparedQueuePair::connect). It travels as 32 bytes or as text:
///
/// ```
/// # use ubiverbs::{Endpoint, Reliable};
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// let prepared = pd.queue_pair::<Reliable>(&cq).prepare()?;
/// let endpoint = prepared.endpoint();
/// assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes())?, endpoint);
///
/// let text = endpoint.to_string(); // rc/127.0.0.1/0x1a001/11259375/4096
/// assert_eq!(text.parse::<Endpoint>()?, endpoint);
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    kind: Kind,
    mtu: Mtu,
    gid: Gid,
    qpn: Qpn,
    psn: Psn,
    qkey: Qkey,
}

const ENDPOINT_VERSION: u8 = 1;
const ENDPOINT_NOUN: &str = "an endpoint";

impl Endpoint {
    /// How many bytes its encoding takes.
    pub const ENCODED: usize = 32;

    /// From what another library tells of its queue pair. The Q_Key is of interest for datagrams only.
    pub fn new(kind: Kind, mtu: Mtu, gid: Gid, qpn: Qpn, psn: Psn, qkey: Qkey) -> Endpoint {
        let qkey = if kind == Kind::UnreliableDatagram { qkey } else { Qkey::default() };
        Endpoint { kind, mtu, gid, qpn, psn, qkey }
    }

    /// The transport.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The most payload its packets carry.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The number of the first packet it will send.
    pub fn psn(&self) -> Psn {
        self.psn
    }

    /// The key its datagrams must show; zero for connections.
    pub fn qkey(&self) -> Qkey {
        self.qkey
    }

    /// Its encoding, all big-endian: version, transport, MTU code, zero, address, queue pair number, packet sequence
    /// number, Q_Key.
    pub fn to_bytes(&self) -> [u8; Endpoint::ENCODED] {
        let mut bytes = [0; Endpoint::ENCODED];
        bytes[..4].copy_from_slice(&[ENDPOINT_VERSION, self.kind.code(), self.mtu.code(), 0]);
        bytes[4..20].copy_from_slice(&self.gid.octets());
        bytes[20..24].copy_from_slice(&self.qpn.value().to_be_bytes());
        bytes[24..28].copy_from_slice(&self.psn.value().to_be_bytes());
        bytes[28..32].copy_from_slice(&self.qkey.value().to_be_bytes());
        bytes
    }

    /// Reads its encoding.
    pub fn from_bytes(bytes: &[u8]) -> Result<Endpoint, Error> {
        let bad = |why| Error::Encoding { what: ENDPOINT_NOUN, why };
        let bytes: &[u8; Endpoint::ENCODED] = bytes.try_into().map_err(|_| bad("it is not 32 bytes long"))?;
        let [version, kind, mtu, zero, rest @ ..] = *bytes;
        refuse_if!(version != ENDPOINT_VERSION, bad("its version is not known"));
        let word = |at: usize| {
            let bytes = rest.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
            u32::from_be_bytes(bytes)
        };
        let gid: [u8; 16] = *rest.first_chunk().ok_or(bad("it is not 32 bytes long"))?;
        let (qpn, psn, qkey) = (word(16), word(20), word(24));
        refuse_if!(zero != 0 || qpn >> 24 != 0 || psn >> 24 != 0, bad("bits are set that mean nothing"));
        let kind = known(Kind::from_code(kind)).ok_or(bad("its transport is not known"))?;
        let mtu = Mtu::from_code(mtu).ok_or(bad("its MTU is not known"))?;
        refuse_if!(kind != Kind::UnreliableDatagram && qkey != 0, bad("it is a connection and has a Q_Key"));
        Endpoint::checked(kind, mtu, Gid::new(gid), qpn, psn, qkey)
    }

    fn checked(kind: Kind, mtu: Mtu, gid: Gid, qpn: u32, psn: u32, qkey: u32) -> Result<Endpoint, Error> {
        let bad = |why| Error::Encoding { what: ENDPOINT_NOUN, why };
        refuse_if!(gid.is_zero() || gid.is_multicast(), bad("its address is none of a single host"));
        refuse_if!(qpn >> 24 != 0 || psn >> 24 != 0, bad("its numbers have more than 24 bits"));
        Ok(Endpoint::new(kind, mtu, gid, Qpn::new(qpn), Psn::new(psn), Qkey::new(qkey)))
    }
}

/// The transports this API has.
fn known(kind: Option<Kind>) -> Option<Kind> {
    kind.filter(|kind| *kind != Kind::RawPacket)
}

/// `rc/127.0.0.1/0x1a001/77/4096`: transport, address, queue pair, packet sequence number, MTU; for datagrams the Q_Key
/// comes last.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.name().to_ascii_lowercase();
        write!(f, "{kind}/{}/{}/{}/{}", self.gid.to_ip(), self.qpn, self.psn, self.mtu)?;
        if self.kind == Kind::UnreliableDatagram { write!(f, "/{}", self.qkey) } else { Ok(()) }
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Endpoint, Error> {
        let bad = || Error::Encoding { what: ENDPOINT_NOUN, why: "it should read like rc/127.0.0.1/0x1a001/77/4096" };
        let hex = |text: &str| {
            let digits = text.strip_prefix("0x").filter(|digits| !digits.starts_with('+')).ok_or_else(bad)?;
            u32::from_str_radix(digits, 16).map_err(|_| bad())
        };
        let mut parts = text.trim().split('/');
        let mut next = || parts.next().ok_or_else(bad);
        let name = next()?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name));
        let kind = known(kind).ok_or_else(bad)?;
        let ip: IpAddr = next()?.parse().map_err(|_| bad())?;
        let qpn = hex(next()?)?;
        let psn = next()?.parse().map_err(|_| bad())?;
        let mtu = Mtu::from_bytes(next()?.parse().map_err(|_| bad())?).ok_or_else(bad)?;
        let qkey = if kind == Kind::UnreliableDatagram { hex(next()?)? } else { 0 };
        refuse_if!(parts.next().is_some(), bad());
        Endpoint::checked(kind, mtu, Gid::from_ip(ip), qpn, psn, qkey)
    }
}
