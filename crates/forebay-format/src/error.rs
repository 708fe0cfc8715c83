//! Errors for invalid bytes from a cache device.

use thiserror::Error;

/// A structure on the cache device could not be decoded. Each variant names the structure and the
/// problem.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FormatError {
    /// Fewer bytes than the structure needs.
    #[error("{structure}: {found} bytes where {needed} are needed (is the device truncated?)")]
    TooShort {
        /// Structure that was read.
        structure: &'static str,
        /// Bytes needed.
        needed: usize,
        /// Bytes found.
        found: usize,
    },
    /// The magic number is missing: never formatted, or not a Forebay cache.
    #[error("{structure}: no magic number: this is not a Forebay {structure}")]
    Magic {
        /// Structure that was read.
        structure: &'static str,
    },
    /// The checksum does not match: torn, corrupted or overwritten.
    #[error("{structure}: checksum {found:#010x}, computed {computed:#010x}: torn or damaged")]
    Checksum {
        /// Structure that was read.
        structure: &'static str,
        /// Checksum stored on the device.
        found: u32,
        /// Checksum of the bytes read.
        computed: u32,
    },
    /// Written by a newer Forebay.
    #[error(
        "{structure}: format version {found}, but this forebay reads up to version {supported}: \
         use a newer forebay, or make a new cache"
    )]
    Version {
        /// Structure that was read.
        structure: &'static str,
        /// Version stored on the device.
        found: u32,
        /// Newest supported version.
        supported: u32,
    },
    /// A field holds a value that no writer of this version produces.
    #[error("{structure}: field `{field}` holds {value}, which is not valid")]
    Field {
        /// Structure that was read.
        structure: &'static str,
        /// Field as named in `docs/internals/on-disk-format.md`.
        field: &'static str,
        /// Value found.
        value: u64,
    },
    /// Intact, but from another cache or another place on the device.
    #[error("{structure}: `{field}` says {found:#x} where {expected:#x} was expected: misdirected or stale")]
    Misplaced {
        /// Structure that was read.
        structure: &'static str,
        /// Field as named in `docs/internals/on-disk-format.md`.
        field: &'static str,
        /// Value expected here.
        expected: u64,
        /// Value found.
        found: u64,
    },
    /// A requested layout cannot exist.
    #[error("cache geometry: {0}")]
    Geometry(String),
}
