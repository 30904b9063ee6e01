//! Endpoints: an id, its addresses and its queue pair in one call, all of whose calls wait.

use super::bind::{rdma_resolve_addr, rdma_resolve_route};
use super::delivered_event::{acknowledge, outcome, subject};
use super::event;
use super::id::ConnectionId;
use super::lifecycle::rdma_destroy_id;
use super::option;
use super::queue_pair::{last_error, rdma_destroy_qp};
use super::shared_receive_queue::rdma_destroy_srq;
use crate::boundary::{number, unreported};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, field, set_field};
use abi::{Handle, In, InOut, Out, Owned, ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id};
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use std::sync::Arc;

/// How long addresses and routes may take to resolve, in milliseconds.
const RESOLVE_TIMEOUT_MS: c_int = 2000;

/// An endpoint for what `rdma_getaddrinfo` found.
#[unsafe(export_name = "ubiverbs_rdma_create_ep")]
pub extern "C" fn rdma_create_ep(
    mut id: Out<'_, *mut rdma_cm_id>,
    found: In<'_, rdma_addrinfo>,
    pd: Handle<'_, ibv_pd>,
    attributes: InOut<'_, ibv_qp_init_attr>,
) -> c_int {
    number("rdma_create_ep", || {
        let found = found.as_ref().ok_or_else(Errno::null)?;
        refuse_if!(id.is_null(), Errno::null());
        let made =
            ConnectionId::create(null_mut(), null_mut(), found.ai_port_space as c_uint, found.ai_qp_type as c_uint)?;
        match prepare(made.handle(), found, pd, attributes.as_mut()) {
            Ok(()) => {
                id.write(made.into_ptr());
                Ok(0)
            }
            Err(error) => {
                rdma_destroy_ep(made);
                Err(error)
            }
        }
    })
}

fn prepare(
    id: Handle<'_, rdma_cm_id>,
    found: &rdma_addrinfo,
    pd: Handle<'_, ibv_pd>,
    attributes: Option<&mut ibv_qp_init_attr>,
) -> Result<(), Errno> {
    let it = ConnectionId::of(id)?;
    let called = |answer: c_int| if answer == 0 { Ok(()) } else { Err(last_error()) };
    if found.ai_flags as u32 & abi::RAI_PASSIVE != 0 {
        // SAFETY: `rdma_getaddrinfo` returns null or an address.
        unsafe { it.bind(found.ai_src_addr) }?;
        it.refresh()?;
        if let Some(attributes) = attributes {
            attributes.qp_type = found.ai_qp_type as c_uint;
            it.state().endpoint = Some((pd.as_ptr(), *attributes));
        }
        return Ok(());
    }
    // SAFETY: `rdma_getaddrinfo` returns null or addresses.
    called(unsafe { rdma_resolve_addr(id, found.ai_src_addr, found.ai_dst_addr, RESOLVE_TIMEOUT_MS) })?;
    if found.ai_route_len > 0 {
        // SAFETY: null, or of that length, as `rdma_getaddrinfo` has it.
        unsafe { option::set_path(it, found.ai_route, found.ai_route_len) }?;
        it.complete()?;
    } else {
        called(rdma_resolve_route(id, RESOLVE_TIMEOUT_MS))?;
    }
    if let Some(attributes) = attributes {
        attributes.qp_type = found.ai_qp_type as c_uint;
        it.create_plain_qp(pd, attributes)?;
    }
    if found.ai_connect_len > 0 && !found.ai_connect.is_null() {
        // SAFETY: not null, so of that length, as `rdma_getaddrinfo` has it.
        let data = unsafe { std::slice::from_raw_parts(found.ai_connect.cast::<u8>(), found.ai_connect_len) };
        it.state().connect_data = data.to_vec();
    }
    Ok(())
}

/// The next peer that asks a listening endpoint, with a queue pair as the endpoint was told.
#[unsafe(export_name = "ubiverbs_rdma_get_request")]
pub extern "C" fn rdma_get_request(listen: Handle<'_, rdma_cm_id>, mut id: Out<'_, *mut rdma_cm_id>) -> c_int {
    number("rdma_get_request", || {
        let it = ConnectionId::of(listen)?;
        refuse_if!(id.is_null(), Errno::null());
        refuse_if!(!it.is_synchronous(), Errno::invalid("the id has an event channel, where its requests are"));
        it.drop_event();
        let channel = Arc::clone(&it.state().channel);
        let event = event::next(it.id.nic(), &channel)?;
        let (kind, status) = outcome(&event)?;
        // SAFETY: it is destroyed only if the event is a request, for which it was made and which alone has it.
        let asked = unsafe { Owned::new(subject(&event)?) };
        let ready = || -> Result<(), Errno> {
            refuse_if!(status != 0, Errno::of(status.saturating_abs()));
            refuse_if!(kind != abi::RDMA_CM_EVENT_CONNECT_REQUEST, Errno::INVALID);
            let endpoint = it.state().endpoint;
            if let Some((pd, mut attributes)) = endpoint {
                // SAFETY: null, or the domain that the endpoint was made with, which the program keeps for its
                // requests.
                let pd = unsafe { Handle::new(pd) };
                ConnectionId::of(asked.handle())?.create_plain_qp(pd, &mut attributes)?;
            }
            Ok(())
        };
        match ready() {
            Ok(()) => {
                set_field!(ConnectionId::of(asked.handle())?.base, event, event.into_ptr());
                id.write(asked.into_ptr());
                Ok(0)
            }
            Err(error) => {
                if kind == abi::RDMA_CM_EVENT_CONNECT_REQUEST {
                    // The program has not seen it and cannot destroy it; the peer is turned away.
                    rdma_destroy_id(asked);
                }
                acknowledge(event);
                Err(error)
            }
        }
    })
}

/// Destroys an endpoint with everything it has.
#[unsafe(export_name = "ubiverbs_rdma_destroy_ep")]
pub extern "C" fn rdma_destroy_ep(id: Owned<'_, rdma_cm_id>) {
    unreported("rdma_destroy_ep", || {
        let it = ConnectionId::given_back(&id)?;
        if !it.qp().is_null() {
            rdma_destroy_qp(id.handle());
        }
        if !field!(it.base, srq).is_null() {
            rdma_destroy_srq(id.handle());
        }
        it.destroy_cqs();
        rdma_destroy_id(id);
        Ok(())
    });
}
