//! Witness of a backing store while the pool writes to it. It lets the start after a crash detect
//! whether others have written to the store since.
//!
//! The daemon's own writes change the times of a store too. So each volume has two stores of
//! evidence:
//! - a page of memory that outlives the process (`memory`): how many of the daemon's writes have
//!   begun and ended, when the last one did, and the facts about the store when none was in flight.
//!   The pool's thread counts there without a system call.
//! - a record in `STATE_DIR/stores/VOLUME-UUID.json`, durable, for the start after a loss of power.
//!   A thread of its own (`recorder`) writes it, and also looks at the store, which can hang.
//!
//! This module judges the evidence. After a kill the judgement is exact unless a write of the
//! daemon was in flight at that instant; then times within `SLACK_NS` of it are attributed to no
//! writer. The engine decides on the consequences for clean and dirty blocks ([`Suspicion`]).

mod memory;
mod recorder;

pub use recorder::Prepared;
pub(crate) use recorder::Watch;

use crate::may_wait::MayWait;
use forebay_core::Suspicion;
use forebay_format::BLOCK_BYTES;
use forebay_io::{Device, DeviceError, DeviceKind};
use memory::Memory;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Blocks at the start of a store whose checksums are kept: file systems, volume managers and
/// partition tables keep metadata there that changes with every use.
const HEADS: usize = 32;
/// A write in flight when the daemon died can change the time of the file this much later: the
/// kernel executes it when a processor and the lock of the file are free, even if the process is
/// gone by then. On a machine with 20 runnable threads a tenth of a second was too little.
const SLACK_NS: i64 = 5_000_000_000;
/// The kernel's identifier of the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The same, from a service manager that hides that file (`ProcSubset=pid` in the unit).
const BOOT_ID_VARIABLE: &str = "FOREBAY_BOOT_ID";
/// Format version of the record.
const VERSION: u32 = 1;
const FOLDER: &str = "stores";

/// Facts about a store.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    is_block: bool,
    /// Its times come from another machine or process, with a clock of its own.
    served_elsewhere: bool,
    unique: String,
    size_bytes: u64,
    mtime_ns: Option<i64>,
    ctime_ns: Option<i64>,
    /// See [`forebay_io::DeviceIdentity`].
    generation: Option<u64>,
    written_sectors: Option<u64>,
    /// Checksums of its first blocks.
    heads: Vec<u32>,
}

/// Content of the record; see the module documentation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    /// Name of the volume, for people.
    volume: String,
    /// The kernel's identifier of that boot; empty: unknown.
    boot_id: String,
    noted_unix_ns: i64,
    facts: Facts,
    /// First blocks that the daemon has written since their checksums were taken, by number.
    written_heads: Vec<usize>,
}

/// Times that the judgement needs.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Clock {
    /// As in [`Record`].
    boot_id: String,
    now_ns: i64,
    boot_ns: i64,
}

impl Clock {
    fn read() -> Self {
        let boot_id = fs::read_to_string(BOOT_ID).or_else(|_| std::env::var(BOOT_ID_VARIABLE));
        Self {
            boot_id: hex_digits(&boot_id.unwrap_or_default()),
            now_ns: forebay_io::shared::unix_ns(),
            boot_ns: forebay_io::shared::boot_unix_ns(),
        }
    }

    /// True if a record was written since the current boot. Where the kernel's identifier is
    /// hidden, the time of the record decides. If the clock is behind, as before it is set, an
    /// older record passes for one of this boot: that is judged more severely.
    fn has_seen(&self, record: &Record) -> bool {
        match (hex_digits(&record.boot_id).as_str(), self.boot_id.as_str()) {
            ("", _) | (_, "") => record.noted_unix_ns >= self.boot_ns,
            (then, now) => then == now,
        }
    }
}

/// The kernel writes dashes, systemd does not.
fn hex_digits(text: &str) -> String {
    text.chars().filter(char::is_ascii_hexdigit).collect()
}

impl Facts {
    /// Reads the facts about a store, except for its first blocks. Can hang as long as the store
    /// does.
    fn of(device: &Device) -> Result<Self, DeviceError> {
        let identity = device.identity()?;
        Ok(Self {
            is_block: identity.kind == DeviceKind::Block,
            served_elsewhere: identity.served_elsewhere,
            unique: identity.unique,
            size_bytes: identity.size_bytes,
            mtime_ns: identity.mtime_ns,
            ctime_ns: identity.ctime_ns,
            generation: identity.generation,
            written_sectors: identity.written_sectors,
            heads: Vec::new(),
        })
    }

    /// Checksums of the first blocks of a store.
    fn heads_of(device: &Device) -> Result<Vec<u32>, DeviceError> {
        let blocks = HEADS.min((device.size_bytes() / BLOCK_BYTES as u64) as usize);
        let mut bytes = vec![0; blocks * BLOCK_BYTES];
        device.read_at(0, &mut bytes)?;
        Ok(bytes.chunks_exact(BLOCK_BYTES).map(forebay_format::checksum).collect())
    }

    /// The first block with different content, of those that the daemon has not written since.
    fn other_head(&self, now: &Self, ours: impl Fn(usize) -> bool) -> Option<usize> {
        let pairs = self.heads.iter().zip(&now.heads).enumerate();
        pairs.filter(|(block, _)| !ours(*block)).find(|(_, (then, now))| then != now).map(|(block, _)| block)
    }
}

/// The suspicion of a change by others, and its reason as a message.
type Judged = (Suspicion, String);

