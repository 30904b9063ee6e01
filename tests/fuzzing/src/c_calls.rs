//! The C interface as sequences of calls: bytes decide which calls of verbs and of the connection manager a program
//! makes, in which order, on which of its objects and with which numbers, masks, lengths and states. Pointers to
//! objects are null or good, as the manual pages demand. Whatever comes, no call crashes, each answers, and when the
//! program has destroyed everything nothing is left.

mod tag_matching;

use crate::choices::Choices;
use crate::descriptors::open_descriptors;
use abi::rdma_event_channel;
use abi::{Handle, In, Out};
use abi::{ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_gid, ibv_mr};
use abi::{ibv_mw, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge};
use abi::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc, rdma_cm_event, rdma_cm_id, rdma_conn_param};
use capi as _;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

// As a C program sees them: the symbols of the library, where those of librdmacm.so.1 are jumps to others.
unsafe extern "C" {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_reg_mr(pd: *mut ibv_pd, address: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        at: *mut c_void,
        len: usize,
        access: c_int,
    ) -> c_int;
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
    fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int;
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, user: *mut *mut c_void) -> c_int;
    fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint);
    fn ibv_create_srq(pd: *mut ibv_pd, attributes: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_modify_srq(srq: *mut ibv_srq, attributes: *const ibv_srq_attr, mask: c_int) -> c_int;
    fn ibv_query_srq(srq: *mut ibv_srq, attributes: *mut ibv_srq_attr) -> c_int;
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    fn ibv_create_qp(pd: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(qp: *mut ibv_qp, attributes: *const ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_query_qp(qp: *mut ibv_qp, out: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn ibv_create_ah(pd: *mut ibv_pd, attributes: *const ibv_ah_attr) -> *mut ibv_ah;
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    fn ibv_ack_async_event(event: *const ibv_async_event);
    #[link_name = "ubiverbs_rdma_create_event_channel"]
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    #[link_name = "ubiverbs_rdma_destroy_event_channel"]
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    #[link_name = "ubiverbs_rdma_create_id"]
    fn rdma_create_id(ch: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, user: *mut c_void, space: c_uint)
    -> c_int;
    #[link_name = "ubiverbs_rdma_destroy_id"]
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    #[link_name = "ubiverbs_rdma_bind_addr"]
    fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut libc::sockaddr) -> c_int;
    #[link_name = "ubiverbs_rdma_listen"]
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    #[link_name = "ubiverbs_rdma_get_src_port"]
    fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16;
    #[link_name = "ubiverbs_rdma_resolve_addr"]
    fn rdma_resolve_addr(id: *mut rdma_cm_id, src: *mut libc::sockaddr, dst: *mut libc::sockaddr, ms: c_int) -> c_int;
    #[link_name = "ubiverbs_rdma_resolve_route"]
    fn rdma_resolve_route(id: *mut rdma_cm_id, ms: c_int) -> c_int;
    #[link_name = "ubiverbs_rdma_connect"]
    fn rdma_connect(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int;
    #[link_name = "ubiverbs_rdma_accept"]
    fn rdma_accept(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int;
    #[link_name = "ubiverbs_rdma_reject"]
    fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int;
    #[link_name = "ubiverbs_rdma_disconnect"]
    fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    #[link_name = "ubiverbs_rdma_get_cm_event"]
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
    #[link_name = "ubiverbs_rdma_ack_cm_event"]
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    #[link_name = "ubiverbs_rdma_create_qp"]
    fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> c_int;
    #[link_name = "ubiverbs_rdma_destroy_qp"]
    fn rdma_destroy_qp(id: *mut rdma_cm_id);
}

/// The program's memory. Whatever is posted reads and writes here or nowhere.
const MEMORY_BYTES: usize = 16 * 1024;

/// Of each kind of object a program has at most so many.
const MAX_OBJECTS_OF_A_KIND: usize = 6;

/// A program with one context and its objects.
struct Program {
    context: *mut ibv_context,
    memory: Vec<u8>,
    pds: Vec<*mut ibv_pd>,
    mrs: Vec<*mut ibv_mr>,
    channels: Vec<*mut ibv_comp_channel>,
    cqs: Vec<*mut ibv_cq>,
    srqs: Vec<*mut ibv_srq>,
    qps: Vec<*mut ibv_qp>,
    ahs: Vec<*mut ibv_ah>,
    mws: Vec<*mut ibv_mw>,
    events: *mut rdma_event_channel,
    ids: Vec<*mut rdma_cm_id>,
    gid: ibv_gid,
    wr_id: u64,
}

/// One of them; null now and then, and if there is none.
fn any<T>(choices: &mut Choices<'_>, objects: &[*mut T]) -> *mut T {
    let pick = usize::from(choices.byte());
    if pick >= 250 || objects.is_empty() { null_mut() } else { objects[pick % objects.len()] }
}

/// Takes what a call made, if it made something.
fn keep<T>(objects: &mut Vec<*mut T>, made: *mut T) {
    if !made.is_null() {
        objects.push(made);
    }
}

/// Lets the program destroy one of its objects, which the library may refuse while others need it.
fn destroy<T>(choices: &mut Choices<'_>, objects: &mut Vec<*mut T>, with: unsafe extern "C" fn(*mut T) -> c_int) {
    let object = any(choices, objects);
    // SAFETY: null, or an object of the program's, which it forgets if it is gone.
    if unsafe { with(object) } == 0 {
        objects.retain(|other| *other != object);
    }
}

/// Destroys all of a kind: nothing may be in the way.
fn destroy_all<T>(objects: &mut Vec<*mut T>, what: &str, with: unsafe extern "C" fn(*mut T) -> c_int) {
    for object in objects.drain(..) {
        // SAFETY: an object of the program's, which it forgets.
        let answer = unsafe { with(object) };
        assert_eq!(answer, 0, "{what} cannot be destroyed though nothing needs it");
    }
}

unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    if mw.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: a window of the program's, whose context is open; its table of calls is complete.
    unsafe { (*(*mw).context).ops.dealloc_mw.map_or(libc::ENOSYS, |call| call(abi::Owned::new(mw))) }
}

fn nonblocking(fd: c_int) {
    // SAFETY: numbers.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK) };
}

/// How many descriptors the first program left; later ones may leave a few more, because the NIC grows, but not one
/// each.
static AT_FIRST: AtomicUsize = AtomicUsize::new(0);
/// Beyond that the NIC's descriptors do not grow.
const GROWTH: usize = 40;
/// One program at a time: they count descriptors.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Lets bytes decide what a C program calls.
///
/// # Panics
/// If something is left when the program has destroyed everything.
pub fn c_calls(bytes: &[u8]) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut choices = Choices { bytes };
    let mut program = Program::start();
    while !choices.bytes.is_empty() {
        program.call(&mut choices);
    }
    program.end();
    let left = open_descriptors();
    let first = AT_FIRST.compare_exchange(0, left, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|n| n, |_| left);
    assert!(left <= first + GROWTH, "{left} descriptors are open, and at first there were {first}");
}

impl Program {
    fn start() -> Program {
        // SAFETY: as the manual pages have it; the first device is there as long as its list is.
        unsafe {
            let list = ibv_get_device_list(null_mut());
            assert!(!list.is_null() && !(*list).is_null(), "a device");
            let context = ibv_open_device(*list);
            ibv_free_device_list(list);
            assert!(!context.is_null(), "a context");
            nonblocking((*context).async_fd);
            let events = rdma_create_event_channel();
            assert!(!events.is_null(), "a channel");
            nonblocking((*events).fd);
            let mut gid: ibv_gid = std::mem::zeroed();
            for index in 0..4 {
                if ibv_query_gid(context, 1, index, &raw mut gid) == 0 && gid.raw[15] != 0 {
                    break;
                }
            }
            Program {
                context,
                memory: vec![0; MEMORY_BYTES],
                pds: vec![ibv_alloc_pd(context)],
                mrs: Vec::new(),
                channels: Vec::new(),
                cqs: vec![ibv_create_cq(context, 16, null_mut(), null_mut(), 0)],
                srqs: Vec::new(),
                qps: Vec::new(),
                ahs: Vec::new(),
                mws: Vec::new(),
                events,
                ids: Vec::new(),
                gid,
                wr_id: 0,
            }
        }
    }

    fn call(&mut self, choices: &mut Choices<'_>) {
        let base = self.memory.as_mut_ptr().cast::<c_void>();
        let context = if choices.one_in(64) { null_mut() } else { self.context };
        // SAFETY: pointers to objects are null or those of objects that the program has; all others lead to values that
        // live until the call returns, or to the program's memory, which lives until everything is destroyed.
        unsafe {
            match choices.byte() % 32 {
                0 if self.pds.len() < MAX_OBJECTS_OF_A_KIND => keep(&mut self.pds, ibv_alloc_pd(context)),
                1 if self.mrs.len() < MAX_OBJECTS_OF_A_KIND => {
                    let pd = any(choices, &self.pds);
                    let length = choices.of(&[MEMORY_BYTES, 4096, 1, 0, usize::MAX, 1 << 47]);
                    let address = choices.of(&[base, base, base, null_mut()]);
                    let access = choices.of(&[15, 31, 1, 0, 2, 8, 1 << 20, -1, 0x3f]);
                    keep(&mut self.mrs, ibv_reg_mr(pd, address, length, access));
                }
                2 => {
                    let (mr, pd) = (any(choices, &self.mrs), any(choices, &self.pds));
                    let flags = choices.byte().into();
                    let length = choices.of(&[MEMORY_BYTES, 100, 0, usize::MAX]);
                    // A registration that fails on the way is gone, as the manual page says of some answers: then so is
                    // the pointer.
                    if ibv_rereg_mr(mr, flags, pd, base, length, choices.of(&[15, 0, 2])) > 0 {
                        self.mrs.retain(|other| *other != mr || ibv_dereg_mr(mr) != 0);
                    }
                }
                3 if self.channels.len() < MAX_OBJECTS_OF_A_KIND => {
                    let channel = ibv_create_comp_channel(context);
                    if let Some(channel) = channel.as_ref() {
                        nonblocking(channel.fd);
                    }
                    keep(&mut self.channels, channel);
                }
                4 if self.cqs.len() < MAX_OBJECTS_OF_A_KIND => {
                    let entries = choices.of(&[1, 2, 16, 0, -1, i32::MAX, 100_000]);
                    let channel = any(choices, &self.channels);
                    keep(
                        &mut self.cqs,
                        ibv_create_cq(context, entries, null_mut(), channel, choices.of(&[0, 0, 1, -1])),
                    );
                }
                5 => {
                    ibv_resize_cq(any(choices, &self.cqs), choices.of(&[1, 2, 64, 0, -1, i32::MAX]));
                }
                6 if self.srqs.len() < MAX_OBJECTS_OF_A_KIND => {
                    let mut attributes: ibv_srq_init_attr = std::mem::zeroed();
                    attributes.attr = srq_attributes(choices);
                    keep(&mut self.srqs, ibv_create_srq(any(choices, &self.pds), &raw mut attributes));
                }
                7 => {
                    let srq = any(choices, &self.srqs);
                    let mut attributes = srq_attributes(choices);
                    ibv_modify_srq(srq, &raw const attributes, choices.byte().into());
                    ibv_query_srq(srq, &raw mut attributes);
                }
                8 | 9 if self.qps.len() < MAX_OBJECTS_OF_A_KIND => {
                    let mut attributes = self.qp_attributes(choices);
                    keep(&mut self.qps, ibv_create_qp(any(choices, &self.pds), &raw mut attributes));
                }
                10 | 11 => self.connect(choices),
                12 => {
                    let mut attributes: ibv_qp_attr = std::mem::zeroed();
                    self.fill(choices, &mut attributes);
                    let mask = choices.word() & choices.of(&[u32::MAX, 0x1f_ffff, 0xffff]);
                    ibv_modify_qp(any(choices, &self.qps), &raw const attributes, mask as c_int);
                }
                13 => {
                    let (mut attributes, mut init): (ibv_qp_attr, ibv_qp_init_attr) = std::mem::zeroed();
                    let mask = choices.word() as c_int;
                    ibv_query_qp(any(choices, &self.qps), &raw mut attributes, mask, &raw mut init);
                }
                14 if self.ahs.len() < MAX_OBJECTS_OF_A_KIND => {
                    let attributes = self.address(choices);
                    keep(&mut self.ahs, ibv_create_ah(any(choices, &self.pds), &raw const attributes));
                }
                15 if self.mws.len() < MAX_OBJECTS_OF_A_KIND => {
                    if let (Some(alloc), false) = ((*self.context).ops.alloc_mw, self.pds.is_empty()) {
                        let pd = self.pds[usize::from(choices.byte()) % self.pds.len()];
                        keep(&mut self.mws, alloc(Handle::new(pd), choices.of(&[1, 2, 0, 3])));
                    }
                }
                16..=18 => self.post_send(choices),
                19 | 20 => self.post_receive(choices),
                21 | 22 => self.poll(choices),
                23 => {
                    if let (Some(arm), false) = ((*self.context).ops.req_notify_cq, self.cqs.is_empty()) {
                        let cq = self.cqs[usize::from(choices.byte()) % self.cqs.len()];
                        arm(Handle::new(cq), choices.of(&[0, 1, -1]));
                    }
                    self.take_events();
                }
                24 => match choices.byte() % 8 {
                    0 => destroy(choices, &mut self.pds, ibv_dealloc_pd),
                    1 => destroy(choices, &mut self.mrs, ibv_dereg_mr),
                    2 => destroy(choices, &mut self.cqs, ibv_destroy_cq),
                    3 => destroy(choices, &mut self.srqs, ibv_destroy_srq),
                    4 => destroy(choices, &mut self.qps, ibv_destroy_qp),
                    5 => destroy(choices, &mut self.ahs, ibv_destroy_ah),
                    6 => destroy(choices, &mut self.mws, dealloc_mw),
                    _ => destroy(choices, &mut self.channels, ibv_destroy_comp_channel),
                },
                25..=29 => self.connection(choices),
                30 if self.srqs.len() < MAX_OBJECTS_OF_A_KIND && choices.one_in(3) => self.create_tag_queue(choices),
                30 => self.tag_operations(choices),
                _ => self.take_events(),
            }
        }
    }

    /// Sizes of queues, mostly small.
    fn qp_attributes(&self, choices: &mut Choices<'_>) -> ibv_qp_init_attr {
        // SAFETY: numbers and pointers, for which zeros are values.
        let mut attributes: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        (attributes.send_cq, attributes.recv_cq) = (any(choices, &self.cqs), any(choices, &self.cqs));
        if choices.one_in(4) {
            attributes.srq = any(choices, &self.srqs);
        }
        attributes.qp_type = choices.of(&[2, 2, 3, 4, 9, 10, 0, 8, 255]);
        attributes.sq_sig_all = c_int::from(choices.byte() & 1);
        let cap = &mut attributes.cap;
        cap.max_send_wr = choices.of(&[4, 1, 0, 32, u32::MAX, 1 << 15]);
        cap.max_recv_wr = choices.of(&[4, 1, 0, 32, u32::MAX]);
        cap.max_send_sge = choices.of(&[2, 1, 0, 32, 33, u32::MAX]);
        cap.max_recv_sge = choices.of(&[2, 1, 0, 32, 33]);
        cap.max_inline_data = choices.of(&[64, 0, 1024, 1025, u32::MAX]);
        attributes
    }

    /// The way to ourselves, or nearly.
    fn address(&self, choices: &mut Choices<'_>) -> ibv_ah_attr {
        // SAFETY: numbers, for which zeros are values.
        let mut address: ibv_ah_attr = unsafe { std::mem::zeroed() };
        address.grh.dgid = self.gid;
        address.grh.sgid_index = choices.of(&[0, 0, 0, 1, 255]);
        address.grh.hop_limit = choices.byte();
        address.is_global = choices.of(&[1, 1, 1, 0]);
        address.port_num = choices.of(&[1, 1, 1, 0, 2]);
        if choices.one_in(8) {
            address.grh.dgid.raw = choices.take();
        }
        address
    }

    /// Attributes as the bytes have them.
    fn fill(&self, choices: &mut Choices<'_>, attributes: &mut ibv_qp_attr) {
        attributes.qp_state = choices.of(&[1, 2, 3, 0, 4, 5, 6, 7, 200]);
        attributes.cur_qp_state = choices.of(&[0, 1, 2, 3, 6, 200]);
        attributes.path_mtu = choices.of(&[3, 1, 5, 0, 6]);
        (attributes.qkey, attributes.rq_psn, attributes.sq_psn) = (choices.word(), choices.word(), choices.word());
        attributes.dest_qp_num = choices.word();
        attributes.qp_access_flags = choices.of(&[15, 0, 1, u32::MAX]);
        attributes.ah_attr = self.address(choices);
        attributes.port_num = choices.of(&[1, 1, 0, 2]);
        attributes.pkey_index = choices.of(&[0, 0, 1, 0xffff]);
        let [rd, dest, rnr, timeout, retry, rnr_retry] = choices.take();
        (attributes.max_rd_atomic, attributes.max_dest_rd_atomic, attributes.min_rnr_timer) = (rd, dest, rnr);
        (attributes.timeout, attributes.retry_cnt, attributes.rnr_retry) = (timeout, retry, rnr_retry);
    }

    /// The usual way from RESET to RTS, towards one of our own queue pairs.
    fn connect(&mut self, choices: &mut Choices<'_>) {
        let (qp, peer) = (any(choices, &self.qps), any(choices, &self.qps));
        // SAFETY: null, or a queue pair of the program's; values that live until the calls return.
        unsafe {
            let (Some(at), Some(to)) = (qp.as_ref(), peer.as_ref()) else { return };
            let mut attributes: ibv_qp_attr = std::mem::zeroed();
            attributes.qp_state = 0;
            if choices.one_in(4) {
                ibv_modify_qp(qp, &raw const attributes, 1);
            }
            (attributes.port_num, attributes.qp_access_flags, attributes.qkey) = (1, 15, 0x1111);
            (attributes.path_mtu, attributes.dest_qp_num, attributes.max_rd_atomic) = (3, to.qp_num, 2);
            (attributes.max_dest_rd_atomic, attributes.min_rnr_timer) = (2, 1);
            // Short timeouts: what is not answered fails soon.
            (attributes.timeout, attributes.retry_cnt, attributes.rnr_retry) = (5, 1, 1);
            attributes.ah_attr.grh.dgid = self.gid;
            (attributes.ah_attr.is_global, attributes.ah_attr.port_num, attributes.ah_attr.grh.hop_limit) = (1, 1, 64);
            let masks: [c_int; 3] = match at.qp_type {
                4 => [0x71, 0x1, 0x1 | 0x1_0000],
                3 => [0x39, 0x1 | 0x80 | 0x100 | 0x1000 | 0x10_0000, 0x1 | 0x1_0000],
                _ => [
                    0x39,
                    0x1 | 0x80 | 0x100 | 0x1000 | 0x8000 | 0x2_0000 | 0x10_0000,
                    0x1 | 0x200 | 0x400 | 0x800 | 0x2000 | 0x1_0000,
                ],
            };
            for (state, mask) in (1..=choices.of(&[3, 3, 3, 2, 1])).zip(masks) {
                attributes.qp_state = state;
                ibv_modify_qp(qp, &raw const attributes, mask);
            }
        }
    }

    /// A list of pieces, of which some do not fit their region. Inline ones lie in the program's memory whatever else
    /// they are.
    fn pieces(&self, choices: &mut Choices<'_>, inline: bool) -> Vec<ibv_sge> {
        let base = self.memory.as_ptr() as u64;
        let count = choices.of(&[1, 1, 1, 0, 2, 3, 32]);
        let piece = |choices: &mut Choices<'_>| {
            let mr = any(choices, &self.mrs);
            // SAFETY: null, or a region of the program's.
            let key = unsafe { mr.as_ref() }.map_or(choices.word(), |mr| mr.lkey);
            let length = choices.of(&[8, 64, 0, 1000, 4096]);
            let at = u64::from(choices.short()) % (MEMORY_BYTES as u64 - 4096);
            let (addr, length) = match choices.byte() {
                0..=15 if !inline => (choices.long(), choices.word()),
                _ => (base + at / 8 * 8, length),
            };
            ibv_sge { addr, length, lkey: key }
        };
        (0..count).map(|_| piece(choices)).collect()
    }

    fn post_send(&mut self, choices: &mut Choices<'_>) {
        let qp = any(choices, &self.qps);
        if qp.is_null() {
            return; // an inline function of the header follows it
        }
        let flags = choices.of(&[2, 2, 0, 3, 8 | 2, 6, !8]);
        let mut lists: Vec<Vec<ibv_sge>> =
            (0..choices.of(&[1, 1, 1, 2, 5])).map(|_| self.pieces(choices, flags & 8 != 0)).collect();
        let mut requests: Vec<ibv_send_wr> = Vec::new();
        for list in &mut lists {
            self.wr_id += 1;
            // SAFETY: numbers and pointers, for which zeros are values; the members of unions are set as the opcode
            // says.
            unsafe {
                let mut request: ibv_send_wr = std::mem::zeroed();
                (request.wr_id, request.send_flags, request.imm_data) = (self.wr_id, flags, choices.byte().into());
                (request.sg_list, request.num_sge) = (list.as_mut_ptr(), list.len() as c_int);
                if choices.one_in(32) {
                    (request.sg_list, request.num_sge) = (null_mut(), choices.of(&[1, -1, i32::MAX, 33]));
                }
                request.opcode = choices.of(&[2, 0, 1, 3, 4, 5, 6, 7, 9, 11, 200, 8]);
                let remote = any(choices, &self.mrs).as_ref().map_or(0, |mr| mr.rkey);
                let at = self.memory.as_ptr() as u64 + u64::from(choices.short() & 0x1ff8);
                match (request.opcode, (*qp).qp_type) {
                    (8, _) => {
                        request.bind_mw.bind_mw.mw = any(choices, &self.mws);
                        request.bind_mw.bind_mw.rkey = choices.word();
                        request.bind_mw.bind_mw.bind_info.mr = any(choices, &self.mrs);
                        request.bind_mw.bind_mw.bind_info.addr = at;
                        request.bind_mw.bind_mw.bind_info.length = choices.of(&[64, 0, u64::MAX]);
                        request.bind_mw.bind_mw.bind_info.mw_access_flags = choices.of(&[2, 14, 0, u32::MAX]);
                    }
                    // On a queue pair of datagrams the address handle lies where the remote address does: there it is a
                    // pointer.
                    (5 | 6, kind) if kind != 4 => {
                        request.wr.atomic.remote_addr = at | u64::from(choices.byte() & 1);
                        (request.wr.atomic.compare_add, request.wr.atomic.rkey) = (choices.long(), remote);
                    }
                    (_, 4) => {
                        request.wr.ud.ah = any(choices, &self.ahs);
                        let peer = any(choices, &self.qps).as_ref();
                        request.wr.ud.remote_qpn = peer.map_or(choices.word(), |peer| peer.qp_num);
                        request.wr.ud.remote_qkey = 0x1111;
                    }
                    _ => (request.wr.rdma.remote_addr, request.wr.rdma.rkey) = (at, remote),
                }
                requests.push(request);
            }
        }
        for nth in 1..requests.len() {
            let next = &raw mut requests[nth];
            requests[nth - 1].next = next;
        }
        // SAFETY: a queue pair of the program's; requests and pieces live until the call returns.
        unsafe {
            if let (Some(post), Some(first)) = ((*(*qp).context).ops.post_send, requests.first()) {
                let mut bad: *mut ibv_send_wr = null_mut();
                let answer = post(Handle::new(qp), In::from(first), Out::from(&mut bad));
                assert_eq!(answer != 0, !bad.is_null(), "a refused request is named");
            }
        }
    }

    fn post_receive(&mut self, choices: &mut Choices<'_>) {
        let (qp, srq) = (any(choices, &self.qps), any(choices, &self.srqs));
        let mut list = self.pieces(choices, false);
        self.wr_id += 1;
        let request = ibv_recv_wr {
            wr_id: self.wr_id,
            next: null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: list.len() as c_int,
        };
        let mut bad: *mut ibv_recv_wr = null_mut();
        // SAFETY: objects of the program's; the request and its pieces live until the call returns.
        unsafe {
            let ops = &(*self.context).ops;
            match (ops.post_recv, ops.post_srq_recv) {
                (Some(post), _) if !qp.is_null() && !choices.one_in(3) => {
                    post(Handle::new(qp), In::from(&request), Out::from(&mut bad));
                }
                (_, Some(post)) if !srq.is_null() => {
                    post(Handle::new(srq), In::from(&request), Out::from(&mut bad));
                }
                _ => {}
            }
        }
    }

    fn poll(&mut self, choices: &mut Choices<'_>) {
        let cq = any(choices, &self.cqs);
        let room = choices.of(&[4, 1, 0, -1]);
        // SAFETY: a queue of the program's, and room for as many completions as it says.
        unsafe {
            let mut completions: [ibv_wc; 4] = std::mem::zeroed();
            if let (Some(poll), false) = ((*self.context).ops.poll_cq, cq.is_null()) {
                let count = poll(Handle::new(cq), room, completions.as_mut_ptr());
                assert!(count <= room.max(0));
                for completion in completions.iter().take(count.max(0) as usize) {
                    assert!(completion.wr_id <= self.wr_id, "nobody posted this");
                }
            }
        }
    }

    /// Takes and acknowledges all events: an object is not destroyed before its events are acknowledged.
    fn take_events(&mut self) {
        // SAFETY: objects of the program's, and places for the answers; descriptors do not block.
        unsafe {
            let mut event: ibv_async_event = std::mem::zeroed();
            while ibv_get_async_event(self.context, &raw mut event) == 0 {
                ibv_ack_async_event(&raw const event);
            }
            for channel in &self.channels {
                let (mut cq, mut user) = (null_mut(), null_mut());
                while ibv_get_cq_event(*channel, &raw mut cq, &raw mut user) == 0 {
                    ibv_ack_cq_events(cq, 1);
                }
            }
        }
    }

    /// A call of the connection manager.
    fn connection(&mut self, choices: &mut Choices<'_>) {
        let id = any(choices, &self.ids);
        let mut address = socket_address(choices.of(&[0, 0, 7471, 7472, 1]));
        let address: *mut libc::sockaddr = (&raw mut address).cast();
        let data = [7u8; 255];
        // SAFETY: ids of the program's or null; values that live until the calls return.
        unsafe {
            let mut parameters: rdma_conn_param = std::mem::zeroed();
            (parameters.private_data, parameters.private_data_len) = (data.as_ptr().cast(), choices.byte());
            (parameters.responder_resources, parameters.initiator_depth) = (choices.byte(), choices.byte());
            (parameters.retry_count, parameters.rnr_retry_count) = (choices.byte(), choices.byte());
            let parameters = if choices.one_in(4) { null_mut() } else { &raw mut parameters };
            match choices.byte() % 16 {
                0 | 1 if self.ids.len() < MAX_OBJECTS_OF_A_KIND => {
                    let mut made = null_mut();
                    let space = choices.of(&[0x0106, 0x0106, 0x0111, 0x013f, 0x0002, 0, 0xffff]);
                    if rdma_create_id(self.events, &raw mut made, null_mut(), space) == 0 {
                        self.ids.push(made);
                    }
                }
                2 => drop(rdma_bind_addr(id, address)),
                3 => drop(rdma_listen(id, choices.of(&[1, 0, -1, 1000]))),
                4 | 5 => {
                    // Towards one of our own listeners.
                    let towards = any(choices, &self.ids);
                    let port = if towards.is_null() { 7471 } else { u16::from_be(rdma_get_src_port(towards)) };
                    let mut to = socket_address(port);
                    rdma_resolve_addr(id, null_mut(), (&raw mut to).cast(), choices.of(&[1000, 0, 1, -1]));
                }
                6 => drop(rdma_resolve_route(id, choices.of(&[1000, 0, -1]))),
                7 | 8 if !id.is_null() && (*id).qp.is_null() => {
                    let mut attributes = self.qp_attributes(choices);
                    let pd = any(choices, &self.pds);
                    rdma_create_qp(id, pd, &raw mut attributes);
                }
                9 if !id.is_null() && !(*id).qp.is_null() => rdma_destroy_qp(id),
                10 => drop(rdma_connect(id, parameters)),
                11 => drop(rdma_accept(id, parameters)),
                12 => drop(rdma_reject(id, data.as_ptr().cast(), choices.byte())),
                13 => drop(rdma_disconnect(id)),
                14 if !id.is_null() => self.destroy_id(id),
                _ => self.take_connection_events(),
            }
        }
    }

    fn take_connection_events(&mut self) {
        // SAFETY: a channel of the program's, which does not block; the event lives until it is acknowledged, and the
        // id of a request is the program's from then on.
        unsafe {
            let mut event: *mut rdma_cm_event = null_mut();
            while rdma_get_cm_event(self.events, &raw mut event) == 0 {
                if (*event).event == abi::RDMA_CM_EVENT_CONNECT_REQUEST {
                    self.ids.push((*event).id);
                }
                assert_eq!(rdma_ack_cm_event(event), 0);
            }
        }
    }

    fn destroy_id(&mut self, id: *mut rdma_cm_id) {
        self.take_connection_events();
        // SAFETY: an id of the program's, which it forgets.
        unsafe {
            if !(*id).qp.is_null() {
                rdma_destroy_qp(id);
            }
            assert_eq!(rdma_destroy_id(id), 0, "an id cannot be destroyed");
        }
        self.ids.retain(|other| *other != id);
    }

    /// Destroys everything, in an order in which nothing is in the way.
    fn end(mut self) {
        while let Some(id) = self.ids.last().copied() {
            self.destroy_id(id);
        }
        // SAFETY: a channel of the program's, whose ids are gone.
        unsafe { rdma_destroy_event_channel(self.events) };
        self.take_events();
        destroy_all(&mut self.qps, "a queue pair", ibv_destroy_qp);
        self.take_events();
        destroy_all(&mut self.ahs, "an address handle", ibv_destroy_ah);
        destroy_all(&mut self.mws, "a memory window", dealloc_mw);
        destroy_all(&mut self.srqs, "a shared receive queue", ibv_destroy_srq);
        destroy_all(&mut self.cqs, "a completion queue", ibv_destroy_cq);
        destroy_all(&mut self.channels, "a channel", ibv_destroy_comp_channel);
        destroy_all(&mut self.mrs, "a memory region", ibv_dereg_mr);
        destroy_all(&mut self.pds, "a protection domain", ibv_dealloc_pd);
        // SAFETY: a context of the program's, whose objects are gone.
        assert_eq!(unsafe { ibv_close_device(self.context) }, 0);
    }
}

fn srq_attributes(choices: &mut Choices<'_>) -> ibv_srq_attr {
    ibv_srq_attr {
        max_wr: choices.of(&[4, 1, 0, u32::MAX]),
        max_sge: choices.of(&[1, 2, 0, 33]),
        srq_limit: choices.of(&[0, 1, 100]),
    }
}

fn socket_address(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    }
}
