//! Event bridge: turns reports of pools into events, alarms and lines of the log.

use super::telemetry::{ServiceEvent, Telemetry};
use forebay_admin::events::{AlarmKey, EventKind, NewEvent, Severity};
use forebay_pool::PoolEvent;
use std::sync::Weak;

impl Telemetry {
    /// Handles a report of a pool; called on the pool's thread, so it must not wait for a pool.
    pub(super) fn on_pool_event(&self, pool: &str, event: PoolEvent) {
        self.publish(pool, &event);
        // A decrease of lost data shows in queries, not in the log.
        if !matches!(event, PoolEvent::Lost { more: false, .. }) {
            self.emit(ServiceEvent::Pool { pool: pool.into(), event });
        }
    }

    fn publish(&self, pool: &str, event: &PoolEvent) {
        let text = event.to_string();
        match event {
            PoolEvent::BlocksDamaged { volume, .. } => {
                self.hub().publish(NewEvent::new(EventKind::BlockDamaged, text).pool(pool).volume(volume));
            }
            PoolEvent::Lost { volume, more, .. } => {
                if *more {
                    self.hub().publish(
                        NewEvent::new(EventKind::BlockLost, text.as_str()).pool(pool).volume(volume),
                    );
                }
                self.hub().raise(AlarmKey::volume(EventKind::BlockLost, volume), Severity::Error, &text);
            }
            PoolEvent::LossEnded { volume } => {
                self.hub().clear(&AlarmKey::volume(EventKind::BlockLost, volume));
            }
            // Nothing maintains these alarms any longer. The next opening of the cache raises them
            // again.
            PoolEvent::Stopped { losers, .. } => {
                for volume in losers {
                    self.hub().clear(&AlarmKey::volume(EventKind::BlockLost, volume));
                }
            }
            PoolEvent::DestageFailed { volume, .. } => {
                self.hub().raise(
                    AlarmKey::volume(EventKind::DestageFailed, volume),
                    Severity::Warning,
                    &text,
                );
            }
            PoolEvent::DestageRecovered { volume } => {
                self.hub().clear(&AlarmKey::volume(EventKind::DestageFailed, volume));
            }
            PoolEvent::OperationFailed { volume, .. } => {
                let event = NewEvent::new(EventKind::DeviceFailed, text).pool(pool).details(event.details());
                self.hub().publish(match volume {
                    Some(volume) => event.volume(volume),
                    None => event,
                });
            }
            PoolEvent::DeviceEnded { volume, .. } => {
                self.hub().raise(ended(pool, volume.as_deref()), Severity::Error, &text);
            }
            PoolEvent::DeviceBack { volume, last: true, .. } => {
                self.hub().clear(&ended(pool, volume.as_deref()));
            }
            PoolEvent::StoreAway { volume, .. } => {
                self.hub().raise(AlarmKey::volume(EventKind::StoreAway, volume), Severity::Error, &text);
            }
            PoolEvent::StoreBack { volume, .. } => {
                self.hub().clear(&AlarmKey::volume(EventKind::StoreAway, volume));
            }
            PoolEvent::ExportLost { volume, .. } => {
                self.hub().raise(AlarmKey::volume(EventKind::ExportLost, volume), Severity::Error, &text);
            }
            PoolEvent::ExportsBack { volume } => {
                self.hub().clear(&AlarmKey::volume(EventKind::ExportLost, volume));
            }
            PoolEvent::PathLost { volume, .. } => {
                self.hub().raise(path_lost(pool, volume.as_deref()), Severity::Error, &text);
            }
            PoolEvent::PathFound { volume, last: true, .. } => {
                self.hub().clear(&path_lost(pool, volume.as_deref()));
            }
            PoolEvent::CacheWriteFailed { .. } => {
                self.hub().publish(NewEvent::new(EventKind::CacheWriteFailed, text).pool(pool));
            }
            PoolEvent::DiscardsRefused => {
                self.hub().publish(NewEvent::new(EventKind::DiscardsRefused, text).pool(pool));
            }
            PoolEvent::Degraded { .. } => {
                self.hub().raise(AlarmKey::pool(EventKind::CacheDegraded, pool), Severity::Warning, &text);
            }
            PoolEvent::MirrorWhole => {
                self.hub().clear(&AlarmKey::pool(EventKind::CacheDegraded, pool));
                self.hub().publish(NewEvent::new(EventKind::MirrorWhole, text).pool(pool));
            }
            PoolEvent::CacheFenced => {
                self.hub().raise(AlarmKey::pool(EventKind::CacheFenced, pool), Severity::Error, &text);
            }
            PoolEvent::RecordFailed { .. } => {
                self.hub().raise(AlarmKey::pool(EventKind::CacheFenced, pool), Severity::Error, &text);
            }
            PoolEvent::CacheFailed { .. }
            | PoolEvent::RescueEnded { .. }
            | PoolEvent::OpenedWithoutCache { .. } => {
                self.hub().clear(&AlarmKey::pool(EventKind::CacheFenced, pool));
                self.hub().clear(&AlarmKey::pool(EventKind::CacheDegraded, pool));
                self.hub().raise(AlarmKey::pool(EventKind::CacheFailed, pool), Severity::Error, &text);
            }
            PoolEvent::BackingChanged { volume, .. } => {
                self.hub().publish(NewEvent::new(EventKind::BackingChanged, text).pool(pool).volume(volume));
            }
            PoolEvent::BackingUncertain { volume, .. } => {
                self.hub()
                    .publish(NewEvent::new(EventKind::BackingUncertain, text).pool(pool).volume(volume));
            }
            PoolEvent::OrderLost { volume } => {
                self.hub().publish(NewEvent::new(EventKind::OrderLost, text).pool(pool).volume(volume));
            }
            PoolEvent::Resized { volume, .. } => {
                self.hub().publish(NewEvent::new(EventKind::VolumeResized, text).pool(pool).volume(volume));
            }
            PoolEvent::Scrubbed(scrubbed) => {
                let event = NewEvent::new(EventKind::PoolScrubbed, text).pool(pool);
                let harm = scrubbed.found_harm();
                self.hub().publish(if harm { event.severity(Severity::Warning) } else { event });
            }
            PoolEvent::ClientRefused { .. } => {
                self.hub().publish(NewEvent::new(EventKind::ClientRefused, text).pool(pool));
            }
            // Lines of the log only.
            PoolEvent::Note(..)
            | PoolEvent::Opened { .. }
            | PoolEvent::DeviceBack { last: false, .. }
            | PoolEvent::PathFound { last: false, .. }
            | PoolEvent::Ready { .. }
            | PoolEvent::Detached { .. }
            | PoolEvent::Stopping
            | PoolEvent::BeforeStop { .. }
            | PoolEvent::GivenUp { .. }
            | PoolEvent::NotClosed { .. } => {}
        }
    }
}

/// Returns the alarm of a device that is too short: a backing store, or a cache device.
fn ended(pool: &str, volume: Option<&str>) -> AlarmKey {
    of_device(EventKind::DeviceEnded, pool, volume)
}

/// Returns the alarm of a file whose path no longer leads to it.
fn path_lost(pool: &str, volume: Option<&str>) -> AlarmKey {
    of_device(EventKind::DevicePathLost, pool, volume)
}

fn of_device(condition: EventKind, pool: &str, volume: Option<&str>) -> AlarmKey {
    match volume {
        Some(volume) => AlarmKey::volume(condition, volume),
        None => AlarmKey::pool(condition, pool),
    }
}

/// Returns the callback from a pool's thread, which reports as long as the service exists.
pub(super) fn reporter(telemetry: Weak<Telemetry>, pool: String) -> Box<dyn FnMut(PoolEvent) + Send> {
    Box::new(move |event| {
        if let Some(telemetry) = telemetry.upgrade() {
            telemetry.on_pool_event(&pool, event);
        }
    })
}
