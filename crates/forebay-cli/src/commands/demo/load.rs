//! The workload: 4 KiB reads and writes on a hot set, at a constant depth, through one NBD
//! connection.
//!
//! Invariant: no block has two requests in flight, so the expected result of a read is known
//! exactly.

use forebay_admin::MessageId;
use std::time::{Duration, Instant};

use forebay_nbd_client::{NbdClient, Transport};
use hdrhistogram::Histogram;

use super::content::{BLOCK_BYTES, InDoubt, Ledger, mix, nbd};
use super::stage::Stage;
use crate::failure::Failure;
use crate::screen::{bytes, count};

/// Requests in flight.
pub(super) const DEPTH: usize = 32;
/// Of 100 requests, this many are reads.
pub(super) const READ_PCT: u64 = 70;
/// Highest latency that the histograms distinguish, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Interval of progress updates.
const SHOW_EVERY: Duration = Duration::from_millis(250);
/// Size of a scan read, in bytes.
const SCAN_BYTES: u64 = 256 << 10;

/// Measurements.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) reads: Histogram<u64>,
    pub(super) writes: Histogram<u64>,
    pub(super) elapsed: Duration,
}

impl Measured {
    /// Returns empty measurements.
    pub(super) fn new() -> Self {
        let empty = || {
            let histogram = Histogram::new_with_max(LATENCY_NS_MAX, 3);
            histogram.unwrap_or_else(|_| unreachable!("the bounds are constants that hdrhistogram takes"))
        };
        Self { reads: empty(), writes: empty(), elapsed: Duration::ZERO }
    }

    /// Returns the number of completed requests.
    pub(super) fn requests(&self) -> u64 {
        self.reads.len() + self.writes.len()
    }

    /// Returns requests per second.
    pub(super) fn iops(&self) -> f64 {
        self.requests() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns bytes per second.
    pub(super) fn bytes_per_second(&self) -> f64 {
        self.iops() * BLOCK_BYTES as f64
    }
}

/// Pseudo-random numbers from a seed.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mix(self.0)) * u128::from(end)) >> 64) as u64
    }
}

/// The hot part of the volume: extents in random places, some of them much hotter than others.
#[derive(Debug)]
pub(super) struct HotSet {
    /// First block of each extent, the hottest first.
    extents: Vec<u64>,
    /// Cumulative weights of the extents.
    sums: Vec<u64>,
    extent_blocks: u64,
}

impl HotSet {
    /// Chooses `hot_bytes` of a volume.
    pub(super) fn new(seed: u64, volume_bytes: u64, hot_bytes: u64, extent_bytes: u64) -> Self {
        let extent_blocks = extent_bytes / BLOCK_BYTES as u64;
        let mut places: Vec<u64> =
            (0..volume_bytes / extent_bytes).map(|extent| extent * extent_blocks).collect();
        let mut random = Random(mix(seed ^ 0x686f_7420_7365_7421));
        for index in (1..places.len()).rev() {
            places.swap(index, random.below(index as u64 + 1) as usize);
        }
        places.truncate((hot_bytes / extent_bytes).max(1) as usize);
        let mut sum = 0;
        let weight = |rank: usize| (1e6 / ((rank + 1) as f64).powf(0.8)) as u64;
        let sums = (0..places.len()).map(|rank| {
            sum += weight(rank).max(1);
            sum
        });
        Self { sums: sums.collect(), extents: places, extent_blocks }
    }

    /// Returns its size.
    pub(super) fn bytes(&self) -> u64 {
        self.extents.len() as u64 * self.extent_blocks * BLOCK_BYTES as u64
    }

    fn block(&self, random: &mut Random) -> u64 {
        let at = random.below(self.sums.last().copied().unwrap_or(1));
        let extent = self.sums.partition_point(|sum| *sum <= at);
        self.extents.get(extent).copied().unwrap_or(0) + random.below(self.extent_blocks)
    }
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Flying {
    block: u64,
    /// Version written; `None` for a read.
    version: Option<u32>,
    since: Instant,
}

/// The workload on one connection.
pub(super) struct Load<'a> {
    client: &'a mut NbdClient<Transport>,
    ledger: &'a mut Ledger,
    hot: &'a HotSet,
    random: Random,
    flying: [Option<Flying>; DEPTH],
    data: Vec<u8>,
    shown: Instant,
    shown_requests: u64,
}

