use super::*;
use std::collections::VecDeque;

/// Runs a program in a network that delivers at once.
fn run(hosts: u32, workload: Workload) -> Vec<Post> {
    let scenario = Scenario { hosts, workload, ..Scenario::default() };
    let mut program = Program::new(&scenario, &mut Rng::new(1)).unwrap();
    let mut posts = Vec::new();
    posts.extend(program.begin(&mut Vec::new()).into_iter().map(|(_, post)| post));
    let mut program = Program::new(&scenario, &mut Rng::new(1)).unwrap();
    program.begin(&mut posts);
    let (mut under_way, mut all) = (VecDeque::from(posts), Vec::new());
    while let Some(post) = under_way.pop_front() {
        assert!(post.from < hosts && post.to < hosts && post.from != post.to && post.bytes > 0, "{post:?}");
        all.push(post);
        let mut out = Vec::new();
        program.received(&post, &mut out);
        program.sent(&post, &mut out);
        under_way.extend(out);
    }
    all
}

fn bytes(posts: &[Post]) -> u64 {
    posts.iter().map(|post| u64::from(post.bytes)).sum()
}

#[test]
fn a_permutation_sends_from_each_and_to_each_once() {
    let posts = run(50, Workload::Permutation { bytes: 10, messages: 1 });
    let mut to: Vec<_> = posts.iter().map(|post| post.to).collect();
    to.sort_unstable();
    assert_eq!(to, (0..50).collect::<Vec<_>>());
}

#[test]
fn an_all_reduce_moves_what_the_books_say() {
    // Ring: each host sends 2(n-1)/n of the vector, in 2(n-1) messages.
    let posts = run(8, Workload::AllReduceRing { bytes: 8000 });
    assert_eq!((posts.len(), bytes(&posts)), (8 * 14, 8 * 14 * 1000));
    let posts = run(7, Workload::AllReduceRing { bytes: 8003 });
    assert_eq!((posts.len(), bytes(&posts)), (7 * 12, 12 * 8003));
    // Tree: the vector goes up and down each edge once.
    let posts = run(10, Workload::AllReduceTree { bytes: 1000, chunk: 300 });
    assert_eq!((posts.len(), bytes(&posts)), (9 * 2 * 4, 9 * 2 * 1000));
}

#[test]
fn each_sends_to_each_whatever_is_under_way_at_once() {
    for parallel in [0, 1, 3, 100] {
        let mut pairs: Vec<_> =
            run(9, Workload::AllToAll { bytes: 5, parallel }).iter().map(|post| (post.from, post.to)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), 9 * 8);
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    let refused = |workload| {
        let scenario = Scenario { hosts: 4, workload, ..Scenario::default() };
        Program::new(&scenario, &mut Rng::new(1)).err().unwrap().to_string()
    };
    assert!(refused(Workload::Incast { senders: 4, bytes: 1, messages: 1 }).contains("no 4 senders"));
    assert!(refused(Workload::Permutation { bytes: 0, messages: 1 }).contains("0 bytes"));
    assert!(refused(Workload::AllReduceRing { bytes: u32::MAX }).contains("longer than 2^31"));
    assert!(refused(Workload::Permutation { bytes: 1, messages: u32::MAX }).contains("too many"));
    let messages = vec![crate::scenario::TraceMessage { at: 0, from: 1, to: 1, bytes: 1 }];
    assert!(refused(Workload::Trace { messages }).contains("from host 1 to host 1"));
}
