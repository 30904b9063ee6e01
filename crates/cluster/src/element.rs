//! What is summed up: numbers, as they are in memory and in messages.

use std::fmt;

/// How two elements become one.
///
/// Sums and products of integers wrap around. Minimum and maximum of floats are NaN if one of them is, so that nothing
/// wrong is hidden.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Op {
    /// Their sum.
    Sum,
    /// Their product.
    Product,
    /// The smaller.
    Min,
    /// The larger.
    Max,
    /// The bits that both have. Of integers only, as the next two.
    And,
    /// The bits that one of them has.
    Or,
    /// The bits that exactly one has.
    Xor,
}

impl Op {
    const ALL: [Op; 7] = [Op::Sum, Op::Product, Op::Min, Op::Max, Op::And, Op::Or, Op::Xor];

    /// Its number in messages.
    pub(crate) fn code(self) -> u8 {
        self as u8 + 1
    }

    pub(crate) fn of_code(code: u8) -> Option<Op> {
        Op::ALL.into_iter().find(|op| op.code() == code)
    }

    fn is_of_bits(self) -> bool {
        matches!(self, Op::And | Op::Or | Op::Xor)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Op::Sum => "sum",
            Op::Product => "product",
            Op::Min => "min",
            Op::Max => "max",
            Op::And => "and",
            Op::Or => "or",
            Op::Xor => "xor",
        })
    }
}

/// The type of the elements of a call: an integer or a float. In messages they are little-endian.
#[diagnostic::on_unimplemented(
    message = "groups do not move elements of the type `{Self}`",
    note = "integers of 8 to 64 bits, `f32` and `f64` are elements"
)]
pub trait Element: sealed::Element + Copy + Send + Sync + fmt::Debug + 'static {}

pub(crate) mod sealed {
    use super::Op;

    /// What a collective does with elements.
    pub trait Element: Sized {
        const CODE: u8;
        const SIZE: usize;
        const IS_FLOAT: bool;
        /// Writes elements into a message.
        fn put(data: &[Self], bytes: &mut [u8]);
        /// Reads them out of one.
        fn take(bytes: &[u8], data: &mut [Self]);
        /// Elements of a message into our own; `first` if ours stand before the operator.
        fn fold(op: Op, data: &mut [Self], bytes: &[u8], first: bool);
        /// Our own elements into those of a message, which stand before the operator.
        fn fold_into(op: Op, bytes: &mut [u8], data: &[Self]);
    }
}

/// Whether elements of this type know the operator.
pub(crate) fn fits<T: Element>(op: Op) -> bool {
    !(T::IS_FLOAT && op.is_of_bits())
}

/// The name of a type, by its code in messages.
pub(crate) fn name(code: u8) -> Option<&'static str> {
    const NAMES: [&str; 10] = ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64"];
    NAMES.get(usize::from(code).checked_sub(1)?).copied()
}

macro_rules! element {
    ($type:ty, $code:literal, $float:literal, $op:ident, $a:ident, $b:ident, { $($arm:tt)* }) => {
        impl Element for $type {}

        impl sealed::Element for $type {
            const CODE: u8 = $code;
            const SIZE: usize = size_of::<$type>();
            const IS_FLOAT: bool = $float;

            fn put(data: &[$type], bytes: &mut [u8]) {
                let (places, _) = bytes.as_chunks_mut::<{ size_of::<$type>() }>();
                places.iter_mut().zip(data).for_each(|(place, value)| *place = value.to_le_bytes());
            }

            fn take(bytes: &[u8], data: &mut [$type]) {
                let (places, _) = bytes.as_chunks::<{ size_of::<$type>() }>();
                data.iter_mut().zip(places).for_each(|(value, place)| *value = <$type>::from_le_bytes(*place));
            }

            fn fold($op: Op, data: &mut [$type], bytes: &[u8], first: bool) {
                type Given<'a> = (&'a mut [$type], &'a [u8], bool);
                fn each((data, bytes, first): Given<'_>, combine: impl Fn($type, $type) -> $type) {
                    let (places, _) = bytes.as_chunks::<{ size_of::<$type>() }>();
                    let pairs = data.iter_mut().zip(places);
                    if first {
                        pairs.for_each(|(value, place)| *value = combine(*value, <$type>::from_le_bytes(*place)));
                    } else {
                        pairs.for_each(|(value, place)| *value = combine(<$type>::from_le_bytes(*place), *value));
                    }
                }
                element!(@arms each, (data, bytes, first), $op, $a, $b, $type, { $($arm)* })
            }

            fn fold_into($op: Op, bytes: &mut [u8], data: &[$type]) {
                fn each((bytes, data): (&mut [u8], &[$type]), combine: impl Fn($type, $type) -> $type) {
                    let (places, _) = bytes.as_chunks_mut::<{ size_of::<$type>() }>();
                    let pairs = places.iter_mut().zip(data);
                    pairs.for_each(|(place, value)| {
                        *place = combine(<$type>::from_le_bytes(*place), *value).to_le_bytes();
                    });
                }
                element!(@arms each, (bytes, data), $op, $a, $b, $type, { $($arm)* })
            }
        }
    };
    // One loop for each operator: the compiler makes vectors of them.
    (@arms $each:ident, $given:tt, $op:ident, $a:ident, $b:ident, $type:ty,
        { $($name:ident => $value:expr,)* }) => {
        match $op { $(Op::$name => $each($given, |$a: $type, $b: $type| -> $type { $value }),)* }
    };
}

