//! What to do is said where a reference is given instead of the buffer, and where bytes are not registered.
use ubiverbs::{QueuePair, RegisteredMut, Reliable, RemoteSlice};

fn lent(qp: &QueuePair<Reliable>, mut buffer: RegisteredMut, there: RemoteSlice) {
    let _ = qp.send(&buffer);
    let _ = qp.write(&mut buffer, there);
    let _ = qp.read(&mut buffer, there);
}

fn bytes(qp: &QueuePair<Reliable>, there: RemoteSlice) {
    let _ = qp.send(b"hello");
    let _ = qp.send("hello".to_owned());
    let _ = qp.write(vec![1u8; 8], there);
}

fn main() {}
