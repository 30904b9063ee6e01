//! What the rules cost for each message: one side of a ping-pong, as events, for the explanations alone and for all
//! rules.

#[path = "../tests/suite/script.rs"]
mod script;

use checks::Settings;
use script::{ALL_ACCESS, CQ, Script, Send};
use std::time::Instant;
use trace::Kind;
use wire::{Headers, Opcode, Psn, Qpn};

const QPN: u32 = 0x11;
const PEER: u32 = 0x22;
const KEY: u32 = 5;
const RECEIVES: u64 = 512;
const MESSAGES: u64 = 200_000;

fn main() {
    for (name, settings) in [("explanations", Settings::default()), ("all rules", Settings::all())] {
        let mut script = Script::with(settings);
        script.memory.silent = true;
        script.mr(KEY, 0x10000, 0x1000, ALL_ACCESS);
        script.qp_with(
            QPN,
            script::NewPair { max_send_wr: 128, max_recv_wr: 512, max_inline_data: 64, ..Default::default() },
        );
        script.connect(QPN, PEER);
        for _ in 0..RECEIVES {
            script.receive(QPN, 0, &[(0x10000, 64, KEY)]);
        }
        for turn in 0..2 {
            let started = Instant::now();
            for _ in 0..MESSAGES {
                message(&mut script);
            }
            let each = started.elapsed().as_nanos() as u64 / MESSAGES;
            if turn == 1 {
                println!("{name:<14} {each:>6} ns a message");
            }
        }
    }
}

/// What one side of a ping-pong does: it sends a message, gets one, and posts a receive for the next.
fn message(script: &mut Script) {
    let headers = |opcode| Headers::new(opcode, Qpn::new(PEER), Psn::new(1));
    script.send(QPN, Send { inline: true, pieces: vec![(0x10000, 64, KEY)], ..Send::default() });
    script.happens(
        Some(QPN),
        Kind::PacketSent {
            headers: headers(Opcode::RcSendOnly),
            payload_len: 64,
            packets: 1,
            wr_id: Some(1),
            retransmit: false,
        },
    );
    script.happens(
        Some(QPN),
        Kind::PacketReceived { headers: headers(Opcode::RcAcknowledge), payload_len: 0, packets: 1 },
    );
    script.sent(QPN, 1);
    script.polls(CQ, 1);
    script
        .happens(Some(QPN), Kind::PacketReceived { headers: headers(Opcode::RcSendOnly), payload_len: 64, packets: 1 });
    script.received(QPN, 0, 64);
    script.polls(CQ, 0);
    script.receive(QPN, 0, &[(0x10000, 64, KEY)]);
}
