//! Pointers that C passes to a call, typed by what the manual pages promise about them, so that the promise is stated
//! once and following the pointer needs no further argument. Each is a plain pointer in the calling convention, and
//! each may be null. The lifetime is that of the call: a program may free what it passed when the call has returned.
//!
//! | type | besides null it is |
//! |---|---|
//! | [`In`] | a `T` that no thread changes during the call |
//! | [`Out`] | room for a `T`, which may be uninitialised, and which no other thread uses during the call |
//! | [`InOut`] | a `T` that no other thread uses during the call |
//! | [`Handle`] | an object that this library handed out as a `T` and that is not destroyed before the call returns |
//! | [`Owned`] | such an object, which the program gives up: no thread uses it from now on if the call succeeds |

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::{ibv_cq, ibv_cq_ex, ibv_qp, ibv_qp_ex};

/// What hears of memory that calls fill in: a sanitizer, which does not see the library's own stores.
static FILLED_IN: OnceLock<fn(*const c_void, usize)> = OnceLock::new();

/// Has `tell` hear of what calls fill in, with its place and its length.
pub fn tell_of_what_is_filled_in(tell: fn(*const c_void, usize)) {
    FILLED_IN.get_or_init(|| tell);
}

/// A call fills in what is there, if it is not null.
#[inline]
fn filled_in<T>(place: *const T) {
    if let Some(tell) = FILLED_IN.get().filter(|_| !place.is_null()) {
        tell(place.cast(), size_of::<T>());
    }
}

/// An argument that the call reads.
#[repr(transparent)]
pub struct In<'a, T>(*const T, PhantomData<&'a T>);

impl<T> Clone for In<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<'_, T> {}

impl<'a, T> In<'a, T> {
    /// What it points to, unless it is null.
    #[inline]
    pub fn as_ref(self) -> Option<&'a T> {
        // SAFETY: null, or a `T` that no thread changes during the call, which `'a` does not outlive.
        unsafe { self.0.as_ref() }
    }

    /// The pointer itself.
    #[inline]
    pub fn as_ptr(self) -> *const T {
        self.0
    }
}

impl<'a, T> From<&'a T> for In<'a, T> {
    fn from(value: &'a T) -> Self {
        In(value, PhantomData)
    }
}

/// An argument that the call fills in.
#[repr(transparent)]
pub struct Out<'a, T>(*mut T, PhantomData<&'a mut T>);

impl<'a, T> Out<'a, T> {
    /// Whether there is no room for an answer.
    #[inline]
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes the answer; `None` if there is no room for it.
    #[inline]
    pub fn write(&mut self, value: T) -> Option<()> {
        let place = NonNull::new(self.0)?;
        filled_in(self.0);
        // SAFETY: not null, so room for a `T` that no other thread uses during the call.
        unsafe { place.write(value) };
        Some(())
    }

    /// The pointer itself.
    #[inline]
    pub fn as_ptr(&self) -> *mut T {
        filled_in(self.0);
        self.0
    }
}

impl<'a, T> From<&'a mut T> for Out<'a, T> {
    fn from(place: &'a mut T) -> Self {
        Out(place, PhantomData)
    }
}

/// An argument that the call reads and changes.
#[repr(transparent)]
pub struct InOut<'a, T>(*mut T, PhantomData<&'a mut T>);

impl<'a, T> InOut<'a, T> {
    /// What it points to, unless it is null.
    #[inline]
    pub fn as_mut(self) -> Option<&'a mut T> {
        filled_in(self.0);
        // SAFETY: null, or a `T` that no other thread uses during the call, which `'a` does not outlive; `self`, from
        // which another reference could be made, is gone.
        unsafe { self.0.as_mut() }
    }
}

impl<'a, T> From<&'a mut T> for InOut<'a, T> {
    fn from(value: &'a mut T) -> Self {
        InOut(value, PhantomData)
    }
}

/// An object of this library, which the program keeps.
#[repr(transparent)]
pub struct Handle<'a, T>(*mut T, PhantomData<&'a T>);

impl<T> Clone for Handle<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<'_, T> {}

impl<'a, T> Handle<'a, T> {
    /// No object.
    pub const fn null() -> Self {
        Handle(std::ptr::null_mut(), PhantomData)
    }

    /// Takes a pointer for an object.
    ///
    /// # Safety
    /// It is null, or this library handed it out as a `T`, and its object is not destroyed during `'a`.
    #[inline]
    pub unsafe fn new(pointer: *mut T) -> Self {
        Handle(pointer, PhantomData)
    }

    /// Whether there is no object.
    #[inline]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The pointer itself.
    #[inline]
    pub fn as_ptr(self) -> *mut T {
        self.0
    }
}

impl<'a> Handle<'a, ibv_cq_ex> {
    /// The queue in its plain form, in which the library knows it: the extended structure begins with the plain one.
    #[inline]
    pub fn plain(self) -> Handle<'a, ibv_cq> {
        Handle(self.0.cast(), PhantomData)
    }
}

impl<'a> Handle<'a, ibv_qp_ex> {
    /// The queue pair in its plain form, in which the library knows it: the extended structure begins with the plain
    /// one.
    #[inline]
    pub fn plain(self) -> Handle<'a, ibv_qp> {
        Handle(self.0.cast(), PhantomData)
    }
}

/// An object of this library, which the program gives back.
#[repr(transparent)]
pub struct Owned<'a, T>(*mut T, PhantomData<&'a mut T>);

impl<'a, T> Owned<'a, T> {
    /// Takes a pointer for an object to be destroyed.
    ///
    /// # Safety
    /// It is null, or this library handed it out as a `T`, and no thread uses it after a call that destroys it.
    #[inline]
    pub unsafe fn new(pointer: *mut T) -> Self {
        Owned(pointer, PhantomData)
    }

    /// The object while it is there.
    #[inline]
    pub fn handle(&self) -> Handle<'_, T> {
        Handle(self.0, PhantomData)
    }

    /// The pointer of an object that is to be destroyed now.
    #[inline]
    pub fn into_ptr(self) -> *mut T {
        self.0
    }
}

macro_rules! print_as_pointers {
    ($($name:ident)*) => {
        $(impl<T> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:p}", self.0)
            }
        })*
    };
}

print_as_pointers! { In Out InOut Handle Owned }
