//! Processes, threads and lives of objects: UV-06xx.

mod data_path;
mod endings;
mod events;
mod forks;
mod leaks;
mod order;
mod threads;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::checker::Examine;
use crate::rule::rules;

rules! {
    FORKED = 601 Warning "the program forks without ibv_fork_init while memory is registered";
    USED_IN_CHILD = 602 Error "a forked child uses an object of its parent";
    POLLED_BY_THREADS = 603 Performance "several threads poll one completion queue";
    REGISTERED_PER_MESSAGE = 604 Performance "memory is registered and deregistered between work requests";
    REGISTERED_AGAIN = 605 Performance "the same buffer is registered again and again";
    PAIR_PER_MESSAGE = 606 Performance "queue pairs are made and destroyed for a few work requests each";
    HANDLE_PER_MESSAGE = 607 Performance "an address handle is made for every message";
    MANY_SMALL_REGIONS = 608 Performance "very many small buffers are registered one by one";
    REGISTERED_IN_MANY_DOMAINS = 609 Performance "the same buffer is registered in several protection domains";
    OPENED_MANY_TIMES = 610 Performance "a device is open many times at once";
    LEAKED_CONTEXTS = 611 Note "devices are open at the end";
    LEAKED_DOMAINS = 612 Note "protection domains are left at the end";
    LEAKED_REGIONS = 613 Note "memory is registered at the end";
    LEAKED_WINDOWS = 614 Note "memory windows are left at the end";
    LEAKED_CHANNELS = 615 Note "completion channels are left at the end";
    LEAKED_CQS = 616 Note "completion queues are left at the end";
    LEAKED_SRQS = 617 Note "shared receive queues are left at the end";
    LEAKED_PAIRS = 618 Note "queue pairs are left at the end";
    LEAKED_HANDLES = 619 Note "address handles are left at the end";
    LEAKED_EVENT_CHANNELS = 621 Note "event channels of the connection manager are left at the end";
    DESTROY_REFUSED = 622 Warning "an object in use was to be destroyed, and stays";
    CLOSED_TOO_EARLY = 623 Warning "a device is closed before its objects are destroyed";
    ASYNC_UNREAD = 624 Warning "asynchronous events tell of failures and are never read";
    ASYNC_NOT_ACKNOWLEDGED = 625 Error "an object is destroyed before its asynchronous events are acknowledged";
    ENDED_UNDER_WAY = 626 Warning "the program ends while its sends are under way";
    DESTROYED_UNDER_WAY = 627 Warning "a queue pair is destroyed while its sends are under way";
    ENDED_CONNECTED = 628 Note "the program ends without disconnecting";
    CHANNEL_DESTROYED = 629 Error "a completion channel is destroyed while a thread waits at it";
}

/// The parts of the family: each has the rules of one subject.
pub(crate) fn parts() -> Vec<Box<dyn Examine>> {
    Vec::from([
        Box::<forks::Forks>::default() as Box<dyn Examine>,
        Box::<threads::Threads>::default(),
        Box::<data_path::DataPath>::default(),
        Box::<order::Order>::default(),
        Box::<events::Events>::default(),
        Box::<endings::Endings>::default(),
        Box::<leaks::Leaks>::default(),
    ])
}
