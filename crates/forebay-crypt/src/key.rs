//! The operator's key, and the keys derived from it for one cache.
//!
//! One key file may serve several pools: the derivation includes the UUID of the cache, so no two
//! caches share a data key. A cache that is recreated on the same device has another one.

use crate::CacheCipher;
use crate::xts::Xts;
use forebay_format::{CacheUuid, Encryption};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::hmac::{self, HMAC_SHA256};
use thiserror::Error;
use zeroize::Zeroizing;

/// Bytes of the key in a key file.
pub const KEY_BYTES: usize = 64;

/// Purposes of derived keys; part of the format, so never changed.
const FOR_DATA: &[u8] = b"forebay 1 aes-256-xts";
const FOR_CHECK: &[u8] = b"forebay 1 key check";
const FOR_SETTINGS: &[u8] = b"forebay 1 settings copy";

/// Why the contents of a key file are not a valid key. The error never includes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum KeyError {
    /// Neither 64 bytes nor 128 digits.
    #[error(
        "it has {found} bytes; a key is 64 random bytes (head -c 64 /dev/urandom), or 128 hexadecimal digits on one line"
    )]
    Length {
        /// Bytes that were found.
        found: usize,
    },
    /// 128 characters, not all of them digits.
    #[error("it has 128 characters, but not all of them are hexadecimal digits")]
    Digits,
    /// All bytes are the same.
    #[error("all bytes of it are the same, so it is no random key (head -c 64 /dev/urandom)")]
    Constant,
}

/// The key from a key file.
pub struct FileKey(Zeroizing<[u8; KEY_BYTES]>);

impl std::fmt::Debug for FileKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileKey").finish_non_exhaustive()
    }
}

impl FileKey {
    /// Parses the contents of a key file: 64 bytes, or 128 hexadecimal digits with an optional
    /// newline.
    ///
    /// # Errors
    /// It is neither, or certainly not a random key.
    pub fn parse(contents: &[u8]) -> Result<Self, KeyError> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let line = contents.strip_suffix(b"\n").unwrap_or(contents);
        if contents.len() == KEY_BYTES {
            key.copy_from_slice(contents);
        } else if line.len() == 2 * KEY_BYTES {
            for (byte, digits) in key.iter_mut().zip(line.chunks_exact(2)) {
                let [high, low] = [digits[0], digits[1]].map(|digit| char::from(digit).to_digit(16));
                let (Some(high), Some(low)) = (high, low) else { return Err(KeyError::Digits) };
                *byte = (high << 4 | low) as u8;
            }
        } else {
            return Err(KeyError::Length { found: contents.len() });
        }
        if key.iter().all(|byte| *byte == key[0]) {
            return Err(KeyError::Constant);
        }
        Ok(Self(key))
    }

    /// The cipher of a cache.
    #[must_use]
    pub fn cipher(&self, cache: CacheUuid) -> CacheCipher {
        let mut keys = Zeroizing::new([0; 64]);
        derive(&self.secret(cache), FOR_DATA, &mut keys[..]);
        CacheCipher { xts: Xts::new(&keys) }
    }

    /// The superblock's mark of a cache that is encrypted with this key: sufficient to recognise
    /// the key, but not to find it.
    #[must_use]
    pub fn mark(&self, cache: CacheUuid) -> Encryption {
        let mut key_check = [0; 16];
        derive(&self.secret(cache), FOR_CHECK, &mut key_check);
        Encryption { key_check }
    }

    /// The MAC of the settings that an export writes to a cache: HMAC-SHA256 with a key for this
    /// purpose alone.
    #[must_use]
    pub fn settings_mac(&self, cache: CacheUuid, settings: &[u8]) -> [u8; 32] {
        let mut mac = [0; 32];
        mac.copy_from_slice(hmac::sign(&self.settings_key(cache), settings).as_ref());
        mac
    }

    /// Returns whether the MAC of the settings was made with this key, in constant time.
    #[must_use]
    pub fn has_signed(&self, cache: CacheUuid, settings: &[u8], mac: &[u8; 32]) -> bool {
        hmac::verify(&self.settings_key(cache), settings, mac).is_ok()
    }

    fn settings_key(&self, cache: CacheUuid) -> hmac::Key {
        let mut key = Zeroizing::new([0; 32]);
        derive(&self.secret(cache), FOR_SETTINGS, &mut key[..]);
        hmac::Key::new(HMAC_SHA256, &key[..])
    }

    fn secret(&self, cache: CacheUuid) -> Prk {
        Salt::new(HKDF_SHA256, &cache.0).extract(&self.0[..])
    }
}

struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

fn derive(secret: &Prk, purpose: &[u8], to: &mut [u8]) {
    let wanted = [purpose];
    let filled = secret.expand(&wanted, Len(to.len())).and_then(|okm| okm.fill(to));
    filled.expect("64 bytes are far below what HKDF can give");
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn key() -> [u8; KEY_BYTES] {
        std::array::from_fn(|index| index as u8)
    }

    #[test]
    fn key_is_bytes_or_digits() {
        let digits: String = key().iter().map(|byte| format!("{byte:02x}")).collect();
        let uuid = CacheUuid([7; 16]);
        let mark = FileKey::parse(&key()).unwrap().mark(uuid);
        for text in [digits.clone(), digits.to_uppercase(), format!("{digits}\n")] {
            assert_eq!(FileKey::parse(text.as_bytes()).unwrap().mark(uuid), mark);
        }
        for len in [0, 1, 32, 63, 65, 127, 130, 4096] {
            let found = FileKey::parse(&vec![b'a'; len]).unwrap_err();
            assert_eq!(found, KeyError::Length { found: len });
        }
        let wrong = digits.replacen('0', "x", 1);
        assert_eq!(FileKey::parse(wrong.as_bytes()).unwrap_err(), KeyError::Digits);
        assert_eq!(FileKey::parse(&[0; KEY_BYTES]).unwrap_err(), KeyError::Constant);
        assert_eq!(FileKey::parse("0".repeat(128).as_bytes()).unwrap_err(), KeyError::Constant);
    }

    #[test]
    fn no_key_is_in_a_debug_format() {
        let key = FileKey::parse(&key()).unwrap();
        let shown = format!("{key:?} {:?}", key.cipher(CacheUuid([7; 16])));
        assert_eq!(shown, "FileKey { .. } CacheCipher { .. }");
    }

    #[test]
    fn each_cache_has_its_own_stable_key() {
        let key = FileKey::parse(&key()).unwrap();
        let (a, b) = (CacheUuid([7; 16]), CacheUuid([8; 16]));
        assert_ne!(key.mark(a), key.mark(b));
        let encrypted = |uuid| {
            let mut bytes = [0; 512];
            key.cipher(uuid).encrypt(40 * 4096, &mut bytes);
            bytes
        };
        assert_ne!(encrypted(a), encrypted(b));
        // Computed once with another implementation (HKDF and AES-XTS of OpenSSL): existing caches
        // must stay readable.
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&key.mark(a).key_check), "d605f1498ede18c1fd4cbd818622f300");
        assert_eq!(hex(&encrypted(a)[..16]), "3ac04f6edb435048a1898d1081437491");
    }

    #[test]
    fn settings_mac_depends_on_key_and_cache() {
        let (ours, other) = (CacheUuid([7; 16]), CacheUuid([8; 16]));
        let mut bytes = key();
        let key = FileKey::parse(&bytes).unwrap();
        let mac = key.settings_mac(ours, b"settings");
        assert!(key.has_signed(ours, b"settings", &mac));
        assert!(!key.has_signed(ours, b"Settings", &mac) && !key.has_signed(other, b"settings", &mac));
        assert!(!key.has_signed(ours, b"settings", &[0; 32]));
        bytes[5] ^= 1;
        assert!(!FileKey::parse(&bytes).unwrap().has_signed(ours, b"settings", &mac));
    }
}
