//! Connections per second: by the connection manager, and by TCP. One at a time; each is made, and ended in good order,
//! before the next.

use super::{Carrier, Run};
use crate::exit::Failure;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;
use ubiverbs::{Reliable, cm};

/// The side that is called.
pub struct Called {
    manager: cm::Listener<Reliable>,
    tcp: TcpListener,
}

/// Where it can be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Places {
    manager: SocketAddr,
    tcp: SocketAddr,
}

impl Called {
    pub fn new(address: IpAddr) -> Result<(Called, Places), Failure> {
        let manager = cm::Listener::bind((address, 0))?;
        let tcp = TcpListener::bind((address, 0)).map_err(failed)?;
        let places = Places { manager: manager.local_addr(), tcp: tcp.local_addr().map_err(failed)? };
        Ok((Called { manager, tcp }, places))
    }

    pub fn second(&self, run: Run) -> Result<(), Failure> {
        for _ in 0..run.count {
            if run.point.carrier == Carrier::Tcp {
                let (mut stream, _) = self.tcp.accept().map_err(failed)?;
                stream.read_exact(&mut [0]).or_else(end).map_err(failed)?;
            } else {
                self.manager.accept().wait()?.closed().wait()?;
            }
        }
        Ok(())
    }
}

impl Places {
    pub fn first(&self, run: Run, sample: &mut dyn FnMut(u64)) -> Result<(), Failure> {
        for _ in 0..run.count {
            let begun = Instant::now();
            if run.point.carrier == Carrier::Tcp {
                TcpStream::connect(self.tcp).map(drop).map_err(failed)?;
            } else {
                cm::connect(self.manager).wait()?.disconnect().wait()?;
            }
            sample(begun.elapsed().as_nanos() as u64);
        }
        Ok(())
    }
}

/// The end of a connection is what was waited for.
fn end(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Ok(()),
        _ => Err(error),
    }
}

fn failed(source: io::Error) -> Failure {
    Failure::System { what: "cannot connect over TCP, to compare with", source }
}
