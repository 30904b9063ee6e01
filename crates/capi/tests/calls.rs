//! What the trace is told of a C program: its calls, in their order, with their values.
#![allow(unsafe_code, reason = "the test is a C program")]

use abi::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_gid, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc, rdma_cm_event, rdma_cm_id, rdma_event_channel,
};
use std::ffi::{c_int, c_uint, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use trace::{Call, Event, Kind, Sink, Value};

use capi as _;

unsafe extern "C" {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_get_device_name(device: *mut ibv_device) -> *const std::ffi::c_char;
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_reg_mr(pd: *mut ibv_pd, address: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    fn ibv_create_cq(
        context: *mut ibv_context,
        entries: c_int,
        user: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, user: *mut *mut c_void) -> c_int;
    fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint);
    fn ibv_create_qp(pd: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(qp: *mut ibv_qp, attributes: *const ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_query_qp(qp: *mut ibv_qp, out: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    fn ibv_ack_async_event(event: *const ibv_async_event);
    fn ibv_fork_init() -> c_int;
    #[link_name = "ubiverbs_rdma_create_event_channel"]
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    #[link_name = "ubiverbs_rdma_destroy_event_channel"]
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    #[link_name = "ubiverbs_rdma_create_id"]
    fn rdma_create_id(ch: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, user: *mut c_void, space: c_uint)
    -> c_int;
    #[link_name = "ubiverbs_rdma_destroy_id"]
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    #[link_name = "ubiverbs_rdma_resolve_addr"]
    fn rdma_resolve_addr(id: *mut rdma_cm_id, src: *mut libc::sockaddr, dst: *mut libc::sockaddr, ms: c_int) -> c_int;
    #[link_name = "ubiverbs_rdma_resolve_route"]
    fn rdma_resolve_route(id: *mut rdma_cm_id, ms: c_int) -> c_int;
    #[link_name = "ubiverbs_rdma_get_cm_event"]
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
    #[link_name = "ubiverbs_rdma_ack_cm_event"]
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
}

/// Keeps the events.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Event>>>);

impl Sink for Kept {
    fn record(&mut self, event: &Event) {
        self.0.lock().unwrap().push(*event);
    }
}

impl Kept {
    /// What was told since it was last asked.
    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// The calls among events.
fn calls(events: &[Event]) -> Vec<Call> {
    let call = |event: &Event| match event.kind {
        Kind::Called { call, .. } => Some(call),
        _ => None,
    };
    events.iter().filter_map(call).collect()
}

/// Their names, and those of what the NIC did with work; without what is told beside a call.
fn names(events: &[Event]) -> Vec<&'static str> {
    let name = |event: &Event| match event.kind {
        Kind::Called { call: Call::Path { .. } | Call::PeerSeen { .. }, .. } => None,
        Kind::Called { call, .. } => Some(call.name()),
        Kind::WorkPosted { .. } | Kind::PostRefused { .. } | Kind::Completed { .. } => Some(event.kind.name()),
        _ => None,
    };
    events.iter().filter_map(name).collect()
}

fn field(call: &Call, wanted: &str) -> String {
    let mut found = String::new();
    call.each_field(|name, value| {
        if name == wanted {
            found = match value {
                Value::Number(number) => number.to_string(),
                value => value.to_string(),
            };
        }
    });
    found
}

/// The trace is the process's: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn listen() -> Kept {
    let kept = Kept::default();
    hca::Nic::of_process().unwrap().tracing().to(Some(Box::new(kept.clone())));
    kept
}

unsafe fn open_loopback() -> *mut ibv_context {
    // SAFETY: as the manual pages want it.
    unsafe {
        let mut count = 0;
        let list = ibv_get_device_list(&raw mut count);
        let devices = std::slice::from_raw_parts(list, count as usize);
        let name = |device: *mut ibv_device| std::ffi::CStr::from_ptr(ibv_get_device_name(device)).to_bytes();
        let device = devices.iter().copied().find(|device| name(*device) == b"ubi_lo").expect("a device for lo");
        let context = ibv_open_device(device);
        ibv_free_device_list(list);
        assert!(!context.is_null());
        context
    }
}

/// Connects a queue pair with itself.
unsafe fn connect(context: *mut ibv_context, qp: *mut ibv_qp) {
    // SAFETY: as the manual pages want it.
    unsafe {
        let mut attributes: ibv_qp_attr = zeroed();
        attributes.qp_state = transport::State::Init as u32;
        attributes.port_num = 1;
        attributes.qp_access_flags = abi::IBV_ACCESS_REMOTE_WRITE;
        let mask = abi::IBV_QP_STATE | abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_PORT | abi::IBV_QP_ACCESS_FLAGS;
        assert_eq!(ibv_modify_qp(qp, &raw const attributes, mask as c_int), 0);
        attributes.qp_state = transport::State::ReadyToReceive as u32;
        attributes.path_mtu = u32::from(wire::Mtu::B1024.code());
        attributes.dest_qp_num = (*qp).qp_num;
        attributes.rq_psn = 7;
        attributes.max_dest_rd_atomic = 4;
        attributes.min_rnr_timer = 12;
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.port_num = 1;
        assert_eq!(ibv_query_gid(context, 1, 0, &raw mut attributes.ah_attr.grh.dgid), 0);
        let mask = abi::IBV_QP_STATE
            | abi::IBV_QP_AV
            | abi::IBV_QP_PATH_MTU
            | abi::IBV_QP_DEST_QPN
            | abi::IBV_QP_RQ_PSN
            | abi::IBV_QP_MAX_DEST_RD_ATOMIC
            | abi::IBV_QP_MIN_RNR_TIMER;
        assert_eq!(ibv_modify_qp(qp, &raw const attributes, mask as c_int), 0);
        attributes.qp_state = transport::State::ReadyToSend as u32;
        attributes.sq_psn = 7;
        attributes.timeout = 14;
        attributes.retry_cnt = 7;
        attributes.rnr_retry = 7;
        attributes.max_rd_atomic = 4;
        let mask = abi::IBV_QP_STATE
            | abi::IBV_QP_SQ_PSN
            | abi::IBV_QP_TIMEOUT
            | abi::IBV_QP_RETRY_CNT
            | abi::IBV_QP_RNR_RETRY
            | abi::IBV_QP_MAX_QP_RD_ATOMIC;
        assert_eq!(ibv_modify_qp(qp, &raw const attributes, mask as c_int), 0);
    }
}

#[test]
fn a_small_program_is_told_call_by_call() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let kept = listen();
    // SAFETY: a C program that keeps the rules of the manual pages.
    unsafe {
        let context = open_loopback();
        let pd = ibv_alloc_pd(context);
        let mut buffer = vec![0u8; 4096];
        let access = abi::IBV_ACCESS_LOCAL_WRITE | abi::IBV_ACCESS_REMOTE_WRITE;
        let mr = ibv_reg_mr(pd, buffer.as_mut_ptr().cast(), buffer.len(), access as c_int);
        let channel = ibv_create_comp_channel(context);
        let cq = ibv_create_cq(context, 10, null_mut(), channel, 0);
        assert!(ibv_create_cq(context, -1, null_mut(), null_mut(), 0).is_null());
        let mut init: ibv_qp_init_attr = zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, abi::IBV_QPT_RC);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
        let qp = ibv_create_qp(pd, &raw mut init);
        connect(context, qp);
        let mut attributes: ibv_qp_attr = zeroed();
        assert_eq!(ibv_query_qp(qp, &raw mut attributes, abi::IBV_QP_STATE as c_int, &raw mut init), 0);
        let said = kept.take();
        assert_eq!(
            names(&said),
            [
                "open_device",
                "alloc_pd",
                "register_memory",
                "create_channel",
                "create_cq",
                "refused",
                "create_qp",
                "modify_qp",
                "modify_qp",
                "modify_qp",
                "query_qp"
            ]
        );
        let told = calls(&said);
        let of = |name: &str| told.iter().find(|call| call.name() == name).unwrap();
        assert_eq!(field(of("open_device"), "device"), "ubi_lo");
        assert_eq!(field(of("register_memory"), "key"), (*mr).rkey.to_string());
        assert_eq!(field(of("register_memory"), "address"), (buffer.as_ptr().addr() as u64).to_string());
        assert_eq!(field(of("register_memory"), "length"), "4096");
        assert_eq!((field(of("create_cq"), "wanted"), field(of("create_cq"), "capacity")), ("10".into(), "16".into()));
        assert_eq!(field(of("create_cq"), "channel"), field(of("create_channel"), "channel"));
        let Call::Refused { function, errno, .. } = *of("refused") else { unreachable!() };
        assert_eq!((function, errno), ("ibv_create_cq", libc::EINVAL));
        assert_eq!((field(of("create_qp"), "kind"), field(of("create_qp"), "max_send_wr")), ("RC".into(), "4".into()));
        assert_eq!(field(of("create_qp"), "send_cq"), field(of("create_cq"), "cq"));
        assert_eq!(field(of("query_qp"), "state"), "RTS");
        let thread = said.iter().find_map(|event| match event.kind {
            Kind::Called { thread, .. } => Some(thread),
            _ => None,
        });
        assert_eq!(thread, Some(libc::syscall(libc::SYS_gettid) as u32));

        let (post_send, post_recv) = ((*context).ops.post_send.unwrap(), (*context).ops.post_recv.unwrap());
        let (poll_cq, req_notify) = ((*context).ops.poll_cq.unwrap(), (*context).ops.req_notify_cq.unwrap());
        let mut sge = ibv_sge { addr: buffer.as_ptr().addr() as u64, length: 64, lkey: (*mr).lkey };
        let mut receive: ibv_recv_wr = zeroed();
        (receive.wr_id, receive.sg_list, receive.num_sge) = (1, &raw mut sge, 1);
        let mut bad: *mut ibv_recv_wr = null_mut();
        assert_eq!(post_recv(abi::Handle::new(qp), (&receive).into(), (&mut bad).into()), 0);
        let notify = req_notify(abi::Handle::new(cq), 0);
        assert_eq!(notify, 0);
        // A SEND, and a WRITE with a key that does not exist, in one list.
        let mut write: ibv_send_wr = zeroed();
        (write.wr_id, write.opcode, write.send_flags) = (3, abi::IBV_WR_RDMA_WRITE, abi::IBV_SEND_SIGNALED);
        (write.sg_list, write.num_sge) = (&raw mut sge, 1);
        write.wr.rdma.remote_addr = sge.addr;
        write.wr.rdma.rkey = (*mr).rkey ^ 0xff00;
        let mut send: ibv_send_wr = zeroed();
        (send.wr_id, send.opcode, send.send_flags) = (2, abi::IBV_WR_SEND, abi::IBV_SEND_SIGNALED);
        (send.sg_list, send.num_sge, send.next) = (&raw mut sge, 1, &raw mut write);
        let mut bad: *mut ibv_send_wr = null_mut();
        assert_eq!(post_send(abi::Handle::new(qp), (&send).into(), (&mut bad).into()), 0);
        let (mut woken, mut user) = (null_mut(), null_mut());
        assert_eq!(ibv_get_cq_event(channel, &raw mut woken, &raw mut user), 0);
        ibv_ack_cq_events(cq, 1);
        let mut completions: Vec<ibv_wc> = Vec::new();
        while completions.len() < 3 {
            let mut wc: ibv_wc = zeroed();
            if poll_cq(abi::Handle::new(cq), 1, &raw mut wc) == 1 {
                completions.push(wc);
            }
        }
        let mut wc: ibv_wc = zeroed();
        (0..3).for_each(|_| assert_eq!(poll_cq(abi::Handle::new(cq), 1, &raw mut wc), 0));
        let said = kept.take();
        let told = names(&said);
        let at = |name: &str| told.iter().position(|other| *other == name).unwrap();
        assert_eq!(told[..3], ["post_receive", "work_posted", "arm_cq"]);
        assert_eq!(told[3..7], ["post_send", "work_posted", "post_send", "work_posted"]);
        assert!(at("get_cq_event") < at("ack_cq_events") && at("ack_cq_events") < at("polled"), "{told:?}");
        assert!(at("completed") < at("polled"), "{told:?}");
        let told = calls(&said);
        let sends: Vec<_> = told.iter().filter(|call| call.name() == "post_send").collect();
        assert_eq!([field(sends[0], "index"), field(sends[1], "index")], ["0", "1"]);
        assert_eq!(field(sends[1], "opcode"), "RDMA_WRITE");
        let Call::PostSend { pieces, remote_key, .. } = sends[1] else { unreachable!() };
        assert_eq!((pieces.bytes, pieces.kept()[0].address), (64, sge.addr));
        assert_eq!(remote_key.map(wire::Key::value), Some((*mr).rkey ^ 0xff00));
        // Each completion that the program got, and of the polls in a row that found nothing only the first.
        let polled: Vec<_> =
            told.iter().filter(|call| call.name() == "polled").map(|call| field(call, "wr_id")).collect();
        let got: Vec<_> = completions.iter().map(|wc| wc.wr_id.to_string()).collect();
        assert_eq!(polled, got);
        let polls: Vec<_> = told.iter().filter(|call| call.name() == "poll").map(|call| field(call, "got")).collect();
        assert!(polls.windows(2).all(|two| two != ["0", "0"]) && polls.last().unwrap() == "0", "{polls:?}");
        // The failed one names its rule, which is that of the event.
        let failed = completions.iter().find(|wc| wc.wr_id == 3).unwrap();
        let rule = said.iter().find_map(|event| match event.kind {
            Kind::Completed { wr_id: 3, status, failure, .. } => checks::rule_of_completion(failure.as_ref(), status),
            _ => None,
        });
        assert_eq!(Some(failed.vendor_err), rule.map(|rule| rule.0.into()));
        assert!(failed.vendor_err > 100 && completions.iter().all(|wc| (wc.vendor_err == 0) == (wc.status == 0)));
        // In JSON they are lines with the name of the call and its fields.
        let mut lines = trace::JsonLines::new(Vec::new());
        said.iter().for_each(|event| lines.record(event));
        let text = String::from_utf8(lines.finish().unwrap()).unwrap();
        for part in [r#""call":"post_send""#, r#""opcode":"RDMA_WRITE""#, r#""call":"polled""#, r#""call":"poll""#] {
            assert!(text.contains(part), "{part} in {text}");
        }

        // The queue pair is in error: it takes receives, which are flushed.
        let mut event: ibv_async_event = zeroed();
        assert_eq!(ibv_get_async_event(context, &raw mut event), 0);
        ibv_ack_async_event(&raw const event);
        assert_eq!(ibv_fork_init(), 0);
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
        assert_eq!(ibv_close_device(context), 0);
        let said = kept.take();
        assert_eq!(
            names(&said),
            [
                "get_async_event",
                "ack_async_event",
                "fork_init",
                "refused",
                "destroy_qp",
                "destroy_cq",
                "destroy_channel",
                "deregister_memory",
                "dealloc_pd",
                "close_device"
            ]
        );
        let refused = calls(&said).into_iter().find(|call| call.name() == "refused").unwrap();
        assert!(field(&refused, "function") == "ibv_dealloc_pd" && !field(&refused, "reason").is_empty(), "{refused}");
    }
}

#[test]
fn calls_and_events_of_the_connection_manager_are_told() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let kept = listen();
    // SAFETY: a C program that keeps the rules of the manual pages.
    unsafe {
        let channel = rdma_create_event_channel();
        let mut id = null_mut();
        assert_eq!(rdma_create_id(channel, &raw mut id, null_mut(), abi::RDMA_PS_TCP), 0);
        let mut to: libc::sockaddr_in = zeroed();
        to.sin_family = libc::AF_INET as u16;
        to.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        to.sin_port = 4711u16.to_be();
        assert_eq!(rdma_resolve_addr(id, null_mut(), (&raw mut to).cast(), 1000), 0);
        let mut event = null_mut();
        assert_eq!(rdma_get_cm_event(channel, &raw mut event), 0);
        assert_eq!(rdma_ack_cm_event(event), 0);
        assert_eq!(rdma_resolve_route(id, 1000), 0);
        assert_eq!(rdma_resolve_route(id, 1000), -1, "it is resolved already");
        assert_eq!(rdma_get_cm_event(channel, &raw mut event), 0);
        assert_eq!(rdma_ack_cm_event(event), 0);
        assert_eq!(rdma_destroy_id(id), 0);
        rdma_destroy_event_channel(channel);
    }
    let told = calls(&kept.take());
    let shown: Vec<String> = told
        .iter()
        .map(|call| match call {
            Call::CmCall { function, .. } => (*function).to_owned(),
            Call::CmEvent { event, .. } => (*event).to_owned(),
            Call::CmAck { event, .. } => format!("ack {event}"),
            Call::Refused { function, .. } => format!("refused {function}"),
            other => other.name().to_owned(),
        })
        .collect();
    assert_eq!(
        shown,
        [
            "rdma_create_event_channel",
            "rdma_create_id",
            "cm_channel",
            "rdma_resolve_addr",
            "cm_place",
            "RDMA_CM_EVENT_ADDR_RESOLVED",
            "ack RDMA_CM_EVENT_ADDR_RESOLVED",
            "rdma_resolve_route",
            "rdma_resolve_route",
            "refused rdma_resolve_route",
            "RDMA_CM_EVENT_ROUTE_RESOLVED",
            "ack RDMA_CM_EVENT_ROUTE_RESOLVED",
            "rdma_destroy_id",
            "rdma_destroy_event_channel",
        ]
    );
    let ids: Vec<String> = told.iter().filter(|call| call.name() == "cm_event").map(|call| field(call, "id")).collect();
    assert!(ids.len() == 2 && ids[0] == ids[1] && ids[0] == field(&told[1], "id"), "{told:?}");
}
