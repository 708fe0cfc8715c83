//! Encryption of all data on the cache devices of a pool, at the last point in the daemon before
//! the device.
//!
//! Reads are decrypted in place, before their checksums are computed. Writes are copied and
//! encrypted in the copy (the *bounce*), because the engine and its clients go on using the
//! original. A batch whose write failed is encrypted again for another place. The reactor does
//! both, on an I/O thread where there is one (`for_reactor`). Metadata is encrypted and decrypted
//! here.
//!
//! Invariants
//! - Bounces come from the pool's memory, but never from its last sixteenth, which metadata needs.
//!   One bounce that is long enough for any batch is set aside when the pool is opened. A write
//!   waits only while that one is in use. So it only ever waits for a device, and never fails for
//!   want of memory.
//! - Waiting writes get it in order of arrival. (The engine relies on no order between writes.)

use forebay_core::OpId;
use forebay_crypt::CacheCipher;
use forebay_format::BLOCK_BYTES;
use forebay_format::batch::ENTRIES_MAX;
use forebay_io::{BufId, BufPool, PlaceCipher, Span};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of the longest batch: its header and a block for each entry.
const BATCH_BYTES_MAX: usize = (1 + ENTRIES_MAX) * BLOCK_BYTES;
/// Bounces leave this part of the pool's memory to others.
const LEAVING: usize = 16;

/// A write to the cache that has no bounce yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    pub(crate) op: OpId,
    /// Byte offset in the pool's space.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The cipher as the reactor uses it: places are byte offsets in the pool's space.
struct OfReactor(Arc<CacheCipher>);

impl PlaceCipher for OfReactor {
    fn encrypt(&self, place: u64, bytes: &mut [u8]) {
        self.0.encrypt(place, bytes);
    }

    fn decrypt(&self, place: u64, bytes: &mut [u8]) {
        self.0.decrypt(place, bytes);
    }
}

/// The cipher of a pool, and the memory that it needs.
#[derive(Debug)]
pub(crate) struct CipherStage {
    cipher: Arc<CacheCipher>,
    /// Long enough for any batch.
    reserve: BufId,
    /// The write that uses the reserve.
    lent_to: Option<OpId>,
    waiting: VecDeque<Waiting>,
}

impl CipherStage {
    /// Sets the reserve aside; `None` if there is no memory.
    pub(crate) fn new(cipher: CacheCipher, pool: &mut BufPool) -> Option<Self> {
        let reserve = pool.alloc(BATCH_BYTES_MAX)?;
        Some(Self { cipher: Arc::new(cipher), reserve, lent_to: None, waiting: VecDeque::new() })
    }

    /// The cipher for operations of the reactor.
    pub(crate) fn for_reactor(&self) -> Arc<dyn PlaceCipher> {
        Arc::new(OfReactor(Arc::clone(&self.cipher)))
    }

    /// Memory for the encrypted copy of a write, and whether the caller frees it when the write has
    /// ended.
    fn bounce(&mut self, pool: &mut BufPool, op: OpId, len: usize) -> Option<(BufId, bool)> {
        if let Some(buffer) = pool.alloc_leaving(LEAVING, len) {
            return Some((buffer, true));
        }
        if self.lent_to.is_some() || len > pool.capacity(self.reserve) {
            return None;
        }
        self.lent_to = Some(op);
        Some((self.reserve, false))
    }

    /// Copies a batch for encryption; returns the copy, and whether the caller frees it when the
    /// write has ended. `None` if there is no memory now; then the write waits for
    /// [`CipherStage::next`].
    pub(crate) fn batch(
        &mut self,
        pool: &mut BufPool,
        write: Waiting,
        header: &[u8],
        spans: &[Span],
    ) -> Option<(Span, bool)> {
        let Some((buf, ours)) = self.bounce(pool, write.op, write.len as usize) else {
            self.waiting.push_back(write);
            return None;
        };
        let mut at = header.len() as u32;
        pool.copy_in(Span { buf, offset: 0, len: at }, header);
        for span in spans {
            pool.copy(*span, Span { buf, offset: at, len: span.len });
            at += span.len;
        }
        Some((Span { buf, offset: 0, len: at }, ours))
    }

    /// Encrypts a copy of metadata, which has no other user, for its place.
    pub(crate) fn encrypt(&self, pool: &mut BufPool, copy: Span, offset: u64) {
        pool.change(copy, |bytes| self.cipher.encrypt(offset, bytes));
    }

