use super::loop_filter::LoopFilter;
use super::receive::restore;
use wire::flow::{Layers, Loopback, checksums};

/// Ethernet, IPv4 and UDP with four bytes, its checksum holding the sum of the pseudo header.
fn partial() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum: u16 = 0x0a00 + 1 + 0x0a00 + 2 + 17 + 12;
    frame.extend([0, 5, 0, 6, 0, 12]);
    frame.extend(sum.to_be_bytes());
    frame.extend(*b"data");
    frame
}

fn restored(header: [u8; 10], frame: &[u8], tag: Option<(u16, u16)>) -> Vec<(Vec<u8>, bool)> {
    let mut seen = Vec::new();
    let bytes = [&header[..], frame].concat();
    restore(&bytes, tag, &mut Vec::new(), &mut Vec::new(), |bytes, known| seen.push((bytes.to_vec(), known)));
    seen
}

fn header(flags: u8, kind: u8, size: u16, start: u16, offset: u16) -> [u8; 10] {
    let (size, start, offset) = (size.to_ne_bytes(), start.to_ne_bytes(), offset.to_ne_bytes());
    [flags, kind, 0, 0, size[0], size[1], start[0], start[1], offset[0], offset[1]]
}

#[test]
fn a_checksum_that_was_left_to_a_device_is_completed_and_a_tag_comes_back() {
    let mut padded = partial();
    padded.extend([0xee; 14]); // filled up to 60 bytes
    let seen = restored(header(1, 0, 0, 34, 6), &padded, Some((0x8100, 0x2007)));
    let [(frame, true)] = &seen[..] else { panic!("{seen:?}") };
    let layers = Layers::parse(frame).unwrap();
    assert_eq!(layers.outer.ethernet.unwrap().vlan, Some(0x2007));
    assert_eq!(checksums(frame, &layers, false).upper, Some(true));
    assert_eq!(restored(header(0, 0, 0, 0, 0), &partial(), None), [(partial(), false)]);
}

#[test]
fn what_was_left_to_a_device_to_cut_is_cut() {
    let seen = restored(header(1, 5, 3, 34, 6), &partial(), None);
    let payloads: Vec<_> = seen.iter().map(|(frame, known)| (&frame[42..], *known)).collect();
    assert_eq!(payloads, [(&b"dat"[..], true), (&b"a"[..], true)]);
    // A header that lies is no reason to lose the frame.
    assert_eq!(restored(header(1, 1, 3, 34, 6), &partial(), None).len(), 1);
    assert!(restored(header(1, 0, 0, 60000, 60000), &partial(), None).len() == 1);
    assert!(restored(header(0, 0, 0, 0, 0), &[], None)[0].0.is_empty());
}

#[test]
fn what_is_sent_comes_back_by_its_destination_and_the_filter_grows_only_so_far() {
    let (own, group, other) = ([2, 0, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1], [2, 0, 0, 0, 0, 9]);
    let mut filter = LoopFilter::new(Some(own));
    assert_eq!([own, group, other].map(|to| filter.loopback(&to)), [Loopback::All, Loopback::All, Loopback::None]);
    assert_eq!(filter.loopback(&own[..5]), Loopback::None);
    assert!(!filter.name(own) && !filter.name(group), "these are heard anyway");
    let shortest = filter.program().len();
    assert!(filter.name(other) && !filter.name(other));
    assert_eq!(filter.loopback(&other), Loopback::Named);
    assert_eq!(filter.program().len(), shortest + 5);
    let further = (0..100).filter(|last| filter.name([2, 0, 0, 0, 1, *last])).count();
    assert_eq!((further, filter.program().len()), (32, 1), "then the kernel shows everything");
    assert_eq!(filter.loopback(&[2, 0, 0, 0, 3, 3]), Loopback::Named);
    let mut on_loopback = LoopFilter::new(None);
    assert!(!on_loopback.name(other) && !on_loopback.hears_any());
    assert_eq!(on_loopback.loopback(&own), Loopback::None);
    assert!(on_loopback.hear_all(true) && !on_loopback.hear_all(true) && on_loopback.hears_any());
}
