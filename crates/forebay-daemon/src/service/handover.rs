//! Hands pools and clients over to a successor, and reports the result to the operator.
//!
//! Until [`Service::hand_over`] has closed the pools, service can resume unchanged:
//! [`Service::go_on`].

use super::Service;
use super::pool_query::ask;
use crate::upgrade::{HandoverManifest, HandoverState};
use forebay_admin::events::EventKind;
use forebay_admin::{AdminError, MessageId, UpgradeBegun, VolumeState};
use forebay_pool::handover::HandoverSockets;
use forebay_pool::{Pool, PoolHandle, Promise};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time limit for clients to choose an export: those that have not cannot be handed over, and all
/// others wait for them.
const GREET_WITHIN: Duration = Duration::from_secs(1);
/// Time limit for clients to complete requests and negotiations in progress.
const QUIESCE_WITHIN: Duration = Duration::from_secs(10);
/// Time limit after disconnecting clients that did not quiesce.
const CUT_WITHIN: Duration = Duration::from_secs(1);
/// Time limit for closing the pools once all clients have quiesced: a pool that takes longer is
/// abandoned, and the upgrade fails.
const CLOSE_WITHIN: Duration = Duration::from_secs(60);
/// Time limit for a successor to start and to read the configuration, as the requester of the
/// upgrade sees it.
const BEGIN_WITHIN: Duration = Duration::from_secs(40);

impl Service {
    pub(super) fn ask_for_upgrade(&self) -> Result<UpgradeBegun, AdminError> {
        let refuse = |id, what: &str, hint: &str| Err(AdminError::new(id, what, hint));
        let Some(upgrader) = &self.upgrader else {
            return refuse(
                MessageId::UpgradeUnsupported,
                "`forebay run` cannot hand over to another process",
                "stop it and start it again",
            );
        };
        self.check_upgradable()?;
        if self.upgrading.swap(true, Ordering::SeqCst) {
            return refuse(
                MessageId::UpgradeBlocked,
                "an upgrade is already in progress",
                "`forebay status` shows its result",
            );
        }
        let (answer, promise) = Promise::pair();
        upgrader(answer);
        match promise.wait_or_give_up(BEGIN_WITHIN) {
            Some(Some(answer)) => answer,
            _ => Err(AdminError::new(MessageId::DaemonBusy, "the daemon is busy", "try again")),
        }
    }

    /// Refuses other requests for an upgrade while one is in progress: the API ends in the middle
    /// of it, so they would get no answer.
    pub(crate) fn set_upgrading(&self, upgrading: bool) {
        self.upgrading.store(upgrading, Ordering::SeqCst);
    }

    /// Checks that everything in progress can be handed over to a successor.
    ///
    /// # Errors
    /// The operation that cannot be handed over, and how to resolve it.
    pub(crate) fn check_upgradable(&self) -> Result<(), AdminError> {
        let conflict = |id, what: String, hint: &str| AdminError::new(id, what, hint);
        if let Some(job) = self.jobs.open().first() {
            return Err(conflict(
                MessageId::UpgradeBlocked,
                format!("job {} has not ended", job.id),
                "wait for it, or cancel it",
            ));
        }
        if let Err(held) = self.holds.check_all_free() {
            return Err(conflict(MessageId::UpgradeBlocked, held.what, &held.hint));
        }
        for (name, pool) in self.pools.all() {
            let snapshot = ask(&pool, |pool| pool.snapshot())?;
            if snapshot.fenced {
                // Closing the pool, and its clients with it, would wait for the end of the rescue;
                // and if data is lost and the device is not recognized, neither a successor nor
                // this process could open it.
                return Err(conflict(
                    MessageId::UpgradeBlocked,
                    format!("the cache of pool {name} has failed"),
                    &format!(
                        "replace it first: forebay pool replace {name} --device PATH[:SIZE]; or stop the \
                         daemon and start it again"
                    ),
                ));
            }
            // A successor opens everything by its path.
            ask(&pool, |pool| pool.check_paths("hand over"))??;
            if ask(&pool, |pool| pool.has_mounts())? {
                return Err(conflict(
                    MessageId::UpgradeBlocked,
                    format!(
                        "volumes of pool {name} are files (fuse:), whose open handles cannot be handed over"
                    ),
                    "unmount the file systems on them, stop the daemon and start it again",
                ));
            }
            if ask(&pool, |pool| pool.has_guests())? {
                return Err(conflict(
                    MessageId::UpgradeBlocked,
                    format!(
                        "volumes of pool {name} are devices of virtual machines (vhost-user:), whose \
                         connections cannot be handed over"
                    ),
                    "stop the daemon and start it again: with reconnect=1 a virtual machine waits and resumes",
                ));
            }
        }
        Ok(())
    }