impl<'a> Load<'a> {
    /// Returns a workload; the same seed gives the same requests.
    pub(super) fn new(
        client: &'a mut NbdClient<Transport>,
        ledger: &'a mut Ledger,
        hot: &'a HotSet,
        seed: u64,
    ) -> Self {
        let random = Random(mix(seed));
        let shown = Instant::now();
        Self {
            client,
            ledger,
            hot,
            random,
            flying: [None; DEPTH],
            data: Vec::new(),
            shown,
            shown_requests: 0,
        }
    }

    /// Runs for a while; completes every request that was begun.
    pub(super) fn run_for(&mut self, duration: Duration, stage: &Stage) -> Result<Measured, Failure> {
        let mut measured = Measured::new();
        let started = Instant::now();
        (self.shown, self.shown_requests) = (started, 0);
        for slot in 0..DEPTH {
            self.send(slot, READ_PCT)?;
        }
        while self.flying.iter().any(Option::is_some) {
            let slot = self.receive(&mut measured).map_err(nbd_or_wrong)?;
            if started.elapsed() < duration {
                self.send(slot, READ_PCT)?;
            }
            self.show(&measured, started, stage)?;
        }
        measured.elapsed = started.elapsed();
        Ok(measured)
    }

    /// Writes for a while, then calls `kill` with requests in flight, and collects the replies that
    /// still arrive. Returns the unanswered writes and the number of answered ones.
    pub(super) fn run_into(
        &mut self,
        kill: impl FnOnce() -> Result<(), Failure>,
        after: Duration,
        stage: &Stage,
    ) -> Result<(Vec<InDoubt>, u64), Failure> {
        let mut measured = Measured::new();
        let started = Instant::now();
        for slot in 0..DEPTH {
            self.send(slot, 0)?;
        }
        while started.elapsed() < after {
            stage.go_on()?;
            let slot = self.receive(&mut measured).map_err(nbd_or_wrong)?;
            self.send(slot, 0)?;
        }
        self.client.submit().map_err(nbd)?;
        kill()?;
        while self.flying.iter().any(Option::is_some) {
            match self.receive(&mut measured) {
                Ok(_) => {}
                Err(Trouble::Connection(_)) => break,
                Err(trouble @ Trouble::Wrong(_)) => return Err(nbd_or_wrong(trouble)),
            }
        }
        let flying = std::mem::replace(&mut self.flying, [None; DEPTH]);
        let in_doubt = flying.into_iter().flatten();
        let in_doubt = in_doubt.filter_map(|f| f.version.map(|version| InDoubt { block: f.block, version }));
        Ok((in_doubt.collect(), measured.writes.len()))
    }

    /// Reads the whole hot set once, in larger pieces, as a scan would.
    pub(super) fn scan_hot(&mut self, stage: &Stage) -> Result<(), Failure> {
        let mut extents = self.hot.extents.clone();
        extents.sort_unstable();
        let pieces: Vec<u64> = extents
            .iter()
            .flat_map(|first| {
                (0..self.hot.extent_blocks)
                    .step_by(SCAN_BYTES as usize / BLOCK_BYTES)
                    .map(move |at| first + at)
            })
            .collect();
        let (mut sent, mut done) = (0, 0);
        while done < pieces.len() {
            stage.go_on()?;
            while sent < pieces.len() && sent - done < 8 {
                self.client
                    .send_read(sent as u64, pieces[sent] * BLOCK_BYTES as u64, SCAN_BYTES as u32)
                    .map_err(nbd)?;
                sent += 1;
            }
            let reply = self.client.recv_reply(&mut self.data).map_err(nbd)?;
            reply
                .result
                .map_err(|error| Failure::new(MessageId::DemoIo, format!("filling the cache: {error}")))?;
            for (block, found) in (pieces[reply.cookie as usize]..).zip(self.data.chunks(BLOCK_BYTES)) {
                self.ledger
                    .compare(block, found)
                    .map_err(|why| Failure::new(MessageId::DemoWrongData, why))?;
            }
            done += 1;
            stage.at(done as u64 * SCAN_BYTES, bytes(done as u64 * SCAN_BYTES));
        }
        Ok(())
    }

