//! Message ids for errors of devices and formats, for scripts.

use forebay_admin::MessageId;
use forebay_format::FormatError;
use forebay_io::DeviceError;
use std::io::ErrorKind;

/// Returns the id for an error of a device or file.
#[must_use]
pub fn of_device(error: &DeviceError) -> MessageId {
    match error {
        DeviceError::Open { source, .. } if source.kind() == ErrorKind::NotFound => MessageId::DeviceMissing,
        DeviceError::Open { .. } => MessageId::DeviceUnusable,
        DeviceError::InUse { .. } => MessageId::DeviceInUse,
        DeviceError::WriteProtected { .. } => MessageId::DeviceWriteProtected,
        DeviceError::OwnMount { .. } => MessageId::DeviceOwnMount,
        DeviceError::NotADevice { .. } => MessageId::DeviceNotADevice,
        DeviceError::NoSpace { .. } => MessageId::DeviceNoSpace,
        DeviceError::Exists { .. } => MessageId::DeviceExists,
        DeviceError::CannotEmulate { .. } => MessageId::DeviceEmulation,
        DeviceError::CannotPreallocate { .. } => MessageId::DevicePreallocation,
        DeviceError::Io { .. } => MessageId::DeviceIo,
    }
}

/// Returns the id for an invalid structure of a cache.
#[must_use]
pub fn of_format(error: &FormatError) -> MessageId {
    match error {
        FormatError::TooShort { .. } => MessageId::CacheTruncated,
        FormatError::Magic { .. } => MessageId::CacheNotACache,
        FormatError::Version { .. } => MessageId::CacheVersion,
        FormatError::Checksum { .. }
        | FormatError::Field { .. }
        | FormatError::Misplaced { .. }
        | FormatError::Geometry(_) => MessageId::CacheDamaged,
    }
}
