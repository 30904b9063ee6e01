//! The command line, which the program in C has as well.

use std::net::{IpAddr, SocketAddr};

use clap::{Parser, ValueEnum};

/// Random work of two processes against each other over the `ubiverbs` crate, every byte looked at.
///
/// Both ends are started with the same seed and draw the same plan from it. Exit status: 0 when all was well, 1 when a
/// check failed (the line `soak-rust: FAIL: …` says which), 2 when it could not be set up.
#[derive(Parser, Clone, Debug)]
#[command(name = "soak-rust", max_term_width = 100)]
pub struct Options {
    /// Where all chance begins.
    #[arg(long)]
    pub seed: u64,
    /// How long, to the end of the round that is under way then.
    #[arg(long)]
    pub seconds: u64,
    /// The server listens, the client says when it is over.
    #[arg(long)]
    pub role: Role,
    /// The server's address.
    #[arg(long)]
    pub address: IpAddr,
    /// The server's TCP port, over which the two talk about what they do.
    #[arg(long)]
    pub port: u16,
    /// The address of this side; the server's if not said.
    #[arg(long)]
    pub own_address: Option<IpAddr>,
    /// How many threads work, each with queue pairs of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
    /// How many queue pairs there are, of all threads together.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub qps: u32,
    /// The path MTU; what the devices of both ends can do is the most.
    #[arg(long, default_value_t = 1024)]
    pub mtu: u32,
    /// How queue pairs find their peers.
    #[arg(long, default_value = "manual")]
    pub connect: Connect,
    /// Nothing gets lost on the way: every datagram for which there is a receive must come.
    #[arg(long)]
    pub lossless: bool,
    /// The peer may be killed at any moment; that ends the run, and is no failure.
    #[arg(long)]
    pub peer_may_die: bool,
    /// The peer may be stopped for some seconds; nothing may fail for that.
    #[arg(long)]
    pub peer_may_stop: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Role {
    Server,
    Client,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Connect {
    /// By endpoints that are sent over TCP.
    Manual,
    /// By the connection manager.
    Cm,
}

impl Role {
    /// As a number, for the dice.
    pub fn number(self) -> u64 {
        match self {
            Role::Server => 0,
            Role::Client => 1,
        }
    }

    pub fn other(self) -> Role {
        match self {
            Role::Server => Role::Client,
            Role::Client => Role::Server,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Client => "client",
        }
    }
}

impl Options {
    /// Where the server's TCP port is.
    pub fn server(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// The address of this side.
    pub fn own(&self) -> IpAddr {
        self.own_address.unwrap_or(self.address)
    }

    /// What both ends must have been told alike, as one line.
    pub fn in_common(&self) -> String {
        format!(
            "seed={} threads={} qps={} connect={:?} lossless={}",
            self.seed, self.threads, self.qps, self.connect, self.lossless
        )
    }
}
