//! `ensure!`: returns a message as an error, which ends the run, if a condition does not hold.

macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err(format!($($message)*));
        }
    };
}
pub(crate) use ensure;
