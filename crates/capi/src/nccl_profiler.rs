//! NCCL's profiler plugin: `libnccl-profiler-ubiverbs.so` is another name of this library, in which NCCL looks for
//! `ncclProfiler_v4`. Groups, collectives, proxy operations, their steps and the work requests of NCCL's network
//! plugin become spans of the recording. Without a recording NCCL is told that no event is wanted, and calls no more.
//!
//! What NCCL calls a handle is a number here, never a pointer, as another process may have made it, or nobody.

mod events;

use crate::boundary::value;
use crate::registry::PerProcess;
use crate::spans::recorded_nic;
use events::{EndedEvent, EventStart, Events, Field};
use hca::{Span, monotonic};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::without_provenance_mut;
use std::sync::Once;

/// What NCCL finds by its name.
#[repr(C)]
#[derive(Debug)]
pub struct Profiler {
    name: &'static [u8; 9],
    init: unsafe extern "C" fn(
        *mut *mut c_void,
        *mut c_int,
        *const c_char,
        u64,
        c_int,
        c_int,
        c_int,
        *const c_void,
    ) -> c_int,
    start_event: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const Descriptor) -> c_int,
    stop_event: extern "C" fn(*mut c_void) -> c_int,
    record_event_state: unsafe extern "C" fn(*mut c_void, c_int, *const State) -> c_int,
    finalize: extern "C" fn(*mut c_void) -> c_int,
}

/// The profiler, as NCCL 2.27 and later know it.
#[unsafe(no_mangle)]
pub static ncclProfiler_v4: Profiler =
    Profiler { name: b"ubiverbs\0", init, start_event, stop_event, record_event_state, finalize };

/// Kinds of events.
const GROUP_EVENT: u8 = 1 << 0;
const COLLECTIVE_EVENT: u8 = 1 << 1;
const POINT_TO_POINT_EVENT: u8 = 1 << 2;
const PROXY_OPERATION_EVENT: u8 = 1 << 3;
const PROXY_STEP_EVENT: u8 = 1 << 4;
const NETWORK_EVENT: u8 = 1 << 7;

/// What NCCL is asked for. Without events of kernels, for which its kernels would have to keep time.
const WANTED_EVENTS: u8 =
    GROUP_EVENT | COLLECTIVE_EVENT | POINT_TO_POINT_EVENT | PROXY_OPERATION_EVENT | PROXY_STEP_EVENT | NETWORK_EVENT;

/// Events of NCCL's network plugin for verbs, version 1, and of these the one that tells of a work request.
const VERBS_PLUGIN: i64 = 1 << 16 | 1;
const WORK_REQUEST_EVENT: u8 = 1 << 0;

/// States of proxy steps, as fields of their spans.
const STEP_STATES: [(c_int, &str); 6] = [
    (8, "waits_for_gpu_ns"),
    (20, "waits_for_peer_ns"),
    (9, "waits_for_send_ns"),
    (10, "waits_for_data_ns"),
    (11, "waits_for_flush_ns"),
    (12, "waits_for_gpu_ns"),
];

/// NCCL's names are short; of others only the beginning counts.
const MAX_NAME_BYTES: usize = 64;

/// What all functions of the profiler return: it never fails.
const SUCCESS: c_int = 0;

