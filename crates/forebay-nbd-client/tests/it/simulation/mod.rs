//! A lane and a server with faults, in virtual time, judged by an oracle.
//!
//! The server ([`server`]) answers in any order, loses what was not flushed when it crashes,
//! pauses, and applies requests of sessions that have ended late or twice, as long as a server may
//! that keeps to the bound of the quarantine. The client ([`client`]) judges every completion.
//!
//! `LANE_SEEDS=1000000 cargo test -p forebay-nbd-client --features planted-bugs --test it
//! simulation` runs more seeds; `LANE_SEED=7` runs one.

mod client;
mod server;

use client::Client;
use forebay_nbd_client::lane::{Action, Lane, LaneConfig, LaneState};
use server::{Server, Stop};
use std::time::Duration;

/// Longest time for which the server runs before a request of an ended session has taken effect.
const LATE_MS: u64 = 300;
/// Bytes of a block of the client, and the number of blocks.
const BLOCK: u64 = 512;
const BLOCKS: u64 = 12;
const STEPS: usize = 700;
const STEPS_MAX: usize = 20_000;

/// xorshift64*.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// True with a chance of one in `n`.
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

struct World {
    random: Random,
    now_ms: u64,
    lane: Lane,
    server: Server,
    client: Client,
    /// The server's end of its process is reported to the lane, as for a unix socket.
    shows_end: bool,
    faults: bool,
}

fn config(random: &mut Random) -> LaneConfig {
    let ms = Duration::from_millis;
    LaneConfig {
        export: "vol".to_owned(),
        sessions_max: 1 + random.below(3) as usize,
        quarantine: ms(LATE_MS + 200),
        store_timeout: random.one_in(4).then(|| ms(600)),
        probe_after: ms(50),
        silence: ms(200),
        connect_timeout: ms(150),
        retry: (ms(5), ms(60)),
        kept_bytes_max: if random.one_in(3) { 4 * BLOCK } else { 1 << 20 },
        seed: random.next(),
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let after_crash = random.one_in(3);
        let lane = Lane::new(config(&mut random), after_crash);
        let mut server = Server::new();
        if after_crash {
            server.leave_requests(&mut random);
        }
        let (locks, shows_end) = (random.one_in(2), random.one_in(2));
        let client = Client::new(locks);
        World { random, now_ms: 0, lane, server, client, shows_end, faults: true }
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms)
    }

    fn step(&mut self) -> Result<(), String> {
        self.now_ms += 1 + self.random.below(8);
        if self.faults {
            self.fault();
        }
        self.server.step(self.now_ms, &mut self.random)?;
        self.move_bytes();
        if self.lane.deadline().is_some_and(|due| due <= self.now()) {
            self.lane.tick(self.now());
        }
        if self.lane.facts().is_some() && self.faults && self.random.one_in(2) {
            self.client.submit(&mut self.lane, Duration::from_millis(self.now_ms), &mut self.random);
        }
        self.act()
    }

    fn fault(&mut self) {
        match self.random.below(700) {
            0..3 => self.crash(),
            3..6 => self.server.pause_until(self.now_ms + self.random.below(1500)),
            6..9 => {
                let sessions = self.server.sessions();
                if !sessions.is_empty() {
                    let session = sessions[self.random.below(sessions.len() as u64) as usize];
                    self.server.cut(session, &mut self.random);
                    self.lane.ended(self.now(), session, "cut");
                }
            }
            9 if self.lane.facts().is_some() => {
                self.crash();
                self.server.swap_until(self.now_ms + 50 + self.random.below(300));
            }
            _ => {}
        }
    }

    fn crash(&mut self) {
        let until = self.now_ms + self.random.below(900);
        for session in self.server.crash(until, &mut self.random) {
            self.lane.ended(self.now(), session, "crash");
            if self.shows_end {
                self.lane.gone(self.now(), session);
            }
        }
    }

    /// Moves bytes in both directions, in pieces.
    fn move_bytes(&mut self) {
        for session in self.server.sessions() {
            let count = self.lane.output(session).len();
            let count =
                if self.random.one_in(4) { self.random.below(count as u64 + 1) as usize } else { count };
            if count > 0 {
                let bytes = self.lane.output(session)[..count].to_vec();
                self.server.sent(session, &bytes);
                self.lane.sent(self.now(), session, count);
            }
            let bytes = self.server.take_output(session, &mut self.random);
            if !bytes.is_empty() {
                self.lane.received(self.now(), session, &bytes);
            }
        }
    }

    fn act(&mut self) -> Result<(), String> {
        for (session, connected) in self.server.connects(self.now_ms, &mut self.random) {
            match connected {
                true => self.lane.connected(self.now(), session),
                false => self.lane.ended(self.now(), session, "refused"),
            }
        }
        while let Some(action) = self.lane.action() {
            match action {
                Action::Connect { session } => self.server.connect(session),
                Action::Close { session, .. } => self.server.cut(session, &mut self.random),
                Action::Complete { id, result } => self.client.completed(id, result, &self.server)?,
                Action::State => {}
            }
        }
        Ok(())
    }

    fn steps_until_idle(&mut self, what: &str) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            self.step()?;
            if self.client.in_flight() == 0 && *self.lane.state() == LaneState::Up {
                return Ok(());
            }
        }
        Err(format!("no progress: {what}: {:?}", self.lane.state()))
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.step()?;
        }
        (self.faults, self.server.stop) = (false, Stop::No);
        self.steps_until_idle("operations do not end")?;
        self.client.flush(&mut self.lane, Duration::from_millis(self.now_ms));
        self.steps_until_idle("the last flush does not end")?;
        for _ in 0..2 * LATE_MS {
            self.step()?;
        }
        self.client.check_end(&self.server)
    }
}

/// Runs a seed; returns how many changes were repeated.
fn run(seed: u64) -> Result<u64, String> {
    let mut world = World::new(seed);
    world.run().map(|()| world.client.repeated())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn no_acknowledged_change_is_lost_or_overtaken() {
    let seeds = match number("LANE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LANE_SEEDS").unwrap_or(1500),
    };
    let (mut repeated, count) = (0, seeds.end - seeds.start);
    for seed in seeds {
        match run(seed) {
            Ok(count) => repeated += count,
            Err(what) => panic!("{what}\nrepeat it with LANE_SEED={seed}"),
        }
    }
    assert!(repeated >= count / 4 || count == 1, "only {repeated} changes were repeated: no test");
}

#[cfg(feature = "planted-bugs")]
#[test]
fn each_planted_bug_is_found() {
    use forebay_nbd_client::fault::{PlantedBug, plant};
    for bug in PlantedBug::ALL {
        plant(Some(*bug));
        let attempt = |seed| std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|_| Err("a panic".into()));
        let found = (0..20_000).find_map(|seed| attempt(seed).err().map(|what| (seed, what)));
        plant(None);
        let (seed, what) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {seed}: {what}");
    }
}
