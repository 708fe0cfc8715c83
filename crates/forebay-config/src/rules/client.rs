//! Clients in the serving thread: one per connection, or a bounded cache where each request names
//! its client (FUSE).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::compiled::Compiled;
use super::identity::Identity;
use super::rule::{Action, Direction, RuleId};
use super::set::RuleSet;

/// Cached clients: more threads seldom do I/O on one volume within a second.
pub const CLIENTS_MAX: usize = 1024;
/// How long data from `/proc` is used. Meanwhile a process may start another executable, move to
/// another control group, or end and leave its number to another one.
pub const CLIENT_AGE_MAX: Duration = Duration::from_secs(1);

/// One client at one export: its identity, and the rules compiled for it.
#[derive(Debug)]
pub struct Client {
    rules: Arc<RuleSet>,
    export: Arc<str>,
    identity: Identity,
    compiled: Compiled,
}

impl Client {
    /// Creates a connected client.
    pub fn new(rules: Arc<RuleSet>, export: impl Into<Arc<str>>, identity: Identity) -> Self {
        let export = export.into();
        let compiled = rules.compile(&identity, &export);
        Self { rules, export, identity, compiled }
    }

    /// Returns its identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the action for a request. Applies changes of the rules first.
    #[inline]
    pub fn decide(
        &mut self,
        direction: Direction,
        offset_bytes: u64,
        len_bytes: u64,
        now: Instant,
    ) -> (Action, Option<RuleId>) {
        self.refresh().decide(direction, offset_bytes, len_bytes, now)
    }

    /// Returns the current rules.
    #[inline]
    fn refresh(&mut self) -> &Compiled {
        if self.compiled.generation() != self.rules.generation() {
            self.compiled = self.rules.compile(&self.identity, &self.export);
        }
        &self.compiled
    }
}

/// Clients that each request names by a process number and a user.
///
/// A request of a cached client reads nothing from `/proc`. Beyond [`CLIENTS_MAX`], the least
/// recently used client is evicted.
#[derive(Debug)]
pub struct ClientCache {
    rules: Arc<RuleSet>,
    export: Arc<str>,
    clients: HashMap<(u32, u32), Remembered>,
    clients_max: usize,
    /// Decides while no rule has a condition on the client; then no look-up is needed.
    anybody: Client,
}

#[derive(Debug)]
struct Remembered {
    client: Client,
    looked_up_at: Instant,
    used_at: Instant,
}

impl ClientCache {
    /// Creates a cache for clients of one export.
    pub fn new(rules: Arc<RuleSet>, export: impl Into<Arc<str>>) -> Self {
        Self::with_clients_max(rules, export, CLIENTS_MAX)
    }

    /// Like [`ClientCache::new`], with another limit (at least one).
    pub fn with_clients_max(rules: Arc<RuleSet>, export: impl Into<Arc<str>>, clients_max: usize) -> Self {
        let export = export.into();
        let anybody = Client::new(Arc::clone(&rules), Arc::clone(&export), Identity::unknown());
        Self { rules, export, clients: HashMap::new(), clients_max: clients_max.max(1), anybody }
    }

    /// Returns the action for a request of process or thread `pid` (0: unknown) and user `uid`.
    pub fn decide(
        &mut self,
        (pid, uid): (u32, u32),
        direction: Direction,
        offset_bytes: u64,
        len_bytes: u64,
        now: Instant,
    ) -> (Action, Option<RuleId>) {
        let for_anybody = self.anybody.refresh();
        if for_anybody.is_for_anybody() {
            return for_anybody.decide(direction, offset_bytes, len_bytes, now);
        }
        self.client(pid, uid, now).decide(direction, offset_bytes, len_bytes, now)
    }

    /// Returns whether no client is cached.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Returns the identity of a request's client.
    pub fn identity(&mut self, pid: u32, uid: u32, now: Instant) -> &Identity {
        self.client(pid, uid, now).identity()
    }

    fn client(&mut self, pid: u32, uid: u32, now: Instant) -> &mut Client {
        let key = (pid, uid);
        let known = self.clients.get(&key);
        let fresh = known.is_some_and(|c| now.saturating_duration_since(c.looked_up_at) < CLIENT_AGE_MAX);
        if !fresh {
            self.clients.remove(&key);
            self.make_room();
        }
        let Self { rules, export, clients, .. } = self;
        let remembered = clients.entry(key).or_insert_with(|| {
            let identity = Identity::of_process(rules.proc(), pid, uid);
            let client = Client::new(Arc::clone(rules), Arc::clone(export), identity);
            Remembered { client, looked_up_at: now, used_at: now }
        });
        remembered.used_at = now;
        &mut remembered.client
    }

    /// Evicts the least recently used client of a full cache. The scan is cheap compared with the
    /// look-up that follows.
    fn make_room(&mut self) {
        if self.clients.len() >= self.clients_max {
            let oldest = self.clients.iter().min_by_key(|(_, client)| client.used_at).map(|(key, _)| *key);
            oldest.and_then(|key| self.clients.remove(&key));
        }
    }
}
