//! Queries all pools at once: one that does not answer does not block the others.
//!
//! Invariants
//! - All pools are queried concurrently, with one common deadline.
//! - A pool that has missed it gets no further queries before it answers a ping: queries of it then
//!   cost nothing, and do not queue up for its thread.

use super::open_pools::OpenPools;
use forebay_admin::events::{AlarmKey, EventKind, Hub, Severity};
use forebay_admin::{AdminError, ErrorKind, MessageId};
use forebay_pool::{Pool, PoolGone, PoolHandle};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit for all pools together. A pool never waits for a device, so on a timeout its thread
/// hangs or has no processor; the API gives up after 5 s.
const WITHIN: Duration = Duration::from_secs(3);
/// Time without an answer after which a pool raises an alarm.
pub(super) const ALARM_AFTER: Duration = Duration::from_secs(10);

/// Results of the pools, by name.
pub(super) struct Looked<T> {
    /// Those that have answered.
    pub(super) answers: Vec<(String, T)>,
    /// Those that have not.
    pub(super) silent: Vec<String>,
}

impl OpenPools {
    /// Queries all open pools. A pool that has ended by itself counts as silent until it is removed
    /// from the table.
    pub(super) fn look_at_all<T: Send + 'static>(&self, what: fn(&mut Pool) -> T) -> Looked<T> {
        let until = Instant::now() + WITHIN;
        let begin = |(name, handle): (String, Arc<PoolHandle>)| {
            let look = handle.begin_look(what);
            (name, handle, look)
        };
        let begun: Vec<_> = self.all().into_iter().map(begin).collect();
        let mut looked = Looked { answers: Vec::new(), silent: Vec::new() };
        for (name, handle, look) in begun {
            match look.and_then(|look| handle.end_look(look, until)) {
                Ok(answer) => looked.answers.push((name, answer)),
                Err(_) => looked.silent.push(name),
            }
        }
        looked
    }

    /// Raises alarms of pools that have been silent for `alarm_after`, and clears those of others.
    pub(super) fn raise_silent(&self, hub: &Hub, alarm_after: Duration) {
        self.look_at_all(|_| ());
        for (name, handle) in self.all() {
            let key = AlarmKey::pool(EventKind::PoolNotAnswering, &name);
            match handle.silence() {
                None => drop(hub.clear(&key)),
                Some(silence) if silence >= alarm_after => {
                    let message = format!(
                        "pool {name} does not answer: a system call of its thread hangs, or the thread gets \
                         no CPU time. Its clients may wait; other pools continue. Check the kernel log \
                         (dmesg), then restart the daemon"
                    );
                    hub.raise(key, Severity::Error, &message);
                }
                Some(_) => {}
            }
        }
    }

    /// Describes the silence of a pool.
    pub(super) fn why_silent(&self, pool: &str) -> String {
        let silence = self.get(pool).and_then(|handle| handle.silence()).unwrap_or_default();
        format!("pool {pool} has not answered for {} s", silence.as_secs())
    }
}

/// Runs a closure in a pool and returns its result.
///
/// # Errors
/// The pool has stopped, or does not answer in time.
pub(super) fn ask<T: Send + 'static>(
    handle: &PoolHandle,
    what: impl FnOnce(&mut Pool) -> T + Send + 'static,
) -> Result<T, AdminError> {
    handle.ask(what).map_err(gone)
}

/// Queries one pool.
///
/// # Errors
/// As for [`ask`].
pub(super) fn look_at<T: Send + 'static>(
    handle: &PoolHandle,
    what: impl FnOnce(&mut Pool) -> T + Send + 'static,
) -> Result<T, AdminError> {
    let until = Instant::now() + WITHIN;
    handle.begin_look(what).and_then(|look| handle.end_look(look, until)).map_err(gone)
}

fn gone(error: PoolGone) -> AdminError {
    let id = match error {
        PoolGone::Stopped => MessageId::PoolStopped,
        PoolGone::Late | PoolGone::Silent | PoolGone::Stuck => MessageId::Event(EventKind::PoolNotAnswering),
    };
    AdminError::new(id, error, "look at the log of the daemon").of_kind(ErrorKind::Unavailable)
}

