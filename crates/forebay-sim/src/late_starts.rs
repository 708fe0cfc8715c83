//! Operations that the owner starts late: it has no memory for it, or its queue is full.
//!
//! It starts the operation later, behind others that the engine asked for after it. Until then the
//! bytes of a write stay what they were, and nobody uses the memory of a read. What a flush covers
//! is decided when it starts. A crash finds nothing of what was not started.

use crate::actions::{Flight, FlightKind};
use crate::plan::{Needs, Plan};
use crate::rng::Rng;
use crate::world::{World, ensure};
use forebay_core::{Action, Device, OpId};
use std::cmp::Reverse;

/// How often the owner cannot, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LateStartPlan {
    /// Percentage of operations.
    pub pct: u64,
    /// Longest time, in nanoseconds.
    pub ns_max: u64,
}

impl LateStartPlan {
    /// Draws one. Nothing waits for so long that an engine which waits for a device would give it
    /// up because of that.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        Self { pct: rng.pick(&[2, 10, 30]), ns_max: rng.pick(&[200_000, 5_000_000, 50_000_000]) }
    }
}

/// An operation that was not started yet.
pub(crate) struct Held {
    action: Action,
    /// What a write will write.
    bytes: Vec<u8>,
}

impl Held {
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.action, Action::Read { .. })
    }
}

/// The device operation that an action asks for.
fn operation(action: &Action) -> Option<(OpId, Device)> {
    match *action {
        Action::Read { op, device, .. } | Action::Write { op, device, .. } | Action::Flush { op, device } => {
            Some((op, device))
        }
        Action::ReadMeta { op, .. } | Action::WriteMeta { op, .. } => Some((op, Device::Cache)),
        Action::Zero { op, volume, .. } => Some((op, Device::Backing(volume))),
        _ => None,
    }
}

impl World {
    /// Keeps an operation back; false if it is started at once.
    pub(crate) fn hold(&mut self, action: Action) -> Result<bool, String> {
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

    /// An operation that was kept back is started.
    pub(crate) fn start_held(&mut self, held: &Held) -> Result<(), String> {
        let same = self.bytes_to_write(&held.action)? == held.bytes;
        ensure!(same, "the bytes of {:?} changed before its owner could start it", held.action);
        self.start(held.action)
    }

    fn bytes_to_write(&self, action: &Action) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        match *action {
            Action::Write { op, .. } => {
                bytes.extend_from_slice(self.engine.header(op).unwrap_or_default());
                self.memory.gather(self.engine.spans(op), &mut bytes)?;
            }
            Action::WriteMeta { op, .. } => bytes.extend_from_slice(self.engine.meta(op)),
            _ => {}
        }
        Ok(bytes)
    }

    /// An operation is with the owner until `due`.
    pub(crate) fn enqueue(&mut self, op: OpId, due: u64, flight: Flight) -> Result<(), String> {
        self.pushed += 1;
        self.queue.push(Reverse((due, self.pushed, op.0)));
        ensure!(self.flights.insert(op.0, flight).is_none(), "{op:?} is used for two operations at once");
        Ok(())
    }
}

impl Plan {
    /// The owner may be one that cannot always start what it is asked for; `needs`: of the planted
    /// bug.
    pub(crate) fn draw_late_starts(&mut self, needs: Option<Needs>, rng: &mut Rng) {
        let drawn = LateStartPlan::draw(rng);
        // Of a mirrored cache an operation is one of a member: that is for its own runs.
        let late = needs == Some(Needs::LateStarts);
        if late || needs.is_none() && self.mirror.is_none() && rng.chance(1, 6) {
            self.late_starts = Some(drawn);
        }
    }
}
