//! Servers that stay while clients come and go. What a server has of the machine after the first clients is all that it
//! may ever need: a descriptor or some memory that a connection leaves behind adds up, and is found.

use crate::host::{self, Host};
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Running, Stage};
use crate::usage::Usage;
use crate::{Test, expect};

const ROW: Row = Row {
    program: "`rping`, `cmtime`, servers that stay",
    version: Version::Package("rdmacm-utils"),
    what: "40 clients one after the other, 800 connections with `cmtime`: the server's descriptors and memory stay \
        what they were after the first",
};

/// How many clients a server may need to get everything it keeps.
const WARM_UP: usize = 3;

/// How much more memory it may have in the end: allocators and stacks move, and a page for each of 800 connections is
/// more than this.
const MEMORY_GROWTH_MAX_KB: u64 = 2048;

/// How many more descriptors: those of the client that has just gone, whose end the server has not looked at.
const DESCRIPTOR_GROWTH_MAX: u64 = 4;

/// A server that stays.
pub struct Server {
    running: Running,
    served: usize,
    first: Usage,
    last: Usage,
}

impl Server {
    /// Starts it and waits until it listens.
    pub fn start(stage: &Stage, host: &Host, line: &str, port: u16) -> Result<Server, String> {
        let running = stage.start("server", &mut stage.run_on(host, None, &[], line))?;
        host::wait("the server to listen", || host::listens(running.id(), port).unwrap_or(false))
            .map_err(|e| format!("{e}\n{}", running.text()))?;
        Ok(Server { running, served: 0, first: Usage::default(), last: Usage::default() })
    }

    /// What it printed.
    pub fn text(&self) -> String {
        self.running.text()
    }

    /// A client has gone. A server needs a moment to notice: the descriptors are counted when it has.
    pub fn served(&mut self) -> Result<(), String> {
        self.served += 1;
        self.last = Usage::present(self.running.id());
        if self.served <= WARM_UP {
            self.first.join(self.last);
        }
        match self.last.descriptors {
            0 => Err(format!("the server has ended\n{}", self.text())),
            _ => Ok(()),
        }
    }

    /// Whether it has no more than in the beginning.
    pub fn is_steady(&mut self) -> Result<(), String> {
        let id = self.running.id();
        let _ = host::wait("the server to close what it no longer needs", || {
            self.last = Usage::present(id);
            self.last.descriptors <= self.first.descriptors + DESCRIPTOR_GROWTH_MAX
        });
        let (first, last) = (self.first, self.last);
        let few = last.descriptors <= first.descriptors + DESCRIPTOR_GROWTH_MAX;
        match few && last.kilobytes <= first.kilobytes + MEMORY_GROWTH_MAX_KB {
            true => Ok(()),
            false => Err(format!(
                "after {WARM_UP} clients the server had {} kB and {} descriptors, after {} it has {} kB and {}",
                first.kilobytes, first.descriptors, self.served, last.kilobytes, last.descriptors
            )),
        }
    }
}

/// The server, its clients, and what they say.
const LINES: [(&str, &str, &str); 2] = [
    ("rping -s -P -V -p PORT", "rping -c -a 127.0.0.1 -p PORT -V -C 5 -v", "rdma-ping-4"),
    ("cmtime -p PORT", "cmtime -s 127.0.0.1 -p PORT -c 20", "disconnect"),
];

pub fn tests() -> Vec<Test> {
    let test = |(server, client, says): (&'static str, &'static str, &'static str)| {
        let name = format!("steady: {}, 40 clients", server.replace(" -p PORT", ""));
        Test::new(name, move |stage| {
            let port = stage.next_port();
            let filled = |text: &str| text.replace("PORT", &port.to_string());
            let mut server = Server::start(stage, &stage.alone, &filled(server), port)?;
            for _ in 0..40 {
                let text = stage.run(None, &[], &filled(client))?;
                expect(&text, &[says])?;
                server.served()?;
            }
            server.is_steady()
        })
    };
    all_of(&ROW, LINES.map(test))
}
