//! The sessions of a lane: connecting, watching, ending and replacing them (L4, L5).

use std::time::Duration;

use forebay_export::nbd::codec::{Errno, cmd, transmission_flag};

use super::config::{difference, unfit};
use super::{Action, Lane, LaneError, LaneState, Trouble};
use crate::fault::{PlantedBug, planted};
use crate::session::{HandshakeOptions, Request, Session, SessionEvent};

/// Most requests in flight of one session, and most bytes that wait for its socket.
const REQUESTS_MAX: usize = 64;
const OUTPUT_BYTES_MAX: u64 = 8 << 20;
/// Most doublings of the longest silence, and of the pause between attempts.
const DOUBLINGS_MAX: u32 = 4;
const PAUSE_DOUBLINGS_MAX: u32 = 10;

/// Names a request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Read(u64),
    Change(u64),
    Flush,
    Probe,
}

impl Tag {
    fn encode(self) -> u64 {
        match self {
            Tag::Read(seq) => seq << 2,
            Tag::Change(seq) => seq << 2 | 1,
            Tag::Flush => 2,
            Tag::Probe => 3,
        }
    }

    fn decode(tag: u64) -> Tag {
        match tag & 3 {
            0 => Tag::Read(tag >> 2),
            1 => Tag::Change(tag >> 2),
            2 => Tag::Flush,
            _ => Tag::Probe,
        }
    }
}

#[derive(Debug)]
enum Phase {
    /// Connects again at this time.
    Down {
        until: Duration,
    },
    /// The owner connects a socket.
    Connecting {
        session: u64,
        since: Duration,
    },
    /// Negotiates.
    Handshake {
        session: u64,
        since: Duration,
        wire: Box<Session>,
    },
    Up(Box<Up>),
}

/// An established session.
#[derive(Debug)]
struct Up {
    session: u64,
    wire: Session,
    /// For how long the server has answered: pauses count only in part.
    answered: Duration,
    /// When the last bytes came.
    heard: Duration,
    /// When the oldest of the requests in flight was sent, or a later one.
    busy_since: Duration,
    /// A probe is in flight.
    probes: bool,
}

impl Up {
    fn quiet_since(&self) -> Duration {
        self.heard.max(self.busy_since)
    }
}

/// A slot for a session.
#[derive(Debug)]
pub(super) struct Connection {
    phase: Phase,
    /// Attempts in a row that failed, and sessions in a row that ended by silence.
    failures: u32,
    silences: u32,
}

impl Connection {
    pub(super) fn new() -> Connection {
        Connection { phase: Phase::Down { until: Duration::ZERO }, failures: 0, silences: 0 }
    }

    fn session(&self) -> Option<u64> {
        match &self.phase {
            Phase::Down { .. } => None,
            Phase::Connecting { session, .. } | Phase::Handshake { session, .. } => Some(*session),
            Phase::Up(up) => Some(up.session),
        }
    }

    fn wire(&mut self) -> Option<&mut Session> {
        match &mut self.phase {
            Phase::Down { .. } | Phase::Connecting { .. } => None,
            Phase::Handshake { wire, .. } => Some(wire),
            Phase::Up(up) => Some(&mut up.wire),
        }
    }

    fn up(&self) -> Option<&Up> {
        if let Phase::Up(up) = &self.phase { Some(up) } else { None }
    }
}

/// What the owner reports about sockets.
impl Lane {
    /// The socket of a session is connected.
    pub fn connected(&mut self, now: Duration, session: u64) {
        self.now = now;
        let Some(slot) = self.slot_of(session) else { return };
        let options = HandshakeOptions { contexts: Vec::new(), ..HandshakeOptions::default() };
        match Session::new(&self.config.export, &options) {
            Ok(wire) => {
                self.connections[slot].phase = Phase::Handshake { session, since: now, wire: Box::new(wire) };
            }
            Err(why) => self.lost(slot, Trouble::Connection(why.to_owned())),
        }
        self.pump();
    }

