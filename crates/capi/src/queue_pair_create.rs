//! Making and destroying queue pairs.

use crate::acknowledgements::Acknowledgements;
use crate::boundary::{object, status};
use crate::completion_queue::CompletionQueue;
use crate::context::{Context, OpenDevice};
use crate::cross_call_lock::CrossCallLock;
use crate::ece;
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, Public, field};
use crate::protection_domain::Pd;
use crate::queue_pair::{QueuePair, capabilities_to_c, kind};
use crate::queue_pair_ex;
use crate::registry::lock;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::work_builder::Builder;
use crate::work_queue::IndirectionTable;
use crate::xrc::XrcDomain;
use abi::{
    Handle, In, InOut, Owned, ibv_context, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_rwq_ind_table, ibv_rx_hash_conf, ibv_xrcd,
};
use hca::{AsyncEvent, Joins, Nic, Qp, RawOptions, Spread};
use profiles::Feature;
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use trace::Call;
use transport::{Capabilities, Kind, Limits, ProtectionDomain, QueuePairConfig};
use wire::flow::{HASH_KEY_LENGTH, HashFields, Rss};
use wire::{Pkey, Qpn};

/// What a program asks for, in either form.
struct QueuePairSpec<'a> {
    init: ibv_qp_init_attr,
    pd: Handle<'a, ibv_pd>,
    xrcd: Handle<'a, ibv_xrcd>,
    operations: Option<u64>,
    /// What only raw queue pairs have.
    raw: RawSpec,
}

/// How a raw queue pair receives.
#[derive(Default)]
struct RawSpec {
    strips_tags: bool,
    /// The table of its work queues, and how it hashes.
    spread: Option<(*mut ibv_rwq_ind_table, Spread)>,
}

impl RawSpec {
    /// What extended attributes ask for.
    fn of(attributes: &ibv_qp_init_attr_ex) -> Result<RawSpec, Errno> {
        let has = |bit: u32| attributes.comp_mask & bit != 0;
        let is_raw = attributes.qp_type == abi::IBV_QPT_RAW_PACKET;
        let flags = if has(abi::IBV_QP_INIT_ATTR_CREATE_FLAGS) { attributes.create_flags } else { 0 };
        let strips_tags = flags & abi::IBV_QP_CREATE_CVLAN_STRIPPING != 0;
        let hashes = has(abi::IBV_QP_INIT_ATTR_IND_TABLE) || has(abi::IBV_QP_INIT_ATTR_RX_HASH);
        if (strips_tags || hashes) && !is_raw {
            return Err(Errno::unsupported("only raw packet queue pairs have hashes and take VLAN tags out"));
        }
        if !hashes {
            return Ok(RawSpec { strips_tags, spread: None });
        }
        if !(has(abi::IBV_QP_INIT_ATTR_IND_TABLE) && has(abi::IBV_QP_INIT_ATTR_RX_HASH)) {
            return Err(Errno::invalid("rwq_ind_tbl and rx_hash_conf go together"));
        }
        let cap = &attributes.cap;
        if cap.max_recv_wr != 0 || cap.max_recv_sge != 0 || !attributes.srq.is_null() {
            return Err(Errno::invalid("a queue pair with an indirection table has no receive queue"));
        }
        if cap.max_send_wr != 0 || strips_tags {
            return Err(Errno::unsupported("a queue pair with an indirection table has no send queue and no flags"));
        }
        // SAFETY: a field of the attributes, which the manual page wants null or a table.
        let table = unsafe { Handle::new(attributes.rwq_ind_tbl) };
        let queues = IndirectionTable::by_handle(table)?.queues.clone();
        let rss = rss(&attributes.rx_hash_conf)?;
        Ok(RawSpec { strips_tags, spread: Some((table.as_ptr(), Spread { rss, queues })) })
    }
}

