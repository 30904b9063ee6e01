//! `ubiverbs devices`: the RDMA devices a program of this host would see.

use crate::exit::{Exit, Failure};
use crate::nics::NicsOption;
use crate::style;
use clap::Args;
use hca::{Device, Nic};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;

/// List the RDMA devices of this host
///
/// One device per network interface that is up and has an address, loopback included. Each has one port, unless --nics
/// says otherwise. The GIDs are the interface's addresses; the MTU is the largest of RDMA that fits the interface's.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nics: NicsOption,
}

/// Lists the devices.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    options.nics.apply()?;
    let nic = Nic::of_process().map_err(Failure::Nic)?;
    let (devices, unreachable) = (nic.devices(), nic.unreachable());
    if options.json {
        let devices: Vec<Value> = devices.iter().map(document).collect();
        let document = json!({ "devices": devices, "unreachable": unreachable });
        writeln!(out, "{document:#}").map_err(Failure::Output)?;
        return Ok(Exit::Ok);
    }
    let title = style::TITLE_STYLE;
    for device in &devices {
        writeln!(out, "{title}{}{title:#}", device.name())
            .and_then(|()| writeln!(out, "    guid        {}", guid(device)))
            .map_err(Failure::Output)?;
        for device in device.ports() {
            let (number, port) = (device.port_number(), device.port());
            let state = if port.active { "active" } else { "down" };
            writeln!(out, "    port {number}      {state}")
                .and_then(|()| {
                    writeln!(out, "    mtu         {} (interface: {})", port.mtu().bytes(), port.interface_mtu)
                })
                .map_err(Failure::Output)?;
            for (index, gid) in port.gids.iter().enumerate() {
                if let Some(gid) = gid {
                    writeln!(out, "    gid {index:<7} {gid}").map_err(Failure::Output)?;
                }
            }
        }
    }
    for reason in unreachable {
        writeln!(out, "note: other hosts cannot reach this process: {reason}").map_err(Failure::Output)?;
    }
    if devices.is_empty() {
        writeln!(out, "No device: no network interface is up and has an address. Try: ip link set lo up")
            .map_err(Failure::Output)?;
        return Ok(Exit::Job);
    }
    Ok(Exit::Ok)
}

/// The devices of this host. No NIC is made for that: it would write to the captures and logs that are the program's.
pub fn of_host() -> Result<Vec<Arc<Device>>, Failure> {
    let what = "cannot list the network interfaces";
    let interfaces = hca::interfaces::of_devices(hca::environment::nics(), hca::environment::profile_of)
        .map_err(|source| Failure::System { what, source })?;
    let usable = interfaces.iter().filter(|interface| interface.running && !interface.addresses.is_empty());
    Ok(usable.map(|interface| Arc::new(Device::of(interface))).collect())
}

/// As `ibv_devices` writes it.
pub fn guid(device: &Device) -> String {
    let guid = device.guid();
    format!("{:04x}:{:04x}:{:04x}:{:04x}", guid >> 48, guid >> 32 & 0xffff, guid >> 16 & 0xffff, guid & 0xffff)
}

fn document(device: &Arc<Device>) -> Value {
    let mut document = port_document(device);
    document["name"] = device.name().into();
    document["guid"] = guid(device).into();
    if device.port_count() > 1 {
        document["further_ports"] = device.ports().skip(1).map(|port| port_document(port)).collect();
    }
    document
}

fn port_document(device: &Device) -> Value {
    let port = device.port();
    let gids: Vec<Value> = port
        .gids
        .iter()
        .enumerate()
        .filter_map(|(index, gid)| gid.map(|gid| json!({ "index": index, "gid": gid.to_string(), "type": "RoCE v2" })))
        .collect();
    json!({
        "port": device.port_number(),
        "active": port.active,
        "mtu": port.mtu().bytes(),
        "interface_mtu": port.interface_mtu,
        "gids": gids,
    })
}
