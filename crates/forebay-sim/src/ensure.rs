//! `ensure!`: a condition that ends a run with a message, all the way up, if it does not hold.

macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err(format!($($message)*));
        }
    };
}
pub(crate) use ensure;