/// How a queue pair hashes.
fn rss(conf: &ibv_rx_hash_conf) -> Result<Rss, Errno> {
    if u32::from(conf.rx_hash_function) != abi::IBV_RX_HASH_FUNC_TOEPLITZ {
        return Err(Errno::unsupported("only the hash of Toeplitz is offered"));
    }
    if usize::from(conf.rx_hash_key_len) != HASH_KEY_LENGTH || conf.rx_hash_key.is_null() {
        return Err(Errno::invalid("the hash key must have 40 bytes"));
    }
    let unknown = || Errno::unsupported("rx_hash_fields_mask has bits that are not offered");
    let fields = HashFields::from_bits(conf.rx_hash_fields_mask).ok_or_else(unknown)?;
    refuse_if!(!fields.is_consistent(), Errno::invalid("rx_hash_fields_mask names fields that no packet has together"));
    // SAFETY: not null, so of the length that was just checked.
    let key = unsafe { conf.rx_hash_key.cast::<[u8; HASH_KEY_LENGTH]>().read() };
    Ok(Rss { key, fields })
}

impl QueuePair {
    /// A new queue pair, not yet shown to C.
    fn create(context: &Context, spec: &QueuePairSpec<'_>) -> Result<Box<QueuePair>, Errno> {
        let init = &spec.init;
        let kind = kind(init.qp_type)?;
        let is_target = kind == Kind::XrcTarget;
        let spreads = spec.raw.spread.is_some();
        let sends = !is_target && !spreads;
        let receives = !matches!(kind, Kind::XrcInitiator | Kind::XrcTarget) && !spreads;
        // An XRC target acts in the domain of the queue each message names.
        let domain = if is_target { ProtectionDomain(0) } else { Pd::by_handle(spec.pd)?.domain };
        let xrc_domain = if is_target { Some(XrcDomain::of(spec.xrcd)?.number) } else { None };
        // SAFETY: fields of the attributes, which the manual page wants null or objects of these types.
        let (send_cq, receive_cq, srq) =
            unsafe { (Handle::new(init.send_cq), Handle::new(init.recv_cq), Handle::new(init.srq)) };
        let send_cq = sends.then(|| CompletionQueue::by_handle(send_cq)).transpose()?;
        let receive_cq = receives.then(|| CompletionQueue::by_handle(receive_cq)).transpose()?;
        let srq = (receives && !srq.is_null()).then(|| SharedReceiveQueue::by_handle(srq)).transpose()?;
        // An imported context shares what the context has that it was imported from.
        let is_elsewhere = |opened: &OpenDevice| opened.file != context.opened.file;
        if !is_target && is_elsewhere(&Pd::of(spec.pd)?.opened) {
            return Err(Errno::invalid("the protection domain is of another context"));
        }
        for (name, cq) in [("send_cq", send_cq), ("recv_cq", receive_cq)] {
            if cq.is_some_and(|cq| is_elsewhere(&cq.opened)) {
                return Err(Errno::invalid(format_args!("{name} is of another context than the protection domain")));
            }
        }
        if srq.is_some_and(|srq| is_elsewhere(&srq.opened)) {
            return Err(Errno::invalid("srq is of another context than the protection domain"));
        }
        if srq.is_some_and(|srq| srq.queue.xrc().is_some()) {
            return Err(Errno::invalid("an XRC shared receive queue takes messages of XRC targets only"));
        }
        if srq.is_some_and(|srq| srq.queue.matches_tags()) && kind != Kind::ReliableConnected {
            return Err(Errno::invalid("tags are matched on reliable connections only"));
        }
        let port_mtu = context.opened.device().port().mtu();
        let mut capabilities = capabilities(&init.cap, sends, receives && srq.is_none());
        if spec.operations.is_some_and(|operations| operations & u64::from(abi::IBV_QP_EX_WITH_ATOMIC_WRITE) != 0) {
            // The call that builds an atomic write brings its eight bytes along.
            capabilities.max_inline_data = capabilities.max_inline_data.max(8);
        }
        let config = QueuePairConfig {
            qpn: Qpn::SMI,
            kind,
            pd: domain,
            capabilities,
            srq: srq.map(|srq| srq.queue.number()),
            signal_all: init.sq_sig_all != 0,
            limits: Limits {
                max_mtu: port_mtu,
                gids: context.opened.device().port().gids.len() as u16,
                ..Limits::default()
            },
            pkey: Pkey::DEFAULT,
            port_mtu,
        };
        let joins = Joins {
            context: Arc::clone(&context.opened.hca),
            send_cq: send_cq.map(|cq| Arc::clone(&cq.cq)),
            receive_cq: receive_cq.map(|cq| Arc::clone(&cq.cq)),
            xrc_domain,
        };
        let nic = &context.opened.nic;
        let qp = match kind {
            Kind::RawPacket => {
                let spread = spec.raw.spread.as_ref().map(|(_, spread)| spread.clone());
                let options = RawOptions { spread, strips_tags: spec.raw.strips_tags, ..RawOptions::default() };
                nic.create_raw_qp(config, joins, options)?
            }
            _ => nic.create_qp(config, joins)?,
        };
        if is_target {
            XrcDomain::of(spec.xrcd)?.users.join();
        } else {
            Pd::of(spec.pd)?.join();
        }
        if let Some((table, _)) = &spec.raw.spread {
            // SAFETY: the table that the specification was made from.
            IndirectionTable::of(unsafe { Handle::new(*table) })?.users.join();
        }
        for cq in [send_cq, receive_cq].into_iter().flatten() {
            cq.users.join();
        }
        if let Some(srq) = srq {
            srq.users.join();
        }
        tell_zeros(nic, &qp, &init.cap);
        let handles = Arc::new(());
        if is_target {
            XrcDomain::of(spec.xrcd)?.register_target(&qp, &handles);
        }
        Ok(QueuePair::boxed(context, qp, spec, handles, (sends, receives)))
    }

