//! Volumes as files: the FUSE mounts of a pool.

use super::{KIND_FUSE, KIND_SHIFT, Pool};
use crate::fuse_server::{BUFFER_BYTES_DEFAULT, Backend, FuseOptions, FuseServer};
use crate::mounting::{Made, reserve};
use crate::rules::{ClientCache, Direction, RuleSet};
use forebay_core::{Engine, Nanos, Request, RequestError, RequestId, Treatment};
use forebay_export::fuse::{Caller, VolumeTree};
use forebay_export::request::Operation;
use forebay_export::uri::ExportUri;
use forebay_format::VolumeId;
use forebay_io::IoFailure;
use forebay_io::fuse::FuseMount;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Requests of mounts have numbers from here on; those of NBD clients are below.
const REQUEST_SHIFT: u32 = 32;

/// A volume as a file somewhere.
pub(super) struct Mounted {
    volume: VolumeId,
    server: FuseServer<VolumeTree>,
    /// `None` once it is unmounted.
    mount: Option<FuseMount>,
    clients: ClientCache,
}

/// The engine, as a mount sees it.
struct Door<'a> {
    engine: &'a mut Engine,
    now: Nanos,
    clients: &'a mut ClientCache,
    at: Instant,
}

impl Backend for Door<'_> {
    fn submit(&mut self, request: Request<'_>) {
        self.engine.submit(self.now, request);
    }

    fn treatment(&mut self, caller: Caller, what: &forebay_export::request::Request) -> Treatment {
        let direction = match what.operation {
            Operation::Read => Direction::Read,
            Operation::Write { .. } => Direction::Write,
            _ => return Treatment::Cache,
        };
        let (offset, len) = (what.offset_bytes, what.length_bytes);
        self.clients.decide((caller.pid, caller.uid), direction, offset, len, self.at).0.into()
    }

    fn store(&mut self, _id: RequestId, _node: u64, _text: Vec<u8>) {
        unreachable!("a volume's tree has no control files");
    }

    fn interrupted(&mut self, _id: RequestId) {
        // Requests of a volume end soon enough by themselves.
    }
}

impl Pool {
    /// Mounts a volume so that it appears as the file `path`.
    pub(super) fn mount_volume(
        &mut self,
        volume: VolumeId,
        path: &Path,
        size_bytes: u64,
        rules: Arc<RuleSet>,
    ) -> Result<String, String> {
        let index = self.mounts.iter().position(Option::is_none).unwrap_or(self.mounts.len());
        let options = FuseOptions {
            volume,
            token_base: (KIND_FUSE + index as u64) << KIND_SHIFT,
            request_base: (index as u64 + 1) << REQUEST_SHIFT,
            buffer_bytes: BUFFER_BYTES_DEFAULT.min(self.buffer_bytes / 8),
        };
        if index >= usize::from(super::MOUNTS_MAX) {
            return Err(format!("a pool has at most {} mounts", super::MOUNTS_MAX));
        }
        let there = self.mounts.iter().flatten().count();
        let memory = reserve(self.reactor.pool_mut(), there, self.buffer_bytes)?;
        let made = match Made::at(path) {
            Ok(made) => made,
            Err(why) => {
                memory.give_back(self.reactor.pool_mut());
                return Err(why);
            }
        };
        let (server, mount) = made.serve(&mut self.reactor, size_bytes, options, memory)?;
        let export = ExportUri::Fuse { path: path.to_owned() }.to_string();
        let clients = ClientCache::new(rules, export.as_str());
        let mounted = Some(Mounted { volume, server, mount: Some(mount), clients });
        if index == self.mounts.len() {
            self.mounts.push(mounted);
        } else {
            self.mounts[index] = mounted;
        }
        Ok(export)
    }

    /// Lets every mount take and answer requests; true if the engine was given something.
    pub(super) fn turn_mounts(&mut self) -> bool {
        if self.mounts.is_empty() {
            return false;
        }
        let (now, at) = (self.io.now(), Instant::now());
        let mut started = false;
        for mounted in self.mounts.iter_mut().flatten() {
            let Mounted { server, clients, .. } = mounted;
            let mut door = Door { engine: &mut self.engine, now, clients, at };
            started |= server.turn(&mut door, &mut self.reactor);
        }
        started
    }

    /// An operation of a mount is done.
    pub(super) fn mount_completed(&mut self, index: u64, token: u32, result: Result<u32, IoFailure>) {
        if let Some(Some(mounted)) = self.mounts.get_mut(index as usize) {
            mounted.server.completed(&mut self.reactor, token, result);
        }
    }

    /// The mount that a request belongs to, if it is not one of an NBD client.
    pub(super) fn mount_of(request: RequestId) -> Option<usize> {
        ((request.0 >> REQUEST_SHIFT) as usize).checked_sub(1)
    }

    pub(super) fn mount_replied(
        &mut self,
        index: usize,
        request: RequestId,
        result: Result<(), RequestError>,
    ) {
        if let Some(Some(mounted)) = self.mounts.get_mut(index) {
            mounted.server.replied(&mut self.reactor, request, result);
        }
    }

    /// Takes the files of a volume (of all volumes if `None`) away. Who has one open meets errors from then on.
    pub(super) fn unmount(&mut self, volume: Option<VolumeId>) {
        for index in 0..self.mounts.len() {
            let Some(mounted) = &mut self.mounts[index] else { continue };
            if volume.is_some_and(|volume| volume != mounted.volume) {
                continue;
            }
            if let Some(mount) = mounted.mount.take()
                && let Err(error) = mount.unmount()
            {
                self.tell(super::PoolEvent::Note(format!("cannot unmount: {error}")));
            }
            if let Some(mounted) = &mut self.mounts[index] {
                mounted.server.close(&mut self.reactor);
            }
        }
    }

    /// Files of a volume that somebody has open, and how often.
    pub(super) fn open_files(&self, volume: VolumeId) -> Vec<(std::path::PathBuf, u64)> {
        let exports = self.served(volume).map_or(&[][..], |served| &served.spec.exports[..]);
        let paths = exports.iter().filter_map(|uri| match uri {
            ExportUri::Fuse { path } => Some(path.clone()),
            ExportUri::Nbd { .. } => None,
        });
        let mounts = self.mounts.iter().flatten().filter(|mounted| mounted.volume == volume);
        let open = mounts.filter(|mounted| mounted.server.ended().is_none()).map(|m| m.server.open_files());
        paths.zip(open).filter(|(_, open)| *open > 0).collect()
    }

    /// The file of a volume has another size.
    pub(super) fn resize_mounts(&mut self, volume: VolumeId, size_bytes: u64) {
        for mounted in self.mounts.iter_mut().flatten().filter(|mounted| mounted.volume == volume) {
            mounted.server.tree().set_size_bytes(size_bytes);
        }
    }

    /// Forgets mounts that are over: unmounted, by us or by somebody else, and with every request answered.
    pub(super) fn forget_mounts(&mut self) {
        for slot in &mut self.mounts {
            if let Some(mounted) = slot.take_if(|mounted| mounted.server.is_over()) {
                mounted.server.end(&mut self.reactor);
            }
        }
    }

    /// Every request of every mount is answered.
    pub(super) fn mounts_are_quiet(&self) -> bool {
        self.mounts.iter().flatten().all(|mounted| mounted.server.is_quiet())
    }
}
