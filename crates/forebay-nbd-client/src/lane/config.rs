//! Settings and states of a lane.

use std::fmt;
use std::time::Duration;

use crate::session::{ServerInfo, SessionError};
use forebay_export::nbd::codec::transmission_flag as flag;

/// Settings of a lane.
#[derive(Debug, Clone)]
pub struct LaneConfig {
    /// Name of the export.
    pub export: String,
    /// Most sessions at a time.
    pub sessions_max: usize,
    /// How long the server must have answered on a later session before a change that was in
    /// flight on an earlier one is sent again.
    pub quarantine: Duration,
    /// How long operations wait for an absent store before they fail; `None`: for ever.
    pub store_timeout: Option<Duration>,
    /// Silence of a server with requests in flight after which it gets a probe.
    pub probe_after: Duration,
    /// Silence after which the session is ended. Doubled after each such end, up to 16 times, so
    /// that a server that needs longer for one FLUSH is served in the end.
    pub silence: Duration,
    /// Longest time of a connect, and of a handshake.
    pub connect_timeout: Duration,
    /// Shortest and longest pause before another attempt to connect.
    pub retry: (Duration, Duration),
    /// Most bytes of changes that no FLUSH covers; more wait.
    pub kept_bytes_max: u64,
    /// Determines the jitter of pauses.
    pub seed: u64,
}

impl Default for LaneConfig {
    fn default() -> LaneConfig {
        LaneConfig {
            export: String::new(),
            sessions_max: 4,
            quarantine: Duration::from_secs(30),
            store_timeout: None,
            probe_after: Duration::from_secs(3),
            // A busy disk answers a read within seconds; a file server that fails over may need
            // half a minute, and each end costs a quarantine.
            silence: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            retry: (Duration::from_millis(100), Duration::from_secs(10)),
            kept_bytes_max: 64 << 20,
            seed: 1,
        }
    }
}

/// A difference of an export from its first session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// Its size in bytes, then and now.
    Size(u64, u64),
    /// Its transmission flags, then and now.
    Flags(u16, u16),
    /// Its smallest unit in bytes, then and now.
    Unit(u32, u32),
}

/// Why the store cannot be used now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The connection failed or ended; the text has the reason.
    Connection(String),
    /// The server gave no answer for this long.
    Silent(Duration),
    /// The server refused the handshake or broke the protocol.
    Session(SessionError),
    /// The export is read-only.
    ReadOnly,
    /// The export has no FLUSH, so no write to it is known to be durable.
    NoFlush,
    /// The export has no sectors of 512 or 4096 bytes: its smallest unit, in bytes.
    Unit(u32),
    /// The export is shorter than a sector.
    Empty,
    /// The export is not the one of the first session.
    Changed(Difference),
}

impl Trouble {
    /// Another attempt does not help until the server's configuration has changed.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Trouble::Connection(_) | Trouble::Silent(_))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Connection(why) => f.write_str(why),
            Trouble::Silent(limit) => write!(f, "the server gave no answer for {} s", limit.as_secs()),
            Trouble::Session(error) => error.fmt(f),
            Trouble::ReadOnly => f.write_str("the export is read-only"),
            Trouble::NoFlush => {
                f.write_str("the export does not support FLUSH, so that no write is known to be durable")
            }
            Trouble::Unit(unit) => write!(
                f,
                "the export's smallest unit is {unit} bytes; a backing store needs sectors of at most 4096 bytes"
            ),
            Trouble::Empty => f.write_str("the export is empty"),
            Trouble::Changed(Difference::Size(was, is)) => {
                write!(f, "the export has {is} bytes, but had {was}")
            }
            Trouble::Changed(Difference::Flags(was, is)) => {
                write!(f, "the export has lost capabilities (flags {is:#x}, before {was:#x})")
            }
            Trouble::Changed(Difference::Unit(was, is)) => {
                write!(f, "the export's smallest unit is {is} bytes, but was {was}")
            }
        }
    }
}

/// State of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaneState {
    /// Not connected yet; the last failure.
    Connecting {
        /// Why the last attempt failed.
        trouble: Option<Trouble>,
    },
    /// Requests are sent.
    Up,
    /// The store is away; operations wait.
    Away {
        /// When it was lost.
        since: Duration,
        /// Why, or why the last attempt failed.
        trouble: Trouble,
    },
    /// The store has been away for too long; operations fail.
    Failing {
        /// When it was lost.
        since: Duration,
        /// As of `Away`.
        trouble: Trouble,
    },
    /// The lane was closed.
    Closed,
}

/// Returns why an export cannot be a backing store.
pub(super) fn unfit(info: &ServerInfo) -> Option<Trouble> {
    if info.has(flag::READ_ONLY) {
        return Some(Trouble::ReadOnly);
    }
    if !info.has(flag::SEND_FLUSH) {
        return Some(Trouble::NoFlush);
    }
    let unit = info.unit_bytes();
    if unit > 4096 || !unit.is_power_of_two() {
        return Some(Trouble::Unit(unit));
    }
    (info.size_bytes < 512).then_some(Trouble::Empty)
}

/// Capabilities that the lane uses.
const USED: u16 = flag::SEND_FLUSH | flag::SEND_WRITE_ZEROES | flag::CAN_MULTI_CONN;

/// Returns how an export differs from that of the first session. Further capabilities, as of a
/// newer server, are no difference.
pub(super) fn difference(was: &ServerInfo, is: &ServerInfo) -> Option<Difference> {
    if was.size_bytes != is.size_bytes {
        return Some(Difference::Size(was.size_bytes, is.size_bytes));
    }
    if was.flags & !is.flags & USED != 0 {
        return Some(Difference::Flags(was.flags, is.flags));
    }
    (was.unit_bytes() != is.unit_bytes()).then(|| Difference::Unit(was.unit_bytes(), is.unit_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lost_capabilities_are_a_difference() {
        let old = ServerInfo { flags: USED, ..ServerInfo::default() };
        let newer = ServerInfo { flags: USED | flag::SEND_CACHE, ..ServerInfo::default() };
        assert_eq!(difference(&old, &newer), None);
        assert_eq!(difference(&newer, &old), None, "the lane does not use it");
        let less = ServerInfo { flags: USED & !flag::SEND_WRITE_ZEROES, ..ServerInfo::default() };
        assert_eq!(difference(&old, &less), Some(Difference::Flags(old.flags, less.flags)));
    }
}
