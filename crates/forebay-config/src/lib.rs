//! The configuration of `forebay serve`: parses text into a checked model, and writes changes back
//! into the text. It opens no device and creates no socket. The pool and the daemon use the model.
//!
//! - [`tunables`]: the registry. All lists of settings are generated from it.
//! - [`file`](mod@file): forebay.toml, checked as a whole; a [`Report`] of all errors.
//! - [`model`]: the parsed configuration.
//! - [`daemon_settings`]: settings of `[daemon]` that can be changed while it runs.
//! - [`edit`], [`store`]: live changes, written into the file itself.
//! - [`pool_section`]: a pool and its volumes alone, for another host.
//! - [`diff`](mod@diff): the steps from one model to another.
//! - [`endurance`]: limits of writes to flash.
//! - `engine`: tunables in the form that `forebay-core` takes.
//! - [`rules`]: which requests of which clients are cached; `rule_table`: rules in the file.
//! - `cache_spec`, `key_source`, `access_list`, `address_range`, `client_name`: values that several
//!   sections use.
//! - [`device_name`]: persistent names of devices, and whether two name one device.
//! - [`warnings`]: settings that are allowed but look like mistakes.
//! - `mounts`, `mount_memory`: paths that FUSE files hide, and the memory that they need.
//! - [`schema`], [`docs`], [`manual`]: JSON schema, example, tables and manual page, for people and
//!   editors.
//!
//! Invariants
//! - A [`Config`] returned by [`parse`] is consistent: each name refers to an existing section,
//!   each value is within its limits, nothing is used twice.
//! - All errors of a file are reported at once, each with its place.
//! - A change that would make the file invalid is refused, and the file is not changed.

#![forbid(unsafe_code)]

mod access_list;
mod address_range;
mod cache_spec;
pub mod choices;
mod client_name;
pub mod conflicts;
pub mod daemon_settings;
pub mod device_name;
pub mod diagnostic;
pub mod diff;
pub mod docs;
pub mod edit;
pub mod endurance;
mod engine;
pub mod file;
mod key_source;
pub mod keys;
pub mod manual;
pub mod model;
pub mod mount_memory;
pub mod mounts;
pub mod pool_section;
pub mod rule_table;
pub mod rules;
pub mod schema;
pub mod settings;
pub mod store;
pub mod tunables;
pub mod value;
pub mod warnings;

pub use access_list::AccessList;
pub use address_range::AddressRange;
pub use cache_spec::CacheSpec;
pub use client_name::ClientName;
pub use diagnostic::{Diagnostic, Report, Severity, Span};
pub use diff::{Change, Diff, Refusal, diff};
pub use edit::{Edit, EditError};
pub use file::{Checked, RuleCheck, parse, parse_with};
pub use key_source::KeySource;
pub use model::{
    AdminTcp, AdminUsers, Config, DaemonConfig, PoolConfig, TlsConfig, TlsFiles, UserList, VolumeConfig,
};
pub use pool_section::PoolSection;
pub use rule_table::{RuleEntry, RuleTable, RuleValue};
pub use settings::Settings;
pub use store::{ConfigFile, StoreError};
pub use tunables::{PoolTunables, Scope, Tunable, VolumeTunables};
pub use value::{Value, ValueError, ValueKind};
pub use warnings::Warning;
