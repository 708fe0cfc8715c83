//! The memory of a volume that outlives the process.
//!
//! A page of words under `/dev/shm`. The pool's thread counts its writes there; the facts about the
//! store lie in one of two slots, so that the last ones are complete after a kill. Numbers of
//! writes only grow, also from one process to the next one after a crash.

use super::{Facts, HEADS};
use forebay_io::SharedPage;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const MAGIC: u64 = u64::from_le_bytes(*b"fbstore1");

// Words of the page.
const AT_MAGIC: usize = 0;
const AT_BOOT: usize = 1;
const AT_RUN: usize = 3;
const AT_BEGAN: usize = 4;
const AT_ENDED: usize = 5;
const AT_LAST: usize = 6;
const AT_CACHED: usize = 7;
const AT_SLOT: usize = 8;
const AT_SLOTS: usize = 16;
const AT_HEADS: usize = SharedPage::WORDS - HEADS;
/// Words of a slot: number of the last write when the store was seen, and when its first blocks
/// were read; length; bytes.
const SLOT_WORDS: usize = (AT_HEADS - AT_SLOTS) / 2;
const SLOT_HEAD: usize = 3;

/// Content of the memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Memory {
    pub(super) began: u64,
    pub(super) ended: u64,
    /// Time when the last write began or ended.
    pub(super) last_ns: i64,
    /// A write went through the kernel's page cache: it can reach the device later.
    pub(super) through_page_cache: bool,
    /// The facts about the store, and the number of writes before.
    pub(super) facts: Facts,
    pub(super) seen_at: u64,
    /// Number of writes before its first blocks were read.
    pub(super) heads_at: u64,
    /// The last write to each of them.
    pub(super) heads_written_at: [u64; HEADS],
}

/// Path of the memory of a volume. `None` if there is no directory that belongs to this user alone.
pub(super) fn path(state_dir: &Path, uuid: [u8; 16]) -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folder = PathBuf::from(format!("/dev/shm/forebay-{user}"));
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&folder);
    let there = std::fs::symlink_metadata(&folder).ok()?;
    let ours = there.is_dir() && there.uid() == user && there.mode() & 0o077 == 0;
    // Copies of one cache can be in use with different state directories.
    let of = std::fs::canonicalize(state_dir).unwrap_or_else(|_| state_dir.into());
    let of = of.to_string_lossy().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    ours.then(|| folder.join(format!("{}-{of:016x}", crate::loss_record::hex(&uuid))))
}

fn boot_words(boot_id: &str) -> [u64; 2] {
    let half = |range: std::ops::Range<usize>| {
        boot_id.get(range).and_then(|part| u64::from_str_radix(part, 16).ok()).unwrap_or(0)
    };
    [half(0..16), half(16..32)]
}

/// The page as the last process left it, if that was since the current boot.
pub(super) fn read(page: &SharedPage, boot_id: &str) -> Option<Memory> {
    let word = |at: usize| page.word(at).load(Acquire);
    let boot = [word(AT_BOOT), word(AT_BOOT + 1)];
    if word(AT_MAGIC) != MAGIC || boot != boot_words(boot_id) || boot_id.is_empty() {
        return None;
    }
    let slot =
        AT_SLOTS + SLOT_WORDS * usize::try_from(word(AT_SLOT).checked_sub(1)?).ok().filter(|at| *at < 2)?;
    let len = usize::try_from(word(slot + 2)).ok().filter(|len| *len <= (SLOT_WORDS - SLOT_HEAD) * 8)?;
    let bytes = (0..len.div_ceil(8)).flat_map(|at| word(slot + SLOT_HEAD + at).to_le_bytes());
    let bytes: Vec<u8> = bytes.take(len).collect();
    Some(Memory {
        began: word(AT_BEGAN),
        ended: word(AT_ENDED),
        last_ns: word(AT_LAST) as i64,
        through_page_cache: word(AT_CACHED) != 0,
        facts: serde_json::from_slice(&bytes).ok()?,
        seen_at: word(slot),
        heads_at: word(slot + 1),
        heads_written_at: std::array::from_fn(|block| word(AT_HEADS + block)),
    })
}