    /// Bytes from the server have come.
    pub fn received(&mut self, now: Duration, session: u64, bytes: &[u8]) {
        self.now = now;
        let Some(slot) = self.slot_of(session) else { return };
        if let Phase::Up(up) = &mut self.connections[slot].phase {
            let (gap, most) = (now.saturating_sub(up.heard), 2 * self.config.probe_after);
            up.answered += if planted(PlantedBug::CountPauses) { gap } else { gap.min(most) };
            up.heard = now;
        }
        let mut left = bytes;
        while let Some(wire) = self.connections[slot].wire() {
            let taken = wire.receive(left);
            let mut shuts_down = false;
            while let Some(event) = self.connections[slot].wire().and_then(Session::event) {
                shuts_down |= self.take_event(slot, event);
            }
            match taken {
                Err(error) => self.lost(slot, Trouble::Session(error)),
                Ok(_) if shuts_down => {
                    self.lost(slot, Trouble::Connection("the server is shutting down".to_owned()));
                }
                Ok(count) => left = &left[count..],
            }
            if left.is_empty() {
                break;
            }
        }
        self.pump();
    }

    /// The socket of a session could not be connected, or has ended.
    pub fn ended(&mut self, now: Duration, session: u64, why: &str) {
        self.now = now;
        if let Some(slot) = self.slot_of(session) {
            self.lost(slot, Trouble::Connection(why.to_owned()));
        }
        self.pump();
    }

    /// No request of this session, which has ended, can still take effect: the process of its
    /// server has ended.
    pub fn gone(&mut self, now: Duration, session: u64) {
        self.now = now;
        self.end_limbo(|of| of == session);
        self.pump();
    }

    /// Returns whether this session has not ended: its socket is in use.
    pub fn has_session(&self, session: u64) -> bool {
        self.slot_of(session).is_some()
    }

    /// Bytes to send to the server of a session.
    pub fn output(&mut self, session: u64) -> &[u8] {
        let slot = self.slot_of(session);
        slot.and_then(|slot| self.connections[slot].wire()).map_or(&[], |wire| wire.output())
    }

    /// Removes sent bytes.
    pub fn sent(&mut self, now: Duration, session: u64, count: usize) {
        self.now = now;
        if let Some(wire) = self.slot_of(session).and_then(|slot| self.connections[slot].wire()) {
            wire.sent(count);
        }
        self.pump();
    }
}

impl Lane {
    fn slot_of(&self, session: u64) -> Option<usize> {
        self.connections.iter().position(|connection| connection.session() == Some(session))
    }

    pub(super) fn is_up(&self, slot: usize) -> bool {
        self.connections[slot].up().is_some()
    }

    /// Requests in flight on a slot.
    pub(super) fn load_of(&self, slot: usize) -> usize {
        self.connections[slot].up().map_or(usize::MAX, |up| up.wire.in_flight())
    }

    /// A request with this much payload may be sent on a slot.
    pub(super) fn has_room(&self, slot: usize, bytes: u64) -> bool {
        self.connections[slot].up().is_some_and(|up| {
            let output = up.wire.output().len() as u64;
            up.wire.in_flight() < REQUESTS_MAX && (output == 0 || output + bytes <= OUTPUT_BYTES_MAX)
        })
    }

    pub(super) fn send_on(&mut self, slot: usize, tag: Tag, request: Request, payload: &[u8]) {
        let Phase::Up(up) = &mut self.connections[slot].phase else { return };
        if up.wire.in_flight() == 0 {
            up.busy_since = self.now;
        }
        up.wire.send(tag.encode(), request);
        up.wire.payload(payload);
    }

