//! Devices that are slow for a while: a path that fails over, a disk that repairs itself.
//! Operations that begin meanwhile end afterwards, with no other effect.

use super::World;
use super::state::Stall;
use crate::device::OpKind;

impl World {
    /// Begins the stall of a device, if its time has come.
    pub(crate) fn stall_device(&mut self) {
        let next = self.plan.stalls.get(self.stalls_done).copied();
        let Some(next) = next.filter(|next| self.counters.requests >= next.at) else { return };
        self.stalls_done += 1;
        self.counters.faults += 1;
        let until = self.now + next.ns;
        self.stall = Some(Stall { device: next.device, spares_reads: next.spares_reads, until });
    }

    /// Returns the time at which an operation of a device really begins.
    pub(crate) fn begins_at(&self, device: usize, kind: OpKind) -> u64 {
        let holds = |stall: &Stall| stall.device == device && !(stall.spares_reads && kind == OpKind::Read);
        self.stall.filter(holds).map_or(self.now, |stall| stall.until.max(self.now))
    }
}
