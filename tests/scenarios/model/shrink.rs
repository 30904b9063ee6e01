//! Makes a failing program smaller while it still fails: ends say less, channels are silent, the network behaves. Every cut leaves a lawful program
//! lawful; steps are only ever taken from the end, because later ones may lean on the fences of earlier ones.

use super::program::*;

/// The smallest failing program found with at most `tries` runs.
pub fn shrink(program: &Program, tries: usize, mut fails: impl FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    let mut left = tries;
    loop {
        let mut smaller = false;
        for candidate in candidates(&best) {
            if left == 0 {
                return best;
            }
            left -= 1;
            if fails(&candidate) {
                best = candidate;
                smaller = true;
                break;
            }
        }
        if !smaller {
            return best;
        }
    }
}

/// Programs with a little less in them, the boldest cuts first.
fn candidates(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    let mut offer = |change: &dyn Fn(&mut Program)| {
        let mut candidate = program.clone();
        change(&mut candidate);
        all.push(candidate);
    };
    if program.encore {
        offer(&|candidate| candidate.encore = false);
    }
    for end in 0..program.ends() {
        let steps = program.end(end).steps.len();
        let keep = program.fault.filter(|fault| fault.end == end).map_or(0, |_| last_needed(program.end(end)));
        for length in [0, steps / 2, steps * 3 / 4, steps.saturating_sub(1)] {
            if length < steps && length >= keep {
                offer(&|candidate| candidate.channels[end / 2].ends[end % 2].steps.truncate(length));
            }
        }
    }
    if !program.disturbances.is_empty() {
        offer(&|candidate| candidate.disturbances.clear());
        offer(&|candidate| candidate.disturbances.truncate(program.disturbances.len() - 1));
    }
    let quiet: [fn(&mut Adversary); 5] = [
        |adversary| adversary.loss = 0.0,
        |adversary| adversary.duplication = 0.0,
        |adversary| adversary.delay = 0.0,
        |adversary| adversary.corruption = 0.0,
        |adversary| adversary.marking = 0.0,
    ];
    if !program.adversary.is_idle() {
        offer(&|candidate| candidate.adversary = Adversary::default());
        for quiet in quiet {
            let mut adversary = program.adversary;
            quiet(&mut adversary);
            if adversary != program.adversary {
                offer(&|candidate| candidate.adversary = adversary);
            }
        }
    }
    for (index, (_, _, link)) in program.links.iter().enumerate() {
        let good = sim::LinkConfig { delay: link.delay, ..sim::LinkConfig::of(link.kind) };
        if *link != good {
            offer(&|candidate| candidate.links[index].2 = good);
        }
    }
    for (index, host) in program.hosts.iter().enumerate() {
        if host.service > 0 {
            offer(&|candidate| candidate.hosts[index].service = 0);
        }
    }
    if !program.is_prompt() {
        offer(&|candidate| {
            let own = candidate.channels.iter_mut().flat_map(|channel| &mut channel.ends);
            let own = own.filter_map(|end| match &mut end.receives {
                Receives::Own(receives) => Some(receives),
                _ => None,
            });
            let all = own.chain(candidate.shared.iter_mut().map(|queue| &mut queue.receives));
            all.flatten().for_each(|receive| receive.at = 0);
        });
    }
    all
}

/// How many steps an end needs to make its mistake.
fn last_needed(end: &End) -> usize {
    let flawed = |step: &Step| matches!(step, Step::Post(item) if item.flaw.is_some());
    end.steps.iter().position(flawed).map_or(0, |index| index + 1)
}
