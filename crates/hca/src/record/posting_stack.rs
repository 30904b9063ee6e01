//! Where a program posts work: the callers of the call that posts, as addresses, and as text the first time they are
//! seen. Only recordings that look for races have them (`--check=races`), as each look at a stack takes some microseconds.

use std::backtrace::Backtrace;
use std::ffi::{CStr, c_int, c_void};
use std::fmt::Write;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use trace::Text;

/// How many frames tell one stack from another.
const MAX_FRAMES_COMPARED: usize = 24;

/// How many callers are told.
const MAX_CALLERS_TOLD: usize = 4;

/// How many stacks are known to have been told: more are told without words.
const KNOWN_STACKS: usize = 4096;

/// Stacks that were told; 0 is a free place.
static TOLD: [AtomicU64; KNOWN_STACKS] = [const { AtomicU64::new(0) }; KNOWN_STACKS];

/// So many stacks are told with lines of source code: finding them takes some tenths of a second where a program has many
/// libraries. Others are told by symbols.
const STACKS_WITH_LINES: u32 = 4;

/// How functions of this library begin that are between the program and here.
const OWN_FUNCTIONS: &[&str] = &[
    "ubiverbs_",
    "<ubiverbs_",
    "capi::",
    "<capi::",
    "ubiverbs::",
    "<ubiverbs::",
    "std::",
    "<std::",
    "core::",
    "<core::",
];

/// The stack of this thread: a number, and who called, the innermost first, unless that was told before.
pub(crate) fn look() -> (u64, Text<160>) {
    let mut frames = Frames { addresses: [0; MAX_FRAMES_COMPARED], count: 0 };
    // SAFETY: the function is called with each frame, and with this value, which outlives the call.
    unsafe { _Unwind_Backtrace(note_frame, (&raw mut frames).cast()) };
    let addresses = &frames.addresses[..frames.count];
    // FNV-1a; never 0.
    let mix = |hash: u64, address: &usize| (hash ^ *address as u64).wrapping_mul(0x100_0000_01b3);
    let place = addresses.iter().fold(0xcbf2_9ce4_8422_2325, mix).max(1);
    let caller = if is_new(place) { Text::of(Callers::of(addresses).0) } else { Text::of("") };
    (place, caller)
}

struct Frames {
    addresses: [usize; MAX_FRAMES_COMPARED],
    count: usize,
}

/// The unwinder's state.
#[repr(C)]
struct UnwindContext {
    _private: [u8; 0],
}

const UNWIND_GO_ON: c_int = 0;
const UNWIND_END: c_int = 5;

unsafe extern "C" {
    fn _Unwind_Backtrace(see: extern "C" fn(*mut UnwindContext, *mut c_void) -> c_int, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut UnwindContext) -> usize;
}

extern "C" fn note_frame(context: *mut UnwindContext, frames: *mut c_void) -> c_int {
    // SAFETY: `look` passes its own frames, and nothing else refers to them meanwhile.
    let frames = unsafe { &mut *frames.cast::<Frames>() };
    let Some(place) = frames.addresses.get_mut(frames.count) else { return UNWIND_END };
    // SAFETY: the unwinder's own context.
    *place = unsafe { _Unwind_GetIP(context) };
    frames.count += 1;
    UNWIND_GO_ON
}

/// Whether a stack was not told before. A table that is full knows all.
fn is_new(place: u64) -> bool {
    let first = place as usize % KNOWN_STACKS;
    for slot in TOLD[first..].iter().chain(&TOLD[..first]) {
        match slot.compare_exchange(0, place, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(known) if known == place => return false,
            Err(_) => {}
        }
    }
    false
}

/// Callers as text.
struct Callers(String);

impl Callers {
    #[cold]
    fn of(addresses: &[usize]) -> Callers {
        static WITH_LINES: AtomicU32 = AtomicU32::new(0);
        let has_lines = WITH_LINES.fetch_add(1, Ordering::Relaxed) < STACKS_WITH_LINES;
        let callers = has_lines.then(Callers::by_debug_information).flatten();
        callers.or_else(|| Callers::by_symbols(addresses)).unwrap_or(Callers(String::new()))
    }

