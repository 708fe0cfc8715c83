//! Message ids of the engine's errors, for scripts.

use forebay_admin::MessageId;
use forebay_admin::events::EventKind;
use forebay_core::{LifecycleError, OpenError};
use forebay_format::FormatError;
use forebay_offline::message::of_format;

/// A change that the engine refuses.
pub(crate) fn of_lifecycle(error: &LifecycleError) -> MessageId {
    match error {
        LifecycleError::NotServing => MessageId::PoolNotServing,
        LifecycleError::Fenced => MessageId::Event(EventKind::CacheFenced),
        LifecycleError::Mirrored => MessageId::PoolMirrored,
        LifecycleError::NotMirrored => MessageId::PoolNotMirrored,
        LifecycleError::TagInUse => MessageId::PoolReplacement,
        LifecycleError::Busy => MessageId::PoolBusy,
        LifecycleError::NotAttached => MessageId::VolumeNotAttached,
        LifecycleError::Attached => MessageId::VolumeAttachedAlready,
        LifecycleError::OtherVolume(_) => MessageId::VolumeExists,
        LifecycleError::OutOfRange | LifecycleError::Size { .. } => MessageId::VolumeSize,
        LifecycleError::Dirty { .. } => MessageId::VolumeDirty,
        LifecycleError::Lost { .. } => MessageId::VolumeLostData,
        LifecycleError::TooDirty { .. } => MessageId::VolumeTooDirty,
        LifecycleError::BackingShrunk { .. } => MessageId::BackingShrunk,
        LifecycleError::BackingChanged { .. } => MessageId::Event(EventKind::BackingChanged),
        LifecycleError::BackingUnreadable | LifecycleError::BackingFlush => MessageId::BackingUnreadable,
        LifecycleError::PoolRange { .. } => MessageId::PoolSize,
        LifecycleError::Cancelled => MessageId::JobStopped,
    }
}

/// A cache that the engine does not open.
pub(crate) fn of_open(error: &OpenError) -> MessageId {
    match error {
        OpenError::Superblock(error) => of_format(error),
        OpenError::Unreadable | OpenError::CacheWrite => MessageId::CacheUnreadable,
        OpenError::CheckpointLost { .. }
        | OpenError::SegmentLost { .. }
        | OpenError::TailUnreadable { .. } => MessageId::CacheDamaged,
        OpenError::LostFlushedBatch { .. } => MessageId::CacheLostWrites,
        OpenError::Older => MessageId::CacheOlderCopy,
        OpenError::GivenUp => MessageId::CacheGivenUp,
        OpenError::UnknownVolume(_) => MessageId::VolumeUnknown,
        OpenError::BackingShrunk { .. } => MessageId::BackingShrunk,
        OpenError::BackingChanged { .. } => MessageId::Event(EventKind::BackingChanged),
        OpenError::BackingUnreadable | OpenError::BackingFlush => MessageId::BackingUnreadable,
        OpenError::Mirrored => MessageId::CacheHalfOfMirror,
        OpenError::NoMember => MessageId::CacheMemberStale,
        OpenError::OtherCache => MessageId::CacheMemberForeign,
        OpenError::SplitMirror => MessageId::CacheMembersDiverged,
        OpenError::NoNote => MessageId::Event(EventKind::StateUnwritable),
        OpenError::CacheEnded => MessageId::Event(EventKind::DeviceEnded),
    }
}

/// A cache that does not fit its device.
pub(crate) fn of_cut(error: &FormatError) -> MessageId {
    match error {
        FormatError::Geometry(_) => MessageId::CacheTruncated,
        other => of_format(other),
    }
}
