//! What a queue pair of a group costs, measured: the figure that plans count with. Alone in its process.

use ubiverbs::Reliable;

/// Memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

#[test]
fn a_queue_pair_costs_what_plans_say() {
    const PAIRS: u64 = 200;
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(256).create().unwrap();
    let receives = pd.shared_receive_queue(16).unwrap();
    let prepare = || {
        let builder = pd.queue_pair::<Reliable>(&cq).max_sends(64).max_pieces(1).max_inline(256);
        builder.shared_receives(&receives).prepare().unwrap()
    };
    let pair = || {
        let (a, b) = (prepare(), prepare());
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        let pair = [a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap()];
        // Used once, as queues are made when they are needed.
        let receiving = receives.recv(pd.allocate(64).unwrap()).unwrap();
        pair[0].send_inline(b"hello").unwrap().wait().unwrap();
        receiving.wait().unwrap();
        pair
    };
    let mut kept: Vec<_> = (0..20).map(|_| pair()).collect();
    let before = resident();
    kept.extend((0..PAIRS).map(|_| pair()));
    let each = (resident() - before) / (2 * PAIRS);
    println!("a queue pair: {each} bytes");
    let planned = cluster::Group::builder(2).receives(cluster::Sharing::Shared(1)).messages(2, 64);
    let buffers = 2 * (64 + 48);
    let planned = (planned.plan().unwrap().bytes() - buffers) / 2;
    assert!((planned / 2..planned * 2).contains(&each), "{each} bytes, and plans say {planned}");
}
