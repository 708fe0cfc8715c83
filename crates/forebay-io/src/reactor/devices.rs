//! The devices of a reactor by number. Numbers of removed devices are reused.

use super::interface::DeviceId;
use super::pages::PagesInUse;
use crate::device::{Device, DirectAlign, Displacement, RemoteStore};
use crate::emulate::{DeviceModel, Emulation};
use crate::engine::Lane;
use crate::error::DeviceError;
use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A device in a reactor; gives access to its non-blocking queries. To read or write it, submit
/// operations, or use a handle of its own on a thread that may block.
#[derive(Clone, Copy, Debug)]
pub struct DeviceInUse<'a>(pub(super) &'a Device);

impl<'a> DeviceInUse<'a> {
    /// As [`Device::path`].
    pub fn path(self) -> &'a Path {
        self.0.path()
    }

    /// As [`Device::size_bytes`].
    pub fn size_bytes(self) -> u64 {
        self.0.size_bytes()
    }

    /// As [`Device::end_bytes`].
    pub fn end_bytes(self) -> u64 {
        self.0.end_bytes()
    }

    /// As [`Device::ended`].
    pub fn ended(self) -> Option<u64> {
        self.0.ended()
    }

    /// As [`Device::is_unplugged`].
    pub fn is_unplugged(self) -> bool {
        self.0.is_unplugged()
    }

    /// As [`Device::emulation`].
    pub fn emulation(self) -> Option<DeviceModel> {
        self.0.emulation()
    }

    /// As [`Device::remote_store`].
    pub fn remote_store(self) -> Option<&'a Arc<dyn RemoteStore>> {
        self.0.remote_store()
    }

    /// As [`Device::displaced`].
    pub fn displaced(self) -> Option<Displacement> {
        self.0.displaced()
    }

    /// As [`Device::open_path`].
    pub fn open_path(self) -> PathBuf {
        self.0.open_path()
    }

    /// As [`Device::is_write_protected`].
    pub fn is_write_protected(self) -> bool {
        self.0.is_write_protected()
    }

    /// As [`Device::for_thread`].
    ///
    /// # Errors
    /// As [`Device::for_thread`].
    pub fn for_thread(self) -> Result<Device, DeviceError> {
        self.0.for_thread()
    }
}

/// A device and the reactor's state of its operations.
pub(super) struct DeviceEntry {
    pub(super) device: Device,
    pub(super) emulation: Option<Emulation>,
    /// The lane of its steps.
    pub(super) lane: Lane,
    pub(super) buffered_fd: RawFd,
    pub(super) direct: Option<(RawFd, DirectAlign)>,
    /// Buffered writes submitted and not finished: while there are any, writes check for
    /// neighbours.
    pub(super) buffered_writes: u32,
    /// Pages of all unfinished modifying operations, while some are buffered.
    pub(super) pages: PagesInUse,
    /// Writes held back by a neighbour in the same page, in order.
    pub(super) deferred: VecDeque<u32>,
    /// `fallocate` modes that the device turned out to lack.
    pub(super) lacks_punch: bool,
    pub(super) lacks_zero_range: bool,
}

impl DeviceEntry {
    pub(super) fn new(device: Device, emulation: Option<Emulation>) -> DeviceEntry {
        DeviceEntry {
            buffered_fd: device.buffered_fd(),
            direct: device.direct_fd(),
            device,
            emulation,
            lane: Lane::Slow,
            buffered_writes: 0,
            pages: PagesInUse::default(),
            deferred: VecDeque::new(),
            lacks_punch: false,
            lacks_zero_range: false,
        }
    }
}

#[derive(Default)]
pub(super) struct DeviceTable(Vec<Option<DeviceEntry>>);

impl DeviceTable {
    /// # Panics
    /// With more than 65,536 devices at once: a bug of the owner.
    pub(super) fn add(&mut self, entry: DeviceEntry) -> DeviceId {
        let at = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        assert!(at <= usize::from(u16::MAX), "too many devices");
        if at == self.0.len() {
            self.0.push(None);
        }
        self.0[at] = Some(entry);
        DeviceId(at as u16)
    }

    pub(super) fn remove(&mut self, id: DeviceId) -> Option<Device> {
        self.0.get_mut(usize::from(id.0))?.take().map(|entry| entry.device)
    }

    pub(super) fn get(&self, id: DeviceId) -> Option<&DeviceEntry> {
        self.0.get(usize::from(id.0))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: DeviceId) -> Option<&mut DeviceEntry> {
        self.0.get_mut(usize::from(id.0))?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &DeviceEntry> {
        self.0.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut DeviceEntry> {
        self.0.iter_mut().flatten()
    }
}

/// For a device of an operation: it cannot be removed before the operation is reported.
impl Index<usize> for DeviceTable {
    type Output = DeviceEntry;

    fn index(&self, at: usize) -> &DeviceEntry {
        self.0[at].as_ref().expect("a device with operations is not removed")
    }
}

impl IndexMut<usize> for DeviceTable {
    fn index_mut(&mut self, at: usize) -> &mut DeviceEntry {
        self.0[at].as_mut().expect("a device with operations is not removed")
    }
}
