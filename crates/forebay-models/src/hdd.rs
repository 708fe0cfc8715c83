//! A model of a 7200 rpm hard disk, in virtual time.
//!
//! # What is modelled
//! - **Geometry.** One revolution takes 8.33 ms and passes 1.25 MB, which gives the media rate of
//!   150 MB/s. Data lies on one spiral: byte `o` is under the head whenever the platter's angle is
//!   `frac(o / 1.25 MB)`, so a long transfer crosses tracks without loss (ideal skew).
//! - **Arm.** A move takes `0.8 ms + 14.33 ms * sqrt(x)` for a fraction `x` of the full stroke up
//!   to one half; beyond that the time grows linearly with the same slope to 16 ms for the full
//!   stroke. The mean over random pairs is 8.5 ms. Going forward by less than one revolution's
//!   bytes needs no move: the head gets there by waiting.
//! - **Rotation.** After the move the head waits until the first byte comes round; 4.17 ms on
//!   average.
//! - **Queue.** 32 commands (NCQ); more wait outside, in order. When the arm is free, the command
//!   that can start its transfer soonest goes first. A command that has been in the queue for more
//!   than 500 ms goes before all others.
//! - **Read-ahead.** After a read the head keeps reading into a buffer (one segment, up to 2 MiB
//!   ahead) until it is needed elsewhere. A read inside or adjoining the segment costs no
//!   positioning: one stream runs at media rate even at queue depth 1, while two interleaved
//!   streams at depth 1 seek for every command.
//! - **Writes.** The write cache is off: a write completes when it is on the platter. A write that
//!   continues the previous one and was queued before that one ended follows it without loss. A
//!   lone writer at queue depth 1 always comes 0.1 ms too late and loses a revolution, as on a real
//!   disk.
//! - **Flush.** Completes 0.1 ms after all writes submitted before it.
//! - **Controller.** 0.1 ms per command, hidden behind the previous transfer when the command was
//!   queued in time.
//!
//! Left out: zones (the rate is that of the middle of the disk), the additional settle time of
//! writes, bad sectors, thermal recalibration, interface speed, merging of requests by the
//! operating system.
//!
//! # Scale: `nominal`
//! Positions are scaled so that a device of any size spans the full stroke: a 1 GiB file has the
//! seeks of a whole disk. Rates, angles and small gaps use real bytes. So an experiment with
//! everything shrunk in proportion (volume, cache, dirty share) keeps the distances that matter:
//! the gap between neighbouring dirty blocks, which depends on their share and not on the disk's
//! size, and the time of long seeks.
//!
//! # Invariants
//! Pure and deterministic: time is an integer, and the same events in the same order give the same
//! completions. Time passed to `submit` and `advance` never goes back (earlier values count as the
//! latest seen).

use std::collections::VecDeque;

/// One revolution at 7200 rpm, in nanoseconds.
pub const REVOLUTION_NS: u64 = 60_000_000_000 / 7200;
/// Media rate in bytes per second (outer-to-inner average of common 7200 rpm drives of 1 to 4 TB).
pub const MEDIA_BYTES_PER_SECOND: u64 = 150_000_000;
/// Shortest arm move, in nanoseconds.
pub const SEEK_TRACK_NS: u64 = 800_000;
/// Full-stroke arm move, in nanoseconds.
pub const SEEK_FULL_NS: u64 = 16_000_000;
/// Controller time per command, in nanoseconds.
pub const OVERHEAD_NS: u64 = 100_000;
/// Commands the drive reorders among (NCQ).
pub const QUEUE_DEPTH: usize = 32;
/// Age at which a command goes before all others, in nanoseconds.
pub const AGE_MAX_NS: u64 = 500_000_000;
/// How far the drive reads ahead, in bytes.
pub const READ_AHEAD_BYTES: u64 = 2 << 20;

/// Where the seek curve turns from square root to linear, as a fraction of the full stroke.
const SEEK_KNEE: f64 = 0.5;
/// Bytes that pass under the head in one revolution.
const TRACK_BYTES: u64 = MEDIA_BYTES_PER_SECOND * REVOLUTION_NS / 1_000_000_000;
/// A start this little too late still hits its sector (rounding of integer time, not mechanics).
const ANGLE_SLACK_NS: u64 = 1_000;

/// Type of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HddOp {
    /// Read.
    Read,
    /// Write, including writes of zeroes.
    Write,
    /// Flush; offset and length are ignored.
    Flush,
}

#[derive(Clone, Copy, Debug)]
struct Command {
    id: u64,
    sequence: u64,
    write: bool,
    start: u64,
    end: u64,
    arrival_ns: u64,
    /// When it entered the queue: waiting outside does not count as age, or a long line outside
    /// would defeat the reordering.
    queued_ns: u64,
}

/// The read-ahead segment: the buffer holds bytes `start..end` at `since_ns`, and the head goes on
/// reading from `end` until `limit`. The segment is dropped when the head is needed elsewhere.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    end: u64,
    limit: u64,
    since_ns: u64,
}