    /// Returns true if the server is shutting down.
    fn take_event(&mut self, slot: usize, event: SessionEvent) -> bool {
        let SessionEvent::Reply { tag, result, data, .. } = event else {
            self.established(slot);
            return false;
        };
        let result = result.map_err(|error| error.errno);
        match Tag::decode(tag) {
            Tag::Read(seq) => self.read_answered(seq, result.map(|()| &data[..])),
            Tag::Change(seq) => self.change_answered(seq, result),
            Tag::Flush => self.flush_answered(result),
            Tag::Probe => {
                if let Phase::Up(up) = &mut self.connections[slot].phase {
                    up.probes = false;
                }
            }
        }
        if let Some(wire) = self.connections[slot].wire() {
            wire.recycle(data);
        }
        result == Err(Errno::Shutdown)
    }

    /// The handshake of a slot has ended: the export must be usable, and the same as at first.
    fn established(&mut self, slot: usize) {
        let phase = std::mem::replace(&mut self.connections[slot].phase, Phase::Down { until: self.now });
        let Phase::Handshake { session, wire, .. } = phase else {
            self.connections[slot].phase = phase;
            return;
        };
        let info = wire.info().clone();
        let other = self.facts.as_ref().and_then(|facts| difference(facts, &info));
        let other = other.filter(|_| !planted(PlantedBug::AcceptOtherSize));
        let (heard, busy_since) = (self.now, self.now);
        let up = Up { session, wire: *wire, answered: Duration::ZERO, heard, busy_since, probes: false };
        self.connections[slot].phase = Phase::Up(Box::new(up));
        if let Some(trouble) = other.map(Trouble::Changed).or_else(|| unfit(&info)) {
            return self.lost(slot, trouble);
        }
        self.connections[slot].failures = 0;
        if slot == 0 {
            let several = info.has(transmission_flag::CAN_MULTI_CONN) && info.structured;
            let slots = if several { self.config.sessions_max.max(1) } else { 1 };
            self.connections.resize_with(slots.max(self.connections.len()), Connection::new);
            self.facts.get_or_insert(info);
            self.become_state(LaneState::Up);
            // They may lead to the server that this one replaces, which does not see its changes.
            (1..self.connections.len()).for_each(|slot| self.renew(slot));
        }
    }

    /// Replaces the session of a slot that has reads only.
    fn renew(&mut self, slot: usize) {
        let Some(session) = self.connections[slot].session() else { return };
        self.connections[slot].phase = Phase::Down { until: self.now };
        self.actions.push_back(Action::Close { session, last: Vec::new() });
        self.reads_lost(slot);
    }

    pub(super) fn begin_connections(&mut self) {
        for slot in 0..self.connections.len() {
            let Phase::Down { until } = self.connections[slot].phase else { continue };
            if until > self.now || (slot > 0 && !self.is_up(0)) {
                continue;
            }
            let session = self.next_session;
            self.next_session += 1;
            self.connections[slot].phase = Phase::Connecting { session, since: self.now };
            self.actions.push_back(Action::Connect { session });
        }
    }

    /// The session of a slot has ended, or was not established.
    fn lost(&mut self, slot: usize, trouble: Trouble) {
        let Some(session) = self.connections[slot].session() else { return };
        let was_up = self.is_up(slot);
        let silent = matches!(trouble, Trouble::Silent(_));
        let pause = self.pause(slot, trouble.is_refusal());
        let until = self.now + pause;
        let connection = &mut self.connections[slot];
        connection.phase = Phase::Down { until };
        connection.failures += 1;
        match silent {
            true => connection.silences += 1,
            false if was_up => connection.silences = 0,
            false => {}
        }
        self.actions.push_back(Action::Close { session, last: Vec::new() });
        self.reads_lost(slot);
        if slot > 0 {
            return;
        }
        self.changes_lost(session);
        let state = match &self.state {
            LaneState::Connecting { .. } => LaneState::Connecting { trouble: Some(trouble) },
            LaneState::Up => LaneState::Away { since: self.now, trouble },
            LaneState::Away { since, .. } => LaneState::Away { since: *since, trouble },
            LaneState::Failing { since, .. } => LaneState::Failing { since: *since, trouble },
            LaneState::Closed => return,
        };
        self.become_state(state);
    }

