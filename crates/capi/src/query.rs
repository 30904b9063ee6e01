//! What a program may ask of a device: attributes, ports, address and partition key tables, clocks.

use crate::address_handle::{MAX_AH, gid_to_c};
use crate::boundary::{copy_out, number, status, zero};
use crate::context::{Context, OpenDevice};
use crate::device::copy_string;
use crate::errno::{Errno, refuse_if};
use crate::object::Object;
use crate::queue_pair::QueuePair;
use crate::work_queue::MAX_LOG_TABLE;
use abi::{
    Handle, In, InOut, Out, ibv_context, ibv_cq_moderation_caps, ibv_device_attr, ibv_device_attr_ex, ibv_gid,
    ibv_gid_entry, ibv_packet_pacing_caps, ibv_port_attr, ibv_query_device_ex_input, ibv_rss_caps, ibv_tm_caps,
    ibv_values_ex,
};
use hca::{LinkRate, limits};
use profiles::{Feature, Limit, Profile};
use std::ffi::{c_int, c_uint};
use transport::RateLimit;
use wire::flow::HashFields;
use wire::{Gid, Mtu, Pkey};

/// The types of queue pairs that can be paced.
const PACED_QP_TYPES: [u32; 5] =
    [abi::IBV_QPT_RC, abi::IBV_QPT_UC, abi::IBV_QPT_UD, abi::IBV_QPT_RAW_PACKET, abi::IBV_QPT_XRC_SEND];

/// The vendor number: locally administered, of no vendor. Programs know the real ones and change their behaviour by
/// them.
pub(crate) const VENDOR_NUMBER: u32 = 0x02_7562;
const VENDOR_PART: u32 = 1;

/// What a port tells in `active_width`, `active_speed` and `active_speed_ex`: the fastest speeds are told in the field
/// that came later.
fn wire_of(rate: LinkRate) -> (u8, u8, u32) {
    let (width, speed) = rate.wire();
    u8::try_from(speed).map_or((width, 0, speed), |speed| (width, speed, 0))
}

/// Clamps a limit to what the field can say.
fn int(value: u64) -> c_int {
    value.min(c_int::MAX as u64) as c_int
}

fn attributes(opened: &OpenDevice) -> ibv_device_attr {
    let device = opened.device();
    let memory = opened.nic.memory().limits();
    let transport = transport::Limits::default();
    let mut attributes = ibv_device_attr::zeroed();
    copy_string(&mut attributes.fw_ver, env!("CARGO_PKG_VERSION"));
    attributes.node_guid = device.guid().to_be();
    attributes.sys_image_guid = device.guid().to_be();
    attributes.max_mr_size = u64::MAX;
    // Every size from the page upwards: nothing is translated by pages here.
    attributes.page_size_cap = !0xfff;
    attributes.vendor_id = VENDOR_NUMBER;
    attributes.vendor_part_id = VENDOR_PART;
    attributes.max_qp = int(limits::MAX_QP.into());
    attributes.max_qp_wr = int(limits::MAX_WR.into());
    attributes.device_cap_flags = abi::IBV_DEVICE_CURR_QP_STATE_MOD
        | abi::IBV_DEVICE_BAD_PKEY_CNTR
        | abi::IBV_DEVICE_BAD_QKEY_CNTR
        | abi::IBV_DEVICE_PORT_ACTIVE_EVENT
        | abi::IBV_DEVICE_SYS_IMAGE_GUID
        | abi::IBV_DEVICE_RC_RNR_NAK_GEN
        | abi::IBV_DEVICE_SRQ_RESIZE
        | abi::IBV_DEVICE_MEM_WINDOW
        | abi::IBV_DEVICE_MEM_MGT_EXTENSIONS
        | abi::IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | abi::IBV_DEVICE_XRC
        | abi::IBV_DEVICE_RAW_MULTI
        | abi::IBV_DEVICE_RAW_IP_CSUM
        | abi::IBV_DEVICE_MANAGED_FLOW_STEERING;
    attributes.max_raw_ethy_qp = int(limits::MAX_QP.into());
    attributes.max_sge = int(limits::MAX_SGE.into());
    attributes.max_sge_rd = int(limits::MAX_SGE.into());
    attributes.max_cq = 1 << 24;
    attributes.max_cqe = int(hca::MAX_ENTRIES.into());
    attributes.max_mr = int(memory.regions.into());
    attributes.max_pd = 1 << 24;
    attributes.max_qp_rd_atom = transport.max_dest_rd_atomic.into();
    attributes.max_res_rd_atom = int(u64::from(transport.max_dest_rd_atomic) * u64::from(limits::MAX_QP));
    attributes.max_qp_init_rd_atom = transport.max_rd_atomic.into();
    // Atomic operations are the processor's: atomic towards everything in the host. But hardware promises no more than
    // atomicity among its own, and programs compare with that: UCX before 1.17 has no atomics on a device that says
    // GLOB.
    attributes.atomic_cap = abi::IBV_ATOMIC_HCA as c_int;
    attributes.max_mw = int(memory.windows.into());
    let (groups, members) = (hca::multicast::max_groups(), hca::multicast::MAX_MEMBERS);
    attributes.max_mcast_grp = int(groups.into());
    attributes.max_mcast_qp_attach = int(members.into());
    attributes.max_total_mcast_qp_attach = int(u64::from(groups) * u64::from(members));
    attributes.max_ah = int(MAX_AH.into());
    attributes.max_srq = int(limits::MAX_SRQ.into());
    attributes.max_srq_wr = int(limits::MAX_WR.into());
    attributes.max_srq_sge = int(limits::MAX_SGE.into());
    attributes.max_pkeys = 1;
    attributes.local_ca_ack_delay = 15;
    attributes.phys_port_cnt = device.port_count();
    if let Some(profile) = device.profile() {
        as_card(profile, &mut attributes);
    }
    attributes
}

