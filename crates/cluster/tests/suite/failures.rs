//! What goes wrong: every member is told the same, in time, with the rank that it is about.

use crate::members::{builder, free_address, members};
use cluster::{Error, Group, Op, Topology};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

/// Long enough to meet, short enough to wait for.
const MEETING_TIMEOUT: Duration = Duration::from_secs(2);

/// What a process has open. Whatever failed, nothing is left behind.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[test]
fn a_member_that_never_comes_is_named_to_all_who_came() {
    let at = free_address();
    let threads: Vec<_> = [0, 1, 3]
        .map(|rank| {
            let builder = builder(4, &Topology::FullMesh).meeting_limit(MEETING_TIMEOUT).rendezvous(at, rank);
            thread::spawn(move || builder.join().wait().unwrap_err())
        })
        .into();
    for thread in threads {
        let error = thread.join().unwrap();
        assert_eq!(error.ranks(), [2], "{error}");
        assert_eq!(error.to_string(), "rank 2 did not come within 2s");
    }
    // And without member 0, it is that one.
    let error = builder(4, &Topology::Ring).meeting_limit(MEETING_TIMEOUT).rendezvous(free_address(), 1).join().wait();
    assert_eq!(error.unwrap_err().to_string(), "rank 0 did not come within 2s");
}

#[test]
fn members_that_do_not_agree_are_named_to_all() {
    type Change = fn(cluster::Builder) -> cluster::Builder;
    let changes: [(Change, &str); 3] = [
        (|builder| builder.topology(Topology::FullMesh), "another topology"),
        (|builder| builder.messages(8, 128), "other settings"),
        (|_| builder(5, &Topology::Ring).meeting_limit(MEETING_TIMEOUT), "it has a group of 5, and rank 0 one of 3"),
    ];
    for (change, expected) in changes {
        let at = free_address();
        let member = |rank: u32| {
            let builder = builder(3, &Topology::Ring).meeting_limit(MEETING_TIMEOUT);
            let builder = if rank == 2 { change(builder) } else { builder };
            thread::spawn(move || builder.rendezvous(at, rank).join().wait().unwrap_err())
        };
        let mut threads = vec![member(0), member(1)];
        // The others have met by then, or will.
        threads.push(member(2));
        for (rank, thread) in threads.into_iter().enumerate() {
            let error = thread.join().unwrap();
            assert!(error.ranks() == [2] && error.to_string().contains(expected), "rank {rank}: {error}");
        }
    }
}