    /// Time until the next attempt to connect: doubled with each failure, and spread by half.
    fn pause(&mut self, slot: usize, is_refusal: bool) -> Duration {
        let (shortest, longest) = self.config.retry;
        let doublings = self.connections[slot].failures.min(PAUSE_DOUBLINGS_MAX);
        let pause = if is_refusal { longest } else { (shortest * (1 << doublings)).min(longest) };
        pause / 2 + pause.mul_f64(self.random() as f64 / u64::MAX as f64) / 2
    }

    /// Ends the session of a slot in an orderly way.
    pub(super) fn disconnect(&mut self, slot: usize) {
        let Some(session) = self.connections[slot].session() else { return };
        let mut last = Vec::new();
        if let Phase::Up(up) = &mut self.connections[slot].phase {
            up.wire.disconnect();
            last = up.wire.output().to_vec();
        }
        self.connections[slot].phase = Phase::Down { until: Duration::MAX };
        self.actions.push_back(Action::Close { session, last });
    }

    // --- time

    /// Longest silence of the session of a slot.
    fn silence(&self, slot: usize) -> Duration {
        self.config.silence * (1 << self.connections[slot].silences.min(DOUBLINGS_MAX))
    }

    /// The session of this slot shows whether the server still answers, for the quarantine.
    fn is_watched(&self, slot: usize) -> bool {
        slot == 0 && self.has_limbo()
    }

    pub(super) fn connection_deadline(&self, slot: usize) -> Option<Duration> {
        match &self.connections[slot].phase {
            Phase::Down { until } => (slot == 0 || self.is_up(0)).then_some(*until),
            Phase::Connecting { since, .. } | Phase::Handshake { since, .. } => {
                Some(*since + self.config.connect_timeout)
            }
            Phase::Up(up) => {
                let busy = up.wire.in_flight() > 0;
                match (busy, up.probes) {
                    (true, true) => Some(up.quiet_since() + self.silence(slot)),
                    (true, false) => Some(up.quiet_since() + self.config.probe_after),
                    (false, _) => self.is_watched(slot).then(|| up.heard + self.config.probe_after),
                }
            }
        }
    }

    pub(super) fn check_time(&mut self) {
        for slot in 0..self.connections.len() {
            let is_due = self.connection_deadline(slot).is_some_and(|due| due <= self.now);
            if !is_due {
                continue;
            }
            match &mut self.connections[slot].phase {
                Phase::Down { .. } => {}
                Phase::Connecting { .. } | Phase::Handshake { .. } => {
                    self.lost(slot, Trouble::Silent(self.config.connect_timeout));
                }
                Phase::Up(up) if up.probes => {
                    let limit = self.silence(slot);
                    self.lost(slot, Trouble::Silent(limit));
                }
                Phase::Up(up) => {
                    up.probes = true;
                    let length = up.wire.info().unit_bytes().max(512);
                    let probe = Request { kind: cmd::READ, flags: 0, offset: 0, length };
                    self.send_on(slot, Tag::Probe, probe, &[]);
                }
            }
        }
        let LaneState::Away { since, trouble } = &self.state else { return };
        if self.config.store_timeout.is_some_and(|limit| *since + limit <= self.now) {
            let state = LaneState::Failing { since: *since, trouble: trouble.clone() };
            self.fail_all(LaneError::TimedOut);
            self.become_state(state);
        }
    }

    /// Changes of earlier sessions can no longer take effect, as far as time shows it: the server
    /// has answered for that long since this session began. A server that was paused may have
    /// requests of the earlier sessions in its sockets until it continues, so pauses do not count.
    pub(super) fn end_quarantine(&mut self) {
        let Some(up) = self.connections[0].up() else { return };
        if up.answered >= self.config.quarantine || planted(PlantedBug::ReplayAtOnce) {
            self.end_limbo(|_| true);
        }
    }
}
