//! Putting a disk model in front of a device of the reactor.
//!
//! The real I/O and the model start together; the operation is reported when both are done. The
//! model alone therefore sets the pace as long as the real device is faster, and data is always
//! real.
//!
//! Not known here: how the model computes (see [`crate::hdd`]), how completions are reported.

use crate::hdd::{HddModel, HddOp};

/// Disk models that can be put in front of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskModel {
    /// A 7200 rpm SATA disk with its write cache off; see [`crate::hdd`].
    Hdd7200,
}

impl DiskModel {
    /// The model of a name as typed by people: `hdd-7200`.
    pub fn from_name(name: &str) -> Option<DiskModel> {
        (name == "hdd-7200").then_some(DiskModel::Hdd7200)
    }

    /// The name as typed by people.
    pub fn name(self) -> &'static str {
        match self {
            DiskModel::Hdd7200 => "hdd-7200",
        }
    }
}

/// The model of one device, with its operations known by slot number.
#[derive(Debug)]
pub(crate) struct Emulation {
    model: HddModel,
    done: Vec<u64>,
}

impl Emulation {
    pub(crate) fn new(model: DiskModel, size_bytes: u64) -> Emulation {
        match model {
            DiskModel::Hdd7200 => Emulation { model: HddModel::new(size_bytes), done: Vec::new() },
        }
    }

    pub(crate) fn submit(&mut self, now_ns: u64, slot: u32, op: HddOp, offset: u64, len: u64) {
        self.model.submit(now_ns, u64::from(slot), op, offset, len);
    }

    /// When the model has something to report next, in nanoseconds of the reactor's clock.
    pub(crate) fn next_event_ns(&self) -> Option<u64> {
        self.model.next_event()
    }

    /// Appends the slots the model has finished by `now_ns`.
    pub(crate) fn advance(&mut self, now_ns: u64, slots: &mut Vec<u32>) {
        self.model.advance(now_ns, &mut self.done);
        slots.extend(self.done.drain(..).map(|id| id as u32));
    }
}