    /// As the standard library names them, with lines of source code where they are known.
    fn by_debug_information() -> Option<Callers> {
        let text = Backtrace::force_capture().to_string();
        let mut frames: Vec<(&str, &str)> = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(place) = line.strip_prefix("at ") {
                if let Some(frame) = frames.last_mut() {
                    frame.1 = place;
                }
            } else if let Some((_, name)) = line.split_once(": ") {
                frames.push((name, ""));
            }
        }
        let is_own = |(name, _): &(&str, &str)| OWN_FUNCTIONS.iter().any(|own| name.starts_with(own));
        // A closure of the program is called by the standard library, too: only what is innermost is ours.
        let own = frames.iter().take_while(|frame| is_own(frame) || frame.0.contains("ibv_")).count();
        let callers = frames.get(own..).filter(|callers| own > 0 && !callers.is_empty())?;
        if callers[0].0.contains("<unknown>") || callers[0].0.starts_with("__libc") {
            return None;
        }
        // The call itself, and where the program makes it: what lies between may be libraries.
        let count = callers.iter().position(|caller| caller.0 == "main").map_or(callers.len(), |main| main + 1);
        let skipped = if count > MAX_CALLERS_TOLD { MAX_CALLERS_TOLD / 2..count - MAX_CALLERS_TOLD / 2 } else { 0..0 };
        let mut told = String::new();
        for (number, (name, place)) in callers.iter().enumerate().take(count) {
            if skipped.contains(&number) {
                continue;
            }
            let separator = match number {
                0 => "",
                number if number == skipped.end && number > 0 => " < … < ",
                _ => " < ",
            };
            // The end of a path says enough: `file.c:12:5`.
            let place = place.rsplit('/').next().unwrap_or(place);
            let at = if place.is_empty() { "" } else { " at " };
            let _ = write!(told, "{separator}{name}{at}{place}");
        }
        Some(Callers(told))
    }

    /// By symbols for the linker: functions of libraries, and offsets in programs.
    fn by_symbols(addresses: &[usize]) -> Option<Callers> {
        let own = symbol(look as fn() -> (u64, Text<160>) as usize)?.dli_fbase;
        let callers = addresses.iter().filter_map(|address| Some((*address, symbol(*address)?)));
        let callers: Vec<_> = callers.skip_while(|(_, symbol)| symbol.dli_fbase == own).collect();
        // SAFETY: a number of the kernel's.
        let entry = unsafe { libc::getauxval(libc::AT_ENTRY) } as usize;
        let program = symbol(entry).map(|symbol| symbol.dli_fbase);
        let first = callers.iter().position(|(_, symbol)| Some(symbol.dli_fbase) == program).unwrap_or(0);
        // The call itself, and where the program makes it: what lies between may be libraries.
        let skipped = if first > MAX_CALLERS_TOLD / 2 { MAX_CALLERS_TOLD / 2..first } else { 0..0 };
        let is_told = |(number, _): &(usize, _)| !skipped.contains(number);
        let mut told = String::new();
        for (number, (address, symbol)) in callers.iter().enumerate().filter(is_told).take(MAX_CALLERS_TOLD) {
            let separator = match number {
                0 => "",
                number if number == skipped.end => " < … < ",
                _ => " < ",
            };
            let file = text(symbol.dli_fname);
            let file = file.rsplit('/').next().unwrap_or(&file);
            let _ = match text(symbol.dli_sname).as_str() {
                "" => write!(told, "{separator}{file}+{:#x}", address.wrapping_sub(symbol.dli_fbase.addr())),
                name => write!(told, "{separator}{name}+{:#x}", address.wrapping_sub(symbol.dli_saddr.addr())),
            };
        }
        Some(Callers(told)).filter(|callers| !callers.0.is_empty())
    }
}

/// What the linker knows of an address.
fn symbol(address: usize) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: an address that is looked up, not read; room for the answer, which is complete if the call succeeds.
    unsafe { (libc::dladdr(std::ptr::without_provenance(address), info.as_mut_ptr()) != 0).then(|| info.assume_init()) }
}

fn text(name: *const libc::c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: the linker's own string, which lives as long as the library is loaded, and its code is on the stack.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn one_place() -> (u64, Text<160>) {
        look()
    }

    #[test]
    fn a_place_is_told_once_and_known_again() {
        let looks: Vec<_> = (0..3).map(|_| one_place()).collect();
        assert!(!looks[0].1.as_str().is_empty(), "{looks:?}");
        assert!(looks[1..].iter().all(|look| look.1.as_str().is_empty() && look.0 == looks[0].0), "{looks:?}");
        let elsewhere = one_place();
        assert!(elsewhere.0 != looks[0].0 && !elsewhere.1.as_str().is_empty(), "{elsewhere:?}");
    }
}