fn nothing() -> Judged {
    (Suspicion::None, String::new())
}

fn changed(why: impl Into<String>) -> Judged {
    (Suspicion::Changed, why.into())
}

fn uncertain(why: impl Into<String>) -> Judged {
    (Suspicion::Uncertain, why.into())
}

/// Judges a store by the earlier evidence.
fn judge(now: &Facts, memory: Option<&Memory>, record: Option<&Record>, clock: &Clock) -> Judged {
    match (memory, record) {
        (Some(memory), _) => by_memory(now, memory),
        (None, None) => nothing(),
        (None, Some(record)) => by_record(now, record, clock),
    }
}

fn head_differs(block: usize) -> Judged {
    changed(format!("block {block}, which this daemon did not write, has other content"))
}

/// After a kill: the memory of the dead daemon exists.
fn by_memory(now: &Facts, memory: &Memory) -> Judged {
    let then = &memory.facts;
    if let Some(block) = then.other_head(now, |block| memory.heads_written_at[block] > memory.heads_at) {
        return head_differs(block);
    }
    if then.is_block != now.is_block {
        return changed("it is another kind of device");
    }
    if then.unique != now.unique {
        return match then.mtime_ns == now.mtime_ns {
            true => uncertain("it is another file or device"),
            false => changed("it is another file, with another modification time"),
        };
    }
    if then.is_block { block_by_memory(now, memory) } else { file_by_memory(now, memory) }
}

fn file_by_memory(now: &Facts, memory: &Memory) -> Judged {
    let then = &memory.facts;
    let (Some(mtime), Some(then_mtime)) = (now.mtime_ns, then.mtime_ns) else {
        return uncertain("it has no modification time");
    };
    let same = (mtime, now.ctime_ns) == (then_mtime, then.ctime_ns);
    if then.served_elsewhere || now.served_elsewhere {
        // Its times are by another clock, and can be late.
        return if same { nothing() } else { uncertain("its times are those of another machine or process") };
    }
    let touched =
        || uncertain("its permissions, owner or times were changed after the last write of this daemon");
    if memory.seen_at == memory.began {
        return match () {
            () if mtime != then_mtime => changed("it was written after the last write of this daemon"),
            () if !same => touched(),
            () => nothing(),
        };
    }
    let in_flight = memory.began != memory.ended;
    let slack = if in_flight { SLACK_NS } else { 0 };
    match () {
        () if mtime < then_mtime => changed("its modification time was set back"),
        () if mtime > memory.last_ns.saturating_add(slack) => {
            changed("it was written after the last write of this daemon")
        }
        () if mtime > memory.last_ns => uncertain("the daemon died in the middle of its own writes"),
        () if now.ctime_ns.is_some_and(|ctime| ctime > memory.last_ns.saturating_add(slack)) => touched(),
        () => nothing(),
    }
}

fn block_by_memory(now: &Facts, memory: &Memory) -> Judged {
    let then = &memory.facts;
    if then.generation.is_none() || then.generation != now.generation {
        return uncertain("the device was removed and came back, or the kernel cannot exclude that");
    }
    let (Some(was), Some(is)) = (then.written_sectors, now.written_sectors) else {
        return uncertain("the kernel does not count writes to the device");
    };
    match () {
        () if was == is => nothing(),
        () if memory.seen_at == memory.began && !memory.through_page_cache => {
            changed("sectors of the device were written after the last write of this daemon")
        }
        () => {
            uncertain("the daemon died soon after its own writes, and the kernel counts all writes together")
        }
    }
}

/// After a loss of power, or where the memory did not survive.
fn by_record(now: &Facts, record: &Record, clock: &Clock) -> Judged {
    let then = &record.facts;
    if let Some(block) = then.other_head(now, |block| record.written_heads.contains(&block)) {
        return head_differs(block);
    }
    let same = (now.mtime_ns, now.ctime_ns) == (then.mtime_ns, then.ctime_ns) && then.unique == now.unique;
    if clock.has_seen(record) {
        let idle = now.is_block && now.written_sectors.is_some() && now.generation.is_some();
        let same = same && (!now.is_block || idle && now.written_sectors == then.written_sectors);
        return match same && now.generation == then.generation {
            true => nothing(),
            false => uncertain("the in-memory record of the daemon that died is gone"),
        };
    }
    if now.is_block || same {
        return nothing(); // its first blocks are unchanged
    }
    if now.served_elsewhere {
        return uncertain("its times are those of another machine or process");
    }
    // A clock that is behind the time of the record has not been set yet.
    let told = clock.now_ns >= record.noted_unix_ns;
    match now.mtime_ns {
        Some(mtime) if told && mtime > clock.boot_ns => {
            changed("it was written after this machine was started")
        }
        _ => nothing(),
    }
}

impl Record {
    fn path(state_dir: &Path, uuid: [u8; 16]) -> PathBuf {
        state_dir.join(FOLDER).join(format!("{}.json", crate::loss_record::hex(&uuid)))
    }

    /// Reads the record, if there is a valid one. It only ever makes the judgement stricter.
    fn read(path: &Path) -> Option<Self> {
        let record: Self = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        Some(record).filter(|record| record.version == VERSION)
    }

    /// Makes the record durable, in a directory of the state directory.
    fn store(&self, may_wait: &MayWait, path: &Path) -> io::Result<()> {
        let state_dir = path.parent().and_then(Path::parent).unwrap_or(path);
        crate::durable::replace_json(may_wait, state_dir, path, self)
    }
}

#[cfg(test)]
mod tests;
