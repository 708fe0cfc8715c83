//! The rules of a volume compiled for one client.
//!
//! Conditions that do not change between requests of a client (process, user, executable, control
//! group, export) are evaluated once. Rules on offset, length and direction remain: two comparisons
//! of ranges and a bit each, in one array.
//!
//! Invariants
//! - `decide` allocates nothing, takes no lock, makes no system call.
//! - Its result equals that of evaluating all rules with all conditions (a property test checks
//!   that).
//! - It takes time linear in the remaining rules; the list ends at the first that matches every
//!   request.

use std::sync::Arc;
use std::time::Instant;

use super::entry::Entry;
use super::identity::{Identity, KernelTask};
use super::pattern::Pattern;
use super::range::ByteRange;
use super::rule::{Action, Direction, RuleId};

/// Rules for one client; made by [`RuleSet::compile`](super::RuleSet::compile).
#[derive(Debug, Clone)]
pub struct Compiled {
    rules: Box<[RequestRule]>,
    default: Action,
    generation: u64,
    for_anybody: bool,
}

/// The part of a rule that depends on the request.
#[derive(Debug, Clone)]
struct RequestRule {
    lba: ByteRange,
    size: ByteRange,
    /// Bit 0: reads, bit 1: writes.
    directions: u8,
    action: Action,
    entry: Arc<Entry>,
}

const fn bit(direction: Direction) -> u8 {
    match direction {
        Direction::Read => 1,
        Direction::Write => 2,
    }
}

impl RequestRule {
    fn new(entry: &Arc<Entry>) -> Self {
        let conditions = &entry.rule.conditions;
        Self {
            lba: conditions.lba.unwrap_or(ByteRange::ALL),
            size: conditions.size.unwrap_or(ByteRange::ALL),
            directions: conditions.direction.map_or(bit(Direction::Read) | bit(Direction::Write), bit),
            action: entry.rule.action,
            entry: Arc::clone(entry),
        }
    }

    fn matches_all(&self) -> bool {
        self.lba == ByteRange::ALL && self.size == ByteRange::ALL && self.directions == 3
    }
}

impl Compiled {
    pub(super) fn new(
        entries: &[Arc<Entry>],
        default: Action,
        generation: u64,
        identity: &Identity,
        export: &str,
    ) -> Self {
        let mut rules = Vec::new();
        for entry in entries.iter().filter(|entry| matches_client(entry, identity, export)) {
            let rule = RequestRule::new(entry);
            let is_last = rule.matches_all();
            rules.push(rule);
            if is_last {
                break;
            }
        }
        let for_anybody = !entries.iter().any(|entry| entry.rule.conditions.depend_on_client());
        Self { rules: rules.into_boxed_slice(), default, generation, for_anybody }
    }

    /// Returns whether this holds for all clients of the export: no rule has a condition on the
    /// client.
    pub fn is_for_anybody(&self) -> bool {
        self.for_anybody
    }

    /// Returns the generation of the rule set that this was compiled from.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the action for a request, and the rule that decided it (`None`: none matched, and
    /// the volume's default action applies). The rule counts the request. `now` may be the time at
    /// which the caller's loop woke up.
    #[inline]
    pub fn decide(
        &self,
        direction: Direction,
        offset_bytes: u64,
        len_bytes: u64,
        now: Instant,
    ) -> (Action, Option<RuleId>) {
        for rule in &self.rules {
            if rule.directions & bit(direction) != 0
                && rule.lba.contains(offset_bytes)
                && rule.size.contains(len_bytes)
            {
                rule.entry.count(len_bytes, now);
                return (rule.action, Some(rule.entry.id));
            }
        }
        (self.default, None)
    }
}

/// Returns whether the conditions of a rule on the client and the export hold.
fn matches_client(entry: &Entry, client: &Identity, export: &str) -> bool {
    let conditions = &entry.rule.conditions;
    let same = |rule: Option<KernelTask>, client: Option<KernelTask>| rule.is_none() || (rule == client);
    let name = |pattern: &Option<Pattern>, name: Option<&std::ffi::OsStr>| match (pattern, name) {
        (None, _) => true,
        (Some(pattern), Some(name)) => pattern.matches(name),
        (Some(_), None) => false,
    };
    let exe = match &conditions.exe {
        Some(pattern) if pattern.text().contains('/') => {
            client.exe.as_deref().map(std::path::Path::as_os_str)
        }
        _ => client.exe_name(),
    };
    same(entry.bound.pid, client.pid)
        && same(entry.bound.tgid, client.tgid)
        && (conditions.uid.is_none() || conditions.uid == client.uid)
        && name(&conditions.export, Some(export.as_ref()))
        && name(&conditions.exe, exe)
        && name(&conditions.cgroup, client.cgroup.as_deref())
}
