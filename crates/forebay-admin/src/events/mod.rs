//! Events of the daemon, their history, and alarms. Readers follow them.
//!
//! [`Hub`] takes events from all threads without waiting and delivers them to every
//! [`Subscription`], which has a bounded queue of its own; a reader that is too slow loses the
//! oldest, and the hub reports the gap to it. A reader that was away resumes after the last
//! [`EventId`] it saw. For users: `docs/operate/events.md`.
//!
//! Files: `kind` (names), `event` (one event), `filter` (selection by a reader), `ledger` (ordered
//! events, bounded), `reader` (state of one reader), `alarms` (conditions that last), `hub` (all of
//! it behind a lock).

mod alarms;
mod event;
mod filter;
mod hub;
mod kind;
mod ledger;
mod reader;
mod subscription;

pub use alarms::{Acknowledgement, AcknowledgementInfo, Alarm, AlarmError, AlarmInfo, AlarmKey};
pub use event::rfc3339;
pub use event::{
    DETAILS_BYTES_MAX, EVENT_BYTES_MAX, Event, EventId, EventIdError, MESSAGE_BYTES_MAX, NAME_BYTES_MAX,
    NewEvent,
};
pub use filter::{FILTER_KINDS_MAX, Filter, FilterError};
pub use hub::{Hub, HubLimits, HubStats, Start, SubscribeError};
pub use kind::{EventKind, Severity};
pub use reader::{Delivery, Gap, GapReason};
pub use subscription::{Received, Subscription};

#[cfg(test)]
mod tests;
