//! Reports of a pool to its operator.

use super::{Back, Gone, Lost, Pool, Scrubbed};
use forebay_admin::MessageId;
use forebay_admin::events::{EventKind, rfc3339};
use forebay_admin::size::ByteSize;
use forebay_core::{Notice, OpenError};
use forebay_format::{BLOCK_BYTES, VolumeId};
use forebay_io::IoFailure;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An event of a pool. `Display` writes the line for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolEvent {
    /// A note for the operator.
    Note(MessageId, String),
    /// The cache was opened.
    Opened {
        /// The cache is new.
        created: bool,
        /// Time that opening took.
        took: Duration,
        /// Blocks in the cache.
        cached_blocks: u64,
        /// Of those, dirty blocks.
        dirty_blocks: u64,
    },
    /// Clean cached blocks did not match their checksums, or could not be read.
    BlocksDamaged {
        /// Name of the volume.
        volume: String,
        /// Damaged blocks since the last report.
        blocks: u64,
        /// Byte offset in the volume of the block that was found first.
        first_offset_bytes: u64,
    },
    /// More, or less, of a volume is lost than at the last report.
    Lost {
        /// Name of the volume.
        volume: String,
        /// Data lost now.
        lost: Lost,
        /// Offset of the first lost byte.
        first_offset_bytes: u64,
        /// It is more than at the last report.
        more: bool,
    },
    /// A volume has no lost data left: it was rewritten, discarded or given up.
    LossEnded {
        /// Name of the volume.
        volume: String,
    },
    /// Destage to a backing store failed.
    DestageFailed {
        /// Name of the volume.
        volume: String,
        /// Time until the next attempt.
        retry_in: Duration,
        /// Error of the backing store, if known.
        cause: Option<String>,
    },
    /// Destage works again.
    DestageRecovered {
        /// Name of the volume.
        volume: String,
    },
    /// An operation on a device failed. Similar failures share a report.
    OperationFailed {
        /// Paths of the device, or of the devices if it was on several.
        device: String,
        /// Name of the volume, if it is a backing store.
        volume: Option<String>,
        /// `read`, `write`, `zero`, `flush`.
        operation: &'static str,
        /// Byte offset on the device.
        offset_bytes: u64,
        /// Length in bytes, 0 for a flush.
        bytes: u64,
        /// The error.
        failure: IoFailure,
        /// Further failures of this operation on this device since the last report.
        others: u64,
    },
    /// A device is shorter than its used part.
    DeviceEnded {
        /// Path of the device.
        device: String,
        /// Name of the volume, if it is a backing store.
        volume: Option<String>,
        /// Size of the device in bytes.
        size_bytes: u64,
        /// Size that it must have, in bytes.
        end_bytes: u64,
        /// Set for a backing store that is no longer in the kernel: why the pool does not take the
        /// device that its path leads to now; empty if there is none.
        unplugged: Option<String>,
    },
    /// The server of a network store does not answer.
    StoreAway {
        /// Name of the volume.
        volume: String,
        /// Address of the store.
        store: String,
        /// The cause.
        why: String,
        /// Requests fail instead of waiting.
        fails: bool,
    },
    /// The server of a network store answers again, or the store is no longer used.
    StoreBack {
        /// Name of the volume.
        volume: String,
        /// The server answers.
        answers: bool,
    },
    /// A device has its length again, or is no longer used.
    DeviceBack {
        /// Path of the device.
        device: String,
        /// Name of the volume, if it is a backing store.
        volume: Option<String>,
        /// How it recovered.
        how: Back,
        /// No other cache device of the pool is too short.
        last: bool,
    },
    /// Another program has removed or hidden exports of a volume. Reported again when the set
    /// changes.
    ExportLost {
        /// Name of the volume.
        volume: String,
        /// What happened to each, and how to restore it, in words.
        lost: Vec<String>,
    },
    /// No export of a volume is lost now: they are served again, or the volume is detached.
    ExportsBack {
        /// Name of the volume.
        volume: String,
    },
    /// The path of a file no longer leads to it; or, for the cache files, the paths of some.
    PathLost {
        /// Name of the volume, if it is a backing store.
        volume: Option<String>,
        /// What has happened, and how to resolve it.
        what: String,
    },
    /// The path of a file leads to it again, or the file is no longer used.
    PathFound {
        /// The path.
        device: String,
        /// Name of the volume, if it is a backing store.
        volume: Option<String>,
        /// It leads to the file again.
        leads: bool,
        /// No other cache file of the pool has lost its path.
        last: bool,
    },
    /// A write to the cache device failed and is repeated elsewhere.
    CacheWriteFailed {
        /// Segment of the cache device.
        segment: u32,
    },
    /// The cache device does not support discards, so the pool sends it none.
    DiscardsRefused,
    /// The cache device failed; requests that change data wait for the record.
    CacheFenced,
    /// A mirrored cache has only one active device.
    Degraded {
        /// Which device is out, or why.
        what: String,
        /// How to give the pool another.
        way: String,
    },
    /// Both devices of a mirrored cache are active again.
    MirrorWhole,
    /// The record of a failed cache could not be written.
    RecordFailed {
        /// Path of the record.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// The volumes are now served without the cache.
    CacheFailed {
        /// Cache devices.
        devices: String,
        /// Bytes of dirty data; destage of them begins now.
        dirty_bytes: u64,
        /// Path of the record.
        record: PathBuf,
    },
    /// The dirty data of a failed cache is on the backing stores, or lost.
    RescueEnded {
        /// Cache devices.
        devices: String,
        /// How to give the pool others.
        way: String,
        /// Bytes lost.
        lost_bytes: u64,
        /// Names of the volumes that have lost something.
        volumes: Vec<String>,
        /// Path of the record.
        record: PathBuf,
    },
    /// The pool was started without its cache, which has failed before.
    OpenedWithoutCache {
        /// Cache devices.
        devices: String,
        /// How to give the pool others.
        way: String,
        /// Time of the failure.
        failed_unix_s: u64,
        /// Bytes lost.
        lost_bytes: u64,
        /// Names of the volumes that have lost something.
        volumes: Vec<String>,
        /// Path of the record.
        record: PathBuf,
    },
    /// The backing store alone is not crash-consistent until the data that is dirty now is
    /// destaged.
    OrderLost {
        /// Name of the volume.
        volume: String,
    },
    /// A backing store was changed while the cache was away.
    BackingChanged {
        /// Name of the volume.
        volume: String,
        /// Clean blocks dropped.
        dropped: u64,
        /// Dirty blocks discarded.
        discarded: u64,
    },
    /// After a crash the daemon cannot determine whether another program wrote to a backing store.
    BackingUncertain {
        /// Name of the volume.
        volume: String,
        /// Clean blocks dropped.
        dropped: u64,
        /// Reason.
        why: String,
    },
    /// Clients can connect.
    Ready {
        /// Name of the volume.
        volume: String,
        /// URI of the export.
        export: String,
    },
    /// A volume was detached.
    Detached {
        /// Name of the volume.
        volume: String,
    },
    /// A volume was resized.
    Resized {
        /// Name of the volume.
        volume: String,
        /// Size in bytes.
        size_bytes: u64,
    },
    /// A scrub has ended.
    Scrubbed(Scrubbed),
    /// The pool refused a client, or disconnected it because of its behaviour.
    ClientRefused {
        /// The client, and the reason.
        what: String,
        /// Further refusals since the last report, not reported individually.
        others: u64,
    },
    /// An orderly stop has begun.
    Stopping,
    /// An orderly stop saves data first.
    BeforeStop {
        /// A description.
        what: String,
    },
    /// The pool gave up a stop, because devices did not answer.
    GivenUp {
        /// The devices.
        devices: String,
        /// Time without a completed operation.
        within: Duration,
        /// Bytes of dirty data.
        dirty_bytes: u64,
        /// Files that are gone with this process.
        gone: Gone,
    },
    /// Stopped, but the cache could not be closed, because its device failed.
    NotClosed {
        /// Its devices.
        devices: String,
        /// Bytes of dirty data.
        dirty_bytes: u64,
    },
    /// The orderly stop is complete.
    Stopped {
        /// Bytes of dirty data.
        dirty_bytes: u64,
        /// Lost data.
        lost: Lost,
        /// Names of the volumes that have lost something.
        losers: Vec<String>,
        /// Names of volumes that are not attached and have dirty or lost data.
        absent: Vec<String>,
        /// Files that are gone with this process.
        gone: Gone,
        /// Names of volumes whose backing store may have dropped writes in a failed flush that no
        /// FLUSH has reported to a client.
        untold: Vec<String>,
    },
}

/// Writes the sentence of a stop about writes that a failed flush may have dropped.
fn write_untold(f: &mut fmt::Formatter<'_>, untold: &[String]) -> fmt::Result {
    if untold.is_empty() {
        return Ok(());
    }
    write!(
        f,
        ". A flush of the backing store of {} failed, and no client has sent a FLUSH since: bypass writes \
         after the last FLUSH may be lost",
        untold.join(", ")
    )
}

impl PoolEvent {
    /// Returns the identifier for scripts: the name of the event or alarm that this becomes, if
    /// any.
    #[must_use]
    pub fn id(&self) -> MessageId {
        let kind = match self {
            Self::Note(id, _) => return *id,
            Self::Opened { .. } => return MessageId::PoolOpened,
            Self::LossEnded { .. } => return MessageId::VolumeLossEnded,
            Self::DestageRecovered { .. } => return MessageId::VolumeDestageRecovered,
            Self::DeviceBack { .. } => return MessageId::DeviceBack,
            Self::ExportsBack { .. } => return MessageId::ExportBack,
            Self::Ready { .. } => return MessageId::ExportReady,
            Self::PathFound { .. } => return MessageId::DevicePathFound,
            Self::Stopping => return MessageId::PoolStopping,
            Self::GivenUp { dirty_bytes, gone, .. } | Self::Stopped { dirty_bytes, gone, .. }
                if gone.loses(*dirty_bytes) =>
            {
                EventKind::DevicePathLost
            }
            Self::GivenUp { .. } | Self::NotClosed { .. } => return MessageId::PoolNotClosed,
            Self::Stopped { .. } => return MessageId::PoolClosed,
            Self::BlocksDamaged { .. } => EventKind::BlockDamaged,
            Self::Lost { .. } => EventKind::BlockLost,
            Self::DestageFailed { .. } => EventKind::DestageFailed,
            Self::OperationFailed { .. } => EventKind::DeviceFailed,
            Self::DeviceEnded { .. } => EventKind::DeviceEnded,
            Self::StoreAway { .. } | Self::StoreBack { .. } => EventKind::StoreAway,
            Self::ExportLost { .. } => EventKind::ExportLost,
            Self::PathLost { .. } | Self::BeforeStop { .. } => EventKind::DevicePathLost,
            Self::CacheWriteFailed { .. } => EventKind::CacheWriteFailed,
            Self::DiscardsRefused => EventKind::DiscardsRefused,
            Self::CacheFenced | Self::RecordFailed { .. } => EventKind::CacheFenced,
            Self::Degraded { .. } => EventKind::CacheDegraded,
            Self::MirrorWhole => EventKind::MirrorWhole,
            Self::CacheFailed { .. } | Self::RescueEnded { .. } | Self::OpenedWithoutCache { .. } => {
                EventKind::CacheFailed
            }
            Self::OrderLost { .. } => EventKind::OrderLost,
            Self::BackingChanged { .. } => EventKind::BackingChanged,
            Self::BackingUncertain { .. } => EventKind::BackingUncertain,
            Self::Detached { .. } => EventKind::VolumeDetached,
            Self::Resized { .. } => EventKind::VolumeResized,
            Self::Scrubbed(_) => EventKind::PoolScrubbed,
            Self::ClientRefused { .. } => EventKind::ClientRefused,
        };
        MessageId::Event(kind)
    }

    /// Returns the volume that the event is about.
    #[must_use]
    pub fn volume(&self) -> Option<&str> {
        match self {
            Self::BlocksDamaged { volume, .. }
            | Self::Lost { volume, .. }
            | Self::LossEnded { volume }
            | Self::DestageFailed { volume, .. }
            | Self::DestageRecovered { volume }
            | Self::OrderLost { volume }
            | Self::BackingChanged { volume, .. }
            | Self::BackingUncertain { volume, .. }
            | Self::ExportLost { volume, .. }
            | Self::ExportsBack { volume }
            | Self::StoreAway { volume, .. }
            | Self::StoreBack { volume, .. }
            | Self::Ready { volume, .. }
            | Self::Detached { volume }
            | Self::Resized { volume, .. } => Some(volume),
            Self::OperationFailed { volume, .. }
            | Self::DeviceEnded { volume, .. }
            | Self::DeviceBack { volume, .. }
            | Self::PathLost { volume, .. }
            | Self::PathFound { volume, .. } => volume.as_deref(),
            _ => None,
        }
    }
}

impl fmt::Display for PoolEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Note(_, text) => f.write_str(text),
            Self::Opened { created: true, .. } => f.write_str("created a new, empty cache"),
            Self::Opened { took, cached_blocks, dirty_blocks, .. } => write!(
                f,
                "opened the cache in {} ms: {cached_blocks} blocks cached, {dirty_blocks} of them dirty",
                took.as_millis()
            ),
            Self::BlocksDamaged { volume, blocks, first_offset_bytes } => write!(
                f,
                "{} of {volume} were damaged on the cache device, the first at byte {first_offset_bytes}; they are read from \
                 the backing store again",
                ByteSize(blocks * BLOCK_BYTES as u64),
            ),
            Self::Lost { volume, lost, first_offset_bytes, .. } => write!(
                f,
                "LOST: {lost} of {volume}, from byte {first_offset_bytes} on: dirty data that the cache \
                 cannot return. Reads return errors until it is rewritten. To list the ranges: forebay \
                 volume show {volume}"
            ),
            Self::LossEnded { volume } => write!(f, "{volume} no longer has lost data"),
            Self::DestageFailed { volume, retry_in, cause } => {
                write!(f, "destage of {volume} to its backing store failed")?;
                if let Some(cause) = cause {
                    write!(f, ": {cause}")?;
                }
                write!(f, "; dirty data stays in the cache, next attempt in {} ms", retry_in.as_millis())
            }
            Self::DestageRecovered { volume } => write!(f, "destage of {volume} works again"),
            Self::OperationFailed { .. } | Self::DeviceEnded { .. } | Self::DeviceBack { .. } => {
                super::devices::write_event(f, self)
            }
            Self::StoreAway { .. } | Self::StoreBack { .. } => self.write_remote(f),
            Self::ExportLost { lost, .. } => f.write_str(&lost.join("; ")),
            Self::ExportsBack { volume } => write!(f, "{volume} no longer has lost exports"),
            Self::PathLost { .. } | Self::PathFound { .. } => self.write_path(f),
            Self::BeforeStop { what } => f.write_str(what),
            Self::CacheWriteFailed { segment } => {
                write!(f, "a write to segment {segment} of the cache device failed; it is repeated elsewhere")
            }
            Self::DiscardsRefused => f.write_str(
                "a cache device or its file system does not support discards: discard_freed has no effect \
                 until the pool is opened again",
            ),
            Self::Degraded { what, way } => {
                write!(f, "{what}: dirty data is now on one device only. Nothing is lost; {way}")
            }
            Self::MirrorWhole => f.write_str("dirty data is on both devices of the cache again"),
            Self::CacheFenced => f.write_str(
                "the cache device failed: it is taken out of service once that is recorded; writes wait \
                 until then",
            ),
            Self::RecordFailed { path, why } => write!(
                f,
                "cannot record in {} that the cache failed: {why}. Without that record a restart would serve \
                 stale data, so writes are refused until it is written: free space in the state directory, \
                 or make it writable",
                path.display()
            ),
            Self::CacheFailed { devices, dirty_bytes, record } => write!(
                f,
                "the cache {devices} failed and is no longer used. The volumes are served from their backing \
                 stores; {dirty_bytes} bytes of dirty data are written back now, as far as they can still be \
                 read (recorded in {})",
                record.display()
            ),
            Self::RescueEnded { devices, way, lost_bytes, volumes, record } => {
                write!(f, "the cache {devices} failed")?;
                say_lost(f, (*lost_bytes, volumes), record, way)
            }
            Self::OpenedWithoutCache { devices, way, failed_unix_s, lost_bytes, volumes, record } => {
                let at = rfc3339(failed_unix_s.saturating_mul(1_000_000_000));
                write!(f, "the cache {devices} failed (at {at}) and is not opened")?;
                say_lost(f, (*lost_bytes, volumes), record, way)
            }
            Self::OrderLost { volume } => write!(
                f,
                "the backing store of {volume} alone is not crash-consistent until all data that is dirty \
                 now is written back"
            ),
            Self::BackingChanged { volume, dropped, discarded } => {
                write!(f, "the backing store of {volume} was changed while the cache was away: ")?;
                if *discarded > 0 {
                    write!(f, "{discarded} dirty blocks were thrown away, which only the cache had, and ")?;
                }
                write!(f, "{dropped} clean blocks were dropped from the cache")
            }
            Self::BackingUncertain { volume, dropped, why } => write!(
                f,
                "cannot prove that the backing store of {volume} is unchanged since the crash ({why}): \
                 {dropped} clean blocks were dropped from the cache as a precaution"
            ),
            Self::Ready { export, .. } => write!(f, "ready: {export}"),
            Self::Detached { volume } => write!(f, "{volume} is detached"),
            Self::Resized { volume, size_bytes } => write!(f, "{volume} has {size_bytes} bytes now"),
            Self::Scrubbed(scrubbed) => write_scrubbed(f, scrubbed),
            Self::ClientRefused { what, others: 0 } => f.write_str(what),
            Self::ClientRefused { what, others } => write!(f, "{what} (and {others} others)"),
            Self::Stopping => f.write_str("stopping: open requests are finished first"),
            Self::GivenUp { devices, within, dirty_bytes, gone } => {
                let within = within.as_secs();
                write!(f, "stopped without closing the cache: {devices} has not answered for {within} s")?;
                if gone.cache.is_empty() {
                    write!(f, ". {dirty_bytes} bytes are dirty: they are safe in the cache, and only there")?;
                    f.write_str(". The next start recovers as after a crash")?;
                }
                gone.write(f, *dirty_bytes)
            }
            Self::NotClosed { devices, dirty_bytes } => {
                write!(f, "stopped without closing the cache: its device failed, {devices}. ")?;
                match *dirty_bytes {
                    0 => f.write_str("It has no dirty data")?,
                    bytes => write!(
                        f,
                        "{bytes} bytes are dirty, and only on the failed device, as far as it still has \
                         them. Do not use the backing store without the cache"
                    )?,
                }
                f.write_str(". The next start recovers as after a crash, if the device is back")
            }
            Self::Stopped { dirty_bytes: 0, lost: Lost { bytes: 0, .. }, gone, untold, .. }
                if gone.stores.is_empty() && untold.is_empty() =>
            {
                f.write_str("stopped; the backing store has everything, nothing is dirty")?;
                gone.write(f, 0)
            }
            Self::Stopped { dirty_bytes, lost, losers, absent, gone, untold } => {
                f.write_str("stopped; ")?;
                match *dirty_bytes {
                    0 if gone.stores.is_empty() && untold.is_empty() => {
                        f.write_str("the backing store has everything that is not lost")?;
                    }
                    0 => f.write_str("nothing is dirty")?,
                    bytes if !gone.cache.is_empty() => write!(f, "{bytes} bytes are dirty")?,
                    bytes => write!(
                        f,
                        "{bytes} bytes are dirty: they are safe in the cache, and only there. Do not use the backing store \
                         without the cache"
                    )?,
                }
                if !absent.is_empty() {
                    write!(f, ". Some belong to volumes that were not attached: {}", absent.join(", "))?;
                }
                if lost.bytes > 0 {
                    write!(
                        f,
                        ". LOST: {lost} of {}: dirty data that the cache cannot return",
                        losers.join(", ")
                    )?;
                }
                write_untold(f, untold)?;
                gone.write(f, *dirty_bytes)
            }
        }
    }
}

