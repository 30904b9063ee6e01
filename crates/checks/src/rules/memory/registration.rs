//! Registrations: what they open, whether they outlive their memory or their work, whether they are worth it.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use trace::Call;
use wire::Key;
use wire::access::Access;

use super::pieces::extent;
use crate::examine::{Moment, Out};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::model::{Model, Region, Work};
use crate::posted_work::{Owner, Posting, name};
use crate::rule::catalogue::memory::*;
use crate::witness::Witness;

/// The rights of peers.
const REMOTE_RIGHTS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
/// So many equal registrations at once are reported.
const EQUAL_MIN: u32 = 4;
/// So many small regions close together are reported.
const SMALL_MIN: u32 = 64;
/// What is small: less than a page.
const SMALL_REGION_BYTES: u64 = 4096;
/// How close: in the same 2 MiB.
const NEIGHBOURHOOD_BITS: u32 = 21;
/// More than any program has memory: the whole address space.
const ADDRESS_SPACE_BYTES: u64 = 1 << 46;
/// How many regions are looked at, at each tick.
const LOOKED_AT_MAX: usize = 32;
/// How long an answer that memory is mapped holds, in nanoseconds.
const MAPPED_FOR: u64 = 10_000_000;

/// What is counted of regions.
#[derive(Default, Debug)]
pub(super) struct Registration {
    equal: Map<(u64, u64, u32, u32), u32>,
    small: Map<(u32, u64, u32), u32>,
    /// When a region was seen to be mapped.
    mapped_at: Map<u32, u64>,
    /// The region that was looked at last.
    last: u32,
}

impl Registration {
    /// The program called something.
    pub fn called(&mut self, call: &Call, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        match *call {
            Call::RegisterMemory { key, pd, address, length, access, .. } => {
                opened(key, address, length, access, moment.witness, out);
                if address == 0 {
                    return;
                }
                let count = self.equal.entry((address, length, pd, access.bits())).or_default();
                *count += 1;
                if *count >= EQUAL_MIN {
                    let what =
                        format!("the same {length} bytes at {address:#x} are registered {count} times in PD {pd}");
                    let advice = "register the memory once and use the key for all the work: a key serves every queue \
                                  of the protection domain at the same time";
                    let finding = Finding::new(REGISTERED_AGAIN, Subject::Domain(pd), what, advice);
                    out.tell(finding.shown_by(format!("the newest of the keys is {key}, all of them grant {access}")));
                }
                self.small(pd, address, length, access, out);
            }
            Call::ReregisterMemory { old_key, .. } => {
                self.forget(old_key, moment.model);
                if let Some((owner, work)) = under_way(old_key, moment.model) {
                    let what = format!(
                        "the registration with key {old_key} was changed while {} was under way",
                        name(owner, work.opcode, work.wr_id)
                    );
                    let advice = "call ibv_rereg_mr only after the completions of all work on the region were polled";
                    out.tell(Finding::new(CHANGED_REGISTRATION, Subject::Memory(old_key.value()), what, advice));
                }
            }
            Call::DeregisterMemory { key } => {
                self.forget(key, moment.model);
                let Some(region) = moment.model.regions.get(&key.value()) else { return };
                gone(region, moment.model, out);
                rights(region, out);
                self.look(region, moment.model, moment.event.at, &mut *moment.witness, out);
                self.mapped_at.remove(&key.value());
            }
            _ => {}
        }
    }

    /// Work is posted: is its memory still there?
    pub fn posted(&mut self, posting: &Posting<'_>, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let work = &posting.work;
        if work.inline {
            return;
        }
        for piece in work.pieces.kept() {
            let Some(region) = moment.model.local_region(piece.key) else { continue };
            if !out.wants(UNMAPPED_UNDER_WAY) || self.is_mapped(region, work.at, &mut *moment.witness) != Some(false) {
                continue;
            }
            let what = format!("{} uses memory of key {} that is not mapped any more", posting.name(), piece.key);
            out.tell(unmapped_under_way(Finding { thread: work.thread, ..finding_of(region, what) }, region));
        }
    }

    /// Looks at some regions.
    pub fn tick(&mut self, now: u64, model: &Model, witness: &mut dyn Witness, out: &mut Out<'_>) {
        let after = model.regions.range(self.last.saturating_add(1)..);
        let some: Vec<&Region> =
            after.chain(model.regions.range(..=self.last)).map(|(_, region)| region).take(LOOKED_AT_MAX).collect();
        for region in some {
            self.last = region.key.value();
            self.look(region, model, now, witness, out);
        }
    }