/// How a command would be served if it were chosen now.
#[derive(Clone, Copy, Debug)]
struct ServicePlan {
    /// When its first byte passes (or is in the buffer); the drive minimises this.
    ready_ns: u64,
    finish_ns: u64,
    source: Source,
}

/// Source or destination of a command's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The read-ahead buffer alone: the head stays where it is.
    Buffer,
    /// The platter, where the head already reads ahead.
    Continued,
    /// The platter, after a move of the arm.
    Platter,
}

/// The disk; see the head of this file.
#[derive(Debug)]
pub struct HddModel {
    size_bytes: u64,
    now_ns: u64,
    sequence: u64,
    queue: Vec<Command>,
    waiting: VecDeque<Command>,
    active: Option<(Command, u64)>,
    /// Position of the head when it became free, and the time of that.
    head: u64,
    free_ns: u64,
    segment: Option<Segment>,
    /// Flushes not yet due: id and the sequence number below which writes count.
    flushes: VecDeque<(u64, u64)>,
    /// Flushes that wait only for their own time.
    flushing: VecDeque<(u64, u64)>,
}

impl HddModel {
    /// A disk whose full stroke holds `size_bytes`, idle, with the head at byte 0.
    pub fn new(size_bytes: u64) -> HddModel {
        HddModel {
            size_bytes: size_bytes.max(1),
            now_ns: 0,
            sequence: 0,
            queue: Vec::with_capacity(QUEUE_DEPTH),
            waiting: VecDeque::new(),
            active: None,
            head: 0,
            free_ns: 0,
            segment: None,
            flushes: VecDeque::new(),
            flushing: VecDeque::new(),
        }
    }

    /// Accepts a command. `advance` returns the caller's `id`.
    pub fn submit(&mut self, now_ns: u64, id: u64, op: HddOp, offset: u64, len: u64) {
        // Events that are due stay due: this call settles only the next action of the head.
        self.now_ns = self.now_ns.max(now_ns);
        self.sequence += 1;
        let sequence = self.sequence;
        match op {
            HddOp::Flush => {
                self.flushes.push_back((id, sequence));
                self.release_flushes(self.now_ns);
            }
            HddOp::Read | HddOp::Write => {
                let start = offset.min(self.size_bytes);
                let end = offset.saturating_add(len).min(self.size_bytes).max(start);
                let write = op == HddOp::Write;
                self.waiting.push_back(Command {
                    id,
                    sequence,
                    write,
                    start,
                    end,
                    arrival_ns: self.now_ns,
                    queued_ns: 0,
                });
                self.start_next(self.now_ns);
            }
        }
    }

    /// Time of the next completion, in nanoseconds; `None` when idle.
    pub fn next_event(&self) -> Option<u64> {
        let transfer = self.active.map(|(_, finish_ns)| finish_ns);
        let flush = self.flushing.front().map(|&(_, finish_ns)| finish_ns);
        [transfer, flush].into_iter().flatten().min()
    }

