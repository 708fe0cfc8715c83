//! Content of the control files: results of [`Admin`] as text. Every call may block.

use super::format;
use super::layout::{self, Directory, File, Node};
use super::refusals::Refusals;
use super::{AlarmSource, errno};
use forebay_admin::{Admin, AdminError, ErrorKind, MessageId, MetricsForm, SettingInfo, Target};
use forebay_export::fuse::{Errno, Found, Need, NodeKind};
use std::sync::Arc;

type Entries = Vec<(String, NodeKind)>;

/// The files; see the top of this file. `write` implements the other direction.
pub(super) struct Content {
    pub(super) admin: Arc<dyn Admin>,
    pub(super) alarms: Option<AlarmSource>,
    pub(super) refusals: Refusals,
}

impl Content {
    /// Finds the data for a request.
    pub(super) fn look(&self, need: Need) -> Result<Found, Errno> {
        let found = match need {
            Need::Nothing => Ok(Found::Nothing),
            Need::NodeKind(path) => self.kind(&path).map(Found::NodeKind),
            Need::Listing(path) => self.list(&path).map(Found::Listing),
            Need::Text(path) => self.kind(&path).and_then(|kind| {
                let text = match (kind, layout::parse(&path)) {
                    (Some(NodeKind::File { .. }), Some(Node::File(file))) => self.text(file)?,
                    _ => String::new(),
                };
                Ok(Found::Text(kind, text))
            }),
        };
        found.map_err(|error| errno(error.kind))
    }

    /// Returns the kind of node at a path, if there is one.
    fn kind(&self, path: &str) -> Result<Option<NodeKind>, AdminError> {
        let kind = match layout::parse(path) {
            None => Ok(None),
            Some(Node::Directory(directory)) => {
                self.has(directory).map(|has| has.then_some(NodeKind::Directory))
            }
            Some(Node::File(file)) => self.file_kind(file),
        };
        match kind {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            kind => kind,
        }
    }

    fn file_kind(&self, file: File<'_>) -> Result<Option<NodeKind>, AdminError> {
        let owner = match file {
            File::Alarms => return Ok(self.alarms.as_ref().map(|_| plain(file))),
            File::Setting(target, key) => {
                return Ok(self.admin.settings(target)?.get(key).map(setting_kind));
            }
            File::Daemon(_) | File::Metrics | File::LastError(None) => Directory::Daemon,
            File::Pool(name, _) => Directory::Of(Target::Pool(name)),
            File::LastError(Some(target)) => Directory::Of(target),
            File::Job(id, _) | File::Cancel(id) => Directory::Job(id),
            File::Volume(name, _)
            | File::Stats(name)
            | File::FlashcacheStats(name)
            | File::FlashcacheErrors(name)
            | File::Losses(name)
            | File::Flush(name)
            | File::Rules(name) => Directory::Of(Target::Volume(name)),
        };
        Ok(self.has(owner)?.then(|| plain(file)))
    }

    /// Returns true if there is such a pool, volume or job.
    fn has(&self, directory: Directory<'_>) -> Result<bool, AdminError> {
        let has =
            |names: Vec<String>, name: &str| layout::is_file_name(name) && names.iter().any(|n| n == name);
        Ok(match directory {
            Directory::Of(Target::Pool(name)) | Directory::Config(Target::Pool(name)) => {
                has(self.admin.daemon().pools, name)
            }
            Directory::Of(Target::Volume(name)) | Directory::Config(Target::Volume(name)) => {
                has(self.admin.daemon().volumes, name)
            }
            Directory::Job(id) => layout::is_file_name(id) && self.admin.job(id).map(|_| true)?,
            _ => true,
        })
    }