/// What a card tells that the device is like.
fn as_card(profile: &Profile, attributes: &mut ibv_device_attr) {
    fn tell<T: TryFrom<u64>>(profile: &Profile, limit: Limit, field: &mut T) {
        if let Some(Ok(value)) = profile.limit(limit).map(T::try_from) {
            *field = value;
        }
    }
    if let Some(firmware) = &profile.firmware {
        attributes.fw_ver = [0; 64];
        copy_string(&mut attributes.fw_ver, firmware);
    }
    tell(profile, Limit::MaxMrSize, &mut attributes.max_mr_size);
    tell(profile, Limit::PageSizeCap, &mut attributes.page_size_cap);
    tell(profile, Limit::VendorId, &mut attributes.vendor_id);
    tell(profile, Limit::PartId, &mut attributes.vendor_part_id);
    tell(profile, Limit::HardwareVersion, &mut attributes.hw_ver);
    tell(profile, Limit::MaxPkeys, &mut attributes.max_pkeys);
    tell(profile, Limit::LocalCaAckDelay, &mut attributes.local_ca_ack_delay);
    for (limit, field) in [
        (Limit::MaxQp, &mut attributes.max_qp),
        (Limit::MaxQpWr, &mut attributes.max_qp_wr),
        (Limit::MaxSge, &mut attributes.max_sge),
        (Limit::MaxSgeRd, &mut attributes.max_sge_rd),
        (Limit::MaxCq, &mut attributes.max_cq),
        (Limit::MaxCqe, &mut attributes.max_cqe),
        (Limit::MaxMr, &mut attributes.max_mr),
        (Limit::MaxPd, &mut attributes.max_pd),
        (Limit::MaxQpRdAtom, &mut attributes.max_qp_rd_atom),
        (Limit::MaxResRdAtom, &mut attributes.max_res_rd_atom),
        (Limit::MaxQpInitRdAtom, &mut attributes.max_qp_init_rd_atom),
        (Limit::MaxMw, &mut attributes.max_mw),
        (Limit::MaxRawEthyQp, &mut attributes.max_raw_ethy_qp),
        (Limit::MaxMcastGrp, &mut attributes.max_mcast_grp),
        (Limit::MaxMcastQpAttach, &mut attributes.max_mcast_qp_attach),
        (Limit::MaxTotalMcastQpAttach, &mut attributes.max_total_mcast_qp_attach),
        (Limit::MaxAh, &mut attributes.max_ah),
        (Limit::MaxSrq, &mut attributes.max_srq),
        (Limit::MaxSrqWr, &mut attributes.max_srq_wr),
        (Limit::MaxSrqSge, &mut attributes.max_srq_sge),
    ] {
        tell(profile, limit, field);
    }
    // The kernel tells one number for both directions: the smaller one.
    let directions = [Limit::MaxSendSge, Limit::MaxRecvSge].map(|limit| profile.limit(limit).map_or(c_int::MAX, int));
    attributes.max_sge = directions.into_iter().fold(attributes.max_sge, c_int::min);
    if let Some(flags) = profile.flags {
        attributes.device_cap_flags = flags;
    }
    if let Some(atomics) = profile.atomics {
        attributes.atomic_cap = atomics as c_int;
    }
}

