//! The errors of the system, as far as calls of verbs return them: the numbers of Linux, their names, and what they
//! mean in general.

/// Names, numbers, and what they mean in general. Of two names of one number the first is the usual one.
pub const ERRNO_MEANINGS: &[(&str, i32, &str)] = &[
    ("EPERM", 1, "the process lacks a right"),
    ("ENOENT", 2, "there is no such thing; also: nothing is there now"),
    ("EINTR", 4, "a signal came; call again"),
    ("EIO", 5, "the object cannot be used: inherited from the parent of a fork, or after an error inside"),
    ("EBADF", 9, "the descriptor is not open, or of another kind"),
    ("EAGAIN", 11, "nothing is there now, and the call does not wait"),
    ("ENOMEM", 12, "no room: a queue is full, or a limit of the device is reached"),
    ("EFAULT", 14, "the memory is not there"),
    ("EBUSY", 16, "something else still uses the object"),
    ("ENODEV", 19, "no RDMA device is there"),
    ("EINVAL", 22, "an argument cannot be, or the object is in another state"),
    ("EMFILE", 24, "the process has too many open files"),
    ("ENOSPC", 28, "no room"),
    ("ERANGE", 34, "a value is out of its range"),
    ("ENOSYS", 38, "the call does not exist here"),
    ("ENODATA", 61, "there is nothing to read"),
    ("EOVERFLOW", 75, "a value does not fit"),
    ("EMSGSIZE", 90, "the message is too long"),
    ("EOPNOTSUPP", 95, "this device does not do that"),
    ("EAFNOSUPPORT", 97, "addresses of that family are not supported"),
    ("EACCES", 13, "the process may not do that"),
    ("EEXIST", 17, "it is there already"),
    ("ENXIO", 6, "no such device or address"),
    ("EPROTO", 71, "the two sides do not agree about the protocol"),
    ("EPROTONOSUPPORT", 93, "the device, or the kernel, does not know that protocol"),
    ("ENOTSUP", 95, "this device does not do that"),
    ("EHOSTUNREACH", 113, "there is no way to the host, or it does not answer for its address"),
    ("EADDRINUSE", 98, "the port or address is taken"),
    ("EADDRNOTAVAIL", 99, "no interface of this host has the address"),
    ("ENETUNREACH", 101, "there is no way to the address"),
    ("ECONNABORTED", 103, "the connection was given up"),
    ("ECONNRESET", 104, "the peer ended the connection"),
    ("EISCONN", 106, "it is connected already"),
    ("ENOTCONN", 107, "it is not connected"),
    ("ETIMEDOUT", 110, "the peer did not answer in time"),
    ("ECONNREFUSED", 111, "nobody listens there"),
];

/// The name of an error by its number.
#[must_use]
pub fn name(number: i32) -> Option<&'static str> {
    ERRNO_MEANINGS.iter().find(|(_, known, _)| *known == number).map(|(name, ..)| *name)
}
