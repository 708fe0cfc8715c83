//! A model of flash cards, in virtual time: what is inside ([`ftl`]), two cards that were measured
//! ([`cards`]), and such a card as a device that takes commands ([`model`]).
//!
//! Nothing here reads a clock or a file: figures use it as it is, and the reactor holds completions
//! back by it.

pub mod cards;
pub mod ftl;
pub mod model;

pub use cards::{CARDS, Card};
pub use model::{FlashModel, FlashOp};