fn extended_attributes(opened: &OpenDevice) -> ibv_device_attr_ex {
    let mut attributes_ex = ibv_device_attr_ex::zeroed();
    attributes_ex.orig_attr = attributes(opened);
    let datagrams = abi::IBV_ODP_SUPPORT_SEND | abi::IBV_ODP_SUPPORT_RECV | abi::IBV_ODP_SUPPORT_SRQ_RECV;
    let unreliable = datagrams | abi::IBV_ODP_SUPPORT_WRITE;
    let reliable = unreliable
        | abi::IBV_ODP_SUPPORT_READ
        | abi::IBV_ODP_SUPPORT_ATOMIC
        | abi::IBV_ODP_SUPPORT_FLUSH
        | abi::IBV_ODP_SUPPORT_ATOMIC_WRITE;
    attributes_ex.odp_caps.general_caps = u64::from(abi::IBV_ODP_SUPPORT | abi::IBV_ODP_SUPPORT_IMPLICIT);
    attributes_ex.odp_caps.per_transport_caps.rc_odp_caps = reliable;
    attributes_ex.odp_caps.per_transport_caps.uc_odp_caps = unreliable;
    attributes_ex.odp_caps.per_transport_caps.ud_odp_caps = datagrams;
    attributes_ex.xrc_odp_caps = reliable;
    attributes_ex.completion_timestamp_mask = u64::MAX;
    // In kHz: completions carry nanoseconds.
    attributes_ex.hca_core_clock = 1_000_000;
    attributes_ex.device_cap_flags_ex = attributes_ex.orig_attr.device_cap_flags.into();
    attributes_ex.tm_caps = ibv_tm_caps {
        max_rndv_hdr_size: transport::MAX_RENDEZVOUS_HEADER,
        max_num_tags: limits::MAX_TAGS,
        flags: abi::IBV_TM_CAP_RC,
        max_ops: limits::MAX_WR,
        max_sge: limits::MAX_SGE,
    };
    attributes_ex.max_dm_size = opened.nic.memory().limits().device_memory;
    attributes_ex.cq_mod_caps = ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX };
    attributes_ex.packet_pacing_caps = ibv_packet_pacing_caps {
        qp_rate_limit_min: RateLimit::MIN_KBPS,
        qp_rate_limit_max: RateLimit::MAX_KBPS,
        supported_qpts: PACED_QP_TYPES.iter().fold(0, |kinds, kind| kinds | 1 << kind),
    };
    attributes_ex.phys_port_cnt_ex = attributes_ex.orig_attr.phys_port_cnt.into();
    attributes_ex.rss_caps = ibv_rss_caps {
        supported_qpts: 1 << abi::IBV_QPT_RAW_PACKET,
        max_rwq_indirection_tables: limits::MAX_QP,
        max_rwq_indirection_table_size: 1 << MAX_LOG_TABLE,
        rx_hash_fields_mask: HashFields::all().bits(),
        rx_hash_function: abi::IBV_RX_HASH_FUNC_TOEPLITZ as u8,
    };
    attributes_ex.max_wq_type_rq = limits::MAX_QP;
    attributes_ex.raw_packet_caps = abi::IBV_RAW_PACKET_CAP_CVLAN_STRIPPING | abi::IBV_RAW_PACKET_CAP_IP_CSUM;
    if let Some(profile) = opened.device().profile() {
        as_card_ex(profile, &mut attributes_ex);
    }
    attributes_ex
}

