//! Caching rules: which requests of which clients are cached, and how.
//!
//! `docs/use/rules.md` is the guide for operators.
//!
//! ```text
//!   words, JSON, table ─ parse ─▶ Rule ─ check ─▶ RuleSet ─ compile ─▶ Compiled ─ decide ─▶ action
//!                                              (shared, few changes)   (one for each client, no lock)
//!   SO_PEERCRED, FUSE ─ proc ─▶ Identity ───────────────────────────────▲
//! ```
//!
//! - [`rule`](Rule), `parse`, `text`, `quote`: rules and their text forms.
//! - `proc`, [`Identity`], [`Client`], [`ClientCache`]: identity of clients.
//! - `check`, `shadow`: refuse rules that can match nothing, and warn about rules that never apply.
//! - [`RuleSet`], `entry`, [`Compiled`]: the rules in effect.
//!
//! Invariants
//! - Rules change speed, never content, and they are no access control: the identity of a client
//!   may be forged (an executable can be copied, a name be taken). Every client that may connect
//!   may read and write.
//! - An unknown attribute of a client matches no condition on it; a failed look-up is no error.
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
