//! The rules of one volume: admin threads change them, serving threads read them.
//!
//! - A change creates a new list and publishes it under a new generation; lists in use are never
//!   changed. So a serving thread needs one atomic load per request to see that nothing changed.
//!   After a change, it takes a lock that is held only to copy one pointer.
//! - `/proc` is read before the lock is taken, never under it.
//! - At most [`RULES_MAX`] rules; numbers are never reused.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::check;
use super::compiled::Compiled;
use super::entry::{Entry, RuleReport};
use super::error::RuleError;
use super::identity::Identity;
use super::proc::ProcFs;
use super::rule::{DefaultAction, Rule, RuleId};
use super::shadow::{self, Shadowed};

/// Most rules of a volume: ten times FlashCache's lists. A request costs time linear in those that
/// may match its client.
pub const RULES_MAX: usize = 1000;

/// Place for a new rule. Earlier rules take precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Position {
    /// Before all others.
    First,
    /// Behind all others.
    #[default]
    Last,
    /// At this index of the list, from 0; the number of rules is its end.
    At(usize),
    /// Right before a rule.
    Before(RuleId),
    /// Right behind a rule.
    After(RuleId),
}

/// Result of adding a rule.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Added {
    /// Its number.
    pub id: RuleId,
    /// Rules that never apply now: this one, or later ones because of it.
    pub warnings: Vec<Shadowed>,
}

/// Why [`RuleSet::expire`] dropped a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropReason {
    /// It expired.
    Expired,
    /// A process that it names has ended.
    ProcessEnded,
}

impl DropReason {
    /// Returns it in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Expired => "its time was over",
            Self::ProcessEnded => "its process has ended",
        }
    }
}

/// A rule that [`RuleSet::expire`] dropped.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Dropped {
    /// The rule, with its last counters.
    pub report: RuleReport,
    /// The reason.
    pub reason: DropReason,
}

/// The rules of one volume. Share it with an [`Arc`].
#[derive(Debug)]
pub struct RuleSet {
    current: Mutex<Arc<Table>>,
    generation: AtomicU64,
    proc: ProcFs,
}

/// One version of the rules.
#[derive(Debug, Clone)]
struct Table {
    entries: Vec<Arc<Entry>>,
    default: DefaultAction,
    volume_bytes: u64,
    next_id: u64,
    generation: u64,
}

impl RuleSet {
    /// Creates an empty set for a volume of this size.
    pub fn new(default: DefaultAction, volume_bytes: u64) -> Self {
        Self::with_proc(default, volume_bytes, ProcFs::default())
    }

    /// Like [`RuleSet::new`], with another process file system.
    pub fn with_proc(default: DefaultAction, volume_bytes: u64, proc: ProcFs) -> Self {
        let table = Table { entries: Vec::new(), default, volume_bytes, next_id: 1, generation: 0 };
        Self { current: Mutex::new(Arc::new(table)), generation: AtomicU64::new(0), proc }
    }

    /// Returns the generation, which changes whenever the result of [`RuleSet::compile`] may
    /// change.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the process file system for client look-ups.
    pub fn proc(&self) -> &ProcFs {
        &self.proc
    }

    /// Compiles the rules for a client at an export.
    pub fn compile(&self, identity: &Identity, export: &str) -> Compiled {
        let table = self.table();
        Compiled::new(&table.entries, table.default.into(), table.generation, identity, export)
    }

    /// Adds a rule.
    ///
    /// [`RuleError`] if it can match nothing, its name is taken, there are too many rules, or
    /// `position` names no rule.
    pub fn add(&self, rule: Rule, position: Position, now: Instant) -> Result<Added, RuleError> {
        let bound = check::bind(&rule, &self.proc)?;
        self.change(|table| {
            let index = table.index_of(position)?;
            if table.entries.len() >= RULES_MAX {
                return Err(RuleError::TooMany { max: RULES_MAX });
            }
            table.check_name(&rule)?;
            check::ranges(&rule.conditions, table.volume_bytes)?;
            let id = table.take_id();
            table.entries.insert(index, Arc::new(Entry::new(id, rule, bound, now)));
            Ok((id, index))
        })
        .map(|((id, index), table)| Added { id, warnings: table.warnings_since(index) })
    }

