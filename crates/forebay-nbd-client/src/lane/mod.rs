//! The lane of a remote store: operations in, bytes of NBD sessions out, through outages. A state
//! machine without a socket and a clock; its owner moves bytes and passes the time.
//!
//! Purpose
//! - Operations wait while the server is away, and the lane connects again.
//! - A generic server cannot prove that a request whose connection broke will not take effect
//!   later. So such a change stays incomplete, and its range is locked, until the server process is
//!   proved to have ended the session ([`Lane::gone`]), or the server has answered on a later
//!   session for the whole [quarantine](LaneConfig::quarantine).
//!
//! Invariants
//! - L1: A change is sent only after every older change of its bytes has been answered. One that
//!   was in flight when its session ended is sent again after the quarantine, and completes after
//!   its reply and a FLUSH behind it.
//! - L2: Changes and flushes go to one session (slot 0), so a FLUSH covers exactly the changes that
//!   the same session has answered. Changes that no answered FLUSH covers are kept, and sent again
//!   to the next session before any FLUSH or read that concerns them.
//! - L3: A FLUSH is sent once every change that completed before its submission has been answered
//!   by the session that gets it.
//! - L4: A session whose export differs from that of the first session gets no request.
//! - L5: Other sessions serve only reads of bytes that no kept change concerns, and only if the
//!   server has CAN_MULTI_CONN and structured replies. They are younger than that of slot 0.
//! - L6: The failure of a FLUSH that covered completed changes reaches a flush that reports, this
//!   one or the next one.
//! - Everything is bounded: requests and bytes in flight of a session, bytes of kept changes.

mod changes;
mod config;
mod connections;
mod index;
mod reads;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use forebay_export::nbd::codec::Errno;
use forebay_io::RemoteOp;

use crate::session::ServerInfo;
use changes::{Change, Flush, Round};
pub use config::{Difference, LaneConfig, LaneState, Trouble};
use connections::Connection;
use index::RangeIndex;
use reads::Read;

/// Why an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneError {
    /// The server answered with an error.
    Server(Errno),
    /// The store was away for longer than [`LaneConfig::store_timeout`].
    TimedOut,
    /// The lane was closed.
    Closed,
    /// The range is not in the store.
    OutOfRange,
}

/// What the owner has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect a socket for this session; report [`Lane::connected`] or [`Lane::ended`].
    Connect {
        /// Number of the session; never reused.
        session: u64,
    },
    /// Close the socket of this session, after an attempt to send these bytes without waiting.
    Close {
        /// Number of the session.
        session: u64,
        /// The last bytes.
        last: Vec<u8>,
    },
    /// An operation has ended.
    Complete {
        /// Its id.
        id: u64,
        /// The bytes of a read; empty for others.
        result: Result<Vec<u8>, LaneError>,
    },
    /// [`Lane::state`] has changed.
    State,
}

/// An operation in parts.
#[derive(Debug)]
struct Op {
    parts: u32,
    offset: u64,
    data: Vec<u8>,
    error: Option<LaneError>,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Lane {
    config: LaneConfig,
    now: Duration,
    random: u64,
    /// Slot 0 has the changes.
    connections: Vec<Connection>,
    next_session: u64,
    /// The export at the first session.
    facts: Option<ServerInfo>,
    state: LaneState,
    ops: HashMap<u64, Op>,
    next_seq: u64,
    /// Every change without an answered FLUSH, by sequence.
    changes: BTreeMap<u64, Change>,
    /// Those that hold back others.
    unsettled: BTreeSet<u64>,
    index: RangeIndex,
    kept_bytes: u64,
    reads: BTreeMap<u64, Read>,
    /// Flushes that wait, by sequence.
    flushes: BTreeMap<u64, Flush>,
    /// The FLUSH in flight.
    round: Option<Round>,
    /// A failure to report with the next flush.
    unreported: Option<LaneError>,
    actions: VecDeque<Action>,
}

impl Lane {
    /// Creates a lane, which connects with the first call that passes the time. `after_crash`: an
    /// earlier process may have left requests at the server, so changes wait for the quarantine.
    #[must_use]
    pub fn new(config: LaneConfig, after_crash: bool) -> Lane {
        let mut lane = Lane {
            random: config.seed | 1,
            config,
            now: Duration::ZERO,
            connections: vec![Connection::new()],
            next_session: 1,
            facts: None,
            state: LaneState::Connecting { trouble: None },
            ops: HashMap::new(),
            next_seq: 1,
            changes: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            index: RangeIndex::default(),
            kept_bytes: 0,
            reads: BTreeMap::new(),
            flushes: BTreeMap::new(),
            round: None,
            unreported: None,
            actions: VecDeque::new(),
        };
        if after_crash {
            lane.lock_everything();
        }
        lane
    }

