//! Encrypted caches: the key of a seed.

use super::types::CipherPlan;
use crate::rng::{Rng, mix};
use forebay_crypt::{FileKey, KEY_BYTES};
use forebay_format::{CacheUuid, Encryption};
use std::sync::Arc;

impl CipherPlan {
    /// Creates a cipher with a key of this seed.
    pub(crate) fn draw(seed: u64, uuid: CacheUuid) -> Self {
        let mut rng = Rng::new(mix(seed ^ 0x6b65_7973));
        let mut bytes = [0; KEY_BYTES];
        bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.word().to_le_bytes()));
        let key = FileKey::parse(&bytes).expect("64 bytes, drawn at random");
        Self { cipher: Arc::new(key.cipher(uuid)), mark: key.mark(uuid) }
    }

    /// Returns the encryption fields of the superblock.
    pub(crate) fn mark(&self) -> Encryption {
        self.mark
    }
}
