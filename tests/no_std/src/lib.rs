//! The smallest program that links the core without the standard library: its own panic handler, its own allocator,
//! and one use of each crate so that nothing is left out. It is built, never run. If `std` were linked anywhere below,
//! there would be two panic handlers and the build would fail.
#![no_std]

extern crate alloc;

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;

use trace::{Kind, Queue, Ring, Tracer};
use wire::Headers;

/// Parses a packet, traces an event, reads a timeout: a use of everything that needs neither a clock nor a peer.
#[unsafe(no_mangle)]
pub extern "C" fn ubiverbs_no_std_proof(first: u8) -> usize {
    let mut ring = Ring::new(4);
    Tracer::to(&mut ring).emit(0, None, || Kind::WorkPosted {
        wr_id: u64::from(first),
        queue: Queue::Send,
        opcode: "SEND",
        bytes: 0,
    });
    let parsed = Headers::parse(&[first; 64]).map_or(0, |(headers, _)| headers.len());
    // What a queue pair does needs a port, which the simulator has; linking it is what counts here.
    let timeout = transport::ack_timeout_nanos(first).map_or(0, |nanos| nanos as usize);
    let manager = cm::Manager::new(cm::Config { seed: first.into(), ..cm::Config::default() });
    let mut agents = mad::Manager::new(mad::Config { first: 1, last: 9, seed: first.into() });
    let port = agents.open(1);
    let immediate = rsocket::Message::Data(first.into()).encode() as usize;
    let mut checker = checks::Checker::new(checks::Settings::all());
    let mut found = 0;
    ring.iter().for_each(|event| checker.observe(event, &mut checks::Absent, &mut |_| found += 1));
    let script = failures::Script::parse([first; 4]).unwrap_or_default();
    let machine = failures::Machine::new(&script, first.into(), &failures::Who::default());
    found += usize::from(machine.is_idle());
    found += profiles::Profile::parse("first", [first; 4]).map_or(0, |profile| profile.said.len());
    parsed + ring.len() + timeout + manager.live() + agents.close(port).len() + immediate + found
}

struct Nothing;

// SAFETY: it never hands out memory; a null result is how an allocator says so.
unsafe impl GlobalAlloc for Nothing {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Nothing = Nothing;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}