    fn list(&self, path: &str) -> Result<Entries, AdminError> {
        let Some(Node::Directory(directory)) = layout::parse(path) else {
            return Err(AdminError::not_found(MessageId::ControlPath, "directory", path, &[]));
        };
        if !self.has(directory)? {
            return Err(AdminError::not_found(MessageId::ControlPath, "directory", path, &[]));
        }
        Ok(match directory {
            Directory::Root => {
                let mut entries = directories(layout::top_directories());
                let alarms =
                    self.alarms.as_ref().map(|_| (layout::alarms_name().into(), plain(File::Alarms)));
                entries.extend(alarms);
                entries
            }
            Directory::Pools => directories(self.admin.daemon().pools),
            Directory::Volumes => directories(self.admin.daemon().volumes),
            Directory::Jobs => directories(self.admin.jobs().into_iter().map(|job| job.id)),
            Directory::Config(target) => {
                let settings = self.admin.settings(target)?.into_iter();
                let files = settings.map(|(key, setting)| (key, setting_kind(&setting)));
                files.filter(|(key, _)| layout::is_file_name(key)).collect()
            }
            Directory::Daemon | Directory::Of(_) | Directory::Job(_) => fixed(path, directory),
        })
    }

    fn text(&self, file: File<'_>) -> Result<String, AdminError> {
        let admin = &self.admin;
        Ok(match file {
            File::Alarms => {
                self.alarms.as_ref().map(|alarms| alarms()).iter().flatten().map(format::alarm).collect()
            }
            File::Daemon(field) => format::file(&(field.get)(&admin.daemon())),
            File::Metrics => admin.metrics(MetricsForm::Text)?,
            File::Pool(name, field) => format::file(&(field.get)(&admin.pool(name)?)),
            File::Volume(name, field) => format::file(&(field.get)(&admin.volume(name)?)),
            File::Job(id, field) => format::file(&(field.get)(&admin.job(id)?)),
            File::Setting(target, key) => {
                let settings = admin.settings(target)?;
                let setting = settings
                    .get(key)
                    .ok_or_else(|| AdminError::not_found(MessageId::ControlPath, "tunable", key, &[]))?;
                format::file(&format::line(&setting.value))
            }
            File::Stats(name) => format::key_values(&admin.stats(Some(name))?),
            File::FlashcacheStats(name) => format::file(format::flashcache_parts(&admin.flashcache(name)?).0),
            File::FlashcacheErrors(name) => {
                format::file(format::flashcache_parts(&admin.flashcache(name)?).1)
            }
            File::Flush(name) => {
                let jobs = admin.jobs();
                let of_volume = |job: &&_| is_flush_of(job, name);
                format::file(&format::flush_state(jobs.iter().rev().find(of_volume)))
            }
            File::Losses(name) => format::losses(&admin.losses(name)?),
            File::Rules(name) => format::rules(&admin.rules(name)?),
            File::LastError(target) => format::file(&self.refusals.text(target)),
            File::Cancel(_) => String::new(),
        })
    }
}

fn is_flush_of(job: &forebay_admin::JobInfo, volume: &str) -> bool {
    job.kind == "flush" && job.volume.as_deref() == Some(volume)
}

fn plain(file: File<'_>) -> NodeKind {
    NodeKind::File { permissions: file.permissions() }
}

/// Returns the node of a tunable: read-only if it cannot be changed live.
fn setting_kind(setting: &SettingInfo) -> NodeKind {
    NodeKind::File { permissions: if setting.live { layout::READ_WRITE } else { layout::READ_ONLY } }
}

fn directories(names: impl IntoIterator<Item = impl Into<String>>) -> Entries {
    let names = names.into_iter().map(Into::into);
    names.filter(|name: &String| layout::is_file_name(name)).map(|name| (name, NodeKind::Directory)).collect()
}

/// Returns the entries of a directory with fixed content.
fn fixed(path: &str, directory: Directory<'_>) -> Entries {
    let files = layout::file_names(directory).into_iter().filter_map(|name| {
        match layout::parse(&format!("{path}/{name}")) {
            Some(Node::File(file)) => Some((name.to_owned(), plain(file))),
            _ => None,
        }
    });
    let mut entries: Entries = files.collect();
    entries.extend(directories(layout::directory_names(directory).iter().copied()));
    entries
}
