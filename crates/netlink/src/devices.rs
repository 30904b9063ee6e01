//! Devices, their ports, their character devices, and the system.

use crate::message::Message;
use crate::numbers::errno::{EINVAL, ENOENT};
use crate::numbers::{attribute, command};
use crate::requests::{Asked, Errno, Exchange};
use crate::{Device, Host};

/// A channel adapter.
const NODE_TYPE: u8 = 1;

/// The version of the interface of character devices for verbs, as `sys/class/infiniband_verbs` says it.
const VERBS_ABI: u64 = 1;

/// The number of `/dev/null`, which is what the files of these devices are.
const VERBS_DEVICE: u64 = 1 << 8 | 3;

/// Which device an answer is about.
pub(crate) fn handle(message: &mut Message, number: u32, device: &Device) {
    message.u32(attribute::DEV_INDEX, number).text(attribute::DEV_NAME, &device.name);
}

fn describe(message: &mut Message, number: u32, device: &Device) {
    handle(message, number, device);
    message
        .u32(attribute::PORT_INDEX, device.ports.len() as u32)
        .u64(attribute::CAP_FLAGS, device.capabilities)
        .text(attribute::FW_VERSION, &device.firmware)
        .u64(attribute::NODE_GUID, device.guid)
        .u64(attribute::SYS_IMAGE_GUID, device.guid)
        .u8(attribute::DEV_NODE_TYPE, NODE_TYPE)
        .u8(attribute::DEV_DIM, 0)
        .text(attribute::DEV_PROTOCOL, "roce");
}

pub(crate) fn all(exchange: &mut Exchange<'_>, host: &mut impl Host) -> Result<(), Errno> {
    for device in host.devices() {
        let mut message = exchange.message(command::GET);
        describe(&mut message, device.number, &device);
        exchange.send(message);
    }
    Ok(())
}

pub(crate) fn one(exchange: &mut Exchange<'_>, asked: &Asked, host: &mut impl Host) -> Result<(), Errno> {
    let (number, device) = asked.device(host)?;
    let mut message = exchange.message(command::GET);
    describe(&mut message, number, &device);
    exchange.send(message);
    Ok(())
}

pub(crate) fn port(exchange: &mut Exchange<'_>, asked: &Asked, dumps: bool, host: &mut impl Host) -> Result<(), Errno> {
    let (number, device) = asked.device(host)?;
    let wanted = if dumps { None } else { Some(asked.needed_port(&device)?) };
    for (port, active) in (1..).zip(&device.ports).filter(|(port, _)| wanted.is_none_or(|wanted| wanted == *port)) {
        // The kernel answers for a single port with the other command.
        let mut message = exchange.message(if dumps { command::PORT_GET } else { command::GET });
        handle(&mut message, number, &device);
        let (state, physical) = if *active { (4, 5) } else { (1, 3) };
        message
            .u32(attribute::PORT_INDEX, port)
            .u8(attribute::PORT_STATE, state)
            .u8(attribute::PORT_PHYS_STATE, physical)
            .u32(attribute::NDEV_INDEX, device.interface)
            .text(attribute::NDEV_NAME, &device.interface_name);
        exchange.send(message);
    }
    Ok(())
}

pub(crate) fn system(exchange: &mut Exchange<'_>) -> Result<(), Errno> {
    let mut message = exchange.message(command::SYS_GET);
    // Each network namespace has devices of its own; and memory survives a fork without the program's help.
    message.u8(attribute::SYS_NETNS_MODE, 0).u8(attribute::SYS_COPY_ON_FORK, 1);
    exchange.send(message);
    Ok(())
}

pub(crate) fn character_device(exchange: &mut Exchange<'_>, asked: &Asked, host: &mut impl Host) -> Result<(), Errno> {
    let kind = asked.chardev.as_deref().ok_or(EINVAL)?;
    let wanted = asked.device.ok_or(ENOENT)?;
    // Files are counted as devices are listed.
    let place = host.devices().iter().position(|device| device.number == wanted).ok_or(EINVAL)?;
    if kind != "uverbs" {
        return Err(ENOENT);
    }
    let mut message = exchange.message(command::GET_CHARDEV);
    message
        .u64(attribute::CHARDEV, VERBS_DEVICE)
        .u64(attribute::CHARDEV_ABI, VERBS_ABI)
        .text(attribute::CHARDEV_NAME, &format!("uverbs{place}"));
    exchange.send(message);
    Ok(())
}
