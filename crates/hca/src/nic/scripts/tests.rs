//! Scripts in a NIC whose program does nothing: the engine obeys them.

use super::*;
use crate::objects::context::{AsyncEvent, Context};
use crate::queue_pair::Joins;
use std::time::Instant;
use transport::{AsyncEvent as PairEvent, Capabilities, Kind, Limits, QueuePairConfig};
use wire::{Mtu, Pkey, Qpn};

const PATIENCE: Duration = Duration::from_secs(60);

fn device(nic: &Arc<Nic>) -> Arc<Context> {
    let device = nic.devices().into_iter().find(|device| device.name() == "ubi_lo").expect("a device for lo");
    nic.open_device(&device).unwrap()
}

fn queue_pair(nic: &Arc<Nic>, context: &Arc<Context>) -> Arc<Qp> {
    let cq = nic.create_cq(8, None).unwrap();
    let capabilities =
        Capabilities { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let config = QueuePairConfig {
        qpn: Qpn::new(0),
        kind: Kind::ReliableConnected,
        pd: nic.allocate_domain(context),
        capabilities,
        srq: None,
        signal_all: true,
        limits: Limits::default(),
        pkey: Pkey::DEFAULT,
        port_mtu: Mtu::B4096,
    };
    let (send_cq, receive_cq) = (Some(Arc::clone(&cq)), Some(cq));
    nic.create_qp(config, Joins { context: Arc::clone(context), send_cq, receive_cq, xrc_domain: None }).unwrap()
}

fn start(nic: &Arc<Nic>, text: &str) {
    nic.start_script(&Script::parse(text).unwrap(), None, "test.toml");
}

fn next_event(context: &Context) -> AsyncEvent {
    let begun = Instant::now();
    loop {
        if let Some(event) = context.events().try_take() {
            return event;
        }
        assert!(begun.elapsed() < PATIENCE, "no event in a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_strike_at_a_time_comes_though_the_program_does_nothing() {
    let nic = Nic::open().unwrap();
    start(&nic, "[[failure]]\nat = '20ms'\nqueue-pair = { order = 2 }\ndo = 'path-migrated'");
    let context = device(&nic);
    let pairs = [(); 3].map(|()| queue_pair(&nic, &context));
    assert_eq!(next_event(&context), AsyncEvent::Qp(pairs[1].qpn(), PairEvent::PathMigrated));
    assert_eq!(context.events().try_take(), None);
}

#[test]
fn a_script_that_starts_late_knows_what_is_there() {
    let nic = Nic::open().unwrap();
    let context = device(&nic);
    let pairs = [(); 2].map(|()| queue_pair(&nic, &context));
    start(&nic, "[[failure]]\nat = '0s'\ndo = 'path-migration-failed'");
    let events = [next_event(&context), next_event(&context)];
    for qp in &pairs {
        assert!(events.contains(&AsyncEvent::Qp(qp.qpn(), PairEvent::PathMigrationFailed)), "{events:?}");
    }
    // A second script has a time of its own.
    start(&nic, "[[failure]]\nat = '0s'\ndo = 'cq-overrun'");
    // The queues die; queue pairs that do no work yet do not break.
    let events = [(); 2].map(|()| next_event(&context));
    assert!(events.iter().all(|event| matches!(event, AsyncEvent::CqError(_))), "{events:?}");
    assert_eq!(context.events().try_take(), None);
}

#[test]
fn a_call_is_struck_by_its_name() {
    let nic = Nic::open().unwrap();
    let _context = device(&nic);
    assert_eq!(nic.strike_call("ibv_reg_mr"), None);
    start(&nic, "[[failure]]\ncall = 'ibv_reg_mr'\nnth = 2\ndo = 'fail'\nerrno = 'ENOMEM'");
    start(&nic, "[[failure]]\ncall = 'ibv_reg_*'\nnth = 2\ndo = 'delay'\nby = '5ms'");
    assert_eq!(nic.strike_call("ibv_reg_mr"), None);
    let fault = nic.strike_call("ibv_reg_mr").unwrap();
    assert_eq!(fault.delay, Duration::from_millis(5));
    let failure = fault.wait().unwrap();
    assert_eq!((failure.errno, failure.line), (libc::ENOMEM, 4));
    assert_eq!(failure.to_string(), "injected by line 4 of test.toml: fail (ENOMEM)");
    assert_eq!(nic.strike_call("ibv_reg_mr"), None);
}

#[test]
fn a_script_of_another_process_starts_nothing() {
    let nic = Nic::open().unwrap();
    start(&nic, "[[failure]]\nprocess = 'no such program'\ndo = 'qp-error'");
    assert!(!nic.ground.scripts.run() && !nic.tracing().is_on());
}
