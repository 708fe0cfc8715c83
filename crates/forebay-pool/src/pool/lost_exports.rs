//! Exports that another program has removed or hidden.
//!
//! Another program may unmount the file of a volume, mount over it, or remove its block device. The
//! volume is still served, but clients cannot find it there. That is an alarm and a state of the
//! volume, until the export is made again (a reload), the covering mount is gone, or the volume is
//! detached. The daemon does not make the export again on its own: the other program may have acted
//! on purpose.
//!
//! Invariant: an export is in [`Served::exported`] or in [`Served::lost_exports`], never in both.

use super::Pool;
use super::PoolEvent;
use super::volumes::Served;
use crate::frontends::ExportLoss;
use forebay_admin::VolumeState;
use forebay_export::uri::ExportUri;
use forebay_format::VolumeId;
use std::path::PathBuf;

/// A lost export.
#[derive(Debug)]
struct Lost {
    uri: ExportUri,
    /// The address that clients used.
    export: String,
    loss: ExportLoss,
}

impl Lost {
    /// Describes what happened, and what to do.
    fn text(&self, volume: &str) -> String {
        let (what, done) = match &self.uri {
            ExportUri::Fuse { path } => (format!("{}, the file of {volume}", path.display()), "unmounted"),
            _ => (format!("{}, the block device of {volume}", self.export), "removed"),
        };
        match &self.loss {
            ExportLoss::Covered(by) => {
                format!("{what}, is hidden by a mount on {0}: unmount that (umount {0})", by.display())
            }
            ExportLoss::Gone => format!(
                "another program has {done} {what}. The volume stays attached: forebay reload recreates the \
                 export (without a configuration file: restart the daemon)"
            ),
        }
    }
}

/// The lost exports of a volume.
#[derive(Debug, Default)]
pub(super) struct LostExports(Vec<Lost>);

impl LostExports {
    /// Forgets matching exports; returns true if there were any.
    pub(super) fn forget(&mut self, which: impl Fn(&ExportUri) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|lost| !which(&lost.uri));
        self.0.len() < before
    }

    /// Covered files, each with the mount point that covers it.
    pub(super) fn covered(&self) -> impl Iterator<Item = (PathBuf, PathBuf)> {
        self.0.iter().filter_map(|lost| match (&lost.uri, &lost.loss) {
            (ExportUri::Fuse { path }, ExportLoss::Covered(by)) => Some((path.clone(), by.clone())),
            _ => None,
        })
    }

    /// Describes what happened, and what to do, for each export.
    fn texts(&self, volume: &str) -> Vec<String> {
        self.0.iter().map(|lost| lost.text(volume)).collect()
    }
}

impl Served {
    /// Returns the lifecycle state to show to operators.
    pub(super) fn shown_state(&self) -> VolumeState {
        match self.state {
            VolumeState::Serving if !self.lost_exports.0.is_empty() => VolumeState::ExportLost,
            state => state,
        }
    }
}

impl Pool {
    /// Another program has removed or hidden an export, or has changed how it is lost.
    pub(super) fn export_lost(&mut self, id: VolumeId, uri: &ExportUri, loss: ExportLoss) {
        let served = self.served_mut(id).filter(|served| served.state != VolumeState::Detaching);
        let Some(served) = served else { return };
        if let Some(known) = served.lost_exports.0.iter_mut().find(|lost| lost.uri == *uri) {
            if std::mem::replace(&mut known.loss, loss.clone()) == loss {
                return;
            }
        } else {
            let Some(at) = served.exported.iter().position(|(exported, _)| exported == uri) else { return };
            let (uri, export) = served.exported.remove(at);
            served.spec.exports.retain(|exported| *exported != uri);
            served.lost_exports.0.push(Lost { uri, export, loss });
        }
        self.tell_lost_exports(id);
    }

    /// A covered export is visible again.
    pub(super) fn export_back(&mut self, id: VolumeId, uri: &ExportUri) {
        let Some(served) = self.served_mut(id) else { return };
        let Some(at) = served.lost_exports.0.iter().position(|lost| lost.uri == *uri) else { return };
        let Lost { uri, export, .. } = served.lost_exports.0.remove(at);
        served.spec.exports.push(uri.clone());
        served.exported.push((uri, export));
        self.tell_lost_exports(id);
    }

    /// The pool closes and serves no exports.
    pub(super) fn forget_all_lost_exports(&mut self) {
        for id in (0..self.volumes.len()).map(|at| VolumeId(at as u16)) {
            if self.served_mut(id).is_some_and(|served| served.lost_exports.forget(|_| true)) {
                self.tell_lost_exports(id);
            }
        }
    }

    /// Reports which exports of a volume are lost now.
    pub(super) fn tell_lost_exports(&mut self, id: VolumeId) {
        let Some(served) = self.served(id) else { return };
        let (volume, lost) = (served.spec.name.clone(), served.lost_exports.texts(&served.spec.name));
        self.emit(match lost.is_empty() {
            true => PoolEvent::ExportsBack { volume },
            false => PoolEvent::ExportLost { volume, lost },
        });
    }

    /// Returns the exports of a volume that are gone, and that a reload makes again.
    pub fn lost_exports(&self, name: &str) -> Vec<ExportUri> {
        let served = self.find(name).and_then(|id| self.served(id));
        let lost = served.iter().flat_map(|served| &served.lost_exports.0);
        lost.filter(|lost| lost.loss == ExportLoss::Gone).map(|lost| lost.uri.clone()).collect()
    }

    /// Forgets lost exports of a volume that are no longer configured.
    pub fn forget_lost_exports(&mut self, name: &str, uris: &[ExportUri]) {
        let Some(id) = self.find(name) else { return };
        if self.served_mut(id).is_some_and(|served| served.lost_exports.forget(|lost| uris.contains(lost))) {
            self.tell_lost_exports(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_exports_are_reported_with_a_remedy() {
        let file = ExportUri::Fuse { path: "/srv/db.img".into() };
        let covered = ExportUri::Fuse { path: "/srv/x/web.img".into() };
        let lost =
            |uri: &ExportUri, export: &str, loss| Lost { uri: uri.clone(), export: export.into(), loss };
        let mut lost = LostExports(vec![
            lost(&file, "fuse:///srv/db.img", ExportLoss::Gone),
            lost(&"ublk:".parse().unwrap(), "/dev/forebay/db", ExportLoss::Gone),
            lost(&covered, "fuse:///srv/x/web.img", ExportLoss::Covered("/srv/x".into())),
        ]);
        let texts = lost.texts("db");
        let has = |at: usize, part: &str| assert!(texts[at].contains(part), "{}", texts[at]);
        has(0, "unmounted /srv/db.img, the file of db");
        has(0, "forebay reload");
        has(1, "removed /dev/forebay/db, the block device of db");
        has(2, "umount /srv/x");
        assert_eq!(lost.covered().collect::<Vec<_>>(), [("/srv/x/web.img".into(), "/srv/x".into())]);
        assert!(lost.forget(|uri| *uri == file) && !lost.forget(|uri| *uri == file));
        assert_eq!(lost.texts("db").len(), 2);
    }
}