/// Writes the amount of lost data, and what to do.
fn say_lost(
    f: &mut fmt::Formatter<'_>,
    (bytes, volumes): (u64, &[String]),
    record: &Path,
    way: &str,
) -> fmt::Result {
    if bytes == 0 {
        return write!(f, ". Nothing is lost; the volumes are served without a cache; {way}");
    }
    write!(
        f,
        ". LOST: {bytes} bytes of {}: reads return errors until they are rewritten; the ranges are in {}. \
         Restore them from a backup, then {way}",
        volumes.join(", "),
        record.display()
    )
}

impl Pool {
    /// Reports an event to the operator.
    pub(super) fn emit(&mut self, event: PoolEvent) {
        (self.report)(event);
    }

    /// Records that destage of a volume fails, until it works again.
    fn note_failure(&mut self, notice: &Notice) {
        let Notice::DestageFailed { volume, .. } = *notice else { return };
        let destaged = self.engine.volume_stats(volume).map_or(0, |stats| stats.destaged_blocks);
        if let Some(served) = self.served_mut(volume) {
            served.destage_failing_at = Some(destaged);
            served.destage_failures += 1;
        }
    }

    /// Reports volumes whose destage failed and works again.
    pub(super) fn look_for_recovery(&mut self) {
        for number in 0..self.volumes.len() {
            let id = VolumeId(number as u16);
            let failing_at = self.served(id).and_then(|served| served.destage_failing_at);
            let Some(failing_at) = failing_at else { continue };
            if self.engine.volume_stats(id).is_none_or(|stats| stats.destaged_blocks <= failing_at) {
                continue;
            }
            let volume = self.name_of(id);
            if let Some(served) = self.served_mut(id) {
                served.destage_failing_at = None;
                served.refused = None;
            }
            self.emit(PoolEvent::DestageRecovered { volume });
        }
    }

