//! The numbers behind the names of errors of the system, as far as calls of verbs answer them.

/// Names, numbers, and what they mean in general.
pub const ERRNO_MEANINGS: &[(&str, i32, &str)] = &[
    ("EPERM", libc::EPERM, "the process lacks a right"),
    ("ENOENT", libc::ENOENT, "there is no such thing; also: nothing is there now"),
    ("EINTR", libc::EINTR, "a signal came; call again"),
    ("EIO", libc::EIO, "the object cannot be used: inherited from the parent of a fork, or after an error inside"),
    ("EBADF", libc::EBADF, "the descriptor is not open, or of another kind"),
    ("EAGAIN", libc::EAGAIN, "nothing is there now, and the call does not wait"),
    ("ENOMEM", libc::ENOMEM, "no room: a queue is full, or a limit of the device is reached"),
    ("EFAULT", libc::EFAULT, "the memory is not there"),
    ("EBUSY", libc::EBUSY, "something else still uses the object"),
    ("ENODEV", libc::ENODEV, "no RDMA device is there"),
    ("EINVAL", libc::EINVAL, "an argument cannot be, or the object is in another state"),
    ("EMFILE", libc::EMFILE, "the process has too many open files"),
    ("ENOSPC", libc::ENOSPC, "no room"),
    ("ENOSYS", libc::ENOSYS, "the call does not exist here"),
    ("ENODATA", libc::ENODATA, "there is nothing to read"),
    ("EOVERFLOW", libc::EOVERFLOW, "a value does not fit"),
    ("EMSGSIZE", libc::EMSGSIZE, "the message is too long"),
    ("EOPNOTSUPP", libc::EOPNOTSUPP, "this device does not do that"),
    ("EAFNOSUPPORT", libc::EAFNOSUPPORT, "addresses of that family are not supported"),
    ("EACCES", libc::EACCES, "the process may not do that"),
    ("EEXIST", libc::EEXIST, "it is there already"),
    ("ENXIO", libc::ENXIO, "no such device or address"),
    ("EPROTO", libc::EPROTO, "the two sides do not agree about the protocol"),
    ("EPROTONOSUPPORT", libc::EPROTONOSUPPORT, "the device, or the kernel, does not know that protocol"),
    ("ENOTSUP", libc::ENOTSUP, "this device does not do that"),
    ("EHOSTUNREACH", libc::EHOSTUNREACH, "there is no way to the host, or it does not answer for its address"),
    ("EADDRINUSE", libc::EADDRINUSE, "the port or address is taken"),
    ("EADDRNOTAVAIL", libc::EADDRNOTAVAIL, "no interface of this host has the address"),
    ("ENETUNREACH", libc::ENETUNREACH, "there is no way to the address"),
    ("ECONNABORTED", libc::ECONNABORTED, "the connection was given up"),
    ("ECONNRESET", libc::ECONNRESET, "the peer ended the connection"),
    ("EISCONN", libc::EISCONN, "it is connected already"),
    ("ENOTCONN", libc::ENOTCONN, "it is not connected"),
    ("ETIMEDOUT", libc::ETIMEDOUT, "the peer did not answer in time"),
    ("ECONNREFUSED", libc::ECONNREFUSED, "nobody listens there"),
];

/// What an error means in general.
pub fn meaning(number: u32) -> Option<&'static str> {
    ERRNO_MEANINGS.iter().find(|(_, known, _)| *known as u32 == number).map(|(.., meaning)| *meaning)
}

/// The error whose sentence (`strerror`) is in a text of small letters; the longest, if there are several.
pub fn in_words(lower: &str) -> Option<u32> {
    let said = |code: i32| {
        let text = std::io::Error::from_raw_os_error(code).to_string().to_ascii_lowercase();
        text.split(" (os error").next().map(str::to_owned)
    };
    let found = ERRNO_MEANINGS.iter().filter_map(|(_, code, _)| said(*code).map(|text| (text, *code)));
    found.filter(|(text, _)| lower.contains(text)).max_by_key(|(text, _)| text.len()).map(|(_, code)| code as u32)
}

/// The number of an error by its name.
pub fn number(name: &str) -> Option<u32> {
    ERRNO_MEANINGS.iter().find(|(known, _, _)| known.eq_ignore_ascii_case(name)).map(|(_, number, _)| *number as u32)
}

/// The name of an error by its number.
pub fn name(number: u32) -> Option<&'static str> {
    ERRNO_MEANINGS.iter().find(|(_, known, _)| *known as u32 == number).map(|(name, _, _)| *name)
}