    /// Lets time pass and appends the ids of commands that complete by `now_ns`, in order.
    pub fn advance(&mut self, now_ns: u64, done: &mut Vec<u64>) {
        while let Some(event_ns) = self.next_event().filter(|&event_ns| event_ns <= now_ns) {
            if let Some(&(id, _)) = self.flushing.front().filter(|&&(_, finish_ns)| finish_ns == event_ns) {
                self.flushing.pop_front();
                done.push(id);
            } else if let Some((command, _)) = self.active.take() {
                done.push(command.id);
                self.release_flushes(event_ns);
                self.start_next(event_ns);
            }
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Commands in the model, flushes included.
    pub fn in_flight(&self) -> usize {
        let commands = self.queue.len() + self.waiting.len() + usize::from(self.active.is_some());
        commands + self.flushes.len() + self.flushing.len()
    }

    /// Starts the clock of flushes whose earlier writes have all completed.
    fn release_flushes(&mut self, now_ns: u64) {
        let active = self.active.iter().map(|(command, _)| command);
        let writes = self.queue.iter().chain(&self.waiting).chain(active).filter(|c| c.write);
        let oldest_write = writes.map(|c| c.sequence).min().unwrap_or(u64::MAX);
        while let Some(&(id, _)) = self.flushes.front().filter(|&&(_, sequence)| sequence < oldest_write) {
            self.flushes.pop_front();
            self.flushing.push_back((id, now_ns + OVERHEAD_NS));
        }
    }

    /// If the head is free: admits commands to the queue while it has room, chooses one and starts
    /// it.
    fn start_next(&mut self, now_ns: u64) {
        while self.queue.len() + usize::from(self.active.is_some()) < QUEUE_DEPTH {
            let Some(command) = self.waiting.pop_front() else { break };
            self.queue.push(Command { queued_ns: now_ns.max(command.arrival_ns), ..command });
        }
        if self.active.is_some() || self.queue.is_empty() {
            return;
        }
        let (index, plan) = self.choose(now_ns);
        let command = self.queue.swap_remove(index);
        self.begin(command, plan);
    }

    /// The next command: the one that can start soonest, or the oldest if it has waited too long.
    fn choose(&self, now_ns: u64) -> (usize, ServicePlan) {
        let plans =
            self.queue.iter().enumerate().map(|(i, command)| (i, *command, self.plan(command, now_ns)));
        let overdue = plans
            .clone()
            .filter(|(_, command, _)| now_ns.saturating_sub(command.queued_ns) > AGE_MAX_NS)
            .min_by_key(|(_, command, _)| command.sequence);
        let chosen =
            overdue.or_else(|| plans.min_by_key(|(_, command, plan)| (plan.ready_ns, command.sequence)));
        let Some((index, _, plan)) = chosen else { unreachable!("the queue is not empty") };
        (index, plan)
    }

    fn plan(&self, command: &Command, now_ns: u64) -> ServicePlan {
        let issued_ns = now_ns.max(command.arrival_ns + OVERHEAD_NS);
        let transfer_ns = media_ns(command.end - command.start);
        if let Some(plan) = self.plan_from_segment(command, issued_ns) {
            return plan;
        }
        let head = self.head_at(now_ns);
        let ready_ns = if command.start == head && issued_ns <= self.free_ns {
            issued_ns
        } else {
            let arrived_ns = issued_ns + self.seek_ns(head, command.start);
            arrived_ns + rotation_ns(arrived_ns, command.start)
        };
        ServicePlan { ready_ns, finish_ns: ready_ns + transfer_ns, source: Source::Platter }
    }

    /// A read that begins in the read-ahead segment, or right where the head reads ahead.
    fn plan_from_segment(&self, command: &Command, issued_ns: u64) -> Option<ServicePlan> {
        let segment = self.segment.filter(|_| !command.write)?;
        let held = segment.held_at(issued_ns);
        if command.start < segment.start || command.start > held {
            return None;
        }
        if command.end <= held {
            return Some(ServicePlan { ready_ns: issued_ns, finish_ns: issued_ns, source: Source::Buffer });
        }
        let finish_ns = if held < segment.limit {
            // The head is still reading and simply goes on.
            segment.since_ns + media_ns(command.end - segment.end)
        } else {
            issued_ns + rotation_ns(issued_ns, held) + media_ns(command.end - held)
        };
        Some(ServicePlan { ready_ns: issued_ns, finish_ns, source: Source::Continued })
    }

    fn begin(&mut self, command: Command, plan: ServicePlan) {
        self.active = Some((command, plan.finish_ns));
        if plan.source == Source::Buffer {
            return;
        }
        let start = match self.segment {
            Some(segment) if plan.source == Source::Continued => {
                segment.start.max(command.end.saturating_sub(READ_AHEAD_BYTES))
            }
            _ => command.start,
        };
        self.head = command.end;
        self.free_ns = plan.finish_ns;
        self.segment = (!command.write).then(|| Segment {
            start,
            end: command.end,
            limit: command.end.saturating_add(READ_AHEAD_BYTES).min(self.size_bytes),
            since_ns: plan.finish_ns,
        });
    }

    /// Position of the head: where it became free, or as far as reading ahead has moved it.
    fn head_at(&self, now_ns: u64) -> u64 {
        match self.segment {
            Some(segment) => segment.held_at(now_ns),
            None => self.head,
        }
    }

    fn seek_ns(&self, from: u64, to: u64) -> u64 {
        if to >= from && to - from < TRACK_BYTES {
            return 0;
        }
        seek_curve_ns(from.abs_diff(to) as f64 / self.size_bytes as f64)
    }
}

impl Segment {
    /// End of the buffered bytes at a time.
    fn held_at(&self, now_ns: u64) -> u64 {
        let read =
            now_ns.saturating_sub(self.since_ns).saturating_mul(MEDIA_BYTES_PER_SECOND / 1_000_000) / 1000;
        self.end.saturating_add(read).min(self.limit)
    }
}

/// Time of an arm move over a fraction of the full stroke, above zero.
fn seek_curve_ns(fraction: f64) -> u64 {
    let (track, full) = (SEEK_TRACK_NS as f64, SEEK_FULL_NS as f64);
    let root = SEEK_KNEE.sqrt();
    // Chosen so that the line continues the root's slope at the knee and reaches `full` at 1.
    let slope_at_knee = 1.0 / (2.0 * root);
    let scale = (full - track) / (root + (1.0 - SEEK_KNEE) * slope_at_knee);
    let shape = if fraction <= SEEK_KNEE {
        fraction.max(0.0).sqrt()
    } else {
        root + (fraction.min(1.0) - SEEK_KNEE) * slope_at_knee
    };
    (track + scale * shape) as u64
}

/// Time `bytes` take to pass under the head.
fn media_ns(bytes: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(MEDIA_BYTES_PER_SECOND)) as u64
}

/// Time from `now_ns` until byte `offset` passes under a head that is on its track.
fn rotation_ns(now_ns: u64, offset: u64) -> u64 {
    let target = media_ns(offset) % REVOLUTION_NS;
    let wait = (target + REVOLUTION_NS - now_ns % REVOLUTION_NS) % REVOLUTION_NS;
    if wait > REVOLUTION_NS - ANGLE_SLACK_NS { 0 } else { wait }
}
