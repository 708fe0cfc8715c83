//! The client: requests of a trace, their arrival times and concurrency.
//!
//! With recorded times this is an open loop: requests come whether or not earlier ones were
//! answered. If the devices cannot keep up, the queue grows, and latencies with it; `waited` shows
//! that. As fast as possible it is a closed loop: the next request follows a reply.

use crate::figures::{Figures, PathFigures, index};
use crate::machine::{Machine, VOLUME};
use crate::plan::{Pace, Plan, PlanError};
use forebay_core::{REQUEST_BYTES_MAX, RequestKind};
use forebay_trace::{Operation, Record};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

const BLOCK: u64 = 4096;
/// Interval at which the limits of destage are sampled, in nanoseconds.
const LOOK_NS: u64 = 100_000_000;
/// All hours in the engine's curve.
const HOURS: u64 = 23;
/// Turns between two reports of the progress.
const LOOK_TURNS: u64 = 1 << 14;

/// A prepared trace: ordered by time, without requests longer than the engine accepts.
#[derive(Clone, Debug, Default)]
pub struct MadeTrace {
    requests: Vec<Record>,
    /// End of the volume range used, in bytes.
    pub end_bytes: u64,
    /// Requests with an earlier time than the one before them in the file.
    pub reordered: u64,
}

impl MadeTrace {
    /// Prepares records in any order.
    #[must_use]
    pub fn new(records: Vec<Record>) -> Self {
        let reordered = records.windows(2).filter(|pair| pair[1].at_ns < pair[0].at_ns).count() as u64;
        let mut requests = if records.iter().any(is_long) { split(&records) } else { records };
        if reordered > 0 {
            requests.sort_by_key(|record| record.at_ns);
        }
        let end_bytes = requests.iter().map(Record::end).max().unwrap_or(0);
        Self { requests, end_bytes, reordered }
    }

    /// Returns the bytes of all blocks that are read or written at least once.
    #[must_use]
    pub fn footprint_bytes(&self) -> u64 {
        footprint_blocks(&self.requests) * BLOCK
    }

    /// Returns the time from the first request to the last one, in nanoseconds.
    #[must_use]
    pub fn lasts_ns(&self) -> u64 {
        let first = self.requests.first().map_or(0, |record| record.at_ns);
        self.requests.last().map_or(0, |record| record.at_ns - first)
    }

    /// Returns its requests.
    #[must_use]
    pub fn requests(&self) -> &[Record] {
        &self.requests
    }
}

fn has_data(record: &Record) -> bool {
    matches!(record.operation, Operation::Read | Operation::Write)
}

fn is_long(record: &Record) -> bool {
    has_data(record) && record.len > REQUEST_BYTES_MAX
}

fn split(records: &[Record]) -> Vec<Record> {
    let mut parts = Vec::with_capacity(records.len());
    for record in records {
        if !is_long(record) {
            parts.push(*record);
            continue;
        }
        let firsts = (record.offset..record.end()).step_by(REQUEST_BYTES_MAX as usize);
        parts.extend(firsts.map(|offset| Record {
            offset,
            len: REQUEST_BYTES_MAX.min(record.end() - offset),
            ..*record
        }));
    }
    parts
}

fn footprint_blocks(requests: &[Record]) -> u64 {
    // A bit for each of 64 blocks.
    let mut groups: HashMap<u64, u64> = HashMap::new();
    for record in requests.iter().filter(|record| has_data(record)) {
        let (mut block, end) = (record.offset / BLOCK, record.end().div_ceil(BLOCK));
        while block < end {
            let blocks = (64 - block % 64).min(end - block);
            *groups.entry(block / 64).or_default() |= (u64::MAX >> (64 - blocks)) << (block % 64);
            block += blocks;
        }
    }
    groups.values().map(|bits| u64::from(bits.count_ones())).sum()
}

/// Tries a plan. Calls `progress` from time to time with the number of answered requests; it
/// returns whether to continue. Returns `Ok(None)` if `progress` ended the try.
///
/// # Errors
/// Returns [`PlanError`] if the plan does not suit the trace.
pub fn run(
    plan: &Plan,
    trace: &MadeTrace,
    progress: &dyn Fn(u64) -> bool,
) -> Result<Option<Figures>, PlanError> {
    if trace.end_bytes > plan.volume_bytes {
        return Err(PlanError::Volume { end: trace.end_bytes, volume_bytes: plan.volume_bytes });
    }
    let mut run = Run {
        plan,
        requests: trace.requests(),
        next: 0,
        machine: Machine::new(plan)?,
        began: 0,
        began_at: vec![0; plan.depth.max(1)],
        free: (0..plan.depth.max(1)).rev().collect(),
        answers: BinaryHeap::new(),
        paths: Vec::new(),
        processor_free_at: 0,
        answered: 0,
        failed: 0,
        waited: 0,
        waited_ns_max: 0,
        limits: BTreeMap::new(),
        looked_at: 0,
    };
    run.began = run.machine.now;
    run.looked_at = run.machine.now;
    Ok(if run.all(progress)? { Some(run.figures()) } else { None })
}

