//! Operations that the owner starts late, because it lacks memory or its queue is full.
//!
//! The owner starts such an operation later, behind others that the engine requested after it.
//! Until then the bytes of a write must not change, and the memory of a read must not be used. The
//! start of a flush decides which writes it covers. Operations not started have no effect at a
//! crash.

use super::World;
use super::state::{Flight, FlightKind, Held};
use crate::ensure::ensure;
use crate::plan::LateStartPlan;
use forebay_core::{Device, IoAction, OpId};
use std::cmp::Reverse;

/// Returns the device operation that an action requests.
fn operation(action: &IoAction) -> Option<(OpId, Device)> {
    match *action {
        IoAction::Read { op, device, .. }
        | IoAction::Write { op, device, .. }
        | IoAction::Flush { op, device } => Some((op, device)),
        IoAction::ReadMeta { op, .. }
        | IoAction::WriteMeta { op, .. }
        | IoAction::DiscardSegment { op, .. } => Some((op, Device::Cache)),
        IoAction::Zero { op, volume, .. } => Some((op, Device::Backing(volume))),
        IoAction::FlushMember { .. }
        | IoAction::Copy { .. }
        | IoAction::FillZero { .. }
        | IoAction::Crc { .. } => None,
    }
}

impl World {
    /// Holds an operation back; false if it is to start at once.
    pub(crate) fn hold(&mut self, action: IoAction) -> Result<bool, String> {
        let Some(LateStartPlan { pct, ns_max }) = self.plan.late_starts else { return Ok(false) };
        let Some((op, device)) = operation(&action) else { return Ok(false) };
        if !self.rng.chance(pct, 100) {
            return Ok(false);
        }
        let device = self.device(device)?;
        let (bytes, spans) = (self.bytes_to_write(&action)?, self.engine.spans(op).to_vec());
        let due = self.now + self.rng.range(1, ns_max);
        let kind = FlightKind::Held(Held { action, bytes });
        self.enqueue(op, due, Flight { device, spans, kind })?;
        Ok(true)
    }

    /// Starts an operation that was held back.
    pub(crate) fn start_held(&mut self, held: &Held) -> Result<(), String> {
        let same = self.bytes_to_write(&held.action)? == held.bytes;
        ensure!(same, "the bytes of {:?} changed before its owner could start it", held.action);
        self.start(held.action)
    }

    fn bytes_to_write(&self, action: &IoAction) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        match *action {
            IoAction::Write { op, .. } => {
                bytes.extend_from_slice(self.engine.header(op).unwrap_or_default());
                self.memory.gather(self.engine.spans(op), &mut bytes)?;
            }
            IoAction::WriteMeta { op, .. } => bytes.extend_from_slice(self.engine.meta(op)),
            IoAction::Read { .. }
            | IoAction::ReadMeta { .. }
            | IoAction::Flush { .. }
            | IoAction::FlushMember { .. }
            | IoAction::Zero { .. }
            | IoAction::DiscardSegment { .. }
            | IoAction::Copy { .. }
            | IoAction::FillZero { .. }
            | IoAction::Crc { .. } => {}
        }
        Ok(bytes)
    }

    /// Queues an operation, which the owner has until `due`.
    pub(crate) fn enqueue(&mut self, op: OpId, due: u64, flight: Flight) -> Result<(), String> {
        self.pushed += 1;
        self.queue.push(Reverse((due, self.pushed, op.0)));
        ensure!(self.flights.insert(op.0, flight).is_none(), "{op:?} is used for two operations at once");
        Ok(())
    }
}