    fn boxed(
        context: &Context,
        qp: Arc<Qp>,
        spec: &QueuePairSpec<'_>,
        handles: Arc<()>,
        (sends, receives): (bool, bool),
    ) -> Box<QueuePair> {
        let mut init = spec.init;
        init.cap = capabilities_to_c(&qp.attributes().capabilities);
        let mut base = ibv_qp_ex::zeroed();
        let public = &mut base.qp_base;
        public.context = context.as_c();
        public.qp_context = init.qp_context;
        public.pd = spec.pd.as_ptr();
        // Only a queue that counts the pair among its users: an XRC target does not send.
        public.send_cq = if sends { init.send_cq } else { null_mut() };
        public.recv_cq = if receives { init.recv_cq } else { null_mut() };
        public.srq = if receives { init.srq } else { null_mut() };
        public.handle = qp.qpn().value();
        public.qp_num = qp.qpn().value();
        public.state = qp.state() as c_uint;
        public.qp_type = init.qp_type;
        public.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        public.cond = libc::PTHREAD_COND_INITIALIZER;
        if spec.operations.is_some() {
            queue_pair_ex::fill(&mut base);
        }
        Box::new(QueuePair {
            base: Public::new(base),
            opened: Arc::clone(&context.opened),
            ece: ece::possible(qp.kind()).into(),
            counters: Mutex::default(),
            qp,
            events: Acknowledgements::default(),
            init,
            operations: spec.operations,
            builder: CrossCallLock::new(Builder::default()),
            xrcd: spec.xrcd.as_ptr(),
            table: spec.raw.spread.as_ref().map_or(null_mut(), |(table, _)| *table),
            handles,
        })
    }

    /// Shows it to C, and to events that name it by number.
    fn publish(self: Box<QueuePair>) -> *mut ibv_qp {
        let (opened, number) = (Arc::clone(&self.opened), self.qp.qpn().value());
        let pair = self.into_c();
        // SAFETY: `ibv_destroy_qp` removes it.
        unsafe { opened.objects().qps.insert(number, pair) };
        pair
    }

    /// Another handle of an XRC target.
    pub(crate) fn open(
        context: &Context,
        xrcd: Handle<'_, ibv_xrcd>,
        number: u32,
        qp_context: *mut std::ffi::c_void,
    ) -> Result<*mut ibv_qp, Errno> {
        let domain = XrcDomain::of(xrcd)?;
        let (qp, handles) = domain.find_target(number).ok_or(Errno::INVALID)?;
        domain.users.join();
        let init = ibv_qp_init_attr { qp_context, qp_type: abi::IBV_QPT_XRC_RECV, ..ibv_qp_init_attr::zeroed() };
        let spec = QueuePairSpec { init, pd: Handle::null(), xrcd, operations: None, raw: RawSpec::default() };
        Ok(QueuePair::boxed(context, qp, &spec, handles, (false, false)).publish())
    }
}

