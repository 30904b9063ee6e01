//! # 10. A file, by WRITE with immediate
//!
//! A WRITE is silent: the peer's program does not notice it. A WRITE **with immediate** also completes one of the
//! peer's receives and brings it a number: "so many bytes are there now". That makes a stream out of one-sided writes,
//! without a copy on the sender's side and without a message for each piece.
//!
//! The receiver shares a few *slots*. The sender writes a piece of the file into a free slot, with its length as the
//! number; the receiver takes the piece out and gives the slot back with an empty message. So both work at the same
//! time, and neither overruns the other. The number 0 is the end of the file.
//!
//! ```text
//! cargo run --example file_transfer
//! cargo run --example file_transfer -- receive COPY 0.0.0.0:7471
//! cargo run --example file_transfer -- send FILE 127.0.0.1:7471
//! ```

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use ubiverbs::{Access, Error, RemoteSlice, cm};

type Outcome<T = ()> = Result<T, Box<dyn StdError + Send + Sync>>;

const SLOT: usize = 64 * 1024;
const SLOTS: usize = 4;

/// Takes a file from the first client that connects.
fn receive(copy: &Path, listener: &cm::Listener) -> Outcome<usize> {
    let request = listener.next().wait()?;
    let pd = request.context()?.alloc_pd()?;
    let slots = pd.share(SLOT * SLOTS, Access::REMOTE_WRITE)?;
    let accepting = request.accept().in_domain(&pd).private_data(&slots.remote_slice().to_bytes());
    let connection = accepting.wait()?;

    // A receive for every slot. They need no room but for the smallest buffer there is: the bytes go to the slots.
    let mut receives =
        (0..SLOTS).map(|_| Ok(connection.recv(pd.allocate(1)?)?)).collect::<Result<VecDeque<_>, Error>>()?;
    let (mut file, mut piece, mut total) = (File::create(copy)?, vec![0; SLOT], 0);
    for slot in (0..SLOTS).cycle() {
        let arrived = receives.pop_front().expect("one for every slot").wait()?;
        let length = arrived.immediate().expect("WRITE with immediate") as usize;
        if length == 0 {
            break;
        }
        let piece = piece.get_mut(..length).ok_or("longer than a slot")?;
        slots.read_at(slot * SLOT, piece)?;
        file.write_all(piece)?;
        total += length;
        // First the receive for the next piece, then the word that its slot is free.
        receives.push_back(connection.recv(arrived.into_buffer())?);
        connection.send_inline(b"")?.wait()?;
    }
    connection.disconnect().wait()?;
    Ok(total)
}

fn send(file: &Path, to: SocketAddr) -> Outcome<usize> {
    let mut file = File::open(file)?;
    let connection = cm::connect(to).wait()?;
    let pd = connection.pd();
    let slots = RemoteSlice::from_bytes(&connection.private_data()[..RemoteSlice::ENCODED])?;
    // What the receiver says when a slot is free again.
    let mut free = (0..SLOTS).map(|_| Ok(connection.recv(pd.allocate(1)?)?)).collect::<Result<VecDeque<_>, Error>>()?;
    let (mut total, mut sent) = (0, 0);
    loop {
        // At first all slots are free.
        if sent >= SLOTS {
            let word = free.pop_front().expect("one for every slot").wait()?;
            free.push_back(connection.recv(word.into_buffer())?);
        }
        let mut piece = pd.allocate(SLOT)?;
        let length = file.read(&mut piece)?;
        // The last WRITE brings its number only, and a byte that has no meaning.
        let _unused = piece.split_off(length.max(1));
        let at = (sent % SLOTS * SLOT) as u64;
        let there = slots.slice(at..at + piece.len() as u64)?;
        let writing = connection.write_imm(piece, there, length as u32)?;
        if length == 0 {
            // Not waited for: the receiver disconnects when it has that, and its acknowledgement may be lost.
            drop(writing);
            connection.closed().wait()?;
            return Ok(total);
        }
        // Not waited for: the buffer is freed when it is done, and the next piece is read meanwhile.
        drop(writing);
        (total, sent) = (total + length, sent + 1);
    }
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["receive", copy, at] => {
            let total = receive(Path::new(copy), &cm::Listener::bind(at)?)?;
            println!("received {total} bytes");
        }
        ["send", file, to] => println!("sent {} bytes", send(Path::new(file), to.parse()?)?),
        _ => {
            let folder = std::env::temp_dir().join(format!("ubiverbs-file-transfer-{}", std::process::id()));
            fs::create_dir_all(&folder)?;
            let (original, copy) = (folder.join("original"), folder.join("copy"));
            let bytes: Vec<u8> = (0..3_000_000u32).map(|index| (index ^ index >> 9) as u8).collect();
            fs::write(&original, &bytes)?;
            let listener = cm::Listener::bind("127.0.0.1:0")?;
            let at = listener.local_addr();
            let target = copy.clone();
            let receiver = thread::spawn(move || receive(&target, &listener));
            let sent = send(&original, at)?;
            let received = receiver.join().expect("the receiver does not panic")?;
            let same = fs::read(&copy)? == bytes;
            fs::remove_dir_all(&folder)?;
            assert!(same && sent == received);
            println!("sent {sent} bytes, and the copy is the same");
        }
    }
    Ok(())
}