    fn look(&mut self, region: &Region, model: &Model, now: u64, witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.mapped_at.remove(&region.key.value());
        if !out.wants(UNMAPPED) || self.is_mapped(region, now, witness) != Some(false) {
            return;
        }
        if let Some((owner, work)) = under_way(region.key, model) {
            let name = name(owner, work.opcode, work.wr_id);
            let what = format!("memory of key {} was unmapped while {name} was under way", region.key);
            out.tell(unmapped_under_way(finding_of(region, what), region));
        }
        // A cache of registrations may keep many.
        let subject = Subject::Domain(region.pd);
        let what = format!("memory of key {} was unmapped or freed while it was still registered", region.key);
        let advice = "call ibv_dereg_mr before munmap or free";
        out.tell(
            Finding::new(UNMAPPED, subject, what, advice)
                .because(
                    "a NIC keeps the pages of a registration: work goes to pages that the program has no more, \
                     also when it maps new memory at the same address",
                )
                .shown_by(format!("key {} belongs to {}, of which not all is mapped", region.key, extent(region))),
        );
    }

    /// Whether the memory of a region is mapped; no question is asked twice in a short time.
    fn is_mapped(&mut self, region: &Region, now: u64, witness: &mut dyn Witness) -> Option<bool> {
        let movable =
            region.access.contains(Access::ON_DEMAND) || region.address == 0 || region.length >= ADDRESS_SPACE_BYTES;
        if movable || region.length == 0 {
            return None;
        }
        let key = region.key.value();
        if self.mapped_at.get(&key).is_some_and(|at| now.saturating_sub(*at) < MAPPED_FOR) {
            return Some(true);
        }
        let mapped = witness.is_mapped(region.address, region.length)?;
        if mapped {
            self.mapped_at.insert(key, now);
        }
        Some(mapped)
    }

    fn small(&mut self, pd: u32, address: u64, length: u64, access: Access, out: &mut Out<'_>) {
        if length >= SMALL_REGION_BYTES {
            return;
        }
        let count = self.small.entry((pd, address >> NEIGHBOURHOOD_BITS, access.bits())).or_default();
        *count += 1;
        if *count >= SMALL_MIN {
            let near = address >> NEIGHBOURHOOD_BITS << NEIGHBOURHOOD_BITS;
            let what = format!(
                "{count} regions of less than {SMALL_REGION_BYTES} bytes are registered near {near:#x} in PD {pd}"
            );
            let advice =
                "allocate the buffers as one piece of memory, register it once, and use its key for all of them";
            let finding = Finding::new(MANY_SMALL_REGIONS, Subject::Domain(pd), what, advice);
            out.tell(finding.because("each registration takes a system call, pinned pages and a key of the NIC"));
        }
    }

    /// A region is gone, or will be another.
    fn forget(&mut self, key: Key, model: &Model) {
        let Some(region) = model.regions.get(&key.value()) else { return };
        let bits = region.access.bits();
        if let Some(count) = self.equal.get_mut(&(region.address, region.length, region.pd, bits)) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.equal.remove(&(region.address, region.length, region.pd, bits));
            }
        }
        let near = (region.pd, region.address >> NEIGHBOURHOOD_BITS, bits);
        if let Some(count) = self.small.get_mut(&near).filter(|_| region.length < SMALL_REGION_BYTES) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.small.remove(&near);
            }
        }
    }
}

/// The program ends: what it still has is looked at once more.
pub(super) fn finish(model: &Model, witness: &mut dyn Witness, out: &mut Out<'_>) {
    for region in model.regions.values() {
        rights(region, out);
        Registration::default().look(region, model, 0, witness, out);
    }
}

fn finding_of(region: &Region, what: String) -> Finding {
    Finding::new(
        UNMAPPED_UNDER_WAY,
        Subject::Memory(region.key.value()),
        what,
        "unmap or free memory only after the work on it has completed and ibv_dereg_mr was called",
    )
}

fn unmapped_under_way(finding: Finding, region: &Region) -> Finding {
    finding
        .because("a NIC of hardware writes to or sends from pages that the program does not have any more")
        .shown_by(format!("key {} belongs to {}, of which not all is mapped", region.key, extent(region)))
}

/// Work that uses memory of this key and is certainly not done.
fn under_way(key: Key, model: &Model) -> Option<(Owner, &Work)> {
    let uses = |work: &&Work| {
        !work.inline && work.pieces.kept().iter().any(|piece| key.is_named_by(piece.key) && piece.length > 0)
    };
    let running = model.pairs.values().filter(|pair| matches!(pair.state, "RTS" | "SQD"));
    running
        .filter_map(|pair| Some((Owner::Send(pair.qpn), pair.sends.iter().filter(|work| work.signaled).find(uses)?)))
        .next()
}

