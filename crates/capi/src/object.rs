//! Objects that C holds: a box whose first field is the structure of the header and whose rest is the library's, so
//! that a pointer to the one is a pointer to the other.

use crate::errno::{Errno, refuse_if};
use crate::registry::PerProcess;
use abi::{Handle, Owned};
use std::any::TypeId;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::fmt;
use std::mem::offset_of;

/// An object as C has it, and the process that made it. A forked child has a copy whose locks a thread of its parent
/// may have held: it must not come so far as to take one.
#[repr(C)]
struct Handed<T> {
    generation: u32,
    object: T,
}

/// Where the objects are that C has, and of which type: one that was destroyed is told from one that lives without
/// looking at it. Calls that destroy something ask, and all calls with objects of which each call is rare
/// ([`Object::ALWAYS_CHECKED`]); those that move data do not.
static LIVE_OBJECTS: PerProcess<HashMap<usize, TypeId>> = PerProcess::new();

/// An object that the library hands out to C.
///
/// # Safety
/// Every `Self::C` that the library hands out lies [`OFFSET`](Object::OFFSET) bytes into a `Self`, at the place that
/// [`into_c`](Object::into_c) answers. Fields that change while C has the object are behind a lock,
/// atomic, or [`Public`].
pub(crate) unsafe trait Object: Sized + 'static {
    /// The structure of the header.
    type C;

    /// Where in the object that structure begins.
    const OFFSET: usize = 0;

    /// Whether every call asks if the object was destroyed.
    const ALWAYS_CHECKED: bool = false;

    /// The object behind a pointer from C, unless it is a parent's: then `EIO`, as of hardware that has gone.
    #[inline]
    fn of(handle: Handle<'_, Self::C>) -> Result<&Self, Errno> {
        refuse_if!(handle.is_null(), Errno::null());
        if Self::ALWAYS_CHECKED {
            Self::must_live(handle)?;
        }
        // SAFETY: not null, so from `into_c` of a `Self`, which is not destroyed while the handle lasts.
        let handed = unsafe { &*handed::<Self>(handle.as_ptr()) };
        refuse_if!(handed.generation != latch::generation(), Errno::inherited());
        Ok(&handed.object)
    }

    /// Whether the number in the header's structure, by which a kernel would know the object, is still the one that the
    /// library wrote there.
    fn has_its_handle(&self) -> bool {
        true
    }

    /// Whether its device has failed or was unplugged.
    fn device_has_failed(&self) -> bool {
        false
    }

    /// The object for a call that a kernel would serve, by its `handle`: `ENOENT` if the program has overwritten that,
    /// `EIO` if the device has failed.
    fn by_handle(handle: Handle<'_, Self::C>) -> Result<&Self, Errno> {
        let object = Self::with_its_handle(handle)?;
        if object.device_has_failed() {
            return Err(Errno::device_failed());
        }
        Ok(object)
    }

    /// The object, if its `handle` is the one that the library wrote there.
    fn with_its_handle(handle: Handle<'_, Self::C>) -> Result<&Self, Errno> {
        let object = Self::of(handle)?;
        if !object.has_its_handle() {
            let why = "the program has overwritten the field `handle` of the object";
            return Err(Errno::of(libc::ENOENT).because(why));
        }
        Ok(object)
    }

    /// The object that a program gives back: `ENOENT` if it has done so before, or gave another kind of object.
    fn given_back<'a>(owned: &'a Owned<'_, Self::C>) -> Result<&'a Self, Errno> {
        Self::must_live(owned.handle())?;
        Self::with_its_handle(owned.handle())
    }

    /// `ENOENT` if the program has destroyed the object, or it is another kind of object. The kernel says so of an id
    /// that it does not know.
    fn must_live(handle: Handle<'_, Self::C>) -> Result<(), Errno> {
        if handle.is_null() || is_live::<Self>(handle) || Self::is_inherited(handle) {
            return Ok(());
        }
        Err(Errno::of(libc::ENOENT).because(match is_taken(handle.as_ptr().addr()) {
            true => format!("the object at {:p} is of another kind", handle.as_ptr()),
            false => format!("there is no object at {:p} any more; the program destroyed it before", handle.as_ptr()),
        }))
    }

    /// Finds the object also if it is a parent's: only what never changes may be looked at, for locks may be taken for
    /// ever.
    fn of_any(handle: Handle<'_, Self::C>) -> Result<&Self, Errno> {
        refuse_if!(handle.is_null(), Errno::null());
        // SAFETY: as for `of`.
        Ok(unsafe { &(*handed::<Self>(handle.as_ptr())).object })
    }

    /// Whether it is an object of a process that this one was forked from. Only a forked process looks at it.
    fn is_inherited(handle: Handle<'_, Self::C>) -> bool {
        // SAFETY: as for `of`.
        let generation = || unsafe { &*handed::<Self>(handle.as_ptr()) }.generation;
        !handle.is_null() && latch::generation() != 0 && generation() != latch::generation()
    }

    /// Hands the object to C.
    fn into_c(self: Box<Self>) -> *mut Self::C {
        let handed = Box::into_raw(Box::new(Handed { generation: latch::generation(), object: *self }));
        // SAFETY: the structure lies inside the object.
        let c: *mut Self::C = unsafe { (&raw mut (*handed).object).byte_add(Self::OFFSET).cast() };
        LIVE_OBJECTS.lock().insert(c.addr(), TypeId::of::<Self>());
        c
    }

    /// Takes the object back from C, which uses it no more.
    fn from_c(owned: Owned<'_, Self::C>) -> Result<Box<Self>, Errno> {
        Self::given_back(&owned)?;
        // Of two threads that destroy it at the same time one does.
        refuse_if!(LIVE_OBJECTS.lock().remove(&owned.handle().as_ptr().addr()).is_none(), Errno::of(libc::ENOENT));
        // SAFETY: it was alive, so from `into_c`, and the program has given it up.
        Ok(Box::new(unsafe { Box::from_raw(handed::<Self>(owned.into_ptr())) }.object))
    }
}

