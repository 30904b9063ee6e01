//! Addresses and links that come and go under an open device: its table follows, and the program hears of it on a
//! descriptor.

use crate::actor::{Outcome, hear, say};
use crate::network::{DEVICE, Network};
use crate::traffic::End;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use ubiverbs::{AsyncEvent, Context, Gid};

fn readable(fd: BorrowedFd<'_>, limit: Duration) -> Result<bool, Box<dyn std::error::Error>> {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    Ok(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit))? > 0)
}

/// Waits for an event; others that come meanwhile are forgotten.
fn wait_for(context: &Context, event: AsyncEvent) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(30);
    while let left = deadline.saturating_duration_since(Instant::now())
        && readable(context.event_fd(), left)?
    {
        if context.poll_event() == Some(event) {
            return Ok(());
        }
    }
    Err(format!("no {event:?} within half a minute").into())
}

fn index_of(context: &Context, address: IpAddr) -> Option<usize> {
    context.port().gids.iter().position(|gid| *gid == Some(Gid::from_ip(address)))
}

/// Tells of what it hears, as the test asks for it.
pub fn watcher(arguments: &[String]) -> Outcome {
    let [own, guest] = arguments else { return Err("two addresses".into()) };
    let (own, guest): (IpAddr, IpAddr) = (own.parse()?, guest.parse()?);
    let End { context, .. } = End::new(own)?;
    let elsewhere = ubiverbs::device("ubi_lo")?.open()?;
    let own_index = index_of(&context, own);
    say("watching", "");
    loop {
        match &*hear("expect")? {
            "address" => {
                wait_for(&context, AsyncEvent::GidChange)?;
                say("seen", &index_of(&context, guest).is_some().to_string());
            }
            "down" => {
                wait_for(&context, AsyncEvent::PortError)?;
                say("seen", &(!context.port().active).to_string());
            }
            "up" => {
                wait_for(&context, AsyncEvent::PortActive)?;
                say("seen", &(context.port().active && index_of(&context, own) == own_index).to_string());
            }
            "device" => {
                let deadline = Instant::now() + Duration::from_secs(30);
                while ubiverbs::device("ubi_veth1").is_err() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(2));
                }
                say("seen", &ubiverbs::device("ubi_veth1")?.open()?.port().active.to_string());
            }
            _ => break,
        }
    }
    // What happens to one device is no business of another's; and an empty descriptor is quiet.
    while context.poll_event().is_some() {}
    if elsewhere.poll_event().is_some() || readable(context.event_fd(), Duration::ZERO)? {
        return Err("an event that nobody raised".into());
    }
    Ok(())
}

pub fn a_device_follows_its_addresses_and_its_cable() {
    let Network { left, right } = &Network::new(1500);
    let v4: IpAddr = [10, 77, 0, 50].into();
    let v6: IpAddr = "fd77::50".parse().unwrap();
    for guest in [v4, v6] {
        let mut watcher = left.start("watcher", &[left.v4.to_string(), guest.to_string()]);
        watcher.hear("watching");
        let mut expect = |what: &str| {
            watcher.say("expect", what);
            watcher.hear("seen")
        };
        left.add_address(guest);
        assert_eq!(expect("address"), "true", "{guest} has come");
        let length = if guest.is_ipv4() { 24 } else { 64 };
        left.run(&format!("ip addr del {guest}/{length} dev {DEVICE}"));
        assert_eq!(expect("address"), "false", "{guest} has gone");
        left.run(&format!("ip link set {DEVICE} down"));
        assert_eq!(expect("down"), "true");
        left.run(&format!("ip link set {DEVICE} up"));
        assert_eq!(expect("up"), "true", "with its address in its old place");
        // The other end decides whether there is a carrier.
        right.run(&format!("ip link set {DEVICE} down"));
        assert_eq!(expect("down"), "true");
        right.run(&format!("ip link set {DEVICE} up"));
        assert_eq!(expect("up"), "true");
        left.run("ip link add veth1 type veth peer name veth2");
        left.run("ip addr add 10.78.0.1/24 dev veth1");
        left.run("ip link set veth2 up");
        left.run("ip link set veth1 up");
        assert_eq!(expect("device"), "true", "a device that came later");
        left.run("ip link del veth1");
        watcher.say("expect", "nothing more");
        watcher.end();
    }
}
