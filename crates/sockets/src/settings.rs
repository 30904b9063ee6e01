//! What an administrator has set: one number in each file of `/etc/rdma/rsocket`.

use latch::PerProcess;
use rsocket::{SEND_LOW_WATER, Sizes, scale_to_value, value_to_scale};
use std::path::Path;
use std::time::Duration;

/// Where the files are.
const SETTINGS_DIRECTORY: &str = "/etc/rdma/rsocket";

/// What holds for every socket that does not say otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Sizes of queues and buffers.
    pub sizes: Sizes,
    /// How long a call that would wait looks for something before it sleeps.
    pub polling_time: Duration,
    /// How long `rpoll` sleeps at most before it looks again.
    pub wake_up_interval: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sizes: Sizes::default(),
            polling_time: Duration::from_micros(10),
            wake_up_interval: Duration::from_millis(500),
        }
    }
}

impl Settings {
    /// Those of this process, read once.
    pub fn of_process() -> &'static Settings {
        static SETTINGS: PerProcess<Settings> = PerProcess::new();
        SETTINGS.get_or_make(|| Settings::read(Path::new(SETTINGS_DIRECTORY)))
    }

    /// Those of the files in a directory. A file that is missing, or has no number, changes nothing.
    pub fn read(directory: &Path) -> Settings {
        let text = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
        let number = |name: &str| text(name).and_then(|text| leading_number(&text));
        Settings::default().with(number)
    }

    fn with(mut self, number: impl Fn(&str) -> Option<u64>) -> Settings {
        let small = |name: &str| number(name).map(|value| value.min(u16::MAX.into()) as u16);
        let large = |name: &str| number(name).map(|value| value.min(u32::MAX.into()) as u32);
        let sizes = &mut self.sizes;
        sizes.inline = small("inline_default").unwrap_or(sizes.inline);
        sizes.send_queue = small("sqsize_default").unwrap_or(sizes.send_queue);
        sizes.receive_queue = small("rqsize_default").unwrap_or(sizes.receive_queue);
        sizes.receive_buffer = large("mem_default").map_or(sizes.receive_buffer, |bytes| bytes.max(1));
        sizes.send_buffer = large("wmem_default").map_or(sizes.send_buffer, |bytes| match bytes < SEND_LOW_WATER {
            true => 2 * SEND_LOW_WATER,
            false => bytes,
        });
        sizes.io_mappings =
            large("iomap_size").map_or(sizes.io_mappings, |count| scale_to_value(value_to_scale(count)));
        self.polling_time =
            large("polling_time").map_or(self.polling_time, |micros| Duration::from_micros(micros.into()));
        self.wake_up_interval =
            large("wake_up_interval").map_or(self.wake_up_interval, |millis| Duration::from_millis(millis.into()));
        self
    }
}

/// The number that a text begins with.
fn leading_number(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_files_count_and_what_is_none_does_not() {
        assert_eq!(leading_number(" 1000000\n"), Some(1_000_000));
        assert_eq!(leading_number("12 apples"), Some(12));
        assert_eq!((leading_number(""), leading_number("many")), (None, None));
        let settings = Settings::default().with(|name| match name {
            "mem_default" => Some(0),
            "wmem_default" => Some(100),
            "sqsize_default" => Some(1 << 40),
            "iomap_size" => Some(1000),
            "polling_time" => Some(7),
            _ => None,
        });
        assert_eq!((settings.sizes.receive_buffer, settings.sizes.send_buffer), (1, 4096));
        assert_eq!((settings.sizes.send_queue, settings.sizes.receive_queue), (u16::MAX, 384));
        assert_eq!((settings.sizes.io_mappings, settings.polling_time), (768, Duration::from_micros(7)));
        assert_eq!(Settings::read(Path::new("/nonexistent")), Settings::default());
    }
}