/// What a card tells beyond that, as far as its profile says it.
fn as_card_ex(profile: &Profile, attributes_ex: &mut ibv_device_attr_ex) {
    let none = ibv_device_attr_ex::zeroed();
    let has = |feature: Feature| !profile.refuses(feature);
    if profile.on_demand == Some(false) {
        (attributes_ex.odp_caps, attributes_ex.xrc_odp_caps) = (none.odp_caps, 0);
    }
    if profile.timestamps == Some(false) {
        (attributes_ex.completion_timestamp_mask, attributes_ex.hca_core_clock) = (0, 0);
    }
    if let Some(size) = profile.limit(Limit::MaxDmSize) {
        attributes_ex.max_dm_size = size;
    }
    if !has(Feature::TagMatching) {
        attributes_ex.tm_caps = none.tm_caps;
    }
    if !has(Feature::ModerateCq) {
        attributes_ex.cq_mod_caps = none.cq_mod_caps;
    }
    if !has(Feature::RateLimit) {
        attributes_ex.packet_pacing_caps = none.packet_pacing_caps;
    }
    if !has(Feature::CreateWq) {
        (attributes_ex.rss_caps, attributes_ex.max_wq_type_rq) = (none.rss_caps, 0);
    }
    if !has(Feature::RawPacket) {
        attributes_ex.raw_packet_caps = 0;
    }
}

/// The attributes of a device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_device(
    context: Handle<'_, ibv_context>,
    mut attributes_out: Out<'_, ibv_device_attr>,
) -> c_int {
    status("ibv_query_device", || {
        let opened = Context::device_here(context)?;
        attributes_out.write(attributes(&opened)).ok_or_else(Errno::null)?;
        Ok(())
    })
}

/// All of them, as many bytes as the program knows.
///
/// # Safety
/// `out` is null or has room for `size` bytes.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: Handle<'_, ibv_context>,
    input: In<'_, ibv_query_device_ex_input>,
    out: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    status("ibv_query_device_ex", || {
        let opened = Context::device_here(context)?;
        if out.is_null()
            || size < size_of::<ibv_device_attr>()
            || input.as_ref().is_some_and(|input| input.comp_mask != 0)
        {
            return Err(Errno::INVALID);
        }
        // SAFETY: not null, so with room for `size` bytes.
        unsafe { copy_out(&extended_attributes(&opened), out, size) };
        Ok(())
    })
}

fn port_attributes(device: &hca::Device) -> ibv_port_attr {
    let port = device.port();
    let mut attributes = ibv_port_attr::zeroed();
    attributes.state = if port.active { abi::IBV_PORT_ACTIVE } else { abi::IBV_PORT_DOWN };
    attributes.lid = port.imposed().lid;
    attributes.max_mtu = Mtu::B4096.code().into();
    attributes.active_mtu = port.mtu().code().into();
    attributes.gid_tbl_len = port.gids.len() as c_int;
    attributes.port_cap_flags = abi::IBV_PORT_CM_SUP | abi::IBV_PORT_IP_BASED_GIDS;
    attributes.max_msg_sz = transport::MAX_MESSAGE as u32;
    attributes.pkey_tbl_len = 1;
    attributes.max_vl_num = 1;
    (attributes.active_width, attributes.active_speed, attributes.active_speed_ex) = wire_of(port.rate);
    // Link up, or disabled.
    attributes.phys_state = if port.active { 5 } else { 3 };
    attributes.link_layer = abi::IBV_LINK_LAYER_ETHERNET as u8;
    attributes.flags = abi::IBV_QPF_GRH_REQUIRED as u8;
    let limit = |limit: Limit, usual: u64| device.limit(limit, usual);
    attributes.pkey_tbl_len = limit(Limit::PkeyEntries, 1) as u16;
    attributes.max_msg_sz = limit(Limit::MaxMessage, attributes.max_msg_sz.into()) as u32;
    attributes.port_cap_flags = limit(Limit::CapFlags, attributes.port_cap_flags.into()) as u32;
    attributes.max_vl_num = limit(Limit::MaxVl, attributes.max_vl_num.into()) as u8;
    attributes.lid = limit(Limit::Lid, attributes.lid.into()) as u16;
    let max_mtu = limit(Limit::MaxMtu, Mtu::B4096.bytes().into());
    let max_mtu = Mtu::ALL.into_iter().find(|mtu| u64::from(mtu.bytes()) == max_mtu).unwrap_or(Mtu::B4096);
    attributes.max_mtu = max_mtu.code().into();
    attributes
}