/// What is asked for, and never less than one of what there is.
fn capabilities(cap: &ibv_qp_cap, sends: bool, receives: bool) -> Capabilities {
    let at_least_one = |has: bool, value: u32| if has { value.max(1) } else { 0 };
    Capabilities {
        max_send_wr: at_least_one(sends, cap.max_send_wr),
        max_recv_wr: at_least_one(receives, cap.max_recv_wr),
        max_send_sge: at_least_one(sends, cap.max_send_sge),
        max_recv_sge: at_least_one(receives, cap.max_recv_sge),
        max_inline_data: if sends { cap.max_inline_data } else { 0 },
    }
}

/// Tells the trace of capabilities that were asked for with 0 and granted with 1.
fn tell_zeros(nic: &Nic, qp: &Qp, asked: &ibv_qp_cap) {
    let granted = qp.attributes().capabilities;
    let pairs = [
        (asked.max_send_wr, granted.max_send_wr),
        (asked.max_recv_wr, granted.max_recv_wr),
        (asked.max_send_sge, granted.max_send_sge),
        (asked.max_recv_sge, granted.max_recv_sge),
    ];
    if pairs.iter().any(|(asked, granted)| asked < granted) {
        let ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, .. } = *asked;
        nic.called(Some(qp.qpn()), || Call::AskedForNone { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge });
    }
}

/// A new queue pair, in RESET.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_qp(pd: Handle<'_, ibv_pd>, attributes: InOut<'_, ibv_qp_init_attr>) -> *mut ibv_qp {
    object("ibv_create_qp", || {
        let context = Pd::of(pd)?.context()?;
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        let (xrcd, raw) = (Handle::null(), RawSpec::default());
        let spec = QueuePairSpec { init: *attributes, pd, xrcd, operations: None, raw };
        let pair = QueuePair::create(context, &spec)?;
        attributes.cap = pair.init.cap;
        Ok(pair.publish())
    })
}

pub(crate) extern "C" fn create_qp_ex(
    context: Handle<'_, ibv_context>,
    attributes: InOut<'_, ibv_qp_init_attr_ex>,
) -> *mut ibv_qp {
    object("ibv_create_qp_ex", || {
        let context = Context::working(context)?;
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        let device = context.opened.device();
        // With a protection domain and nothing else it is the plain call: so verbs.h and librdmacm have it.
        if attributes.comp_mask != abi::IBV_QP_INIT_ATTR_PD {
            device.offers(Feature::CreateQpEx)?;
        }
        let has = |bit: u32| attributes.comp_mask & bit != 0;
        let known = (abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS << 1) - 1;
        if attributes.comp_mask & !known != 0 {
            // As mlx5 answers it; the manual page is silent.
            return Err(Errno::invalid("comp_mask has bits that are not known"));
        }
        let offered = abi::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB | abi::IBV_QP_CREATE_CVLAN_STRIPPING;
        let flags = if has(abi::IBV_QP_INIT_ATTR_CREATE_FLAGS) { attributes.create_flags } else { 0 };
        if has(abi::IBV_QP_INIT_ATTR_MAX_TSO_HEADER) || flags & !offered != 0 {
            return Err(Errno::unsupported("the device has no TSO, and not all of these create_flags"));
        }
        let raw = RawSpec::of(attributes)?;
        let operations = has(abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attributes.send_ops_flags);
        if let Some(operations) = operations {
            device.offers(Feature::SendOperations)?;
            queue_pair_ex::check(kind(attributes.qp_type)?, operations)?;
        }
        let pd = if has(abi::IBV_QP_INIT_ATTR_PD) { attributes.pd } else { null_mut() };
        let xrcd = if has(abi::IBV_QP_INIT_ATTR_XRCD) { attributes.xrcd } else { null_mut() };
        // SAFETY: fields of the attributes, which the manual page wants null or objects of these types.
        let (pd, xrcd) = unsafe { (Handle::new(pd), Handle::new(xrcd)) };
        let spec = QueuePairSpec { init: attributes.plain(), pd, xrcd, operations, raw };
        let pair = QueuePair::create(context, &spec)?;
        if flags & abi::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
            pair.qp.ignore_own_multicast();
        }
        attributes.cap = pair.init.cap;
        Ok(pair.publish())
    })
}

