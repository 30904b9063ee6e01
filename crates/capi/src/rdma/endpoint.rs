//! Endpoints: an id, its addresses and its queue pair in one call, all of whose calls wait.

use super::address;
use super::bind::{rdma_resolve_addr, rdma_resolve_route};
use super::event;
use super::id::{ConnectionId, rdma_destroy_id};
use super::option;
use super::queue_pair::{last_error, rdma_destroy_qp};
use super::shared_receive_queue::rdma_destroy_srq;
use crate::boundary::{number, quietly};
use crate::errno::Errno;
use abi::{ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id};
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use std::sync::Arc;

/// How long addresses and routes may take to resolve, in milliseconds.
const PATIENCE: c_int = 2000;

/// An endpoint for what `rdma_getaddrinfo` found.
#[unsafe(export_name = "ubiverbs_rdma_create_ep")]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    found: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> c_int {
    number("rdma_create_ep", || {
        let found = found.as_ref().ok_or_else(Errno::null)?;
        if id.is_null() {
            return Err(Errno::null());
        }
        let made =
            ConnectionId::create(null_mut(), null_mut(), found.ai_port_space as c_uint, found.ai_qp_type as c_uint)?;
        match prepare(ConnectionId::of(made)?, found, pd, attributes.as_mut()) {
            Ok(()) => {
                id.write(made);
                Ok(0)
            }
            Err(error) => {
                rdma_destroy_ep(made);
                Err(error)
            }
        }
    })
}

unsafe fn prepare(
    it: &ConnectionId,
    found: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attributes: Option<&mut ibv_qp_init_attr>,
) -> Result<(), Errno> {
    let id = it.as_c();
    let called = |answer: c_int| if answer == 0 { Ok(()) } else { Err(last_error()) };
    if found.ai_flags as u32 & abi::RAI_PASSIVE != 0 {
        it.id.bind(address::from_c(found.ai_src_addr)?)?;
        it.refresh()?;
        if let Some(attributes) = attributes {
            attributes.qp_type = found.ai_qp_type as c_uint;
            it.state().endpoint = Some((pd, *attributes));
        }
        return Ok(());
    }
    called(rdma_resolve_addr(id, found.ai_src_addr, found.ai_dst_addr, PATIENCE))?;
    if found.ai_route_len > 0 {
        option::set_path(it, found.ai_route, found.ai_route_len)?;
        it.complete()?;
    } else {
        called(rdma_resolve_route(id, PATIENCE))?;
    }
    if let Some(attributes) = attributes {
        attributes.qp_type = found.ai_qp_type as c_uint;
        it.create_plain_qp(pd, attributes)?;
    }
    if found.ai_connect_len > 0 && !found.ai_connect.is_null() {
        it.state().connect_data =
            std::slice::from_raw_parts(found.ai_connect.cast::<u8>(), found.ai_connect_len).to_vec();
    }
    Ok(())
}

/// The next who asks a listening endpoint, with a queue pair as the endpoint was told.
#[unsafe(export_name = "ubiverbs_rdma_get_request")]
pub unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    number("rdma_get_request", || {
        let it = ConnectionId::of(listen)?;
        if id.is_null() {
            return Err(Errno::null());
        }
        if !it.is_synchronous() {
            return Err(Errno::invalid("the id has an event channel, where its requests are"));
        }
        it.drop_event();
        let channel = Arc::clone(&it.state().channel);
        let event = event::next(&channel)?;
        let asked = (*event).id;
        let ready = || -> Result<(), Errno> {
            if (*event).status != 0 {
                return Err(Errno((*event).status.saturating_abs()));
            }
            if (*event).event != abi::RDMA_CM_EVENT_CONNECT_REQUEST {
                return Err(Errno::INVALID);
            }
            let endpoint = it.state().endpoint;
            if let Some((pd, mut attributes)) = endpoint {
                ConnectionId::of(asked)?.create_plain_qp(pd, &mut attributes)?;
            }
            Ok(())
        };
        match ready() {
            Ok(()) => {
                (*asked).event = event;
                id.write(asked);
                Ok(0)
            }
            Err(error) => {
                if (*event).event == abi::RDMA_CM_EVENT_CONNECT_REQUEST {
                    // Nobody else can destroy what nobody has seen; the peer is turned away.
                    rdma_destroy_id(asked);
                }
                event::acknowledge(event);
                Err(error)
            }
        }
    })
}

/// Destroys an endpoint with everything it has.
#[unsafe(export_name = "ubiverbs_rdma_destroy_ep")]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    quietly("rdma_destroy_ep", || {
        ConnectionId::of(id)?;
        if !(*id).qp.is_null() {
            rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            rdma_destroy_srq(id);
        }
        ConnectionId::of(id)?.destroy_cqs();
        rdma_destroy_id(id);
        Ok(())
    });
}
