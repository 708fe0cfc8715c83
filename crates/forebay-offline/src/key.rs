//! The key of an encrypted cache, and checks that it is the right one. This module does not know
//! the source of keys.
//!
//! Invariants
//! - No error and no debug format contains key material.
//! - An encrypted cache is opened only with its key. An unencrypted one is refused if a key is
//!   given.

use crate::Refusal;
use forebay_admin::MessageId;
use forebay_crypt::{CacheCipher, FileKey};
use forebay_format::superblock::Superblock;
use forebay_format::{CacheUuid, Encryption, SettingsCopy};
use std::fmt;

/// A key, once read.
#[derive(Debug)]
pub struct Key {
    shown: String,
    key: FileKey,
}

impl Key {
    /// Creates a key; `source` names its origin in messages.
    pub fn new(source: impl fmt::Display, key: FileKey) -> Self {
        Self { shown: source.to_string(), key }
    }

    /// Returns the cipher of a cache, and the superblock's description of the key.
    #[must_use]
    pub fn of_cache(&self, uuid: CacheUuid) -> (CacheCipher, Encryption) {
        (self.key.cipher(uuid), self.key.mark(uuid))
    }

    /// Signs the settings written by an export.
    pub fn sign(&self, copy: &mut SettingsCopy) {
        copy.mac = self.key.settings_mac(copy.uuid, &copy.signed_bytes());
    }

    /// Returns true if the writer of the settings had the key.
    #[must_use]
    pub fn has_signed(&self, copy: &SettingsCopy) -> bool {
        self.key.has_signed(copy.uuid, &copy.signed_bytes(), &copy.mac)
    }
}

/// Returns the cipher of a cache, if it is encrypted. `shown` names the cache.
///
/// # Errors
/// Refuses if the key is missing, or of another cache, or if a key is given and the cache is not
/// encrypted.
pub fn unlock(
    superblock: &Superblock,
    key: Option<&Key>,
    shown: &dyn fmt::Display,
) -> Result<Option<CacheCipher>, Refusal> {
    match (superblock.encryption, key) {
        (None, None) => Ok(None),
        (Some(mark), Some(key)) if key.key.mark(superblock.uuid) == mark => {
            Ok(Some(key.key.cipher(superblock.uuid)))
        }
        (Some(_), Some(key)) => Err(Refusal::new(MessageId::CacheKeyWrong, format!("the key {} is not that of the cache {shown}", key.shown)).hint("give the key that the cache was made with: without it nothing in the cache can be read; nothing was changed")),
        (Some(_), None) => Err(Refusal::new(MessageId::CacheKeyMissing, format!("the cache {shown} is encrypted, and no key was given")).hint("give its key: encryption_key_file in the section of the pool, --set encryption_key_file=PATH with `forebay run`, \
             --key-file PATH with check, inspect and salvage; nothing was changed")),
        (None, Some(key)) => Err(Refusal::new(MessageId::CacheKeyUnused, format!("the cache {shown} is not encrypted, but a key was given: {}", key.shown)).hint("to use it as it is, leave the key out; to encrypt it, write everything back (forebay flush), remove the pool, erase the \
             device, and make the pool again with the key; nothing was changed")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use forebay_format::superblock::CacheState;
    use forebay_format::{Geometry, Members};

    const UUID: CacheUuid = CacheUuid([9; 16]);

    fn digits(seed: u8) -> String {
        (0..64).map(|index: u8| format!("{:02x}", seed ^ index.wrapping_mul(29))).collect()
    }

    fn key(seed: u8) -> Key {
        Key::new(format!("key{seed}"), FileKey::parse(digits(seed).as_bytes()).unwrap())
    }

    fn says(result: Result<impl fmt::Debug, Refusal>) -> String {
        let refusal = result.unwrap_err();
        format!("{refusal}; {}", refusal.hint)
    }

    fn superblock(key: Option<&Key>) -> Superblock {
        Superblock {
            uuid: UUID,
            generation: 1,
            epoch: 1,
            checkpoint_generation: 1,
            chain: None,
            state: CacheState::Clean,
            geometry: Geometry::for_device(64 << 20, None).unwrap(),
            members: Members::default(),
            mirror: None,
            encryption: key.map(|key| key.of_cache(UUID).1),
            shard_index: 0,
            shard_count: 1,
            created_unix_s: 0,
            written_by: String::new(),
        }
    }

    #[test]
    fn cache_opens_only_with_its_own_key() {
        let (right, wrong) = (key(1), key(2));
        let (plain, sealed) = (superblock(None), superblock(Some(&right)));
        assert!(unlock(&plain, None, &"/c").unwrap().is_none());
        assert!(unlock(&sealed, Some(&right), &"/c").unwrap().is_some());
        assert!(says(unlock(&sealed, Some(&wrong), &"/c")).contains("is not that of the cache /c"));
        assert!(says(unlock(&sealed, None, &"/c")).contains("encryption_key_file"));
        assert!(says(unlock(&plain, Some(&right), &"/c")).contains("is not encrypted"));
        // The same key, with a superblock that was copied to another cache.
        let moved = Superblock { uuid: CacheUuid([8; 16]), ..sealed };
        assert!(unlock(&moved, Some(&right), &"/c").is_err());
    }

    #[test]
    fn no_key_is_in_a_refusal_or_a_debug_format() {
        let (right, wrong) = (key(1), key(2));
        let sealed = superblock(Some(&right));
        let said = format!(
            "{wrong:?} {:?} {}",
            unlock(&sealed, Some(&right), &"/c"),
            says(unlock(&sealed, Some(&wrong), &"/c"))
        );
        for part in digits(1).as_bytes().windows(8).chain(digits(2).as_bytes().windows(8)) {
            assert!(!said.contains(std::str::from_utf8(part).unwrap()), "{said}");
        }
    }
}
