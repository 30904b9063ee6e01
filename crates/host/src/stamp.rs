//! When and by whom a line of a log was written: so lines of several processes and a capture can be laid side by side.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The moment, the process and the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Since the Unix epoch.
    pub wall: Duration,
    /// The process's number.
    pub process: u32,
    /// The thread's number, which is the process's in the first thread.
    pub thread: u32,
}

impl Stamp {
    /// Here and now.
    pub fn now() -> Stamp {
        let thread = crate::thread::number();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Stamp { wall, process: std::process::id(), thread }
    }
}

/// `2026-11-17T04:20:01.123456Z 1234/1240`: the time in UTC, the process, the thread.
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.wall.as_secs() as libc::time_t;
        // SAFETY: fills in a live structure, for which zeros are a value. Takes no lock, unlike local time.
        let date = unsafe {
            let mut date: libc::tm = std::mem::zeroed();
            libc::gmtime_r(&raw const seconds, &raw mut date);
            date
        };
        let (year, month, day) = (date.tm_year + 1900, date.tm_mon + 1, date.tm_mday);
        let micros = self.wall.subsec_micros();
        write!(f, "{year}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{micros:06}Z", date.tm_hour, date.tm_min, date.tm_sec)?;
        write!(f, " {}/{}", self.process, self.thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_reads_as_a_date_a_process_and_a_thread() {
        let stamp = Stamp { wall: Duration::new(1_709_210_096, 7_000), process: 12, thread: 34 };
        assert_eq!(stamp.to_string(), "2024-02-29T12:34:56.000007Z 12/34");
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn threads_are_told_apart() {
        let here = Stamp::now();
        let there = std::thread::spawn(Stamp::now).join().unwrap();
        assert!(here.process == there.process && here.thread != there.thread, "{here} {there}");
    }
}