#[cfg(test)]
mod tests {
    use super::super::Service;
    use super::super::tests::start;
    use super::*;
    use forebay_admin::{Admin, MetricsForm, VolumeState};
    use std::sync::mpsc::{Sender, channel};

    /// Makes the pool hang until the result is dropped.
    fn hang(service: &Service, pool: &str) -> Sender<()> {
        let (go, hangs) = channel::<()>();
        let (begun, begins) = channel::<()>();
        service.handle(pool).unwrap().order(move |_| {
            begun.send(()).unwrap();
            let _ = hangs.recv();
        });
        begins.recv().unwrap();
        go
    }

    #[test]
    fn hanging_pool_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let service = start(folder.path(), Arc::default(), "auto");
        let go = hang(&service, "a");
        let pools = service.pools().unwrap();
        let told: Vec<_> = pools.iter().map(|pool| (pool.name.as_str(), pool.not_answering)).collect();
        assert_eq!(told, [("a", true), ("b", false)]);
        assert!(pools[0].why.as_ref().unwrap().contains("has not answered"), "{:?}", pools[0]);
        assert!(!pools[0].not_open && pools[0].volumes == ["a"] && pools[0].devices.len() == 1);
        assert!(pools[1].capacity_bytes > 0);
        let states: Vec<_> = service.volumes().unwrap().into_iter().map(|v| (v.name, v.state)).collect();
        assert_eq!(states, [("a".into(), VolumeState::Unknown), ("b".into(), VolumeState::Serving)]);
        let rates = service.rates().unwrap();
        assert!(rates.pools.contains_key("b") && !rates.pools.contains_key("a"));
        let stats = service.stats(None).unwrap();
        assert!(stats["pools"]["b"].is_object() && stats["not_answering"] == serde_json::json!(["a"]));
        let text = service.metrics(MetricsForm::Text).unwrap();
        for line in [
            "forebay_pool_state{pool=\"a\",state=\"not-answering\"} 1",
            "forebay_pool_state{pool=\"b\",state=\"open\"} 1",
            "forebay_volume_state{pool=\"a\",volume=\"a\",state=\"unknown\"} 1",
            "forebay_reads_total{pool=\"b\",volume=\"b\"} 0",
        ] {
            assert!(text.contains(line), "{line}:\n{text}");
        }
        assert!(service.volume_info("b").is_ok() && service.stats(Some("b")).is_ok());
        let error = service.stats(Some("a")).unwrap_err();
        assert!(error.what.contains("does not answer"), "{error:?}");
        // Whether the volume is served is unknown: a successor must not conclude that it is not.
        assert!(service.volumes_that_are_served().unwrap_err().what.contains("pool a"));

        drop(go);
        let until = Instant::now() + Duration::from_secs(30);
        while service.pools().unwrap()[0].not_answering {
            assert!(Instant::now() < until, "it answers again, and nobody hears it");
        }
        assert!(service.volumes().unwrap().iter().all(|volume| volume.state == VolumeState::Serving));
        assert!(service.stop().is_empty());
    }

    #[test]
    fn long_silence_raises_an_alarm() {
        let folder = tempfile::tempdir().unwrap();
        let service = start(folder.path(), Arc::default(), "auto");
        let go = hang(&service, "a");
        let handle = service.handle("a").unwrap();
        let alarmed =
            || service.hub.alarms().iter().any(|alarm| alarm.key.condition == EventKind::PoolNotAnswering);
        service.pools.raise_silent(&service.hub, Duration::MAX);
        assert!(!alarmed(), "a moment is no silence");
        let (asked, kept) = (Arc::new(()), Arc::new(()));
        let (in_asked, in_kept) = (Arc::clone(&asked), Arc::clone(&kept));
        assert!(handle.begin_look(move |_| drop(in_asked)).is_err());
        handle.order(move |_| drop(in_kept));
        assert_eq!(
            (Arc::strong_count(&asked), Arc::strong_count(&kept)),
            (1, 2),
            "a look waits at the thread"
        );
        service.pools.raise_silent(&service.hub, Duration::ZERO);
        assert!(alarmed());
        drop(go);
        let until = Instant::now() + Duration::from_secs(30);
        while alarmed() {
            assert!(Instant::now() < until, "it answers, and the alarm stays");
            service.pools.raise_silent(&service.hub, ALARM_AFTER);
        }
        assert!(service.stop().is_empty());
    }
}
