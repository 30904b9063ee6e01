//! Spans of time that other tools put into the recording, to be seen beside calls and packets. docs/recording.md tells
//! people of `ubiverbs_record_span`.

use crate::boundary::status;
use crate::errno::{Errno, refuse_if};
use hca::{Nic, Span};
use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

/// How many texts a span has at most, the tool and its name among them, and how long each of them is.
const MAX_SPAN_TEXTS: usize = 40;
const MAX_SPAN_TEXT_BYTES: usize = 256;

const INVALID: Errno = Errno::of(libc::EINVAL);
const NO_RECORDING: Errno = Errno::of(libc::ENODATA);

/// Puts a span into the recording. `begin` and `end` are nanoseconds of `CLOCK_MONOTONIC`, `texts` are the tool, the
/// name of the span, and names and values of its fields, alternately, with a null pointer at the end. It returns 0;
/// `ENODATA` if nothing is recorded, whatever the arguments are; or `EINVAL`.
///
/// # Safety
/// `texts` is null, or an array of C strings that ends with a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ubiverbs_record_span(begin: u64, end: u64, texts: *const *const c_char) -> c_int {
    status("ubiverbs_record_span", || {
        let nic = recorded_nic().ok_or(NO_RECORDING)?;
        refuse_if!(texts.is_null() || end < begin, INVALID);
        let mut given = Vec::new();
        loop {
            // SAFETY: the array goes on up to its null pointer, behind which nothing is read.
            let text = unsafe { *texts.add(given.len()) };
            if text.is_null() {
                break;
            }
            refuse_if!(given.len() == MAX_SPAN_TEXTS, INVALID);
            // SAFETY: the caller says that it is a C string.
            given.push(cut(&unsafe { CStr::from_ptr(text) }.to_string_lossy()).to_owned());
        }
        refuse_if!(given.len() < 2 || given.len() % 2 != 0, INVALID);
        let texts: Vec<&str> = given.iter().map(String::as_str).collect();
        let was_recorded = nic.record_span(&Span { begin, end, thread: hca::thread_number(), texts: &texts });
        refuse_if!(!was_recorded, NO_RECORDING);
        Ok(())
    })
}

/// The NIC of this process, if it is recorded.
pub(crate) fn recorded_nic() -> Option<Arc<Nic>> {
    Nic::present().filter(|nic| nic.is_recorded())
}

/// As much of a text as a span takes.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_SPAN_TEXT_BYTES)]
}