    /// Removes a rule and returns its last counters.
    ///
    /// # Errors
    /// [`RuleError::NoSuchRule`].
    pub fn remove(&self, id: RuleId, now: Instant) -> Result<RuleReport, RuleError> {
        let removed = self.change(|table| {
            let index = table.find(id)?;
            Ok(table.entries.remove(index))
        });
        removed.map(|(entry, _)| entry.report(now))
    }

    /// Replaces the rules, all or none. An existing rule stays the same rule: it keeps its number,
    /// its counters and its expiry. A rule beyond the end of the volume matches nothing and is
    /// kept: the volume may have shrunk, and must be served nevertheless.
    ///
    /// # Errors
    /// As [`RuleSet::add`], wrapped in [`RuleError::InList`].
    pub fn replace_all(&self, rules: Vec<Rule>, now: Instant) -> Result<Vec<Shadowed>, RuleError> {
        if rules.len() > RULES_MAX {
            return Err(RuleError::TooMany { max: RULES_MAX });
        }
        let at = |index: usize| move |e| RuleError::InList { number: index + 1, source: Box::new(e) };
        // Kept rules need no process, but only the lock shows which rules are kept.
        let bounds: Vec<_> = rules.iter().map(|rule| check::bind(rule, &self.proc)).collect();
        let changed = self.change(|table| {
            let mut old = std::mem::take(&mut table.entries);
            for (index, (rule, bound)) in rules.into_iter().zip(bounds).enumerate() {
                table.check_name(&rule).map_err(at(index))?;
                check::ranges(&rule.conditions, u64::MAX).map_err(at(index))?;
                let entry = match old.iter().position(|entry| entry.rule == rule) {
                    Some(kept) => old.remove(kept),
                    None => Arc::new(Entry::new(table.take_id(), rule, bound.map_err(at(index))?, now)),
                };
                table.entries.push(entry);
            }
            Ok(())
        });
        changed.map(|((), table)| table.warnings())
    }

    /// Returns all rules in order, with their counters.
    pub fn list(&self, now: Instant) -> Vec<RuleReport> {
        self.table().entries.iter().map(|entry| entry.report(now)).collect()
    }

    /// Returns the number of the rule with that name.
    pub fn find_name(&self, name: &str) -> Option<RuleId> {
        let table = self.table();
        table.entries.iter().find(|entry| entry.rule.name.as_deref() == Some(name)).map(|entry| entry.id)
    }

    /// Returns whether [`RuleSet::expire`] may drop a rule.
    pub fn has_transient(&self) -> bool {
        self.list(Instant::now()).iter().any(|report| report.rule.is_transient())
    }

    /// Returns the action for requests that no rule matches.
    pub fn default_action(&self) -> DefaultAction {
        self.table().default
    }

    /// Changes the action for requests that no rule matches.
    pub fn set_default_action(&self, default: DefaultAction) {
        self.set(|table| table.default = default);
    }

    /// Records a new size of the volume. Rules beyond its end are kept; they match nothing until it
    /// grows again.
    pub fn set_volume_bytes(&self, volume_bytes: u64) {
        self.set(|table| table.volume_bytes = volume_bytes);
    }