#[test]
fn a_rank_that_comes_twice_is_named_to_all() {
    let at = free_address();
    let threads: Vec<_> = [0, 1, 1]
        .map(|rank| {
            let builder = builder(3, &Topology::Ring).meeting_limit(MEETING_TIMEOUT).rendezvous(at, rank);
            thread::spawn(move || builder.join().wait().unwrap_err())
        })
        .into();
    for thread in threads {
        let error = thread.join().unwrap();
        assert!(error.to_string().starts_with("rank 1 came twice: from 127.0.0.1:"), "{error}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_opened() {
    let at: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let refused = |builder: cluster::Builder| builder.join().wait().unwrap_err().to_string();
    let refuse_all = || {
        assert!(refused(Group::builder(6).topology(Topology::Hypercube).rendezvous(at, 0)).contains("4 or 8 would do"));
        assert_eq!(refused(Group::builder(3).rendezvous(at, 3)), "there is no rank 3 in a group of 3");
        assert!(refused(Group::builder(3)).contains("a rendezvous or have a list"));
        assert!(refused(Group::builder(3).rendezvous("0.0.0.0:7".parse().unwrap(), 0)).contains("no place to meet"));
        let list: Vec<SocketAddr> = [7001, 7002, 7001].map(|port| SocketAddr::from(([127, 0, 0, 1], port))).into();
        for rank in 0..3 {
            let error = refused(Group::builder(3).addresses(&list, rank));
            assert_eq!(error, "ranks 0 and 2 have the same address, 127.0.0.1:7001");
        }
        assert!(refused(Group::builder(4).addresses(&list, 0)).contains("3 addresses for 4 members"));
        assert!(refused(Group::builder(2).rendezvous(at, 0).messages(0, 64)).contains("2 to 1024 messages"));
        assert!(refused(Group::builder(2).rendezvous(at, 0).messages(4, 100)).contains("a multiple of 64"));
        assert!(refused(Group::builder(2).rendezvous(at, 0)).contains("a secret of the group, and there is none"));
        assert!(refused(Group::builder(2).secret("").rendezvous(at, 0)).contains("a secret of the group"));
    };
    // Other tests open and close files meanwhile, but not all the time.
    let opens_nothing = || {
        let files = open_files();
        refuse_all();
        open_files() == files
    };
    assert!((0..100).any(|_| opens_nothing()), "files are left open");
}

#[test]
fn strangers_are_refused_and_the_group_meets_all_the_same() {
    let at = free_address();
    let member = |rank: u32| {
        let builder = builder(2, &Topology::Ring).rendezvous(at, rank);
        thread::spawn(move || {
            let mut group = builder.join().wait()?;
            group.barrier().wait()?;
            group.leave().wait()
        })
    };
    let first = member(0);
    // Those who know nothing, those who lie, and those who have another secret.
    let mut lies: Vec<Vec<u8>> = vec![vec![], b"ubiG".to_vec(), b"ubiG\x03\x01".to_vec(), vec![0xff; 56]];
    lies.push([b"ubiG\x03\x02".as_slice(), &[0; 50]].concat());
    lies.push([b"ubiG\x63\x01".as_slice(), &[0; 50]].concat());
    // Well-formed, of another size, and without a proof.
    lies.push([b"ubiG\x03\x01".as_slice(), &[7; 50]].concat());
    let mut refused = 0;
    while refused < lies.len() {
        let lie = &lies[refused];
        let asked = ubiverbs::cm::resolve(at).wait().unwrap().connect().private_data(lie).wait();
        match asked {
            Err(ubiverbs::Error::Connect(ubiverbs::cm::ConnectError::Rejected { .. })) => refused += 1,
            // Member 0 is not there yet.
            Err(_) => thread::sleep(Duration::from_millis(5)),
            Ok(_) => panic!("a stranger was let in"),
        }
    }
    // Those that are of a group, but not of this one, are told so, whatever they say of themselves.
    for (size, rank) in [(2, Some(1)), (2, None), (9, Some(8)), (3, None)] {
        let other = builder(size, &Topology::Ring).secret("of others").meeting_limit(Duration::from_secs(600));
        let error = other.rendezvous(at, rank).join().wait().unwrap_err();
        let expected = format!("rank {} does not agree with rank 0: it has another secret of the group", size - 1);
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
    let second = member(1);
    first.join().unwrap().unwrap();
    second.join().unwrap().unwrap();
}

/// All members get an error of which `names` says whether it is the right one.
fn all_fail(size: u32, topology: &Topology, act: fn(Group) -> Result<(), Error>, names: impl Fn(&Error) -> bool) {
    let builder = builder(size, topology).deadline(MEETING_TIMEOUT);
    for (rank, outcome) in members(size, builder, act).into_iter().enumerate() {
        let error = outcome.unwrap_err();
        assert!(names(&error), "rank {rank} of {topology}: {error}");
    }
}

#[test]
fn calls_that_differ_are_named_to_all() {
    let acts: [fn(Group) -> Result<(), Error>; 6] = [
        // Another number of elements.
        |mut group| {
            let mut data = vec![1u64; if group.rank() == 2 { 5 } else { 4 }];
            group.all_reduce(&mut data, Op::Sum).wait().and_then(|()| group.barrier().wait())
        },
        // Another type, with as many bytes.
        |mut group| match group.rank() {
            2 => group.all_reduce(&mut [1i64], Op::Sum).wait(),
            _ => group.all_reduce(&mut [1u64], Op::Sum).wait(),
        },
        // Another operator.
        |mut group| {
            let op = if group.rank() == 2 { Op::Max } else { Op::Sum };
            group.all_reduce(&mut [1u64], op).wait()
        },
        // Another root: members that only send learn of it with their next call.
        |mut group| {
            let root = if group.rank() == 2 { 1 } else { 0 };
            group.broadcast(&mut [1u8; 9], root).wait().and_then(|()| group.barrier().wait())
        },
        // So much that another algorithm would be chosen.
        |mut group| {
            let mut data = vec![1u8; if group.rank() == 2 { 1 << 20 } else { 1 }];
            group.all_reduce(&mut data, Op::Sum).wait().and_then(|()| group.barrier().wait())
        },
        // Another call.
        |mut group| match group.rank() {
            2 => group.barrier().wait(),
            _ => group.all_gather(&[1u32], &mut [0; 4]).wait(),
        },
    ];
    for act in acts {
        for topology in [Topology::FullMesh, Topology::BinaryTree] {
            all_fail(4, &topology, act, |error| matches!(error, Error::Calls { .. }) && error.ranks().contains(&2));
        }
    }
}

#[test]
fn a_member_that_takes_no_part_is_named_to_the_others() {
    let act = |mut group: Group| {
        if group.rank() == 3 {
            // It lives, and does something else until it hears that the others gave up.
            return Err(group.failed().wait()?);
        }
        group.barrier().wait()
    };
    for topology in [Topology::Ring, Topology::Star] {
        all_fail(5, &topology, act, |error| matches!(error, Error::Silent { .. }) && error.ranks() == [3]);
    }
}

#[test]
fn a_member_that_leaves_too_early_is_named_to_all() {
    let act = |mut group: Group| match group.rank() {
        1 => Err(Error::Left { rank: 1 }),
        _ => group.barrier().wait(),
    };
    for topology in [Topology::Ring, Topology::FullMesh, Topology::BinaryTree] {
        all_fail(4, &topology, act, |error| matches!(error, Error::Left { rank: 1 }));
    }
}

#[test]
fn a_call_that_is_dropped_ends_the_group() {
    let act = |mut group: Group| {
        if group.rank() == 0 {
            let mut call = group.barrier();
            let once =
                std::pin::Pin::new(&mut call).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
            assert!(once.is_pending(), "member 1 is waited for");
            drop(call);
            group.barrier().wait()
        } else {
            let failed = group.failed().wait()?;
            assert_eq!(failed.to_string(), group.barrier().wait().unwrap_err().to_string());
            Err(failed)
        }
    };
    all_fail(2, &Topology::Ring, act, |error| error.to_string() == "rank 0 gave barrier up before it was done");
}

#[test]
fn arguments_that_do_not_fit_leave_the_group_as_it_was() {
    let act = |mut group: Group| {
        let refused = [
            group.all_gather(&[1u8; 3], &mut [0; 5]).wait(),
            group.reduce_scatter(&[1u8; 5], &mut [0; 2], Op::Sum).wait(),
            group.all_to_all(&[1u8; 5], &mut [0; 5]).wait(),
            group.all_to_all(&[1u8; 4], &mut [0; 5]).wait(),
            group.send(group.rank(), &[1u8]).wait(),
        ];
        for refused in refused {
            assert!(matches!(refused, Err(Error::Argument { .. })));
        }
        assert!(matches!(group.broadcast(&mut [1u8], 2).wait(), Err(Error::Rank { rank: 2, size: 2 })));
        assert!(matches!(group.receive(9, &mut [1u8]).wait(), Err(Error::Rank { rank: 9, .. })));
        group.barrier().wait()?;
        group.leave().wait()
    };
    for outcome in members(2, builder(2, &Topology::Ring), act) {
        outcome.unwrap();
    }
}