    /// Checks that the configuration file still has every volume that is served: a successor
    /// follows the file, and would disconnect the clients of a volume that the file lacks. A file
    /// that this version does not understand may be valid for the successor, which checks it first.
    ///
    /// # Errors
    /// A volume is missing in the file, or a pool does not answer.
    pub(crate) fn check_file_keeps_volumes(&self) -> Result<(), AdminError> {
        let file = self.changing()?;
        let Ok(Some(newest)) = file.newest() else { return Ok(()) };
        let served = self.volumes_that_are_served()?;
        match served.iter().find(|name| !newest.volumes.contains_key(*name)) {
            None => Ok(()),
            Some(name) => Err(AdminError::new(
                MessageId::UpgradeBlocked,
                format!("volume {name} is served, but the configuration file no longer has it"),
                "detach it first: forebay reload",
            )),
        }
    }

    /// Returns the admin socket that a successor listens on, if the configuration file names
    /// another one now.
    pub(crate) fn moved_admin_socket(&self) -> Option<String> {
        let file = self.changing().ok()?;
        let newest = file.newest().ok()??.daemon.admin_socket;
        let now = self.catalog.config().daemon.admin_socket.clone();
        Some(newest).filter(|newest| *newest != now).map(|newest| newest.display().to_string())
    }

    /// Quiesces all clients, closes the pools and hands everything over.
    ///
    /// # Errors
    /// A client or pool does not quiesce. Service continues then.
    pub(crate) fn hand_over(&self) -> Result<(HandoverState, HandoverManifest), AdminError> {
        let mut changing = self.catalog.lock_file();
        self.jobs.set_passed_on(true);
        let pools = self.pools.all();
        let manifest = match self.quiesce_pools(&pools) {
            Ok(manifest) => manifest,
            Err(error) => {
                self.jobs.set_passed_on(false);
                self.go_on();
                return Err(error);
            }
        };
        let mut sockets = HandoverSockets::default();
        for (_, pool) in &pools {
            // No time limit: sockets missing here would be closed. A pool that has
            // ended has no clients.
            sockets.append(pool.ask_and_wait(Pool::hand_over).unwrap_or_default());
        }
        // A change in progress when the API ended may have opened it again.
        sockets.listeners.extend(self.give_metrics_away());
        let config = self.catalog.config().clone();
        let file = changing.take();
        drop(changing);
        let unclosed = self.close_within(&self.begin_stop(), CLOSE_WITHIN);
        Ok((HandoverState { sockets, unclosed, config, file }, manifest))
    }

    /// Waits for pools that were requested to stop; reports those that have not.
    pub(super) fn close_within(
        &self,
        pools: &BTreeMap<String, Arc<PoolHandle>>,
        within: Duration,
    ) -> Option<String> {
        let until = Instant::now() + within;
        let mut late = Vec::new();
        for (name, pool) in pools {
            if !pool.ends_by(until) {
                late.push(name.as_str());
            } else if let Err(error) = pool.stop() {
                self.telemetry.emit(super::ServiceEvent::Problem(
                    MessageId::PoolNotClosed,
                    format!("while handing over: {error}"),
                ));
            }
        }
        let late = (!late.is_empty()).then(|| late.join(", "))?;
        Some(format!("pool {late} was not closed within {} s: a device hangs, or is slow", within.as_secs()))
    }

