//! Caching rules: which requests of which clients are cached, and how.
//!
//! A volume has a default action and an ordered list of rules; the first that matches decides.
//! `docs/use/rules.md` is for people who write them.
//!
//! ```text
//!   words, JSON, table ─ parse ─▶ Rule ─ check ─▶ RuleSet ─ compile ─▶ Compiled ─ decide ─▶ action
//!                                              (shared, few changes)   (one for each client, no lock)
//!   SO_PEERCRED, FUSE ─ proc ─▶ Identity ───────────────────────────────▲
//! ```
//!
//! - [`rule`](Rule), `parse`, `text`, `quote`: what a rule says, and how it is written.
//! - `proc`, [`Identity`], [`Client`], [`ClientCache`]: who asks.
//! - `check`, `shadow`: rules that can do nothing are refused, rules that never apply are warned
//!   about.
//! - [`RuleSet`], `entry`, [`Compiled`]: the rules in force.
//!
//! Invariants
//! - Rules change speed, never content, and they keep nobody out: who a client says it is may be
//!   wrong (an executable can be copied, a name be taken). Whoever may connect may read and write.
//! - A client of which something is not known matches no condition on it; no failure to look it up
//!   is an error.
//! - Serving a request allocates nothing and takes no lock while rules do not change.

#[cfg(test)]
mod arbitrary;
mod check;
mod client;
mod compiled;
mod entry;
mod error;
mod identity;
mod parse;
mod pattern;
mod proc;
mod quote;
mod range;
mod rule;
mod set;
mod shadow;
#[cfg(test)]
mod tests;
mod text;

pub use client::{CLIENT_AGE_MAX, CLIENTS_MAX, Client, ClientCache};
pub use compiled::Compiled;
pub use entry::RuleReport;
pub use error::RuleError;
pub use identity::{Identity, KernelTask};
pub use parse::{EXPIRES_MAX, KEYS, NAME_BYTES_MAX};
pub use pattern::{PATTERN_BYTES_MAX, Pattern};
pub use proc::ProcFs;
pub use range::ByteRange;
pub use rule::{Action, Conditions, DefaultAction, Direction, Rule, RuleId};
pub use set::{Added, DropReason, Dropped, Position, RULES_MAX, RuleSet};
pub use shadow::Shadowed;