    /// Returns the name of a volume, attached or not.
    pub(super) fn name_of(&self, volume: VolumeId) -> String {
        if let Some(served) = self.served(volume) {
            return served.spec.name.clone();
        }
        let entry = self.engine.volume_table().into_iter().find(|entry| entry.id == volume);
        entry.map_or_else(
            || format!("number {} (the cache no longer has its name)", volume.0),
            |entry| entry.name,
        )
    }

    /// Handles a notice of the engine.
    pub(super) fn notice(&mut self, notice: Notice) {
        let event = match notice {
            // There may be millions: `losses` reports them together.
            Notice::BlockDamaged { lost: true, .. } => return,
            Notice::BlockDamaged { volume, block, .. } => return self.note_damaged(volume, block),
            Notice::DestageFailed { volume, retry_in } => PoolEvent::DestageFailed {
                volume: self.name_of(volume),
                retry_in: Duration::from_nanos(retry_in),
                cause: self.why_refused(volume),
            },
            Notice::CacheWriteFailed { segment } => PoolEvent::CacheWriteFailed { segment },
            Notice::DiscardsRefused => PoolEvent::DiscardsRefused,
            Notice::CacheFenced => PoolEvent::CacheFenced,
            Notice::MemberFailed { member } => return self.member_failed(member),
            Notice::MemberOut { member } => return self.member_out(member),
            Notice::MirrorWhole => PoolEvent::MirrorWhole,
            Notice::RebuildFailed => return self.rebuild_failed(),
            Notice::RunsWithoutCache => return self.cache_failed(),
            Notice::RescueEnded { .. } => return self.rescue_ended(),
            Notice::OrderBroken { volume, .. }
            | Notice::OrderYielded { volume }
            | Notice::OrderEnded { volume } => PoolEvent::OrderLost { volume: self.name_of(volume) },
            Notice::BackingChanged { volume, dropped, discarded } => {
                PoolEvent::BackingChanged { volume: self.name_of(volume), dropped, discarded }
            }
            Notice::BackingUncertain { volume, dropped } => {
                let why = self.doubt_about(volume);
                PoolEvent::BackingUncertain { volume: self.name_of(volume), dropped, why }
            }
            Notice::Attached { volume } => return self.attached(volume),
            Notice::AttachFailed { volume, error } => return self.attach_failed(volume, &error),
            Notice::Detached { volume } => return self.detached(volume),
            Notice::DetachFailed { volume, error } => return self.detach_failed(volume, &error),
            Notice::VolumeResized { volume, bytes } => return self.resized(volume, Ok(bytes)),
            Notice::ResizeFailed { volume, error } => return self.resized(volume, Err(error)),
            Notice::PoolResized { .. } => return self.pool_resized(Ok(())),
            Notice::PoolResizeFailed { error } => return self.pool_resized(Err(error)),
            Notice::ScrubEnded { report, complete } => return self.scrub_ended(report, complete),
            Notice::Checkpointed { .. } => return self.checkpointed(),
        };
        self.note_failure(&notice);
        self.emit(event);
    }
}