/// How many receives have memory of this key, and one of them.
fn receives(key: Key, model: &Model) -> Option<(usize, Owner, &Work)> {
    let uses = |work: &&Work| work.pieces.kept().iter().any(|piece| key.is_named_by(piece.key) && piece.length > 0);
    let alive = |state: &str| matches!(state, "INIT" | "RTR" | "RTS" | "SQD" | "SQE");
    let own = model.pairs.values().filter(|pair| alive(pair.state)).find_map(|pair| {
        let first = pair.receives.iter().find(uses)?;
        Some((pair.receives.iter().filter(uses).count(), Owner::Receive(pair.qpn), first))
    });
    own.or_else(|| {
        model.srqs.iter().find_map(|(number, srq)| {
            model.pairs.values().find(|pair| pair.srq == Some(*number) && alive(pair.state))?;
            let first = srq.receives.iter().find(uses)?;
            Some((srq.receives.iter().filter(uses).count(), Owner::Shared(*number), first))
        })
    })
}

/// Memory is deregistered: did work need it?
fn gone(region: &Region, model: &Model, out: &mut Out<'_>) {
    let (key, subject) = (region.key, Subject::Memory(region.key.value()));
    if let Some((owner, work)) = under_way(key, model) {
        let what =
            format!("ibv_dereg_mr took key {key} away while {} was under way", name(owner, work.opcode, work.wr_id));
        let advice = "poll the completions of all work that uses the region before ibv_dereg_mr";
        out.tell(
            Finding::new(GONE_UNDER_WAY, subject, what, advice)
                .because("the work fails, or has sent half of a message, when the NIC needs the memory")
                .shown_by(format!("key {key} belonged to {}; the work has not completed", extent(region))),
        );
    }
    if let Some((count, owner, work)) = receives(key, model) {
        let first = name(owner, work.opcode, work.wr_id);
        let what =
            format!("ibv_dereg_mr took key {key} away while {count} receives in it were posted, such as {first}");
        let advice = "destroy the queue pair first, or move it to ERR and poll the flushed receives, then ibv_dereg_mr";
        out.tell(
            Finding::new(GONE_WHILE_POSTED, subject, what, advice)
                .because(
                    "a message that arrives now finds a receive without memory: it fails, and the connection with it",
                )
                .shown_by(format!("key {key} belonged to {}", extent(region))),
        );
    }
}

/// What a registration opens to peers.
fn opened(key: Key, address: u64, length: u64, access: Access, witness: &mut dyn Witness, out: &mut Out<'_>) {
    let granted = access & REMOTE_RIGHTS;
    if granted.is_empty() {
        return;
    }
    let subject = Subject::Memory(key.value());
    if length >= ADDRESS_SPACE_BYTES && access.contains(Access::ON_DEMAND) {
        let what = format!("key {key} opens the whole address space of the program to peers, with {granted}");
        let advice = "grant rights of peers to the buffers that they need, each registered for itself";
        let finding = Finding::new(EVERYTHING_IS_OPEN, subject, what, advice);
        out.tell(
            finding.because(
                "a peer that knows the key can reach all of the program: its keys, its code pointers, its data",
            ),
        );
    } else if address != 0 && witness.is_on_stack(address, length) == Some(true) {
        let what =
            format!("key {key} opens {length} bytes of a thread's stack at {address:#x} to peers, with {granted}");
        let advice = "register memory of the heap, or a static buffer; memory of the stack only with LOCAL_WRITE, in a \
                      function that waits for all of its work";
        out.tell(Finding::new(STACK_IS_OPEN, subject, what, advice).because(
            "when the function returns, the same bytes are variables and return addresses of others, and the peer \
             still has the key",
        ));
    }
}

/// Which rights were never used.
fn rights(region: &Region, out: &mut Out<'_>) {
    let unused = (region.access & REMOTE_RIGHTS) - region.used;
    let subject = Subject::Domain(region.pd);
    if !unused.is_empty() && !region.windowed {
        let what = format!("the region with key {} grants {unused}, and no peer ever used that", region.key);
        let advice = "grant in ibv_reg_mr only what peers need: a key that leaks opens no more than was granted";
        let used = region.used & REMOTE_RIGHTS;
        let used = if used.is_empty() { String::from("nothing") } else { format!("{used}") };
        out.tell(Finding::new(RIGHTS_UNUSED, subject, what, advice).shown_by(format!(
            "{} grants {}; peers used {used}",
            extent(region),
            region.access
        )));
    }
    if region.access.contains(Access::MW_BIND) && !region.windowed {
        let what =
            format!("the region with key {} allows windows (MW_BIND), and none was ever bound to it", region.key);
        out.tell(Finding::new(BINDING_UNUSED, subject, what, "leave IBV_ACCESS_MW_BIND out of ibv_reg_mr"));
    }
}
