//! Runs a model of a slower device in front of a device of the reactor.
//!
//! The real I/O and the model start together; the reactor reports the operation when both have
//! completed. So the model alone sets the pace while the real device is faster, and data is always
//! real.
//!
//! Not known here: the computations of the models (see [`forebay_models::hdd`],
//! [`forebay_models::flash`]), the reporting of completions.

use std::fmt;
use std::str::FromStr;

use forebay_models::flash::cards::{CARD_D, CARD_T};
use forebay_models::flash::ftl::FtlStats;
use forebay_models::flash::model::SIZE_MAX_BYTES;
use forebay_models::flash::{FlashModel, FlashOp};
use forebay_models::hdd::{HddModel, HddOp};

/// Devices that can be emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceModel {
    /// A 7200 rpm SATA disk with its write cache off; see [`forebay_models::hdd`].
    Hdd7200,
    /// A flash card of 2010 with little spare area; see [`forebay_models::flash`].
    CardD {
        /// Divisor of the card's chip count.
        scale: u32,
    },
    /// A flash card of 2010 with much spare area.
    CardT {
        /// Divisor of the card's chip count.
        scale: u32,
    },
}

impl DeviceModel {
    /// Names that operators can enter.
    pub const NAMES: &'static str = "hdd-7200, card-d[:SCALE], card-t[:SCALE]";
    /// The largest scale: it leaves a card of 2010 with less than one chip.
    pub const SCALE_MAX: u32 = 1000;

    /// Checks that a device of this size can be emulated.
    ///
    /// # Errors
    /// It is too large; the text states the limit.
    pub fn check_size(self, size_bytes: u64) -> Result<(), String> {
        match self {
            DeviceModel::Hdd7200 => Ok(()),
            DeviceModel::CardD { .. } | DeviceModel::CardT { .. } if size_bytes <= SIZE_MAX_BYTES => Ok(()),
            card => Err(format!("{card} supports up to {} GiB", SIZE_MAX_BYTES >> 30)),
        }
    }
}

impl fmt::Display for DeviceModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, scale) = match *self {
            DeviceModel::Hdd7200 => ("hdd-7200", 1),
            DeviceModel::CardD { scale } => ("card-d", scale),
            DeviceModel::CardT { scale } => ("card-t", scale),
        };
        if scale == 1 { f.write_str(name) } else { write!(f, "{name}:{scale}") }
    }
}

impl FromStr for DeviceModel {
    type Err = String;

    /// The error states the valid values.
    fn from_str(text: &str) -> Result<DeviceModel, String> {
        let (name, scale) = text.split_once(':').map_or((text, None), |(name, scale)| (name, Some(scale)));
        let card = |make: fn(u32) -> DeviceModel| {
            let Some(text) = scale else { return Ok(make(1)) };
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            let scale = digits.then(|| text.parse().ok()).flatten();
            scale.filter(|scale| (1..=Self::SCALE_MAX).contains(scale)).map(make).ok_or_else(|| {
                format!("a SCALE is a whole number from 1 to {}, not \"{text}\": {name}:4", Self::SCALE_MAX)
            })
        };
        match name {
            "hdd-7200" if scale.is_none() => Ok(DeviceModel::Hdd7200),
            "hdd-7200" => Err("hdd-7200 has no scale".into()),
            "card-d" => card(|scale| DeviceModel::CardD { scale }),
            "card-t" => card(|scale| DeviceModel::CardT { scale }),
            _ => Err(format!("\"{text}\" is not one of {}", Self::NAMES)),
        }
    }
}

/// The model of one device; it identifies operations by slot number.
#[derive(Debug)]
pub(crate) struct Emulation {
    machine: Machine,
    done: Vec<u64>,
}

#[derive(Debug)]
enum Machine {
    Disk(HddModel),
    Card(FlashModel),
}

impl Emulation {
    pub(crate) fn new(model: DeviceModel, size_bytes: u64) -> Emulation {
        let machine = match model {
            DeviceModel::Hdd7200 => Machine::Disk(HddModel::new(size_bytes)),
            DeviceModel::CardD { scale } => Machine::Card(FlashModel::new(&CARD_D, scale, size_bytes)),
            DeviceModel::CardT { scale } => Machine::Card(FlashModel::new(&CARD_T, scale, size_bytes)),
        };
        Emulation { machine, done: Vec::new() }
    }

    pub(crate) fn submit(&mut self, now_ns: u64, slot: u32, op: FlashOp, offset: u64, len: u64) {
        let id = u64::from(slot);
        match &mut self.machine {
            Machine::Disk(disk) => {
                // A disk gets a write of zeroes where a card gets a trim.
                let op = match op {
                    FlashOp::Read => HddOp::Read,
                    FlashOp::Write | FlashOp::Trim => HddOp::Write,
                    FlashOp::Flush => HddOp::Flush,
                };
                disk.submit(now_ns, id, op, offset, len);
            }
            Machine::Card(card) => card.submit(now_ns, id, op, offset, len),
        }
    }

    /// Time of the model's next completion, in nanoseconds of the reactor's clock.
    pub(crate) fn next_event_ns(&self) -> Option<u64> {
        match &self.machine {
            Machine::Disk(disk) => disk.next_event(),
            Machine::Card(card) => card.next_event(),
        }
    }

    /// Work of a card since it was full, for operators; `None` for a disk.
    pub(crate) fn did(&self) -> Option<String> {
        let Machine::Card(card) = &self.machine else { return None };
        let FtlStats { host_pages, moved_pages, erasures } = card.stats();
        Some(format!("{host_pages} pages written, {moved_pages} moved, {erasures} blocks erased"))
    }

    /// Appends the slots the model has finished by `now_ns`.
    pub(crate) fn advance(&mut self, now_ns: u64, slots: &mut Vec<u32>) {
        match &mut self.machine {
            Machine::Disk(disk) => disk.advance(now_ns, &mut self.done),
            Machine::Card(card) => card.advance(now_ns, &mut self.done),
        }
        slots.extend(self.done.drain(..).map(|id| id as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        for text in ["hdd-7200", "card-d", "card-t", "card-d:2", "card-t:1000"] {
            assert_eq!(text.parse::<DeviceModel>().unwrap().to_string(), text);
        }
        assert_eq!("card-d:1".parse(), Ok(DeviceModel::CardD { scale: 1 }));
        for text in ["card-x", "", "none", "card-d:0", "card-d:1001", "card-d:", "card-t:+1", "hdd-7200:2"] {
            let error = text.parse::<DeviceModel>().unwrap_err();
            assert!(["hdd-7200", "1 to 1000"].iter().any(|right| error.contains(right)), "{text}: {error}");
        }
        assert!(DeviceModel::CardT { scale: 1 }.check_size(SIZE_MAX_BYTES + 1).is_err());
        assert!(DeviceModel::Hdd7200.check_size(u64::MAX).is_ok());
    }
}