    /// The lane's state.
    pub fn state(&self) -> &LaneState {
        &self.state
    }

    /// The export, as the first session found it.
    pub fn facts(&self) -> Option<&ServerInfo> {
        self.facts.as_ref()
    }

    /// Operations that have not ended.
    pub fn in_flight(&self) -> usize {
        self.ops.len()
    }

    /// Changes that wait for the end of the quarantine, or of their server.
    pub fn quarantined(&self) -> usize {
        self.unsettled.iter().filter(|seq| self.changes[seq].is_in_limbo()).count()
    }

    fn has_limbo(&self) -> bool {
        self.unsettled.iter().any(|seq| self.changes[seq].is_in_limbo())
    }

    /// The next thing to do.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Submits an operation. Its id must differ from those of all operations in flight.
    pub fn submit(&mut self, now: Duration, id: u64, operation: RemoteOp) {
        self.now = now;
        let (offset, len) = match &operation {
            RemoteOp::Read { offset, len } => (*offset, u64::from(*len)),
            RemoteOp::Write { offset, data } => (*offset, data.len() as u64),
            RemoteOp::Zero { offset, len, .. } => (*offset, *len),
            RemoteOp::Flush { .. } => (0, 0),
        };
        let refusal = match &self.state {
            LaneState::Closed => Some(LaneError::Closed),
            LaneState::Failing { .. } => Some(LaneError::TimedOut),
            _ => {
                let end = self.facts.as_ref().map_or(u64::MAX, |facts| facts.size_bytes);
                let fits = offset.checked_add(len).is_some_and(|last| last <= end);
                (!fits).then_some(LaneError::OutOfRange)
            }
        };
        if let Some(error) = refusal {
            return self.actions.push_back(Action::Complete { id, result: Err(error) });
        }
        let data = if let RemoteOp::Read { len, .. } = &operation { vec![0; *len as usize] } else { vec![] };
        self.ops.insert(id, Op { parts: 0, offset, data, error: None });
        match operation {
            RemoteOp::Read { .. } => self.submit_read(id, offset, len),
            RemoteOp::Write { data, .. } => self.submit_write(id, offset, &Arc::new(data)),
            RemoteOp::Zero { may_unmap, .. } => self.submit_zero(id, offset, len, may_unmap),
            RemoteOp::Flush { reports } => self.submit_flush(id, reports),
        }
        if self.ops.get(&id).is_some_and(|op| op.parts == 0) {
            self.part_ended(id, Ok(())); // an empty range
        }
        self.pump();
    }

    /// Passes the time; to be called no later than [`Lane::deadline`].
    pub fn tick(&mut self, now: Duration) {
        self.now = now;
        self.check_time();
        self.pump();
    }

    /// The time of the next call of [`Lane::tick`].
    pub fn deadline(&self) -> Option<Duration> {
        if self.state == LaneState::Closed {
            return None;
        }
        let timeout = match &self.state {
            LaneState::Away { since, .. } => self.config.store_timeout.map(|limit| *since + limit),
            _ => None,
        };
        let connections = self.connections.iter().enumerate();
        connections.filter_map(|(slot, _)| self.connection_deadline(slot)).chain(timeout).min()
    }

    /// Fails all operations and ends all sessions. What the server has not answered may still take
    /// effect.
    pub fn close(&mut self, now: Duration) {
        self.now = now;
        self.fail_all(LaneError::Closed);
        for slot in 0..self.connections.len() {
            self.disconnect(slot);
        }
        self.become_state(LaneState::Closed);
    }

    /// A part of an operation has ended.
    fn part_ended(&mut self, id: u64, result: Result<(), LaneError>) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        op.parts = op.parts.saturating_sub(1);
        op.error = op.error.or(result.err());
        if op.parts == 0
            && let Some(op) = self.ops.remove(&id)
        {
            let result = op.error.map_or(Ok(op.data), Err);
            self.actions.push_back(Action::Complete { id, result });
        }
    }

    fn next_seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq - 1
    }

    fn become_state(&mut self, state: LaneState) {
        if self.state != state {
            self.state = state;
            self.actions.push_back(Action::State);
        }
    }

    /// Fails everything that has not ended, except what is in flight on a session that lives.
    fn fail_all(&mut self, error: LaneError) {
        self.fail_reads(error);
        self.fail_changes(error);
        for flush in std::mem::take(&mut self.flushes).into_values() {
            self.part_ended(flush.id, Err(error));
        }
    }

    /// Sends what may be sent now.
    fn pump(&mut self) {
        if self.state == LaneState::Closed {
            return;
        }
        self.begin_connections();
        self.end_quarantine();
        self.send_changes();
        self.send_flush();
        self.send_reads();
    }

    /// A number from the seed (xorshift).
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