pub(crate) extern "C" fn open_qp(
    context: Handle<'_, ibv_context>,
    attributes: In<'_, ibv_qp_open_attr>,
) -> *mut ibv_qp {
    object("ibv_open_qp", || {
        let context = Context::working(context)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let needed = abi::IBV_QP_OPEN_ATTR_NUM | abi::IBV_QP_OPEN_ATTR_XRCD | abi::IBV_QP_OPEN_ATTR_TYPE;
        if attributes.comp_mask & needed != needed || attributes.qp_type != abi::IBV_QPT_XRC_RECV {
            return Err(Errno::INVALID);
        }
        let qp_context = match attributes.comp_mask & abi::IBV_QP_OPEN_ATTR_CONTEXT {
            0 => std::ptr::null_mut(),
            _ => attributes.qp_context,
        };
        // SAFETY: a field of the attributes, which the manual page wants null or an XRC domain.
        let xrcd = unsafe { Handle::new(attributes.xrcd) };
        QueuePair::open(context, xrcd, attributes.qp_num, qp_context)
    })
}

/// Destroys a queue pair, once its events are acknowledged. Its completions that wait vanish, as on mlx5: libfabric
/// posts the buffer of one that succeeded again, on the queue pair that is no more.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_qp(qp: Owned<'_, ibv_qp>) -> c_int {
    status("ibv_destroy_qp", || {
        let pair = QueuePair::given_back(&qp)?;
        if pair.qp.is_attached(&pair.opened.nic) {
            return Err(Errno::busy("the queue pair is attached to a multicast group"));
        }
        refuse_if!(pair.qp.has_flows(), Errno::busy("the queue pair has flows"));
        let qpn = pair.qp.qpn();
        {
            let mut objects = pair.opened.objects();
            if objects.qps.get(qpn.value()).is_some_and(|found| found.as_ptr() == qp.handle().as_ptr()) {
                objects.qps.remove(qpn.value());
            }
        }
        let last = Arc::strong_count(&pair.handles) == 1;
        if last {
            pair.opened.nic.destroy_qp(&pair.qp);
            for cq in pair.completion_queues().into_iter().flatten() {
                cq.cq.forget(qpn);
            }
            pair.opened.hca.events().purge(|event| matches!(event, AsyncEvent::Qp(other, _) if *other == qpn));
        }
        pair.events.wait(|missing| pair.opened.tell_wait("qp", qpn.value().into(), missing));
        lock(&pair.counters).detach();
        if pair.qp.kind() != Kind::XrcTarget {
            // SAFETY: the domain of the queue pair.
            unsafe { Pd::leave(field!(pair.base, qp_base.pd)) };
        }
        for cq in pair.completion_queues().into_iter().flatten() {
            cq.users.leave();
        }
        // SAFETY: null, or what it was made with, which is not destroyed while queue pairs use it.
        let (srq, xrcd) = unsafe { (Handle::new(field!(pair.base, qp_base.srq)), Handle::new(pair.xrcd)) };
        if let Ok(srq) = SharedReceiveQueue::of(srq) {
            srq.users.leave();
        }
        if let Ok(xrcd) = XrcDomain::of(xrcd) {
            xrcd.users.leave();
        }
        // SAFETY: null, or the table it was made with, which is not destroyed before it.
        if let Ok(table) = IndirectionTable::of(unsafe { Handle::new(pair.table) }) {
            table.users.leave();
        }
        drop(QueuePair::from_c(qp)?);
        Ok(())
    })
}
