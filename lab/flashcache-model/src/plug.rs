//! Joins adjacent transfers that begin together, as the kernel's block layer does below FlashCache:
//! the device mapper passes it blocks of 4 KiB, and adjacent blocks that are submitted together
//! reach the device as one request.

use crate::api::{Action, Device, OpId, Span};
use std::collections::HashMap;

/// Longest joined transfer in bytes: the default limit of Linux on most disks was 512 KiB in
/// FlashCache's days.
pub const TRANSFER_BYTES_MAX: u64 = 512 << 10;

/// One or more adjacent reads, or writes, of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// The device.
    pub device: Device,
    /// Whether it is a write.
    pub write: bool,
    /// Offset on the device, in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// The operations with their memory, in the order of the device.
    pub parts: Vec<(OpId, Span)>,
}

/// Gathered transfers, which begin together.
#[derive(Debug, Default)]
pub struct Plug {
    transfers: Vec<Transfer>,
    /// The transfer that ends at a place, by device, direction and place in bytes.
    ends: HashMap<(Device, bool, u64), usize>,
}

impl Plug {
    /// Takes an action if it is a read or a write; returns any other one.
    pub fn push(&mut self, action: Action) -> Option<Action> {
        let (write, op, device, offset, span) = match action {
            Action::Read { op, device, offset, span } => (false, op, device, offset, span),
            Action::Write { op, device, offset, span } => (true, op, device, offset, span),
            other => return Some(other),
        };
        let len = u64::from(span.len);
        let at = match self.ends.remove(&(device, write, offset)) {
            Some(at) if self.transfers[at].len + len <= TRANSFER_BYTES_MAX => {
                self.transfers[at].len += len;
                self.transfers[at].parts.push((op, span));
                at
            }
            _ => {
                self.transfers.push(Transfer { device, write, offset, len, parts: vec![(op, span)] });
                self.transfers.len() - 1
            }
        };
        self.ends.insert((device, write, offset + len), at);
        None
    }

    /// Returns everything gathered.
    pub fn unplug(&mut self) -> Vec<Transfer> {
        self.ends.clear();
        std::mem::take(&mut self.transfers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Memory;

    fn transfer(write: bool, op: u32, device: Device, block: u64) -> Action {
        let span = Span { memory: Memory::Request(1), offset: 0, len: 4096 };
        let (op, offset) = (OpId(op), block * 4096);
        if write {
            Action::Write { op, device, offset, span }
        } else {
            Action::Read { op, device, offset, span }
        }
    }

    #[test]
    fn adjacent_transfers_are_joined() {
        let mut plug = Plug::default();
        let steps = [
            (false, Device::Disk, 5),
            (false, Device::Cache, 6),
            (false, Device::Disk, 6),
            (true, Device::Disk, 7),
            (false, Device::Disk, 7),
            (false, Device::Disk, 9),
        ];
        for (op, (write, device, block)) in steps.into_iter().enumerate() {
            assert_eq!(plug.push(transfer(write, op as u32, device, block)), None);
        }
        let joined: Vec<_> = plug.unplug().iter().map(|t| (t.offset / 4096, t.len / 4096)).collect();
        assert_eq!(joined, [(5, 3), (6, 1), (7, 1), (9, 1)]);
        assert!(plug.unplug().is_empty());
    }

    #[test]
    fn a_joined_transfer_has_a_longest_length() {
        let mut plug = Plug::default();
        for block in 0..300 {
            plug.push(transfer(false, block as u32, Device::Disk, block));
        }
        let lens: Vec<_> = plug.unplug().iter().map(|t| t.len / 4096).collect();
        assert_eq!(lens, [128, 128, 44]);
    }

    #[test]
    fn other_actions_come_back() {
        let flush = Action::Flush { op: OpId(0), device: Device::Cache };
        assert_eq!(Plug::default().push(flush), Some(flush));
    }
}