/// Begins to use a page: the store has these facts, and no write of the daemon is in flight.
pub(super) fn begin(page: &SharedPage, boot_id: &str, run: u64, facts: &Facts) {
    let set = |at: usize, value: u64| page.word(at).store(value, Release);
    if read(page, boot_id).is_none() {
        (0..SharedPage::WORDS).for_each(|at| set(at, 0));
        let boot = boot_words(boot_id);
        set(AT_BOOT, boot[0]);
        set(AT_BOOT + 1, boot[1]);
    }
    let began = page.word(AT_BEGAN).load(Relaxed);
    set(AT_RUN, run);
    see(page, run, facts, began, began);
    set(AT_ENDED, began);
    set(AT_CACHED, 0);
    set(AT_MAGIC, MAGIC);
}

/// Stores the facts about the store, with the numbers of writes before them, and before its first
/// blocks were read. False if another process uses the page, or it has no room.
pub(super) fn see(page: &SharedPage, run: u64, facts: &Facts, seen_at: u64, heads_at: u64) -> bool {
    let bytes = serde_json::to_vec(facts).unwrap_or_default();
    let there = page.word(AT_SLOT).load(Acquire);
    if page.word(AT_RUN).load(Acquire) != run || bytes.len() > (SLOT_WORDS - SLOT_HEAD) * 8 {
        return false;
    }
    let other = if there == 1 { 2 } else { 1 };
    let slot = AT_SLOTS + SLOT_WORDS * (other as usize - 1);
    let words = bytes.chunks(8).map(|piece| {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        u64::from_le_bytes(word)
    });
    let words = [seen_at, heads_at, bytes.len() as u64].into_iter().chain(words);
    for (at, word) in words.enumerate() {
        page.word(slot + at).store(word, Relaxed);
    }
    page.word(AT_SLOT).store(other, Release);
    true
}

/// True if the page belongs to this process.
pub(super) fn is_of(page: &SharedPage, run: u64) -> bool {
    page.word(AT_RUN).load(Acquire) == run
}

/// Numbers of writes begun and ended.
pub(super) fn counts(page: &SharedPage) -> (u64, u64) {
    let ended = page.word(AT_ENDED).load(Acquire);
    (page.word(AT_BEGAN).load(Acquire), ended)
}

/// First blocks that were written after this write.
pub(super) fn heads_written_since(page: &SharedPage, heads_at: u64) -> Vec<usize> {
    (0..HEADS).filter(|block| page.word(AT_HEADS + block).load(Acquire) > heads_at).collect()
}

/// Counts the begin of a write.
pub(super) fn write_begins(page: &SharedPage, blocks: std::ops::Range<u64>, cached: bool, now_ns: i64) {
    let began = page.word(AT_BEGAN).load(Relaxed);
    let heads = blocks.start.min(HEADS as u64) as usize..blocks.end.min(HEADS as u64) as usize;
    for block in heads {
        page.word(AT_HEADS + block).store(began + 1, Release);
    }
    if cached {
        page.word(AT_CACHED).store(1, Release);
    }
    note_time(page, now_ns);
    page.word(AT_BEGAN).store(began + 1, Release);
}

/// Counts the end of a write, successful or not.
pub(super) fn write_ended(page: &SharedPage, now_ns: i64) {
    note_time(page, now_ns);
    let ended = page.word(AT_ENDED).load(Relaxed);
    page.word(AT_ENDED).store(ended + 1, Release);
}

/// A clock that is set back must not make the daemon's own writes look like those of others.
fn note_time(page: &SharedPage, now_ns: i64) {
    let last = page.word(AT_LAST).load(Relaxed) as i64;
    page.word(AT_LAST).store(last.max(now_ns) as u64, Release);
}
