//! How connections end, through shared memory.
#![allow(missing_docs)]

mod endings;

/// Whether everything goes over UDP.
pub const OVER_UDP: bool = false;

macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {

                endings::$name();
            }
        )*
    };
}

tests![
    a_peer_that_disconnects_says_so_with_its_words,
    a_peer_that_drops_its_connection_has_disconnected,
    a_peer_whose_process_ends_in_any_way_has_died,
    a_peer_that_dies_in_the_middle_of_work_has_died,
    what_this_program_ends_it_has_ended,
    work_that_fails_is_the_reason,
    a_peer_that_asks_for_too_much_is_the_reason,
    a_message_that_does_not_fit_is_the_reason_on_both_sides,
    queue_pairs_without_a_connection_have_a_reason_too,
    the_log_says_who_ended_it,
];

/// No test: the peer of others, in a process of its own.
#[test]
fn a_peer() {
    endings::peer();
}
