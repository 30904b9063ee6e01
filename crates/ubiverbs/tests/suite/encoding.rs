//! Endpoints and remote slices as bytes and as text, from friends and from strangers.

use proptest::prelude::*;
use std::net::{IpAddr, Ipv6Addr};
use ubiverbs::{Endpoint, Gid, Key, Kind, Mtu, Psn, Qkey, Qpn, RemoteSlice};

fn endpoints() -> impl Strategy<Value = Endpoint> {
    let kinds = [Kind::ReliableConnected, Kind::UnreliableConnected, Kind::UnreliableDatagram];
    let gids = prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)];
    let single = gids.prop_map(Gid::from_ip).prop_filter("one host's", |gid| !gid.is_multicast() && !gid.is_zero());
    let numbers = (0u32..1 << 24, 0u32..1 << 24, any::<u32>());
    (0..3usize, 0..5usize, single, numbers).prop_map(move |(kind, mtu, gid, (qpn, psn, qkey))| {
        Endpoint::new(kinds[kind], Mtu::ALL[mtu], gid, Qpn::new(qpn), Psn::new(psn), Qkey::new(qkey))
    })
}

proptest! {
    #[test]
    fn endpoints_come_back_as_they_went(endpoint in endpoints()) {
        prop_assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes()).unwrap(), endpoint);
        prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
    }

    #[test]
    fn remote_slices_come_back_as_they_went(address in any::<u64>(), length in any::<u64>(), key in any::<u32>()) {
        let slice = RemoteSlice::new(address, length, Key::new(key));
        prop_assert!(slice.address().checked_add(slice.len()).is_some());
        prop_assert_eq!(RemoteSlice::from_bytes(&slice.to_bytes()).unwrap(), slice);
        prop_assert_eq!(slice.to_string().parse::<RemoteSlice>().unwrap(), slice);
    }

    /// Whatever is accepted is what it says: encoding it gives the same bytes.
    #[test]
    fn strange_bytes_are_refused_or_taken_literally(bytes in proptest::collection::vec(any::<u8>(), 0..40), version in any::<bool>()) {
        let mut bytes = bytes;
        if version && let Some(first) = bytes.first_mut() {
            *first = 1;
        }
        if let Ok(endpoint) = Endpoint::from_bytes(&bytes) {
            let canonical = Endpoint::from_bytes(&endpoint.to_bytes()).unwrap();
            prop_assert_eq!(canonical, endpoint);
        }
        if let Ok(slice) = RemoteSlice::from_bytes(&bytes) {
            prop_assert_eq!(&slice.to_bytes()[..], &bytes[..]);
        }
    }

    #[test]
    fn strange_text_is_refused_without_a_panic(text in "\\PC{0,60}", nearly in "(rc|ud|uc|xrc_send)/[0-9a-f.:]{1,20}/0x[0-9a-f]{1,9}/[0-9]{1,9}/[0-9]{1,5}") {
        for text in [text, nearly] {
            let _ = text.parse::<RemoteSlice>();
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
            }
        }
    }
}

#[test]
fn the_encodings_do_not_change() {
    let gid = Gid::from_ip("10.0.0.1".parse().unwrap());
    let endpoint =
        Endpoint::new(Kind::UnreliableDatagram, Mtu::B1024, gid, Qpn::new(0x1234), Psn::new(77), Qkey::new(0xabcd));
    let mut bytes = vec![1, 4, 3, 0];
    bytes.extend(gid.octets());
    bytes.extend([0, 0, 0x12, 0x34, 0, 0, 0, 77, 0, 0, 0xab, 0xcd]);
    assert_eq!(endpoint.to_bytes()[..], bytes);
    assert_eq!(endpoint.to_string(), "ud/10.0.0.1/0x1234/77/1024/0xabcd");
    let v6 = Gid::from_ipv6(Ipv6Addr::LOCALHOST);
    let endpoint = Endpoint::new(Kind::ReliableConnected, Mtu::B4096, v6, Qpn::new(5), Psn::new(6), Qkey::new(1));
    assert_eq!(endpoint.to_string(), "rc/::1/0x5/6/4096");

    let slice = RemoteSlice::new(0x7f00_0000_1000, 0x40, Key::new(0x1234));
    assert_eq!(slice.to_string(), "0x7f0000001000+0x40@0x1234");
    let bytes = [1, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0x40];
    assert_eq!(slice.to_bytes(), bytes);
}
