//! Arguments that make no sense are refused where they are given, and the error names the place.
#![allow(missing_docs)]

use std::fmt::Debug;
use std::time::Duration;
use ubiverbs::cm::{self, ConnectParameters, EventChannel, Id, PortSpace};
use ubiverbs::{
    Access, Argument, CompletionQueue, Context, Datagram, Error, Kind, ProtectionDomain, QueuePairBuilder, Reliable,
};

fn open() -> (Context, ProtectionDomain, CompletionQueue) {
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(16).create().unwrap();
    (context, pd, cq)
}

/// What is wrong, as the call and what it was given.
#[track_caller]
fn refused<R: Debug>(result: Result<R, Error>, call: &str, given: u128) {
    let error = result.expect_err("it makes no sense");
    let Error::Argument(Argument { call: named, given: said, at, .. }) = error else { panic!("{error}") };
    assert_eq!((named, said), (call, given));
    assert_eq!(at.file(), file!(), "the place is in the program, not in the library");
    assert!(error.to_string().contains(&format!("{call}({given}) makes no sense: ")), "{error}");
}

#[test]
fn a_queue_pair_is_not_made_of_nonsense() {
    let (_context, pd, cq) = open();
    type Change = fn(QueuePairBuilder<Reliable>) -> QueuePairBuilder<Reliable>;
    let cases: [(Change, &str, u128); 9] = [
        (|pair| pair.retries(8), "retries", 8),
        (|pair| pair.retries(255), "retries", 255),
        (|pair| pair.not_ready_retries(8), "not_ready_retries", 8),
        (|pair| pair.timeout(Duration::ZERO), "timeout", 0),
        (|pair| pair.timeout(Duration::from_secs(8797)), "timeout", 8_797_000_000),
        (|pair| pair.timeout(Duration::MAX), "timeout", Duration::MAX.as_micros()),
        (|pair| pair.max_pieces(0), "max_pieces", 0),
        (|pair| pair.peer_access(Access::from_bits_retain(1 << 30)), "peer_access", 1 << 30),
        // The first of several.
        (|pair| pair.retries(7).retries(9).timeout(Duration::ZERO).retries(3), "retries", 9),
    ];
    for (change, call, given) in cases {
        refused(change(pd.queue_pair(&cq)).prepare(), call, given);
    }
    let nothing = pd.queue_pair::<Reliable>(&cq).max_sends(0).max_receives(0).prepare();
    assert!(matches!(nothing, Err(Error::NoWork)), "{nothing:?}");
    // More than the device has.
    let beyond: [Change; 4] = [
        |pair| pair.max_sends(1 << 20),
        |pair| pair.max_receives(1 << 20),
        |pair| pair.max_pieces(1 << 20),
        |pair| pair.max_inline(1 << 20),
    ];
    for change in beyond {
        let error = change(pd.queue_pair(&cq)).prepare().unwrap_err();
        assert!(matches!(error, Error::Create { .. }), "{error}");
    }
}

#[test]
fn what_is_just_possible_is_taken() {
    let (_context, pd, cq) = open();
    let shared = pd.shared_receive_queue(1).unwrap();
    let pair = || pd.queue_pair::<Reliable>(&cq);
    drop(pair().retries(0).not_ready_retries(0).prepare().unwrap());
    drop(pair().retries(7).not_ready_retries(7).prepare().unwrap());
    drop(pair().timeout(Duration::from_nanos(1)).prepare().unwrap());
    drop(pair().timeout(Duration::from_micros(8_796_093_022)).prepare().unwrap());
    drop(pair().peer_access(Access::empty()).prepare().unwrap());
    drop(pair().max_pieces(1).prepare().unwrap());
    drop(pair().max_sends(0).prepare().unwrap());
    drop(pair().max_receives(0).prepare().unwrap());
    drop(pair().max_sends(0).max_receives(0).shared_receives(&shared).prepare().unwrap());
    shared.set_limit(0).unwrap();
}

#[test]
fn a_queue_holds_something() {
    let (context, pd, cq) = open();
    refused(context.completion_queue(0).create(), "completion_queue", 0);
    refused(cq.resize(0), "resize", 0);
    refused(pd.shared_receive_queue(0), "shared_receive_queue", 0);
    let shared = pd.shared_receive_queue(8).unwrap();
    refused(shared.resize(0), "resize", 0);
    let beyond = shared.capacity() + 1;
    refused(shared.set_limit(beyond), "set_limit", beyond.into());
}

#[test]
fn a_region_is_shared_with_somebody() {
    let _alone = crate::device_memory::alone();
    let (context, pd, _cq) = open();
    let error = pd.share(64, Access::empty()).unwrap_err();
    assert!(matches!(error, Error::NoRights), "{error}");
    assert!(error.to_string().contains("REMOTE_READ"), "{error}");
    let error = pd.share(64, Access::from_bits_retain(1 << 30)).unwrap_err();
    assert!(matches!(error, Error::Rights { bits } if bits == 1 << 30), "{error}");
    assert!(matches!(pd.share(0, Access::REMOTE_READ), Err(Error::Register { length: 0, .. })));
    assert!(matches!(pd.allocate(0), Err(Error::Register { length: 0, .. })));
    let memory = context.device_memory(64).allocate().unwrap();
    for range in [0..0, 64..64, 32..96] {
        assert!(pd.share_device(&memory, range, Access::REMOTE_READ).is_err());
    }
    assert!(matches!(context.device_memory(0).allocate(), Err(Error::Create { .. })));
    assert!(matches!(context.device_memory(64).aligned_to(3).allocate(), Err(Error::Create { .. })));
}

#[test]
fn connecting_has_three_bits_for_retries() {
    let id = Id::new(&EventChannel::new().unwrap(), PortSpace::Tcp, Kind::ReliableConnected).unwrap();
    let retries = ConnectParameters { retry_count: 8, ..ConnectParameters::default() };
    refused(id.connect(&retries), "retry_count", 8);
    let not_ready = ConnectParameters { rnr_retry_count: 9, ..ConnectParameters::default() };
    refused(id.accept(&not_ready), "rnr_retry_count", 9);
    let error = id.set(cm::IdOption::AckTimeout(32)).unwrap_err();
    assert!(error.to_string().contains("0 to 31"), "{error}");
}

#[test]
fn a_group_is_a_group() {
    let (_context, pd, cq) = open();
    let qp = pd.queue_pair::<Datagram>(&cq).qkey(cm::QKEY).prepare().unwrap().activate().unwrap();
    let error = cm::join("127.0.0.1".parse().unwrap(), &qp).wait().unwrap_err();
    assert!(matches!(error, Error::Connect(cm::ConnectError::Refused { .. })), "{error}");
}
