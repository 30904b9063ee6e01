//! Counters: of a port, and of each queue pair. What the kernel calls a counter that a queue pair is bound to is here
//! the queue pair's own, with its number.

use crate::Host;
use crate::devices::handle;
use crate::message::{MAX_MESSAGE_BYTES, Message};
use crate::numbers::errno::{EINVAL, ENOENT, EOPNOTSUPP};
use crate::numbers::{attribute, command};
use crate::requests::{Asked, Errno, Exchange};
use inventory::{QueuePair, names};
use transport::Counters;

/// Queue pairs are counted one by one, without being told to.
const MODE_MANUAL: u32 = 2;

fn table(to: &mut Message, counters: Vec<(&'static str, u64)>) {
    to.nested(attribute::STAT_HWCOUNTERS, |to| {
        for (name, value) in counters {
            to.nested(attribute::STAT_HWCOUNTER_ENTRY, |to| {
                to.text(attribute::STAT_HWCOUNTER_ENTRY_NAME, name).u64(attribute::STAT_HWCOUNTER_ENTRY_VALUE, value);
            });
        }
    });
}

/// What is counted of a queue pair, as an entry of a list.
fn entry(to: &mut Message, pid: i32, pair: &QueuePair) {
    to.u32(attribute::PORT_INDEX, pair.port.into())
        .u32(attribute::STAT_COUNTER_ID, pair.number)
        .u8(attribute::RES_TYPE, pair.kind)
        .u32(attribute::RES_PID, pid as u32)
        .nested(attribute::RES_QP, |to| {
            to.nested(attribute::RES_QP_ENTRY, |to| {
                to.u32(attribute::RES_LQPN, pair.number);
            });
        });
    table(to, names::queue_pair(&pair.counters));
}

/// The queue pairs on a device, with their processes.
fn queue_pairs(device: u32, host: &mut impl Host) -> Vec<(i32, QueuePair)> {
    let mut found = Vec::new();
    for process in host.processes().iter() {
        let pairs = process.report.iter().flat_map(|report| &report.queue_pairs);
        found.extend(pairs.filter(|pair| pair.interface == device).map(|pair| (process.pid, pair.clone())));
    }
    found
}

pub(crate) fn one(exchange: &mut Exchange<'_>, asked: &Asked, host: &mut impl Host) -> Result<(), Errno> {
    let (number, device) = asked.device(host)?;
    let port = asked.needed_port(&device)?;
    let mut message = exchange.message(command::STAT_GET);
    handle(&mut message, number, &device);
    message.u32(attribute::PORT_INDEX, port);
    match (asked.number(attribute::STAT_RES).map(u16::try_from), asked.number(attribute::STAT_MODE)) {
        (None, _) => table(&mut message, names::hardware(&host.counters(&device.name, port))),
        (Some(Ok(attribute::RES_QP)), Some(_)) => {
            message.u32(attribute::STAT_MODE, MODE_MANUAL);
        }
        (Some(Ok(attribute::RES_QP)), None) => {
            let wanted = asked.number(attribute::STAT_COUNTER_ID).ok_or(EINVAL)?;
            let found = queue_pairs(device.number, host).into_iter().find(|(_, pair)| pair.number == wanted);
            let (_, pair) = found.ok_or(ENOENT)?;
            message.u32(attribute::STAT_COUNTER_ID, wanted);
            table(&mut message, names::queue_pair(&pair.counters));
        }
        (Some(Ok(attribute::RES_MR)), _) => return Err(EOPNOTSUPP),
        _ => return Err(EINVAL),
    }
    exchange.send(message);
    Ok(())
}

pub(crate) fn all(exchange: &mut Exchange<'_>, asked: &Asked, host: &mut impl Host) -> Result<(), Errno> {
    let (number, device) = asked.device(host)?;
    let port = asked.port(&device)?;
    match asked.number(attribute::STAT_RES).map(u16::try_from) {
        Some(Ok(attribute::RES_QP)) => {}
        // Nothing is counted of regions.
        Some(Ok(attribute::RES_MR)) => return Ok(()),
        _ => return Err(EINVAL),
    }
    let is_on = |pair: &QueuePair| port.is_none_or(|port| port == u32::from(pair.port));
    let mut pairs = queue_pairs(device.number, host).into_iter().filter(|(_, pair)| is_on(pair)).peekable();
    while pairs.peek().is_some() {
        let mut message = exchange.message(command::STAT_GET);
        handle(&mut message, number, &device);
        let mut length = 0;
        message.nested(attribute::STAT_COUNTER, |to| {
            // All entries are of one length.
            while let Some((pid, pair)) = pairs.next_if(|_| to.length() + length <= MAX_MESSAGE_BYTES) {
                let before = to.length();
                to.nested(attribute::STAT_COUNTER_ENTRY, |to| entry(to, pid, &pair));
                length = to.length() - before;
            }
        });
        exchange.send(message);
    }
    Ok(())
}

/// Which counters there are. All of them are always on.
pub(crate) fn status(exchange: &mut Exchange<'_>, asked: &Asked, host: &mut impl Host) -> Result<(), Errno> {
    let (number, device) = asked.device(host)?;
    let port = asked.needed_port(&device)?;
    let mut message = exchange.message(command::STAT_GET_STATUS);
    handle(&mut message, number, &device);
    message.u32(attribute::PORT_INDEX, port).nested(attribute::STAT_HWCOUNTERS, |to| {
        for (index, (name, _)) in (0..).zip(names::hardware(&Counters::default())) {
            to.nested(attribute::STAT_HWCOUNTER_ENTRY, |to| {
                to.text(attribute::STAT_HWCOUNTER_ENTRY_NAME, name).u32(attribute::STAT_HWCOUNTER_INDEX, index);
            });
        }
    });
    exchange.send(message);
    Ok(())
}