/// Whether C has such an object there, made by this process.
fn is_live<T: Object>(handle: Handle<'_, T::C>) -> bool {
    LIVE_OBJECTS.lock().get(&handle.as_ptr().addr()) == Some(&TypeId::of::<T>())
}

/// Whether C has some object there.
fn is_taken(address: usize) -> bool {
    LIVE_OBJECTS.lock().contains_key(&address)
}

/// Where the whole of an object begins that C has. Not followed here.
#[inline]
fn handed<T: Object>(c: *mut T::C) -> *mut Handed<T> {
    c.wrapping_byte_sub(T::OFFSET + offset_of!(Handed<T>, object)).cast()
}

/// A structure of the header inside an object, some of whose fields change while C has it. The fields are read and
/// written one by one with [`field!`] and [`set_field!`], and no reference to the structure ever exists.
#[repr(transparent)]
pub struct Public<T>(UnsafeCell<T>);

impl<T> Public<T> {
    pub(crate) fn new(value: T) -> Public<T> {
        Public(UnsafeCell::new(value))
    }

    /// Where C finds it.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.get()
    }

    /// The structure, while C does not have it yet.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T> fmt::Debug for Public<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}", self.as_ptr())
    }
}

/// Reads a field of a [`Public`] structure.
macro_rules! field {
    ($public:expr, $($field:ident).+) => {{
        let structure: *mut _ = $crate::object::Public::as_ptr(&$public);
        // SAFETY: the structure is alive as long as the object it is borrowed from. The library writes a field under a
        // lock, or in calls that a program makes one after another for one object.
        #[allow(unused_unsafe, reason = "the field may be read for a call that is unsafe itself")]
        let value = unsafe { (&raw const (*structure).$($field).+).read() };
        value
    }};
}

/// Reads a field of the header's structure that only a program that breaks the rules writes.
macro_rules! program_field {
    ($structure:expr, $field:ident) => {{
        // SAFETY: a field of a live structure; any bits are a number.
        unsafe { (&raw const $structure.$field).read_volatile() }
    }};
}

/// Writes a field of a [`Public`] structure.
macro_rules! set_field {
    ($public:expr, $($field:ident).+, $value:expr) => {{
        let value = $value;
        let structure: *mut _ = $crate::object::Public::as_ptr(&$public);
        // SAFETY: as for reading; the pointer may be written through, since the structure lies in an `UnsafeCell`.
        unsafe { (&raw mut (*structure).$($field).+).write(value) }
    }};
}

pub(crate) use {field, program_field, set_field};