/// The attributes of a port, as many bytes as the program knows.
///
/// # Safety
/// `out` is null or has room for `size` bytes.
pub(crate) unsafe extern "C" fn query_port_sized(
    context: Handle<'_, ibv_context>,
    port: u8,
    out: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    status("ibv_query_port", || {
        let context = Context::working(context)?;
        let port = context.port(port.into())?;
        refuse_if!(out.is_null(), Errno::null());
        // SAFETY: not null, so with room for `size` bytes.
        unsafe { copy_out(&port_attributes(port), out, size) };
        Ok(())
    })
}

/// The attributes of a port for old programs, which know only the first part.
///
/// # Safety
/// `out` is null or has room for that part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(context: Handle<'_, ibv_context>, port: u8, out: *mut ibv_port_attr) -> c_int {
    // SAFETY: there is room for the part of that size.
    unsafe { query_port_sized(context, port, out, abi::IBV_PORT_ATTR_1_1) }
}

/// What a port can carry, in units of 100 Mbit/s: the same that its width and speed say.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_port_speed(context: Handle<'_, ibv_context>, port: u32, mut speed: Out<'_, u64>) -> c_int {
    status("ibv_query_port_speed", || {
        let context = Context::working(context)?;
        let LinkRate(rate) = context.port(port)?.port().rate;
        speed.write(rate.into()).ok_or_else(Errno::null)
    })
}

/// Entry `index` of the GID table; `None` if it is empty.
fn gid(context: &Context, port: u32, index: u32) -> Result<Option<Gid>, Errno> {
    let port = context.port(port)?.port();
    let beyond = || {
        Errno::invalid(format_args!("index {index} is beyond the GID table; it may be 0 to {}", port.gids.len() - 1))
    };
    port.gids.get(index as usize).copied().ok_or_else(beyond)
}

/// Entry `index` of the GID table; an empty one is all zeros.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_gid(
    context: Handle<'_, ibv_context>,
    port: u8,
    index: c_int,
    mut out: Out<'_, ibv_gid>,
) -> c_int {
    zero("ibv_query_gid", || {
        let context = Context::working(context)?;
        let index = u32::try_from(index).map_err(|_| Errno::INVALID)?;
        let found = gid(context, port.into(), index)?;
        out.write(gid_to_c(found.unwrap_or(Gid::ZERO))).ok_or_else(Errno::null)
    })
}

/// Which RoCE the entry speaks, as the kernel numbers it: 1 is version 2; empty entries count as version 1.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_gid_type(
    context: Handle<'_, ibv_context>,
    port: u8,
    index: c_uint,
    mut kind: Out<'_, c_uint>,
) -> c_int {
    zero("ibv_query_gid_type", || {
        let context = Context::working(context)?;
        let found = gid(context, port.into(), index)?;
        let is_v2 = found.is_some() && !context.port(port.into())?.port().is_v1(index);
        kind.write(is_v2.into()).ok_or_else(Errno::null)
    })
}

fn entry(port: &hca::Device, index: u32, gid: Gid) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: gid_to_c(gid),
        gid_index: index,
        port_num: port.port_number().into(),
        gid_type: if port.port().is_v1(index) { abi::IBV_GID_TYPE_ROCE_V1 } else { abi::IBV_GID_TYPE_ROCE_V2 },
        ndev_ifindex: port.interface_index(),
    }
}

