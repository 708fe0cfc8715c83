//! The settings copy: the configuration of a pool at its export, for the host that imports it.
//!
//! It lies on the first device of a cache, and on both of a mirrored one, between the superblocks
//! and the window extensions: a sector, and the text of the settings behind it. There are two
//! copies, in different erase blocks on most devices. Like the superblocks they are never
//! encrypted.
//!
//! Invariants
//! - A settings copy is valid only with the superblock that it names, after an orderly stop
//!   ([`SettingsCopy::is_current`]). Every start raises the generation of the superblock, so any
//!   use of the cache invalidates the copy.
//! - The engine neither reads nor writes these blocks.
//! - Any user that can write to the device can write a copy. Only a MAC, which a cache with a key
//!   has, proves that the export of this cache wrote it.

use crate::error::FormatError;
use crate::layout::{check_envelope, check_zero, crc_without, fitting, structure};
use crate::superblock::{CacheState, Superblock};
use crate::units::{BLOCK_BYTES, CacheUuid, SECTOR_BYTES, VERSION};

/// First blocks of the two copies. Blocks 4, 8, 20 and 24 have the window extensions.
pub const SETTINGS_BLOCKS: [u64; 2] = [9, 25];
/// Blocks of a copy.
pub const SETTINGS_COPY_BLOCKS: usize = 7;
/// Bytes of a copy.
pub const SETTINGS_COPY_BYTES: usize = SETTINGS_COPY_BLOCKS * BLOCK_BYTES;
/// Bytes of the MAC of a copy.
pub const SETTINGS_MAC_BYTES: usize = 32;
/// Longest text, in bytes.
pub const SETTINGS_TEXT_MAX: usize = SETTINGS_COPY_BYTES - SECTOR_BYTES;
/// First bytes of a settings copy.
pub const MAGIC: [u8; 8] = *b"FBAYSETS";

structure! { "settings copy", 512;
    F_MAGIC = "magic", 0, 8;
    F_VERSION = "version", 8, 4;
    F_TEXT_BYTES = "text_bytes", 12, 4;
    F_UUID = "uuid", 16, 16;
    F_GENERATION = "generation", 32, 8;
    F_EXPORTED = "exported_unix_s", 40, 8;
    F_HOST = "host", 48, 64;
    F_WRITTEN_BY = "written_by", 112, 32;
    F_TEXT_CRC = "text_crc32c", 144, 4;
    F_MAC = "mac", 148, 32;
    F_RESERVED = "reserved", 180, 328;
    F_CRC = "crc32c", 508, 4;
}

/// The contents of a settings copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingsCopy {
    /// Identity of the cache.
    pub uuid: CacheUuid,
    /// Generation of the superblock written by the orderly stop before the export.
    pub generation: u64,
    /// Time of the export, in seconds since 1970.
    pub exported_unix_s: u64,
    /// Name of the host, for operators.
    pub host: String,
    /// Product and version, for operators.
    pub written_by: String,
    /// HMAC-SHA256 of [`SettingsCopy::signed_bytes`]; zero on a cache without a key.
    pub mac: [u8; SETTINGS_MAC_BYTES],
    /// The sections of the pool and its volumes as in a configuration file (TOML).
    pub text: String,
}

