//! Processes of a host for test programs: attachments within this one, driven in turn, and forked children.

use super::{Parcel, send, wait_for};
use host::forward::Loss;
use host::ports::Ports;
use host::slots::{Slot, Slots};
use link::udp::attachment::Attachment;
use link::udp::{Arrival, Family, Sender};
use std::time::Duration;
use wire::Opcode;

/// An attachment to the port, as a process has it.
pub struct Process {
    pub slots: Slots,
    pub ports: Ports,
    pub slot: Slot,
    pub attachment: Attachment,
    pub got: Vec<u32>,
    pub lost: Vec<(u32, Loss)>,
}

impl Process {
    pub fn start() -> Process {
        let slots = Slots::open().unwrap();
        let ports = Ports::new(&slots);
        let slot = slots.take().unwrap();
        let attachment = Attachment::open(&slots, &ports).unwrap();
        Process { slots, ports, slot, attachment, got: Vec::new(), lost: Vec::new() }
    }

    pub fn drive(&mut self) {
        let Process { attachment, got, lost, slots, .. } = self;
        let mut take = |arrival: &Arrival<'_>| {
            let to = arrival.headers.bth.dest_qpn;
            assert!(Slot::of(to).is_none_or(|slot| slots.owns(slot)), "{to} is another's");
            got.push(arrival.headers.bth.psn.value());
        };
        let mut lost = |arrival: &Arrival<'_>, loss| lost.push((arrival.headers.bth.psn.value(), loss));
        attachment.poll(&mut take, &mut lost);
        attachment.receive(take, lost);
    }

    pub fn misdirected(&self) -> u64 {
        self.attachment.traffic().misdirected
    }
}

pub fn drive(processes: &mut [Process]) {
    processes.iter_mut().for_each(Process::drive);
}

/// Sends a packet to each process from each of many source ports, and waits until all have arrived.
pub fn round(processes: &mut [Process], senders: &mut [Sender], v6: bool) -> u64 {
    let before: Vec<_> = processes.iter().map(|process| process.got.len()).collect();
    let misdirected: u64 = processes.iter().map(Process::misdirected).sum();
    for (number, sender) in senders.iter_mut().enumerate() {
        for process in &*processes {
            let psn = number as u32;
            let mut parcel = Parcel {
                opcode: Opcode::UcSendOnly,
                to: process.slot.qpn(number as u16),
                psn,
                payload: b"hello",
                count: 1,
            };
            send(sender, &mut parcel, v6);
        }
    }
    wait_for("packets at their owners", || {
        drive(processes);
        processes.iter().zip(&before).all(|(process, before)| process.got.len() == before + senders.len())
    });
    for (process, before) in processes.iter().zip(&before) {
        let mut got = process.got[*before..].to_vec();
        got.sort_unstable();
        assert!(got.into_iter().eq(0..senders.len() as u32));
        assert!(process.lost.is_empty(), "{:?}", process.lost);
    }
    processes.iter().map(Process::misdirected).sum::<u64>() - misdirected
}

pub fn senders(count: usize, family: Family) -> Vec<Sender> {
    (0..count).map(|_| Sender::open(family).unwrap()).collect()
}

/// Runs `act` in a forked child, which ends with what it answers.
pub fn fork(act: impl FnOnce() -> i32) -> i32 {
    // SAFETY: this program has one thread.
    match unsafe { libc::fork() } {
        0 => {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(101);
            // SAFETY: ends without the parent's destructors.
            unsafe { libc::_exit(status) }
        }
        child => {
            assert!(child > 0);
            child
        }
    }
}

pub fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: our own child; `status` is live.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

pub fn kill(child: i32) {
    // SAFETY: a child that was not waited for, so the number is still its own.
    unsafe { libc::kill(child, libc::SIGKILL) };
}

/// Longer than the test, not for ever.
pub fn sleep_long() -> i32 {
    std::thread::sleep(Duration::from_secs(300));
    0
}
