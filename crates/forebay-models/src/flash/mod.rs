//! A model of flash cards, in virtual time: the inside ([`ftl`]), two cards with published
//! measurements ([`cards`]), and such a card as a device that takes commands ([`model`]).
//!
//! The model reads no clock and no file: figures use it directly, and the reactor delays
//! completions by it.

pub mod cards;
pub mod ftl;
pub mod model;

pub use cards::{CARDS, Card};
pub use model::{FlashModel, FlashOp};