    fn quiesce_pools(&self, pools: &[(String, Arc<PoolHandle>)]) -> Result<HandoverManifest, AdminError> {
        self.check_upgradable()?;
        // The next process to open the pools, perhaps this one, must be able to record them.
        self.check_recordable()?;
        let manifest = self.manifest()?;
        Self::quiesce(pools)?;
        self.check_upgradable()?; // a cache may have failed meanwhile
        Ok(manifest)
    }

    fn quiesce(pools: &[(String, Arc<PoolHandle>)]) -> Result<(), AdminError> {
        let began = pools.iter().map(|(name, pool)| Ok((name, pool, ask(pool, Pool::quiesce)?)));
        let mut busy: Vec<(&String, &Arc<PoolHandle>, Promise<()>)> =
            began.collect::<Result<_, AdminError>>()?;
        Self::await_quiesced(&mut busy, GREET_WITHIN);
        for (_, pool, _) in &busy {
            ask(pool, Pool::cut_greetings)?;
        }
        Self::await_quiesced(&mut busy, QUIESCE_WITHIN);
        for (_, pool, _) in &busy {
            ask(pool, Pool::cut_busy)?;
        }
        Self::await_quiesced(&mut busy, CUT_WITHIN);
        match busy.first() {
            None => Ok(()),
            Some((name, ..)) => Err(AdminError::new(
                MessageId::UpgradeRequests,
                format!("requests to pool {name} were not answered within {} s", QUIESCE_WITHIN.as_secs()),
                "a device hangs, or writers wait for a slow one: see `forebay top`, and try again",
            )),
        }
    }

    /// Waits for pools to quiesce and removes those that did from the list.
    fn await_quiesced(busy: &mut Vec<(&String, &Arc<PoolHandle>, Promise<()>)>, within: Duration) {
        let until = Instant::now() + within;
        busy.retain(|(_, _, promise)| {
            promise.try_wait(until.saturating_duration_since(Instant::now())).is_none()
        });
    }

    /// Lets all clients continue that were held, or came from a predecessor.
    pub(crate) fn go_on(&self) {
        self.listener_store.go_on();
        for (_, pool) in self.pools.all() {
            let _ = pool.ask(Pool::go_on); // one that has ended has no clients
        }
    }

    /// Returns the manifest at the time when clients begin to wait.
    fn manifest(&self) -> Result<HandoverManifest, AdminError> {
        let volumes = self.volumes_that_are_served()?;
        let quiesced_since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(HandoverManifest {
            volumes,
            passed: self.listener_store.has_passed(),
            quiesced_since_unix_ns: u64::try_from(quiesced_since.as_nanos()).unwrap_or(u64::MAX),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    /// # Errors
    /// A pool does not answer: the volumes are unknown.
    pub(super) fn volumes_that_are_served(&self) -> Result<BTreeSet<String>, AdminError> {
        let infos = self.volume_infos();
        if let Some(unknown) = infos.iter().find(|volume| volume.state == VolumeState::Unknown) {
            let why = unknown.why.clone().unwrap_or_default();
            return Err(AdminError::new(
                MessageId::Event(EventKind::PoolNotAnswering),
                why,
                "try again once it answers",
            ));
        }
        let served = infos.into_iter().filter(|volume| volume.state.is_served());
        Ok(served.map(|volume| volume.name).collect())
    }

    /// Checks that everything is served that the predecessor has served, and that is still
    /// configured.
    ///
    /// # Errors
    /// The volume that is not served, and why.
    pub(crate) fn check_manifest(&self, manifest: &HandoverManifest) -> Result<(), String> {
        let serving = self.volumes_that_are_served().map_err(|error| error.what)?;
        let configured = self.catalog.config().volumes.clone();
        for name in manifest.volumes.iter().filter(|name| configured.contains_key(*name)) {
            if !serving.contains(name) {
                let alarms = self.hub.alarms();
                let why: Vec<&str> = alarms.iter().map(|alarm| alarm.message.as_str()).collect();
                return Err(format!("volume {name} is not served by the successor: {}", why.join("; ")));
            }
        }
        Ok(())
    }
}
