//! Models of devices, in virtual time: how long a disk or a flash card takes for each operation.
//! They read no clock and do no I/O. The reactor delays completions by them; what-if, the simulator
//! and figures use them directly.

#![forbid(unsafe_code)]

pub mod flash;
pub mod hdd;
