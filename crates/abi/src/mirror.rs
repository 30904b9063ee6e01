//! How a mirror is written: a C-like declaration that becomes the Rust type and a description of its layout, so that
//! the two cannot differ.

/// The layout of one type.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// `struct` or `union`.
    pub kind: &'static str,
    /// The name in C.
    pub name: &'static str,
    /// Its size here.
    pub size: usize,
    /// Its fields.
    pub fields: &'static [Field],
}

/// A field of a type.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name in C. Unions that have no name there carry the name of their first member.
    pub name: &'static str,
    /// Its offset here.
    pub offset: usize,
}

macro_rules! mirror {
    ($($kind:ident $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            #[allow(missing_debug_implementations)]
            pub $kind $name { $(pub $field: $type,)* }

            impl $name {
                /// All zeros: numbers that are 0, null pointers and no functions.
                pub const fn zeroed() -> $name {
                    // SAFETY: a mirror consists of integers, pointers that may be null, optional functions, POSIX locks
                    // that are zero when they are unlocked, and other mirrors. All zeros are valid for each of these.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*

        /// The layouts of this module's types.
        pub const LAYOUTS: &[$crate::Layout] = &[$($crate::Layout {
            kind: stringify!($kind),
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: &[$($crate::Field {
                name: stringify!($field),
                offset: std::mem::offset_of!($name, $field),
            }),*],
        }),*];
    };
}
