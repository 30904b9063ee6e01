//! Numbers that nobody outside this process can foresee: a stranger who cannot see the packets of a connection must
//! guess them to interfere.

/// So many random bytes, from the system.
pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0u8; N];
    // SAFETY: the kernel writes at most as many bytes as the array has.
    let length = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(length) != Ok(N) {
        // A system without the call, or a filter that forbids it: what the standard library asked for at its start.
        bytes.fill_with(|| ::host::random() as u8);
    }
    bytes
}