    /// Decrypts metadata that was read from byte `offset` of the pool's space on.
    pub(crate) fn decrypt_bytes(&self, offset: u64, bytes: &mut [u8]) {
        self.cipher.decrypt(offset, bytes);
    }

    /// Takes the reserve back from an operation that has ended, or never began.
    pub(crate) fn give_back(&mut self, ended: OpId) {
        if self.lent_to == Some(ended) {
            self.lent_to = None;
        }
    }

    /// An operation has ended. Returns the next waiting write to retry if the reserve is free now.
    pub(crate) fn next(&mut self, ended: OpId) -> Option<Waiting> {
        self.give_back(ended);
        if self.lent_to.is_none() { self.waiting.pop_front() } else { None }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use forebay_crypt::FileKey;
    use forebay_format::CacheUuid;

    const BLOCK: usize = BLOCK_BYTES;

    fn cipher() -> CacheCipher {
        let key: Vec<u8> = (0..64).collect();
        FileKey::parse(&key).unwrap().cipher(CacheUuid([3; 16]))
    }

    fn write(op: u32, block: u64) -> Waiting {
        Waiting { op: OpId(op), offset: block * BLOCK as u64, len: 3 * BLOCK as u64 }
    }

    /// Two blocks of client data in parts of a larger buffer, the second before the first.
    fn data(pool: &mut BufPool) -> (BufId, [Span; 2]) {
        let buf = pool.alloc(4 * BLOCK).unwrap();
        pool.bytes_mut(buf).chunks_mut(BLOCK).zip(1..).for_each(|(block, byte)| block.fill(byte));
        let part = |index: u32| Span { buf, offset: index * BLOCK as u32, len: BLOCK as u32 };
        (buf, [part(2), part(1)])
    }

    #[test]
    fn batch_is_encrypted_in_a_copy() {
        let mut pool = BufPool::new(64 << 20);
        let mut stage = CipherStage::new(cipher(), &mut pool).unwrap();
        let (buf, spans) = data(&mut pool);
        let header = vec![9; BLOCK];
        let (copy, ours) = stage.batch(&mut pool, write(1, 100), &header, &spans).unwrap();
        assert!(ours && copy.len as usize == 3 * BLOCK);
        let mut wanted = [header, vec![3; BLOCK], vec![2; BLOCK]].concat();
        assert_eq!(pool.bytes(copy.buf)[..wanted.len()], wanted[..]);
        stage.encrypt(&mut pool, copy, 100 * BLOCK as u64);
        cipher().encrypt(100 * BLOCK as u64, &mut wanted);
        assert_eq!(pool.bytes(copy.buf)[..wanted.len()], wanted[..]);
        assert_eq!((pool.bytes(buf)[2 * BLOCK], pool.bytes(buf)[BLOCK]), (3, 2), "the original is used on");
        let reactors = stage.for_reactor();
        reactors.decrypt(101 * BLOCK as u64, &mut wanted[BLOCK..]);
        assert_eq!((wanted[BLOCK], wanted[2 * BLOCK - 1], wanted[2 * BLOCK]), (3, 3, 2));
        reactors.encrypt(101 * BLOCK as u64, &mut wanted[BLOCK..]);
        assert_eq!(pool.bytes(copy.buf)[..wanted.len()], wanted[..]);
    }

    #[test]
    fn writes_without_memory_share_the_reserve() {
        let mut pool = BufPool::new(4 << 20);
        let mut stage = CipherStage::new(cipher(), &mut pool).unwrap();
        let (_, spans) = data(&mut pool);
        while pool.alloc_leaving(LEAVING, BLOCK).is_some() {}
        let header = vec![9; BLOCK];
        let mut batch = |stage: &mut CipherStage, write| stage.batch(&mut pool, write, &header, &spans);
        let (_, ours) = batch(&mut stage, write(1, 100)).unwrap();
        assert!(!ours, "the first has the reserve, which is not to be freed");
        assert_eq!(batch(&mut stage, write(2, 200)), None);
        assert_eq!(batch(&mut stage, write(3, 300)), None);
        assert_eq!(stage.next(OpId(7)), None, "another operation has ended");
        assert_eq!(stage.next(OpId(1)), Some(write(2, 200)));
        assert!(batch(&mut stage, write(2, 200)).is_some());
        assert_eq!(stage.next(OpId(8)), None);
        assert_eq!(stage.next(OpId(2)), Some(write(3, 300)));
        assert!(batch(&mut stage, write(3, 300)).is_some());
        assert_eq!(stage.next(OpId(3)), None);
    }
}