/// What begins. Which of the details counts says its type.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Descriptor {
    kind: u8,
    parent: *mut c_void,
    rank: c_int,
    detail: Detail,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Detail {
    collective: Collective,
    point_to_point: PointToPoint,
    proxy_operation: ProxyOperation,
    proxy_step: c_int,
    network: Network,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Collective {
    sequence: u64,
    function: *const c_char,
    send_buffer: *const c_void,
    receive_buffer: *mut c_void,
    count: usize,
    root: c_int,
    datatype: *const c_char,
    channels: u8,
    warps: u8,
    algorithm: *const c_char,
    protocol: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PointToPoint {
    function: *const c_char,
    buffer: *mut c_void,
    datatype: *const c_char,
    count: usize,
    peer: c_int,
    channels: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ProxyOperation {
    process: libc::pid_t,
    channel: u8,
    peer: c_int,
    steps: c_int,
    chunk_bytes: c_int,
    is_send: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Network {
    plugin: i64,
    data: *const WorkRequest,
}

/// What NCCL's network plugin for verbs says of a work request.
#[repr(C)]
#[derive(Clone, Copy)]
struct WorkRequest {
    kind: u8,
    device: c_int,
    wr_id: u64,
    opcode: c_int,
    qpn: c_int,
    length: usize,
}

/// What comes with a state.
#[repr(C)]
#[derive(Clone, Copy)]
pub union State {
    /// How many bytes a step has moved.
    step_bytes: usize,
}

static EVENTS: PerProcess<Events> = PerProcess::new();

/// A communicator begins.
///
/// # Safety
/// Each pointer is null, or what NCCL passes: room for the context and for the kinds of events, and a C string.
unsafe extern "C" fn init(
    context: *mut *mut c_void,
    wanted: *mut c_int,
    name: *const c_char,
    hash: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    _log: *const c_void,
) -> c_int {
    value("ncclProfiler_v4", SUCCESS, || {
        let is_recorded = recorded_nic().is_some();
        let mut communicator = 0;
        if is_recorded {
            end_with_process();
            // SAFETY: null or a C string.
            let name = unsafe { text(name) };
            let name = if name.is_empty() { format!("{hash:x}") } else { name };
            let mut about: Vec<Field> = vec![("communicator", name)];
            about.extend([("rank", rank), ("ranks", ranks), ("nodes", nodes)].map(|(name, n)| (name, n.to_string())));
            communicator = EVENTS.lock().join(about);
        }
        // SAFETY: null, or room for one.
        if let Some(context) = unsafe { context.as_mut() } {
            *context = without_provenance_mut(communicator);
        }
        // SAFETY: as above.
        if let Some(wanted) = unsafe { wanted.as_mut() } {
            *wanted = if is_recorded { WANTED_EVENTS.into() } else { 0 };
        }
        SUCCESS
    })
}

/// An event begins.
///
/// # Safety
/// Each pointer is null, or what NCCL passes: room for the handle, and a descriptor with the details of its type.
unsafe extern "C" fn start_event(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const Descriptor,
) -> c_int {
    let now = monotonic();
    value("ncclProfiler_v4", SUCCESS, || {
        // SAFETY: null, or a descriptor.
        let start = unsafe { described(descriptor) };
        let number = start.map_or(0, |start| EVENTS.lock().start(context.addr(), start, now));
        // SAFETY: null, or room for one.
        if let Some(handle) = unsafe { handle.as_mut() } {
            *handle = without_provenance_mut(number);
        }
        SUCCESS
    })
}

/// An event has ended, or no more is known of it.
extern "C" fn stop_event(handle: *mut c_void) -> c_int {
    let now = monotonic();
    value("ncclProfiler_v4", SUCCESS, || {
        let ended = EVENTS.lock().stop(handle.addr(), now);
        record(&ended);
        SUCCESS
    })
}

/// An event has come to a state.
///
/// # Safety
/// `state` is null, or what NCCL passes with this state.
unsafe extern "C" fn record_event_state(handle: *mut c_void, reached: c_int, state: *const State) -> c_int {
    let now = monotonic();
    value("ncclProfiler_v4", SUCCESS, || {
        let Some((_, name)) = STEP_STATES.iter().find(|(number, _)| *number == reached) else { return SUCCESS };
        let mut events = EVENTS.lock();
        events.reached(handle.addr(), name, now);
        // SAFETY: null, or what comes with the state of a step.
        if let Some(bytes) = unsafe { state.as_ref().map(|state| state.step_bytes) }.filter(|bytes| *bytes != 0) {
            events.set(handle.addr(), "bytes", bytes.to_string());
        }
        SUCCESS
    })
}

/// A communicator ends.
extern "C" fn finalize(context: *mut c_void) -> c_int {
    let now = monotonic();
    value("ncclProfiler_v4", SUCCESS, || {
        let ended = EVENTS.lock().leave(context.addr(), now);
        record(&ended);
        SUCCESS
    })
}

/// Communicators that are never finalized end with the process.
fn end_with_process() {
    static REGISTERED: Once = Once::new();
    extern "C" fn end() {
        value("ncclProfiler_v4", (), || {
            let ended = EVENTS.lock().leave_all(monotonic());
            record(&ended);
        });
    }
    // SAFETY: the function stays as long as the process, as this library is never unloaded.
    REGISTERED.call_once(|| unsafe {
        libc::atexit(end);
    });
}

/// Puts events into the recording.
fn record(ended: &[EndedEvent]) {
    if ended.is_empty() {
        return;
    }
    let Some(nic) = recorded_nic() else { return };
    for EndedEvent { begin, end, thread, name, fields } in ended {
        let mut texts = vec!["NCCL", name];
        texts.extend(fields.iter().flat_map(|(name, value)| [*name, value.as_str()]));
        nic.record_span(&Span { begin: *begin, end: *end, thread: *thread, texts: &texts });
    }
}

/// What a descriptor says; none if it is of a kind that nobody asked for.
///
/// # Safety
/// It is null, or a descriptor with the details of its type.
unsafe fn described(descriptor: *const Descriptor) -> Option<EventStart> {
    if descriptor.is_null() {
        return None;
    }
    // SAFETY: as the caller says. Only what counts is read: the details of a short type may end sooner.
    let (kind, parent, detail) =
        unsafe { ((*descriptor).kind, (*descriptor).parent.addr(), &raw const (*descriptor).detail) };
    let field = |name: &'static str, value: &dyn ToString| (name, value.to_string());
    let (mut lingers, mut known_parent) = (false, parent);
    let (name, mut fields) = match kind {
        GROUP_EVENT => {
            lingers = true;
            ("group".to_owned(), Vec::new())
        }
        COLLECTIVE_EVENT => {
            lingers = true;
            // SAFETY: its type says so, and its names are null or C strings.
            unsafe {
                let it = (*detail).collective;
                let mut fields = vec![field("sequence", &it.sequence), field("count", &it.count)];
                fields.extend([("type", text(it.datatype)), ("algorithm", text(it.algorithm))]);
                fields.extend([("protocol", text(it.protocol)), field("root", &it.root)]);
                fields.push(field("channels", &it.channels));
                (named(text(it.function), "collective"), fields)
            }
        }
        POINT_TO_POINT_EVENT => {
            lingers = true;
            // SAFETY: as above.
            unsafe {
                let it = (*detail).point_to_point;
                let fields = vec![("type", text(it.datatype)), field("count", &it.count), field("peer", &it.peer)];
                (named(text(it.function), "point to point"), fields)
            }
        }
        PROXY_OPERATION_EVENT => {
            // SAFETY: its type says so.
            let it = unsafe { (*detail).proxy_operation };
            // Another process's number says nothing here.
            if it.process.cast_unsigned() != std::process::id() {
                known_parent = 0;
            }
            let direction = if it.is_send == 0 { "receive from" } else { "send to" };
            let fields = vec![field("channel", &it.channel), field("peer", &it.peer), field("steps", &it.steps)];
            (format!("channel {}: {direction} rank {}", it.channel, it.peer), fields)
        }
        // SAFETY: its type says so.
        PROXY_STEP_EVENT => (format!("step {}", unsafe { (*detail).proxy_step }), Vec::new()),
        NETWORK_EVENT => {
            // SAFETY: its type says so.
            let it = unsafe { (*detail).network };
            let data = if it.plugin == VERBS_PLUGIN { it.data } else { std::ptr::null() };
            // SAFETY: null, or what NCCL's plugin for verbs passes.
            match unsafe { data.as_ref() } {
                Some(work) if work.kind == WORK_REQUEST_EVENT => {
                    let fields =
                        vec![field("qpn", &work.qpn), field("wr_id", &work.wr_id), field("bytes", &work.length)];
                    (format!("work request on queue pair {}", work.qpn), fields)
                }
                _ => ("network event".to_owned(), vec![field("plugin", &it.plugin)]),
            }
        }
        _ => return None,
    };
    fields.retain(|(_, value)| !value.is_empty());
    Some(EventStart { parent: known_parent, name, fields, lingers, thread: hca::thread_number() })
}

fn named(name: String, otherwise: &str) -> String {
    if name.is_empty() { otherwise.to_owned() } else { name }
}

/// The beginning of a C string; empty if there is none.
///
/// # Safety
/// It is null or a C string.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the bytes up to its zero, or as many.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast(), libc::strnlen(text, MAX_NAME_BYTES)) };
    String::from_utf8_lossy(bytes).into_owned()
}