    /// Sends a request in a free slot.
    fn send(&mut self, slot: usize, read_pct: u64) -> Result<(), Failure> {
        let block = loop {
            let block = self.hot.block(&mut self.random);
            if self.flying.iter().flatten().all(|flying| flying.block != block) {
                break block;
            }
        };
        let (cookie, offset) = (slot as u64, block * BLOCK_BYTES as u64);
        let read = self.random.below(100) < read_pct;
        let version = (!read).then(|| self.ledger.version(block) + 1);
        let sent = match version {
            None => self.client.send_read(cookie, offset, BLOCK_BYTES as u32),
            Some(version) => {
                let mut bytes = [0; BLOCK_BYTES];
                self.ledger.stamp(block, version, &mut bytes);
                self.client.send_write(cookie, offset, &bytes, false)
            }
        };
        self.flying[slot] = Some(Flying { block, version, since: Instant::now() });
        sent.map_err(nbd)
    }

    /// Waits for a reply and checks it; returns its slot, which is free then.
    fn receive(&mut self, measured: &mut Measured) -> Result<usize, Trouble> {
        let reply =
            self.client.recv_reply(&mut self.data).map_err(|error| Trouble::Connection(nbd(error)))?;
        let slot = reply.cookie as usize;
        let Some(flying) = self.flying.get_mut(slot).and_then(Option::take) else {
            return Err(Trouble::Wrong("an answer to a request that was not made".into()));
        };
        let kind = if flying.version.is_some() { "write" } else { "read" };
        let place = flying.block * BLOCK_BYTES as u64;
        reply.result.map_err(|error| Trouble::Wrong(format!("{kind} at byte {place}: {error}")))?;
        let took = flying.since.elapsed().as_nanos() as u64;
        match flying.version {
            None => {
                measured.reads.saturating_record(took);
                self.ledger.compare(flying.block, &self.data).map_err(Trouble::Wrong)?;
            }
            Some(version) => {
                measured.writes.saturating_record(took);
                self.ledger.acknowledge(flying.block, version);
            }
        }
        Ok(slot)
    }

    fn show(&mut self, measured: &Measured, started: Instant, stage: &Stage) -> Result<(), Failure> {
        let since = self.shown.elapsed();
        if since < SHOW_EVERY {
            return Ok(());
        }
        stage.go_on()?;
        let rate = (measured.requests() - self.shown_requests) as f64 / since.as_secs_f64();
        (self.shown, self.shown_requests) = (Instant::now(), measured.requests());
        stage.at(started.elapsed().as_millis() as u64, format!("{} requests a second", count(rate as u64)));
        Ok(())
    }
}

/// Reason why a reply is missing or wrong.
enum Trouble {
    /// The connection failed.
    Connection(Failure),
    /// The reply is an error, or has wrong bytes.
    Wrong(String),
}

fn nbd_or_wrong(trouble: Trouble) -> Failure {
    match trouble {
        Trouble::Connection(failure) => failure,
        Trouble::Wrong(what) => Failure::new(MessageId::DemoWrongData, what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hot_set_has_its_size_and_skew() {
        let hot = HotSet::new(3, 512 << 20, 48 << 20, 1 << 20);
        assert_eq!(hot.bytes(), 48 << 20);
        let mut random = Random(1);
        let mut uses = std::collections::BTreeMap::<u64, u32>::new();
        for _ in 0..48_000 {
            let block = hot.block(&mut random);
            assert!(block < (512 << 20) / 4096);
            *uses.entry(block / hot.extent_blocks).or_default() += 1;
        }
        assert_eq!(uses.len(), 48, "every extent is used");
        assert!(uses.values().max() > Some(&4000), "one is used much more than others: {uses:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_hot_set() {
        let extents = |seed| HotSet::new(seed, 64 << 20, 8 << 20, 1 << 20).extents;
        assert_eq!(extents(1), extents(1));
        assert_ne!(extents(1), extents(2));
    }
}