macro_rules! integer {
    ($type:ty, $code:literal) => {
        element!($type, $code, false, op, a, b, {
            Sum => a.wrapping_add(b),
            Product => a.wrapping_mul(b),
            Min => a.min(b),
            Max => a.max(b),
            And => a & b,
            Or => a | b,
            Xor => a ^ b,
        });
    };
}

macro_rules! float {
    ($type:ty, $code:literal) => {
        element!($type, $code, true, op, a, b, {
            Sum => a + b,
            Product => a * b,
            Min => if a < b || a.is_nan() { a } else { b },
            Max => if a > b || a.is_nan() { a } else { b },
            // Refused before anything is sent.
            And => if a < b { a } else { b },
            Or => if a > b { a } else { b },
            Xor => a + b,
        });
    };
}

integer!(u8, 1);
integer!(i8, 2);
integer!(u16, 3);
integer!(i16, 4);
integer!(u32, 5);
integer!(i32, 6);
integer!(u64, 7);
integer!(i64, 8);
float!(f32, 9);
float!(f64, 10);

#[cfg(test)]
mod tests {
    use super::sealed::Element as _;
    use super::*;

    fn both<T: Element + PartialEq>(op: Op, a: T, b: T, expected: T) {
        let mut bytes = vec![0; T::SIZE];
        T::put(&[b], &mut bytes);
        let mut ours = [a];
        T::fold(op, &mut ours, &bytes, true);
        assert_eq!(ours, [expected], "{op}");
        T::put(&[a], &mut bytes);
        T::fold_into(op, &mut bytes, &[b]);
        T::take(&bytes, &mut ours);
        assert_eq!(ours, [expected], "{op} in the message");
    }

    #[test]
    fn operators_do_what_they_say() {
        both(Op::Sum, 250u8, 10, 4);
        both(Op::Product, -3i16, 5, -15);
        both(Op::Min, -3i64, 5, -3);
        both(Op::Max, -3i32, 5, 5);
        both(Op::And, 6u16, 3, 2);
        both(Op::Or, 6u64, 3, 7);
        both(Op::Xor, 6i8, 3, 5);
        both(Op::Sum, 0.5f32, 0.25, 0.75);
        both(Op::Min, 0.5f64, -0.25, -0.25);
    }

    #[test]
    fn what_is_no_number_is_not_hidden() {
        for (a, b) in [(f64::NAN, 1.0), (1.0, f64::NAN)] {
            for op in [Op::Min, Op::Max] {
                let mut bytes = [0; 8];
                f64::put(&[b], &mut bytes);
                let mut ours = [a];
                f64::fold(op, &mut ours, &bytes, true);
                assert!(ours[0].is_nan(), "{op} of {a} and {b}");
            }
        }
    }

    #[test]
    fn codes_have_names() {
        assert_eq!((name(u8::CODE), name(f64::CODE), name(0), name(11)), (Some("u8"), Some("f64"), None, None));
        assert!(fits::<u64>(Op::Xor) && !fits::<f32>(Op::And) && fits::<f32>(Op::Max));
        assert!(Op::ALL.into_iter().all(|op| Op::of_code(op.code()) == Some(op)));
        assert_eq!((Op::of_code(0), Op::of_code(99)), (None, None));
    }
}
