//! Management classes of this process: of one class on the port of a device, the requests go to one process of the
//! host, the one that has bound its name. The kernel sees to it that there is only one.

use crate::names::{self, ManagementClass, Name};
use crate::slots::{Registry, Slots};
use std::io;
use std::sync::Arc;

/// A class whose requests are this process's until this is dropped.
#[derive(Debug)]
pub struct Class {
    registry: Arc<Registry>,
    class: ManagementClass,
}

impl Class {
    /// Takes a class for the process that has these slots. `EADDRINUSE` if a process has it, this one among them.
    pub fn bind(slots: &Slots, class: ManagementClass) -> io::Result<Class> {
        let socket = names::socket()?;
        names::listen_patiently(&socket, Name::Class(class))?;
        let registry = slots.registry().clone();
        registry.enter(Name::Class(class), socket)?;
        Ok(Class { registry, class })
    }
}

impl Drop for Class {
    fn drop(&mut self) {
        self.registry.leave(Name::Class(self.class));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_one_process_until_it_is_given_back() {
        let (one, other) = (Slots::open().unwrap(), Slots::open().unwrap());
        // No interface has such a number.
        let class = ManagementClass { interface: u32::MAX - std::process::id(), class: 4, version: 1, oui: 0 };
        let held = Class::bind(&one, class).unwrap();
        for slots in [&one, &other] {
            assert_eq!(Class::bind(slots, class).unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        }
        Class::bind(&other, ManagementClass { version: 2, ..class }).unwrap();
        drop(held);
        Class::bind(&other, class).unwrap();
    }
}