fn write_scrubbed(f: &mut fmt::Formatter<'_>, scrubbed: &Scrubbed) -> fmt::Result {
    let Scrubbed { report, complete, lost } = scrubbed;
    let checked = ByteSize(report.checked_blocks * BLOCK_BYTES as u64);
    let how = if *complete { "compared" } else { "compared before it ended early" };
    write!(f, "scrub: {checked} {how}")?;
    if report.unreadable_blocks > 0 {
        write!(f, ", {} dirty blocks could not be read", report.unreadable_blocks)?;
    }
    if report.damaged_blocks > 0 {
        let (damaged, repaired, dirty) = (report.damaged_blocks, report.repaired_blocks, report.lost_blocks);
        write!(f, ", {damaged} blocks damaged: {repaired} fetched again, {dirty} dirty ones lost")?;
    } else if !scrubbed.found_harm() {
        f.write_str(", nothing damaged")?;
    }
    if lost.bytes > 0 {
        write!(f, ". LOST: {lost} in total, earlier losses included; `forebay volume show` lists them")?;
    }
    Ok(())
}

/// Hint for a backing store that was changed.
pub(super) const BACKING_CHANGED_HINT: &str = "if the backing store is the right one and the changes on it \
    may be lost: on_backing_change=keep-dirty; if the dirty data in the cache may be lost: \
    on_backing_change=discard-dirty; if it is the wrong one, give the one that belongs to this cache";