/// One entry of the GID table with what is known about it.
///
/// # Safety
/// `out` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: Handle<'_, ibv_context>,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    status("ibv_query_gid_ex", || {
        let context = Context::working(context)?;
        refuse_if!(out.is_null() || flags != 0, Errno::INVALID);
        let found = gid(context, port, index)?.ok_or(Errno::of(libc::ENODATA))?;
        // SAFETY: not null, so with room for `size` bytes.
        unsafe { copy_out(&entry(context.port(port)?, index, found), out, size) };
        Ok(())
    })
}

/// All entries that are not empty; how many, or minus an errno.
///
/// # Safety
/// `out` is null or has room for `room` entries of `size` bytes each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: Handle<'_, ibv_context>,
    out: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut count = 0;
    let error = status("ibv_query_gid_table", || {
        let context = Context::working(context)?;
        refuse_if!(out.is_null() || flags != 0 || room == 0 || size == 0, Errno::INVALID);
        for port in context.opened.device().ports() {
            let gids = port.port().gids.clone();
            let present = gids.iter().enumerate().filter_map(|(index, gid)| Some((index as u32, (*gid)?)));
            for (index, gid) in present {
                refuse_if!(count as usize == room, Errno::INVALID);
                // SAFETY: there is room for more entries than were written so far.
                unsafe { copy_out(&entry(port, index, gid), out.byte_add(count as usize * size), size) };
                count += 1;
            }
        }
        Ok(())
    });
    if error == 0 { count } else { -(error as isize) }
}

/// Entry `index` of the partition key table, most significant byte first.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_pkey(
    context: Handle<'_, ibv_context>,
    port: u8,
    index: c_int,
    mut out: Out<'_, u16>,
) -> c_int {
    zero("ibv_query_pkey", || {
        let context = Context::working(context)?;
        let port = context.port(port.into())?;
        refuse_if!(index != 0, Errno::invalid("a port has one partition key, at index 0"));
        out.write(only_pkey(port).to_be()).ok_or_else(Errno::null)
    })
}

/// The one partition key of a port.
fn only_pkey(port: &hca::Device) -> u16 {
    port.port().imposed().pkey.unwrap_or(Pkey::DEFAULT.value())
}

/// The index of a partition key.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(context: Handle<'_, ibv_context>, port: u8, pkey: u16) -> c_int {
    number("ibv_get_pkey_index", || {
        let ours = only_pkey(Context::working(context)?.port(port.into())?).to_be();
        if pkey == ours { Ok(0) } else { Err(Errno::INVALID) }
    })
}

/// The clock whose time completions carry.
pub(crate) extern "C" fn query_rt_values(context: Handle<'_, ibv_context>, values: InOut<'_, ibv_values_ex>) -> c_int {
    status("ibv_query_rt_values_ex", || {
        let context = Context::working(context)?;
        let values = values.as_mut().ok_or_else(Errno::null)?;
        let asked = values.comp_mask;
        values.comp_mask = 0;
        if asked & abi::IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let now = context.opened.nic.now().as_nanos();
            values.raw_clock.tv_sec = (now / 1_000_000_000) as libc::time_t;
            values.raw_clock.tv_nsec = (now % 1_000_000_000) as libc::c_long;
            values.comp_mask = abi::IBV_VALUES_MASK_RAW_CLOCK;
        }
        Ok(())
    })
}

/// The hardware address behind a GID, for raw Ethernet, which this device does not do.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: Handle<'_, ibv_context>,
    _attributes: *mut abi::ibv_ah_attr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    status("ibv_resolve_eth_l2_from_gid", || {
        Context::working(context)?;
        Err(Errno::UNSUPPORTED)
    })
}

/// Whether data of a kind of work arrives in order in memory: it does, up to the last bytes, which come last, but on the
/// weakest NIC. A program that asks for more than yes or no is told of the whole message, and of every piece of it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(qp: Handle<'_, abi::ibv_qp>, opcode: c_uint, flags: u32) -> c_int {
    let _ = opcode;
    let known = abi::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS | abi::IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY;
    if qp.is_null() || flags & !known != 0 {
        return 0;
    }
    if QueuePair::of(qp).is_ok_and(|pair| pair.qp.places_in_any_order()) {
        return 0;
    }
    let all = abi::IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG | abi::IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES;
    if flags & abi::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS != 0 { all as c_int } else { 1 }
}