    /// Drops rules that have expired, or whose process has ended. Call it about once per second
    /// from a thread that serves no requests: it reads a file of `/proc` for each rule on a
    /// process.
    pub fn expire(&self, now: Instant) -> Vec<Dropped> {
        let table = self.table();
        let reason = |entry: &Entry| {
            if entry.expires_at.is_some_and(|at| at <= now) {
                return Some(DropReason::Expired);
            }
            entry.bound.has_ended(&self.proc).then_some(DropReason::ProcessEnded)
        };
        let gone: Vec<_> = table.entries.iter().filter_map(|e| Some((e.id, reason(e)?))).collect();
        if gone.is_empty() {
            return Vec::new();
        }
        let mut dropped = Vec::new();
        self.set(|table| {
            // An admin thread may have removed one meanwhile.
            table.entries.retain(|entry| {
                let reason = gone.iter().find(|(id, _)| *id == entry.id).map(|(_, reason)| *reason);
                dropped.extend(reason.map(|reason| Dropped { report: entry.report(now), reason }));
                reason.is_none()
            });
        });
        dropped
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Table>> {
        // A table is always consistent, so one that a panicking thread left is valid.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.lock())
    }

    /// Publishes a changed copy, unless the change fails.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Table) -> Result<T, RuleError>,
    ) -> Result<(T, Arc<Table>), RuleError> {
        let mut current = self.lock();
        let mut table = Table::clone(&current);
        let value = change(&mut table)?;
        table.generation += 1;
        *current = Arc::new(table);
        // Under the lock, so that the number never runs ahead of the table, and never decreases.
        self.generation.store(current.generation, Ordering::Release);
        Ok((value, Arc::clone(&current)))
    }

    /// Like [`RuleSet::change`], for changes that cannot fail.
    fn set(&self, change: impl FnOnce(&mut Table)) {
        let changed = self.change(|table| {
            change(table);
            Ok(())
        });
        debug_assert!(changed.is_ok());
    }
}

impl Table {
    fn find(&self, id: RuleId) -> Result<usize, RuleError> {
        self.entries.iter().position(|entry| entry.id == id).ok_or(RuleError::NoSuchRule { id })
    }

    fn index_of(&self, position: Position) -> Result<usize, RuleError> {
        match position {
            Position::First => Ok(0),
            Position::Last => Ok(self.entries.len()),
            Position::At(place) if place > self.entries.len() => {
                Err(RuleError::NoSuchPlace { place, rules: self.entries.len() })
            }
            Position::At(place) => Ok(place),
            Position::Before(id) => self.find(id),
            Position::After(id) => self.find(id).map(|index| index + 1),
        }
    }

    fn check_name(&self, rule: &Rule) -> Result<(), RuleError> {
        let Some(name) = &rule.name else { return Ok(()) };
        match self.entries.iter().find(|entry| entry.rule.name.as_ref() == Some(name)) {
            Some(entry) => Err(RuleError::NameTaken { name: name.clone(), id: entry.id }),
            None => Ok(()),
        }
    }

    fn take_id(&mut self) -> RuleId {
        self.next_id += 1;
        RuleId(self.next_id - 1)
    }

    /// Warns about the rule at `index`, and about later ones that it completes the shadow of.
    fn warnings_since(&self, index: usize) -> Vec<Shadowed> {
        let added = self.entries[index].id;
        let later = (index + 1..self.entries.len()).filter_map(|at| {
            let warning = self.warning(at, None)?;
            let took_part = warning.by.iter().any(|(id, _)| *id == added);
            (took_part && self.warning(at, Some(added)).is_none()).then_some(warning)
        });
        self.warning(index, None).into_iter().chain(later).collect()
    }

    fn warnings(&self) -> Vec<Shadowed> {
        (0..self.entries.len()).filter_map(|at| self.warning(at, None)).collect()
    }

    /// Warns about one rule if earlier ones, except `without`, take all its requests.
    fn warning(&self, index: usize, without: Option<RuleId>) -> Option<Shadowed> {
        let later = &self.entries[index];
        let earlier = self.entries[..index].iter().map(|entry| &**entry).filter(|e| Some(e.id) != without);
        let by = shadow::shadowed_by(earlier, later, self.volume_bytes)?;
        let by = by.into_iter().map(|entry| (entry.id, entry.rule.to_string())).collect();
        Some(Shadowed { rule: later.id, text: later.rule.to_string(), by })
    }
}
