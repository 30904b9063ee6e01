//! A forked child keeps nothing of its parent's NIC, and can have one of its own.

use std::io::Read;
use std::os::fd::FromRawFd;
use ubiverbs_hca::Nic;

/// Runs `child` in a forked process and answers what it wrote.
fn in_child(child: impl FnOnce() -> String) -> String {
    let mut ends = [0; 2];
    // SAFETY: two live integers; then a fork whose child only runs `child`, writes and leaves without unwinding or
    // running destructors.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        match libc::fork() {
            0 => {
                let text = child();
                libc::write(ends[1], text.as_ptr().cast(), text.len());
                libc::_exit(0);
            }
            pid => {
                assert!(pid > 0);
                libc::close(ends[1]);
                let mut text = String::new();
                std::fs::File::from_raw_fd(ends[0]).read_to_string(&mut text).unwrap();
                let mut status = 0;
                libc::waitpid(pid, &raw mut status, 0);
                assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child ended with {status:#x}");
                text
            }
        }
    }
}

#[test]
fn a_child_keeps_nothing_and_gets_its_own() {
    let nic = Nic::of_process().unwrap();
    assert!(std::sync::Arc::ptr_eq(&nic, &Nic::of_process().unwrap()), "there is one per process");
    assert!(::host::descriptor::kept() > 0);
    let text = in_child(|| {
        let inherited = ::host::descriptor::kept();
        let own = Nic::of_process().map(|nic| nic.devices().len());
        format!("{inherited} {}", own.is_ok_and(|devices| devices > 0))
    });
    assert_eq!(text, "0 true");
    // How many the parent has may have changed: streams to other processes come and go. That it has any is the child's
    // respect.
    assert!(::host::descriptor::kept() > 0);
    assert!(std::sync::Arc::ptr_eq(&nic, &Nic::of_process().unwrap()));
}
