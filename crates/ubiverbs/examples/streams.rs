//! # 14. Streams: a socket program, over RDMA
//!
//! RDMA moves messages into memory that both sides have agreed on. A program that wants bytes in order, as from TCP,
//! uses a stream: the sender writes into the receiver's buffer by RDMA WRITE, and never more than the receiver has
//! room for. `stream::blocking` has the names of `std::net`, so that a program changes little more than its imports.
//! The same streams are there for tasks: `ubiverbs::stream`.
//!
//! The protocol is that of `rsocket(7)`, so socket programs can be the other side:
//!
//! ```text
//! cargo run --example streams
//! cargo run --example streams -- server 127.0.0.1:7471
//! cargo run --example streams -- client 127.0.0.1:7471
//! ubiverbs run --sockets -- nc 127.0.0.1 7471
//! ```

use std::io::{self, BufRead, BufReader, Write};
use std::thread;
use ubiverbs::stream::ToAddresses;
use ubiverbs::stream::blocking::{RdmaListener, RdmaStream};

/// Answers each line in capitals, until the client sends no more.
fn serve(stream: &RdmaStream) -> io::Result<usize> {
    let (lines, mut answers) = (BufReader::new(stream).lines(), stream);
    let mut count = 0;
    for line in lines {
        writeln!(answers, "{}", line?.to_uppercase())?;
        count += 1;
    }
    Ok(count)
}

fn client(to: impl ToAddresses) -> io::Result<()> {
    let stream = RdmaStream::connect(to)?;
    let (mut answers, mut questions) = (BufReader::new(&stream).lines(), &stream);
    for question in ["hello", "what is this?", "good bye"] {
        writeln!(questions, "{question}")?;
        println!(
            "client: {question} -> {}",
            answers.next().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?
        );
    }
    // The stream is closed when it is dropped, and what was written arrives first.
    Ok(())
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", address] => {
            let listener = RdmaListener::bind(address)?;
            println!("listening at {}", listener.local_addr()?);
            for stream in listener.incoming() {
                let stream = stream?;
                thread::spawn(move || println!("server: answered {:?} lines", serve(&stream)));
            }
            Ok(())
        }
        ["client", address] => client(address),
        _ => {
            let listener = RdmaListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?;
            let client = thread::spawn(move || client(address));
            let answered = serve(&listener.accept()?.0)?;
            client.join().expect("the client ends")?;
            println!("server: answered {answered} lines");
            Ok(())
        }
    }
}