struct Run<'a> {
    plan: &'a Plan,
    requests: &'a [Record],
    next: usize,
    machine: Machine,
    began: u64,
    /// Start of the latency of a request in flight, by its index.
    began_at: Vec<u64>,
    free: Vec<usize>,
    /// Replies on their way to the client: arrival times and indexes.
    answers: BinaryHeap<Reverse<(u64, usize)>>,
    paths: Vec<Option<PathFigures>>,
    /// Time at which the processor has finished all replies so far.
    processor_free_at: u64,
    answered: u64,
    failed: u64,
    waited: u64,
    waited_ns_max: u64,
    limits: BTreeMap<&'static str, u64>,
    looked_at: u64,
}

impl Run<'_> {
    /// Runs all requests. Returns false if `progress` ended the run.
    fn all(&mut self, progress: &dyn Fn(u64) -> bool) -> Result<bool, PlanError> {
        let mut turns = 0_u64;
        while self.answered < self.requests.len() as u64 {
            self.make_requests();
            self.machine.act();
            self.take_replies();
            turns += 1;
            if turns.is_multiple_of(LOOK_TURNS) && !progress(self.answered) {
                return Ok(false);
            }
            if self.answered == self.requests.len() as u64 {
                break;
            }
            let events = [self.machine.next_event(), self.next_arrival(), self.next_answer()];
            let open = self.began_at.len() - self.free.len();
            let next = events.into_iter().flatten().min().ok_or(PlanError::Stuck { open })?;
            self.look_at_limits(next);
            self.machine.advance(next);
        }
        Ok(true)
    }

    /// Returns the arrival time of the next request, if one can be submitted.
    fn next_arrival(&self) -> Option<u64> {
        let record = self.requests.get(self.next).filter(|_| !self.free.is_empty())?;
        Some(self.arrival(record).max(self.machine.now))
    }

    fn next_answer(&self) -> Option<u64> {
        self.answers.peek().map(|Reverse((at, _))| *at)
    }

    fn arrival(&self, record: &Record) -> u64 {
        match self.plan.pace {
            Pace::Recorded { speed } => self.began.saturating_add((record.at_ns as f64 / speed) as u64),
            Pace::AsFast => self.machine.now,
        }
    }

    fn make_requests(&mut self) {
        while let Some(Reverse((_, place))) =
            self.answers.peek().copied().filter(|Reverse((at, _))| *at <= self.machine.now)
        {
            self.answers.pop();
            self.free.push(place);
        }
        while let Some(record) = self.requests.get(self.next) {
            let at = self.arrival(record);
            if at > self.machine.now {
                break;
            }
            let Some(place) = self.free.pop() else { break };
            self.next += 1;
            let waited = self.machine.now - at;
            self.waited += u64::from(waited > 0);
            self.waited_ns_max = self.waited_ns_max.max(waited);
            self.began_at[place] = at;
            let kind = match record.operation {
                Operation::Read => RequestKind::Read,
                Operation::Write => RequestKind::Write { fua: record.fua },
                Operation::Flush => RequestKind::Flush,
                Operation::Discard => RequestKind::Discard { fua: record.fua },
                Operation::WriteZeroes => RequestKind::WriteZeroes { fua: record.fua, may_unmap: true },
            };
            self.machine.submit(place as u64, kind, (record.offset, record.len), self.plan);
        }
    }

    fn take_replies(&mut self) {
        let mut replies = std::mem::take(&mut self.machine.replies);
        for reply in replies.drain(..) {
            let place = reply.id as usize;
            self.processor_free_at = self.processor_free_at.max(self.machine.now) + self.plan.processor_ns;
            let arrives = self.processor_free_at + self.plan.path_ns;
            let took = arrives - self.began_at[place];
            let path = index(reply.path);
            if self.paths.len() <= path {
                self.paths.resize(path + 1, None);
            }
            self.paths[path].get_or_insert_with(|| PathFigures::new(reply.path)).add(took);
            self.answered += 1;
            self.failed += u64::from(reply.result.is_err());
            self.answers.push(Reverse((arrives, place)));
        }
        self.machine.replies = replies;
    }

    /// Adds the time until `next` to the present limit of destage.
    fn look_at_limits(&mut self, next: u64) {
        if next < self.looked_at + LOOK_NS {
            return;
        }
        if let Some(report) = self.machine.engine.destage_report(VOLUME) {
            *self.limits.entry(report.limited_by.words()).or_default() += next - self.looked_at;
        }
        self.looked_at = next;
    }

    fn figures(self) -> Figures {
        let all: u64 = self.limits.values().sum();
        let share = |(words, ns): (&'static str, u64)| (words, ns as f64 * 100.0 / all.max(1) as f64);
        let mut limits: Vec<(&'static str, f64)> = self.limits.into_iter().map(share).collect();
        limits.sort_by(|one, other| other.1.total_cmp(&one.1));
        Figures {
            stats: self.machine.engine.stats(),
            curve: self.machine.engine.miss_ratio_curve(None, HOURS),
            paths: self.paths.into_iter().flatten().collect(),
            took_ns: self.machine.now.max(self.processor_free_at) + self.plan.path_ns - self.began,
            requests: self.answered,
            failed: self.failed,
            waited_ns_max: self.waited_ns_max,
            waited: self.waited,
            limits,
        }
    }
}