impl SettingsCopy {
    /// Encodes one copy. Truncates long names.
    ///
    /// # Panics
    /// If the text has more than [`SETTINGS_TEXT_MAX`] bytes: a bug of the caller.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.text.len() <= SETTINGS_TEXT_MAX, "settings of {} bytes", self.text.len());
        let mut bytes = vec![0; SETTINGS_COPY_BYTES];
        let (to, text) = bytes.split_at_mut(STRUCTURE.len);
        text[..self.text.len()].copy_from_slice(self.text.as_bytes());
        F_MAGIC.put_bytes(to, &MAGIC);
        F_VERSION.put(to, u64::from(VERSION));
        F_TEXT_BYTES.put(to, self.text.len() as u64);
        F_UUID.put_bytes(to, &self.uuid.0);
        F_GENERATION.put(to, self.generation);
        F_EXPORTED.put(to, self.exported_unix_s);
        F_HOST.put_bytes(to, fitting(&self.host, F_HOST.len).as_bytes());
        F_WRITTEN_BY.put_bytes(to, fitting(&self.written_by, F_WRITTEN_BY.len).as_bytes());
        F_TEXT_CRC.put(to, u64::from(crate::checksum(self.text.as_bytes())));
        F_MAC.put_bytes(to, &self.mac);
        let crc = crc_without(to, F_CRC);
        F_CRC.put(to, u64::from(crc));
        bytes
    }

    /// Input of the MAC: the encoded copy without it.
    #[must_use]
    pub fn signed_bytes(&self) -> Vec<u8> {
        Self { mac: [0; SETTINGS_MAC_BYTES], ..self.clone() }.encode()
    }

    /// Decodes one copy.
    ///
    /// # Errors
    /// Not a settings copy, torn, of a newer version, or with fields out of range.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        check_envelope(&STRUCTURE, bytes, (F_MAGIC, &MAGIC), (F_VERSION, VERSION), F_CRC)?;
        check_zero(&STRUCTURE, bytes, &[F_RESERVED])?;
        let wrong_length = || STRUCTURE.wrong(F_TEXT_BYTES, F_TEXT_BYTES.get(bytes));
        let len = usize::try_from(F_TEXT_BYTES.get(bytes)).map_err(|_| wrong_length())?;
        if len > SETTINGS_TEXT_MAX {
            return Err(wrong_length());
        }
        let text = bytes.get(STRUCTURE.len..STRUCTURE.len + len).ok_or(FormatError::TooShort {
            structure: STRUCTURE.name,
            needed: STRUCTURE.len + len,
            found: bytes.len(),
        })?;
        let (found, computed) = (F_TEXT_CRC.get_u32(bytes), crate::checksum(text));
        if found != computed {
            return Err(FormatError::Checksum { structure: "text of a settings copy", found, computed });
        }
        let text = std::str::from_utf8(text).map_err(|error| {
            let at = error.valid_up_to();
            FormatError::Field { structure: STRUCTURE.name, field: "text (no UTF-8 here)", value: at as u64 }
        })?;
        let name = |bytes: &[u8]| {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        Ok(Self {
            uuid: CacheUuid(F_UUID.array(bytes)),
            generation: F_GENERATION.get(bytes),
            exported_unix_s: F_EXPORTED.get(bytes),
            host: name(F_HOST.bytes(bytes)),
            written_by: name(F_WRITTEN_BY.bytes(bytes)),
            mac: F_MAC.array(bytes),
            text: text.to_owned(),
        })
    }

    /// Chooses between two copies: the newer one of those that are intact.
    ///
    /// # Errors
    /// Neither is intact, or one is of a newer version: its writer might have changed anything.
    /// [`FormatError::Magic`] if there is none.
    pub fn choose(copies: [Result<Self, FormatError>; 2]) -> Result<Self, FormatError> {
        match copies {
            [Err(error @ FormatError::Version { .. }), _] | [_, Err(error @ FormatError::Version { .. })] => {
                Err(error)
            }
            [Ok(a), Ok(b)] => Ok(if b.generation > a.generation { b } else { a }),
            [Ok(copy), Err(_)] | [Err(_), Ok(copy)] => Ok(copy),
            [Err(FormatError::Magic { .. }), Err(error)] | [Err(error), Err(_)] => Err(error),
        }
    }

    /// Returns whether it describes the current cache: no start has happened since.
    #[must_use]
    pub fn is_current(&self, superblock: &Superblock) -> bool {
        self.uuid == superblock.uuid
            && self.generation == superblock.generation
            && superblock.state == CacheState::Clean
    }
}
