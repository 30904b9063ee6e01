//! Failures that a process injects into another one, of its own user and not. In a process of its own, which other
//! processes must not take for another.
#![allow(missing_docs)]
#![cfg(feature = "scripts")]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use ubiverbs_hca::inject::{InjectError, Injected, inject};
use ubiverbs_hca::interfaces::Nics;
use ubiverbs_hca::{AsyncEvent, Context, Nic, Options};

/// The process to inject into, for the other user's process that this executable is started as.
const TARGET: &str = "UBIVERBS_TEST_INJECTS_INTO";

/// A user that is not this one.
const OTHER_USER: u32 = 54_321;

fn injected(text: &str) -> Injected {
    Injected { name: "inject".into(), text: text.into() }
}

fn wait_for(context: &Context, event: AsyncEvent) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match context.events().try_take() {
            Some(told) if told == event => return,
            Some(other) => panic!("{other:?} where {event:?} was expected"),
            None => assert!(Instant::now() < deadline, "{event:?} did not come in a minute"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_process_of_the_same_user_breaks_a_program_that_runs_and_no_other_does() {
    let text = "[[failure]]\nat = '0s'\nfor = '50ms'\ndevice = 'ubi_1'\ndo = 'port-down'\n";
    if let Some(target) = std::env::var_os(TARGET) {
        let target = target.to_str().and_then(|target| target.parse().ok()).unwrap();
        let refused = inject(target, &injected(text)).unwrap_err();
        assert!(matches!(refused, InjectError::OtherUser { pid, .. } if pid == target), "{refused}");
        assert!(refused.to_string().ends_with("only its own user may break its devices (EPERM)"), "{refused}");
        return;
    }
    let own = std::process::id() as i32;
    let absent = inject(own, &injected(text)).unwrap_err();
    assert!(matches!(absent, InjectError::NoDevice(pid) if pid == own), "{absent}");
    let mut options = Options::default();
    options.nics = Some(Nics { count: 2, ports: 1, own_switches: false });
    let nic = Nic::open_with(options).unwrap();
    let contexts: Vec<_> = nic.devices().iter().map(|device| nic.open_device(device).unwrap()).collect();
    // Two scripts, one after the other, in a program that was started without any.
    for _ in 0..2 {
        inject(own, &injected(text)).unwrap();
        wait_for(&contexts[1], AsyncEvent::PortError(1));
        wait_for(&contexts[1], AsyncEvent::PortActive(1));
    }
    assert_eq!(contexts[0].events().try_take(), None);
    let wrong = inject(own, &injected("[[failure]]\ndo = 'port-dwn'\n")).unwrap_err().to_string();
    assert!(wrong.starts_with("inject: line 2: \"port-dwn\" is no failure"), "{wrong}");
    let long = "#".repeat(1 << 20);
    let long = inject(own, &injected(&long)).unwrap_err().to_string();
    assert!(long.contains("262144 bytes or less"), "{long}");
    // Only root may start a process of another user.
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } == 0 {
        let status = Command::new("/proc/self/exe").env(TARGET, own.to_string()).uid(OTHER_USER).status().unwrap();
        assert!(status.success(), "as another user");
        assert_eq!(contexts[1].events().try_take(), None);
    }
}
