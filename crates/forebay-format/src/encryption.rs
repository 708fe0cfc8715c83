//! Encryption at rest, as a superblock describes it.
//!
//! The cipher itself is in the crate `forebay-crypt`; everything else in this crate describes the
//! plaintext.

/// The cache is encrypted with AES-256-XTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encryption {
    /// Derived from the key and the UUID of the cache: distinguishes the right key from a wrong
    /// one, and has no other use.
    pub key_check: [u8; 16],
}
