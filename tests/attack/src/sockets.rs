//! Victims that use sockets over RDMA: a server that echoes, a client that connects again and again, and one that
//! receives datagrams.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use sockets::{Datagram, Receive, Slices, Socket};
use trace::DropReason;

use crate::actor::{Outcome, lines, say};

/// How often a role looks again.
const LOOK: Duration = Duration::from_millis(1);

/// How long a client may take to connect, and to get its byte back.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Connections that a server keeps.
const SERVER_CONNECTIONS: usize = 8;

/// Accepts whatever comes and sends its first byte back. Its backlog is as long as a program can say.
pub fn listener(arguments: &[String]) -> Outcome {
    let address: Ipv4Addr = arguments.first().ok_or("an address")?.parse()?;
    let listener = Socket::new()?;
    listener.bind((address, 0).into())?;
    listener.listen(i32::MAX)?;
    say("listening", listener.local_address().ok_or("no address")?.port());
    thread::spawn(move || {
        let mut kept: Vec<Arc<Socket>> = Vec::new();
        loop {
            while let Ok(socket) = listener.accept() {
                kept.push(socket);
            }
            for socket in &kept {
                let mut byte = [0];
                if socket.receive(&mut &mut byte[..], Receive::default()) == Ok(1) {
                    let _ = socket.send(&mut Slices::new(&[&byte]));
                }
            }
            for old in kept.drain(..kept.len().saturating_sub(SERVER_CONNECTIONS)) {
                old.close(Duration::ZERO);
            }
            thread::sleep(LOOK);
        }
    });
    lines().for_each(drop);
    Ok(())
}

/// Connects as often as it is told to, one after the other, and says how many of them failed.
pub fn connector(_: &[String]) -> Outcome {
    say("ready", "");
    for line in lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, to, port, count] = words[..] else { return Err("connect ADDRESS PORT COUNT".into()) };
        let to: (IpAddr, u16) = (to.parse()?, port.parse()?);
        let (mut failed, mut why, begin) = (0, String::new(), Instant::now());
        for _ in 0..count.parse::<u32>()? {
            if let Err(error) = exchange(to.into()) {
                (failed, why) = (failed + 1, error.to_string());
            }
        }
        say("done", format_args!("{failed} {} {why}", begin.elapsed().as_millis()));
    }
    Ok(())
}

/// One connection: a byte there and back.
fn exchange(to: SocketAddr) -> Outcome {
    let socket = Socket::new()?;
    socket.connect(to)?;
    let until = Instant::now() + CONNECT_LIMIT;
    let wait = |what: &'static str| match Instant::now() < until {
        true => {
            thread::sleep(LOOK);
            Ok(())
        }
        false => Err(what),
    };
    while let Err(error) = socket.outcome() {
        match error.0 == 115 {
            true => wait("no answer to a connect")?,
            false => return Err(error.into()),
        }
    }
    while socket.send(&mut Slices::new(&[b"x"])) != Ok(1) {
        wait("no room for a byte")?;
    }
    while socket.receive(&mut &mut [0][..], Receive::default()) != Ok(1) {
        wait("the byte does not come back")?;
    }
    socket.close(Duration::from_secs(1));
    Ok(())
}

/// Says what datagrams come, and from whom it believes them to be. Asked, it says how many it has not believed.
pub fn receiver(arguments: &[String]) -> Outcome {
    let address: Ipv4Addr = arguments.first().ok_or("an address")?.parse()?;
    let socket = Datagram::new(true)?;
    socket.bind((address, 0).into())?;
    say("listening", socket.local_address().ok_or("no address")?.port());
    let (sender, told) = mpsc::channel();
    thread::spawn(move || lines().try_for_each(|line| sender.send(line)));
    loop {
        let received = socket.receive(false, |from, bytes| {
            say("got", format_args!("{} {from}", String::from_utf8_lossy(bytes)));
        });
        if received.is_err() {
            thread::sleep(LOOK);
        }
        match told.try_recv() {
            Ok(_) => say("refused", hca::Nic::of_process()?.drops(DropReason::ForgedSender)),
            Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
        }
    }
}
