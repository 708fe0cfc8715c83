//! Clients as the serving thread holds them: one for each connection, or a bounded cache of them
//! where the client comes with each request (FUSE).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::compiled::Compiled;
use super::identity::Identity;
use super::rule::{Action, Direction, RuleId};
use super::set::RuleSet;

/// Clients that are remembered at once: more threads than that seldom do I/O to one volume in a
/// second.
pub const CLIENTS_MAX: usize = 1024;
/// How long what `/proc` said about a client is believed. In that time a process may start another
/// executable, move to another control group, or end and leave its number to another one.
pub const CLIENT_AGE_MAX: Duration = Duration::from_secs(1);

/// One client at one export: who it is, and the rules as it meets them.
#[derive(Debug)]
pub struct Client {
    rules: Arc<RuleSet>,
    export: Arc<str>,
    identity: Identity,
    compiled: Compiled,
}

impl Client {
    /// A client that connected.
    pub fn new(rules: Arc<RuleSet>, export: impl Into<Arc<str>>, identity: Identity) -> Self {
        let export = export.into();
        let compiled = rules.compile(&identity, &export);
        Self { rules, export, identity, compiled }
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What to do with a request. Rules that were changed since the last one are taken up first.
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

    /// The rules as they are now.
    #[inline]
    fn refresh(&mut self) -> &Compiled {
        if self.compiled.generation() != self.rules.generation() {
            self.compiled = self.rules.compile(&self.identity, &self.export);
        }
        &self.compiled
    }
}

/// Clients that come with each request as a number of a process and a user.
///
/// A request of a client that is remembered reads nothing from `/proc`. Beyond [`CLIENTS_MAX`], the
/// one whose last request is the longest ago is forgotten.
#[derive(Debug)]
pub struct ClientCache {
    rules: Arc<RuleSet>,
    export: Arc<str>,
    clients: HashMap<(u32, u32), Remembered>,
    clients_max: usize,
    /// The answer while no rule asks who the client is; then nobody need be looked up.
    anybody: Client,
}

#[derive(Debug)]
struct Remembered {
    client: Client,
    looked_up_at: Instant,
    used_at: Instant,
}

impl ClientCache {
    /// Remembers clients of one export.
    pub fn new(rules: Arc<RuleSet>, export: impl Into<Arc<str>>) -> Self {
        Self::with_clients_max(rules, export, CLIENTS_MAX)
    }

    /// As [`ClientCache::new`], with another limit (at least one).
    pub fn with_clients_max(rules: Arc<RuleSet>, export: impl Into<Arc<str>>, clients_max: usize) -> Self {
        let export = export.into();
        let anybody = Client::new(Arc::clone(&rules), Arc::clone(&export), Identity::unknown());
        Self { rules, export, clients: HashMap::new(), clients_max: clients_max.max(1), anybody }
    }

    /// What to do with a request of process or thread `pid` (0: not known) and user `uid`.
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

    /// Whether no client is remembered.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Who the client of a request is.
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

    /// Looks at all clients, which is little beside the look-up that it makes room for.
    fn make_room(&mut self) {
        if self.clients.len() >= self.clients_max {
            let oldest = self.clients.iter().min_by_key(|(_, client)| client.used_at).map(|(key, _)| *key);
            oldest.and_then(|key| self.clients.remove(&key));
        }
    }
}
