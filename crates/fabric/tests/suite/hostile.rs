//! Scripts of words thrown together by chance: each is refused with its line, or it runs for a moment; none panics.
//! `UBIVERBS_SIM_SEED` chooses where chance begins.

use fabric::{Network, Script};
use sim::Rng;

/// Words that statements know, and numbers that they may not like.
const WORDS: &str = "seed hosts topology rate delay mtu buffer pfc alpha ecn congestion window timeout retries reroute \
until workload message fail flap lossy slow capture switch-rate host-rate star ring fat-tree-2 fat-tree-3 rails \
dragonfly per-leaf spines radix per-router incast permutation all-reduce-ring all-reduce-tree all-to-all trace senders \
bytes messages chunk parallel link host links hosts at within for period loss rate on off dcqcn window both none host0 \
host1 host3 switch0 switch1 0 1 2 3 4 5 7 8 16 64 100 256 1024 4096 5000 10K 64K 1M 1G 100G 1T 0ns 1ns 600ns 1us 10us \
100us 1ms 1s 0.5 0.01 1% 100% 101% -1 1e9 NaN \u{e9} # 18446744073709551615 18446744073709551616 99999999999999999999";

fn seed() -> u64 {
    let chosen = std::env::var(sim::SEED_VARIABLE).ok().and_then(|text| text.parse().ok());
    chosen.unwrap_or(20_261_117)
}

#[test]
fn whatever_a_script_says_it_is_refused_or_it_runs() {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut rng = Rng::new(seed());
    let word = |rng: &mut Rng| words[rng.below(words.len() as u64) as usize];
    let (mut refused, mut ran) = (0, 0);
    for round in 0..4_000 {
        // Half of them are nearly right.
        let mut text = String::from("hosts 16\n");
        for _ in 0..rng.below(4) {
            let sound = [
                "topology fat-tree-2 spines 2",
                "topology ring",
                "topology rails rails 4",
                "topology dragonfly",
                "pfc off",
                "workload permutation bytes 64K",
                "workload all-to-all bytes 5000",
                "workload incast bytes 1M",
                "workload all-reduce-tree bytes 64K chunk 5000",
                "congestion window",
                "congestion both",
                "buffer 64K",
                "fail host 3 at 1us",
                "flap links 2 period 2us",
                "lossy links 3 loss 50%",
                "slow hosts 3 rate 1M",
                "rate 1T",
                "rate 1K",
                "delay 0ns",
                "mtu 256",
                "timeout 1",
                "retries 0",
                "capture 1",
                "reroute 1us",
                "ecn 1 2 100%",
                "alpha 0.001",
                "workload trace\nmessage 1us 0 1 64K",
                "window 10K",
            ];
            text += sound[rng.below(sound.len() as u64) as usize];
            text.push('\n');
        }
        if rng.chance(0.5) {
            for _ in 0..rng.below(4) {
                for _ in 0..rng.below(7) {
                    text += word(&mut rng);
                    text.push(' ');
                }
                text.push('\n');
            }
        }
        let mut script = Script::new(|_: &str| Err("there are no files".to_owned()));
        if let Err(error) = script.add_all(&text) {
            refused += 1;
            assert!(error.origin.starts_with("line "), "{error}");
            continue;
        }
        // Larger ones would take too long.
        if script.scenario().hosts > 64 {
            continue;
        }
        match script.finish() {
            Err(error) => {
                refused += 1;
                assert!(!error.what.is_empty() && !error.origin.is_empty(), "{text}");
            }
            Ok(scenario) if round % 8 == 0 => {
                ran += 1;
                let mut network = Network::new(&scenario).unwrap();
                network.run_until(20_000);
                let report = network.report();
                let (counts, text) = (report.counts, report.to_string());
                assert!(counts.packets_delivered + report.dropped() <= counts.packets_sent, "{text}");
                assert!(report.html().ends_with("</html>\n"));
            }
            Ok(_) => {}
        }
    }
    assert!(refused > 400 && ran > 100, "{refused} refused, {ran} ran");
}
