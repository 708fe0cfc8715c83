//! Rules that never apply because earlier ones take every request that they match.
//!
//! Method: a rule is a set of conditions on the client, and a box in the space of (offset, length,
//! direction). The boxes of those earlier rules that match every client of the later one are cut
//! out of its box; if nothing is left, it is shadowed. A positive result is certain. Some shadowed
//! rules are missed: globs are compared by their text, and the search stops at a box that was cut
//! into more than [`PIECES_MAX`] pieces.

use std::fmt;

use super::entry::Entry;
use super::pattern::Pattern;
use super::range::ByteRange;
use super::rule::{Direction, RuleId};

/// Most pieces of a box: bounds time and memory.
const PIECES_MAX: usize = 64;

/// A warning: a rule that never applies.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Shadowed {
    /// The rule.
    pub rule: RuleId,
    /// Its text.
    pub text: String,
    /// The earlier rules that take all its requests, with their texts.
    pub by: Vec<(RuleId, String)>,
}

impl fmt::Display for Shadowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rule {} ({}) never applies: all it matches is taken by the earlier ",
            self.rule, self.text
        )?;
        for (index, (id, text)) in self.by.iter().enumerate() {
            write!(f, "{}rule {id} ({text})", if index == 0 { "" } else { " and " })?;
        }
        f.write_str("; move it up, or remove it")
    }
}

/// A set of requests: a range of offsets, a range of lengths, directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    lba: ByteRange,
    size: ByteRange,
    read: bool,
    write: bool,
}

impl Piece {
    /// Returns the requests of a rule that a volume can receive: none has length 0, none begins
    /// beyond the end.
    fn of(entry: &Entry, volume_bytes: u64) -> Option<Self> {
        let conditions = &entry.rule.conditions;
        let all = |range: Option<ByteRange>| range.unwrap_or(ByteRange::ALL);
        Some(Self {
            lba: all(conditions.lba).intersection(ByteRange::new(0, volume_bytes.checked_sub(1)?)?)?,
            size: all(conditions.size).intersection(ByteRange::new(1, volume_bytes)?)?,
            read: conditions.direction != Some(Direction::Write),
            write: conditions.direction != Some(Direction::Read),
        })
    }

    /// Adds the remainder of this without `cut` to `rest`; returns whether anything was cut.
    fn without(self, cut: &Self, rest: &mut Vec<Self>) -> bool {
        let common = (self.lba.intersection(cut.lba), self.size.intersection(cut.size));
        let (Some(lba), Some(size)) = common else {
            rest.push(self);
            return false;
        };
        let (read, write) = (self.read && cut.read, self.write && cut.write);
        if !read && !write {
            rest.push(self);
            return false;
        }
        rest.extend(around(self.lba, lba).map(|lba| Self { lba, ..self }));
        rest.extend(around(self.size, size).map(|size| Self { lba, size, ..self }));
        let left = Self { lba, size, read: self.read && !read, write: self.write && !write };
        rest.extend((left.read || left.write).then_some(left));
        true
    }
}

/// Returns the parts of `whole` before and after `inner`, which it contains.
fn around(whole: ByteRange, inner: ByteRange) -> impl Iterator<Item = ByteRange> {
    let before = inner.first().checked_sub(1).and_then(|last| ByteRange::new(whole.first(), last));
    let after = inner.last().checked_add(1).and_then(|first| ByteRange::new(first, whole.last()));
    before.into_iter().chain(after)
}

/// Returns whether `earlier` matches every client that `later` matches, for the lifetime of
/// `later`.
fn takes_clients_of(earlier: &Entry, later: &Entry) -> bool {
    let (a, b) = (&earlier.rule.conditions, &later.rule.conditions);
    let outlives = match (earlier.expires_at, later.expires_at) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(earlier), Some(later)) => earlier >= later,
    };
    let group_of_later = later.bound.tgid.or(later.bound.pid_tgid);
    let covers = |a: &Option<Pattern>, b: &Option<Pattern>| match (a, b) {
        (None, _) => true,
        (Some(a), Some(b)) => a.covers(b),
        (Some(_), None) => false,
    };
    outlives
        && (a.pid.is_none() || earlier.bound.pid == later.bound.pid)
        && (a.tgid.is_none() || earlier.bound.tgid == group_of_later)
        && (a.uid.is_none() || a.uid == b.uid)
        && covers_exe(&a.exe, &b.exe)
        && covers(&a.cgroup, &b.cgroup)
        && covers(&a.export, &b.export)
}

/// A name covers a path that ends in it; patterns of one kind are compared as such.
fn covers_exe(a: &Option<Pattern>, b: &Option<Pattern>) -> bool {
    match (a, b) {
        (None, _) => true,
        (Some(a), Some(b)) if a.text().contains('/') == b.text().contains('/') => a.covers(b),
        (Some(a), Some(b)) => !a.text().contains('/') && b.file_name().is_some_and(|name| a.matches(name)),
        (Some(_), None) => false,
    }
}

/// Returns the earlier rules that together take all requests of `later`, if they do.
pub(super) fn shadowed_by<'a>(
    earlier: impl IntoIterator<Item = &'a Entry>,
    later: &Entry,
    volume_bytes: u64,
) -> Option<Vec<&'a Entry>> {
    let mut pieces = vec![Piece::of(later, volume_bytes)?];
    let mut by = Vec::new();
    for entry in earlier.into_iter().filter(|entry| takes_clients_of(entry, later)) {
        let Some(cut) = Piece::of(entry, volume_bytes) else { continue };
        let mut rest = Vec::new();
        let mut takes_some = false;
        for piece in pieces {
            takes_some |= piece.without(&cut, &mut rest);
        }
        pieces = rest;
        if takes_some {
            by.push(entry);
        }
        if pieces.is_empty() {
            return Some(by);
        }
        if pieces.len() > PIECES_MAX {
            return None;
        }
    }
    None
}