/// Returns the hint for a cache that cannot be opened, or a volume that cannot be attached.
pub(crate) fn open_hint(error: &OpenError) -> &'static str {
    match error {
        OpenError::BackingChanged { .. } => BACKING_CHANGED_HINT,
        OpenError::BackingShrunk { .. } => {
            "give the backing store that belongs to this cache, at its full size"
        }
        OpenError::BackingUnreadable | OpenError::BackingFlush => {
            "check the backing device; nothing was changed"
        }
        OpenError::NoNote => "give the daemon write access to its state directory (state_dir)",
        OpenError::Mirrored | OpenError::NoMember => "give both devices of the mirrored cache",
        OpenError::GivenUp => crate::failed_mark::HINT,
        OpenError::CacheEnded => "restore the full length of the device; nothing was changed",
        OpenError::CacheWrite => "check the cache device; its content is unchanged",
        OpenError::Superblock(_) => {
            "give the cache that belongs to this volume; if nothing on it is needed, erase it and create a \
             new one"
        }
        _ => {
            "do not erase this cache: it may hold the only copy of data; `forebay salvage CACHE --to FOLDER` extracts it"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_and_dropped_blocks_differ() {
        let changed = |dropped, discarded| {
            PoolEvent::BackingChanged { volume: "db".into(), dropped, discarded }.to_string()
        };
        assert!(changed(1, 2000).contains("2000 dirty blocks were thrown away"), "{}", changed(1, 2000));
        assert!(changed(1, 2000).contains("1 clean blocks were dropped"), "{}", changed(1, 2000));
        assert!(!changed(7, 0).contains("dirty"), "{}", changed(7, 0));
    }

    #[test]
    fn stop_reports_success_only_without_losses() {
        let stopped = |dirty_bytes, bytes| {
            let lost = Lost { bytes, ranges: 1 };
            let (losers, absent, gone) = (vec!["db".into()], Vec::new(), Gone::default());
            PoolEvent::Stopped { dirty_bytes, lost, losers, absent, gone, untold: Vec::new() }.to_string()
        };
        assert!(stopped(0, 0).ends_with("the backing store has everything, nothing is dirty"));
        for dirty in [0, 4096] {
            let text = stopped(dirty, 8192);
            assert!(
                text.contains("LOST: 8KiB in 1 range of db") && !text.contains("nothing is dirty"),
                "{text}"
            );
        }
    }

    #[test]
    fn stop_names_volumes_with_unreported_flush() {
        let none = || Lost { bytes: 0, ranges: 0 };
        let stopped = |dirty_bytes| {
            let (losers, absent, gone) = (Vec::new(), Vec::new(), Gone::default());
            let untold = vec!["db".into()];
            PoolEvent::Stopped { dirty_bytes, lost: none(), losers, absent, gone, untold }.to_string()
        };
        for dirty in [0, 4096] {
            let text = stopped(dirty);
            assert!(text.contains("store of db failed") && !text.contains("has everything"), "{text}");
        }
    }

    #[test]
    fn stop_reports_data_lost_with_the_process() {
        let none = || Lost { bytes: 0, ranges: 0 };
        let stopped = |dirty_bytes, gone: Gone| {
            let (losers, absent) = (Vec::new(), Vec::new());
            let untold = Vec::new();
            let event = PoolEvent::Stopped { dirty_bytes, lost: none(), losers, absent, gone, untold };
            (event.id(), event.to_string())
        };
        let path_lost = MessageId::Event(EventKind::DevicePathLost);
        let store = Gone { stores: vec![("db".into(), "/srv/disk".into())], ..Gone::default() };
        let cache = Gone { cache: vec!["/srv/flash".into()], ..Gone::default() };
        for dirty in [0, 4096] {
            let (id, text) = stopped(dirty, store.clone());
            assert!(id == path_lost && text.contains("LOST") && text.contains("/srv/disk"), "{text}");
            assert!(!text.contains("has everything"), "{text}");
        }
        let (id, text) = stopped(4096, cache.clone());
        assert!(id == path_lost && text.contains("LOST") && !text.contains("safe"), "{text}");
        let (id, text) = stopped(0, cache);
        assert!(id == MessageId::PoolClosed && !text.contains("LOST"), "{text}");
        let elsewhere = Gone { elsewhere: vec!["mv b a".into()], ..Gone::default() };
        let (id, text) = stopped(4096, elsewhere);
        assert!(id == MessageId::PoolClosed && text.contains("safe") && text.ends_with("mv b a"), "{text}");
    }
}
