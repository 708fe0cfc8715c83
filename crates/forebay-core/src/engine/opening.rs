//! Opens a cache: the recovery state exists until recovery has failed, or its checkpoint is in
//! effect.

use crate::api::config::{Attachment, EngineConfig};
use crate::api::open_error::OpenError;
use crate::api::{Loss, Nanos};
use crate::context::mirror::Members;
use crate::context::{Context, Status};
use crate::engine::Engine;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::recovery::mirrored::MirrorDevices;
use crate::recovery::state::Recovery;
use alloc::vec::Vec;
use forebay_format::Geometry;
use forebay_format::VolumeId;
use forebay_format::checkpoint::VolumeEntry;

impl Engine {
    /// Starts opening the cache device of `device_bytes`. The owner performs its actions until
    /// `status` is not `Opening`.
    #[must_use]
    pub fn open(config: EngineConfig, device_bytes: u64, attachments: Vec<Attachment>, now: Nanos) -> Self {
        let mut engine = Self::blank(config, now);
        engine.recovery = Some(Recovery::begin(&mut engine.cx, device_bytes, attachments));
        engine
    }

    /// Starts opening a mirrored cache, see [`Engine::open`].
    #[must_use]
    pub fn open_mirrored(
        config: EngineConfig,
        devices: MirrorDevices,
        attachments: Vec<Attachment>,
        now: Nanos,
    ) -> Self {
        let mut engine = Self::blank(config, now);
        let sound = devices.geometry.validate(2 * devices.geometry.member_bytes());
        if let Err(error) = sound.and_then(|()| devices.geometry.validate_mirrored()) {
            engine.cx.status = Status::Failed(OpenError::Superblock(error));
            return engine;
        }
        let mut members = Members::mirrored(&devices.geometry);
        let trusts = fault::planted(PlantedBug::TrustStaleMember);
        match devices.there {
            [true, true] => {}
            [false, false] => {
                engine.cx.status = Status::Failed(OpenError::NoMember);
                return engine;
            }
            [here, _] => {
                if let Some(mirror) = members.mirror_mut() {
                    mirror.leave_out(u8::from(here), !trusts);
                }
            }
        }
        engine.cx.members = members;
        // This geometry locates the superblocks, regardless of their content; the map follows once
        // they have been read.
        engine.cx.map.geometry = devices.geometry;
        let bytes = 2 * devices.geometry.member_bytes();
        engine.recovery = Some(Recovery::begin(&mut engine.cx, bytes, attachments));
        engine
    }

    /// Returns an engine that serves its volumes without a cache, because theirs was given up
    /// before and must not be opened again. `losses`: those that the record lists, with their
    /// present ages; reads of those sectors fail until they are overwritten.
    #[must_use]
    pub fn open_without_cache(
        config: EngineConfig,
        entries: Vec<VolumeEntry>,
        attachments: Vec<Attachment>,
        losses: &[(VolumeId, Loss)],
        now: Nanos,
    ) -> Self {
        let mut engine = Self::blank(config, now);
        // No segment; only divisions use the segment size.
        let geometry = Geometry { segment_blocks: 16, ..crate::context::blank::blank_geometry() };
        engine.cx.map = CacheMap::new(geometry, engine.cx.config.stretch_blocks);
        engine.cx.superblock.geometry = geometry;
        engine.cx.volume_table = entries;
        engine.cx.status = Status::Ready;
        engine.cx.failure.fence();
        engine.cx.failure.go_on_without_cache();
        for attachment in attachments {
            engine.cx.serve_without_cache(&attachment);
        }
        for (volume, loss) in losses {
            engine.cx.failure.note_loss(*volume, loss, now);
        }
        engine
    }

    /// Continues recovery after an event that it waits for. Does nothing if opening has failed.
    pub(super) fn recover(&mut self, step: impl FnOnce(&mut Recovery, &mut Context)) {
        if let Some(recovery) = &mut self.recovery {
            step(recovery, &mut self.cx);
        }
        if matches!(self.cx.status, Status::Failed(_)) {
            self.recovery = None;
        }
    }

    pub(super) fn opened(&mut self) {
        self.recovery = None;
        self.cx.status = Status::Ready;
    }

    pub(super) fn opening_failed(&mut self, error: OpenError) {
        self.cx.status = Status::Failed(error);
        self.recovery = None;
    }
}
