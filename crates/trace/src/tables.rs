//! What the values of events consist of, in tables for the formats that write and read them all: JSON lines
//! (`json_fields`) and packed events (`packed`). A format gives the macro that is called with a table.

/// Types whose variants have a name, and fields.
macro_rules! with_variants {
    ($then:ident) => {
        $then! {
            Kind by "event" {
                "work_posted" => WorkPosted { wr_id, queue, opcode, bytes },
                "post_refused" => PostRefused { wr_id, queue, reason },
                "packet_sent" => PacketSent { headers as "packet", payload_len, packets, wr_id, retransmit },
                "packet_received" => PacketReceived { headers as "packet", payload_len, packets },
                "packet_dropped" => PacketDropped { headers as "packet", reason } text reason,
                "cm_message_dropped" => CmMessageDropped { message, local_comm_id, reason } text reason,
                "state_changed" => StateChanged { from, to, cause } text cause,
                "completed" => Completed { wr_id, queue, status, opcode, bytes, failure },
                "called" => Called { thread, call },
                "flushed" => Flushed { sends, receives },
                "timer_set" => TimerSet { timer, deadline },
                "timer_fired" => TimerFired { timer, deadline },
                "timer_cleared" => TimerCleared { timer },
                "retry" => Retry { cause, from, left },
                "access_refused" => AccessRefused { key, address, length, access, cause } text cause,
                "nak_sent" => NakSent { psn, code },
                "nak_received" => NakReceived { psn, code },
                "window_changed" => WindowChanged { from, to, cause },
                "rate_changed" => RateChanged { from, to },
                "async_event" => AsyncEvent { name },
                "cq_overflowed" => CqOverflowed { cq, capacity },
                "cm_transition" => CmTransition { local_comm_id, from, to, message },
                "connection_ended" => ConnectionEnded { local_comm_id, by } text by,
                "injected" => Injected { script, line, what, ends, missed },
                "moved_directly" => MovedDirectly { wr_id, opcode, dest_qpn, key, address, bytes, by },
                "engine_woke" => EngineWoke { reason },
                "capture_ended" => CaptureEnded { errno },
            }

            StateCause by "cause" {
                "modify" => Modify,
                "send_failed" => SendFailed { wr_id, status },
                "receive_failed" => ReceiveFailed { wr_id, status },
                "peer_request" => PeerRequest (what),
                "disconnected" => Disconnected,
                "drained" => Drained,
                "local" => Local (what),
            }

            Failure by "name" and "text" {
                "refused" => Refused (refusal),
                "nak" => Nak { code, psn, peer },
                "no_answer" => NoAnswer { psn, tries },
                "peer_gone" => PeerGone { psn },
                "not_ready" => NotReady { psn, tries },
                "too_long" => TooLong { length, space },
                "over_mtu" => OverMtu { length, mtu },
                "atomic_too_short" => AtomicTooShort { length },
                "bad_answer" => BadAnswer { what, psn },
                "not_carried" => NotCarried { transport },
                "unsuitable" => Unsuitable { what },
                "peer_fault" => PeerFault { what, psn },
                "flushed" => Flushed,
                "injected" => Injected { line, vendor },
            }

            PeerReason by "name" {
                "refused" => Refused { key, access, cause },
                "region_forbids" => RegionForbids { key, access, granted },
                "other_domain" => OtherDomain { key, region, pair },
                "pair_forbids" => PairForbids { access, granted },
                "too_long" => TooLong { length, space },
                "too_many_reads" => TooManyReads { max },
                "fault" => Fault (fault),
            }
        }
    };
}

/// Types that consist of fields.
macro_rules! with_structures {
    ($then:ident) => {
        $then! {
            Range { key, address, length }
            Refusal { range, access, cause }
            Deth { qkey, src_qpn }
            Reth { va, rkey, len }
            Feth { placement, selectivity }
            AtomicEth { va, rkey, swap_add, compare }
            Aeth { syndrome, msn }
            AtomicAckEth { original }
        }
    };
}

/// Types that are numbers: how they are made of one, and what number they are.
macro_rules! with_numbers {
    ($then:ident) => {
        $then! {
            u8 => |number: u8| number, u8::from;
            u32 => |number: u32| number, u32::from;
            u64 => |number: u64| number, u64::from;
            Key => Key::new, Key::value;
            Qkey => Qkey::new, Qkey::value;
            Pkey => Pkey::new, Pkey::value;
            Qpn => Qpn::new, Qpn::value;
            Srqn => Srqn::new, Srqn::value;
            Psn => Psn::new, Psn::value;
            Msn => Msn::new, Msn::value;
            NakCode => NakCode::from_code, NakCode::code;
            Placement => Placement::from_bits_retain, |placement: Placement| placement.bits();
            Selectivity => |bits: u8| Selectivity::from_bits(bits & 3), Selectivity::bits;
        }
    };
}

/// Words of closed lists.
macro_rules! with_words {
    ($then:ident) => {
        $then! { Queue, Timer, DropReason, RetryCause, WindowCause, ConnectionEnd, RequestFault }
    };
}

pub(crate) use {with_numbers, with_structures, with_variants, with_words};
