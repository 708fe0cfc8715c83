//! The tree of control files: the meaning of paths, and the tables of plain values.
//! `docs/operate/control-fs.md` is the user documentation.
//!
//! Invariant: a path that [`parse`] accepts may still name a pool, volume, job or tunable that does
//! not exist; `content` checks that.

use super::format::{lines, oldest_age, optional, seconds};
use forebay_admin::{DaemonInfo, JobInfo, PoolInfo, Target, VolumeInfo};

/// Mode bits of a read-only file.
pub(super) const READ_ONLY: u16 = 0o444;
/// Mode bits of a file that the owner can write.
pub(super) const READ_WRITE: u16 = 0o644;
/// Mode bits of a file that only takes commands.
pub(super) const WRITE_ONLY: u16 = 0o200;

/// A file with one value of a structure.
#[derive(Debug)]
pub(super) struct Field<T> {
    pub(super) name: &'static str,
    pub(super) get: fn(&T) -> String,
}

/// The meaning of a path.
#[derive(Clone, Copy, Debug)]
pub(super) enum Node<'a> {
    Directory(Directory<'a>),
    File(File<'a>),
}

/// A directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Directory<'a> {
    Root,
    Daemon,
    Pools,
    Volumes,
    Jobs,
    Of(Target<'a>),
    Config(Target<'a>),
    Job(&'a str),
}

/// A file.
#[derive(Clone, Copy, Debug)]
pub(super) enum File<'a> {
    Alarms,
    Daemon(&'static Field<DaemonInfo>),
    Metrics,
    Pool(&'a str, &'static Field<PoolInfo>),
    Volume(&'a str, &'static Field<VolumeInfo>),
    Job(&'a str, &'static Field<JobInfo>),
    Setting(Target<'a>, &'a str),
    Stats(&'a str),
    FlashcacheStats(&'a str),
    FlashcacheErrors(&'a str),
    /// Lost ranges of this volume.
    Losses(&'a str),
    Flush(&'a str),
    Rules(&'a str),
    /// Of a pool or volume; in `daemon`, of any of them.
    LastError(Option<Target<'a>>),
    Cancel(&'a str),
}

impl File<'_> {
    /// Returns the permission bits, except for tunables: theirs depend on whether the tunable can
    /// be changed.
    pub(super) fn permissions(&self) -> u16 {
        match self {
            File::Flush(_) | File::Rules(_) | File::Setting(..) => READ_WRITE,
            File::Cancel(_) => WRITE_ONLY,
            _ => READ_ONLY,
        }
    }
}

macro_rules! fields {
    ($($name:literal: $get:expr),+ $(,)?) => { &[$(Field { name: $name, get: $get }),+] };
}

pub(super) const DAEMON: &[Field<DaemonInfo>] = fields! {
    "version": |d| d.version.clone(),
    "pid": |d| d.pid.to_string(),
    "started_unix_s": |d| d.started_unix_s.to_string(),
    "config": |d| optional(d.config.as_deref()),
    "resident_bytes": |d| d.resident_bytes.to_string(),
};

pub(super) const POOL: &[Field<PoolInfo>] = fields! {
    "devices": |p| lines(p.devices.iter().map(|device| format!("{} {}", device.size_bytes, device.path))),
    "capacity_bytes": |p| p.capacity_bytes.to_string(),
    "cached_bytes": |p| p.cached_bytes.to_string(),
    "dirty_bytes": |p| p.dirty_bytes.to_string(),
    "growable_to_bytes": |p| p.growable_to_bytes.to_string(),
    "fenced": |p| p.fenced.to_string(),
    "cache_failed": |p| p.cache_failed.to_string(),
    "mirror": |p| p.mirror.clone(),
    "lost_bytes": |p| p.lost_bytes.to_string(),
    "lost_ranges": |p| p.lost_ranges.to_string(),
    "io_engine": |p| p.io_engine.clone(),
    "volumes": |p| lines(&p.volumes),
    "absent": |p| lines(p.absent.iter().map(|(name, dirty_bytes)| format!("{dirty_bytes} {name}"))),
};

pub(super) const VOLUME: &[Field<VolumeInfo>] = fields! {
    "pool": |v| v.pool.clone(),
    "state": |v| v.state.name().into(),
    "backing": |v| v.backing.clone(),
    "exports": |v| lines(&v.exports),
    "size_bytes": |v| v.size_bytes.to_string(),
    "mode": |v| v.mode.clone(),
    "cached_bytes": |v| known(v.cached_bytes),
    "dirty_bytes": |v| known(v.dirty_bytes),
    "oldest_dirty_age_s": |v| oldest_age(v.oldest_dirty_age_ns),
    "destage_limited_by": |v| v.destage_limited_by.clone(),
    "ordered": |v| v.ordered.to_string(),
    "connections": |v| v.connections.to_string(),
    "job": |v| optional(v.job.as_deref()),
    "lost_bytes": |v| v.lost_bytes.to_string(),
    "lost_ranges": |v| v.lost_ranges.to_string(),
};

pub(super) const JOB: &[Field<JobInfo>] = fields! {
    "kind": |j| j.kind.clone(),
    "pool": |j| j.pool.clone(),
    "volume": |j| optional(j.volume.as_deref()),
    "state": |j| j.state.clone(),
    "phase": |j| j.phase.clone(),
    "bytes_total": |j| known(j.bytes_total),
    "bytes_left": |j| known(j.bytes_left),
    "percent": |j| j.percent.map_or_else(String::new, |percent| format!("{percent:.1}")),
    "rate_bytes_per_s": |j| known(j.rate_bytes_per_s),
    "eta_s": |j| j.eta_s.map(seconds).unwrap_or_default(),
    "elapsed_s": |j| seconds(j.elapsed_s),
    "deadline_at_risk": |j| j.deadline_at_risk.to_string(),
    "limited_by": |j| j.limited_by.clone().unwrap_or_default(),
    "errors": |j| j.errors.to_string(),
    "error": |j| optional(j.error.as_deref()),
};

const ALARMS: &str = "alarms";
const METRICS: &str = "metrics";
const CONFIG: &str = "config";
const LAST_ERROR: &str = "last_error";
const CANCEL: &str = "cancel";

/// Files of a volume in addition to its plain values.
type VolumeFile = (&'static str, fn(&str) -> File<'_>);
const VOLUME_FILES: &[VolumeFile] = &[
    ("stats", |name| File::Stats(name)),
    ("flashcache_stats", |name| File::FlashcacheStats(name)),
    ("flashcache_errors", |name| File::FlashcacheErrors(name)),
    ("losses", |name| File::Losses(name)),
    ("flush", |name| File::Flush(name)),
    ("rules", |name| File::Rules(name)),
    (LAST_ERROR, |name| File::LastError(Some(Target::Volume(name)))),
];

/// Top directories, in the order of a listing.
const TOP: [(&str, Directory<'_>); 4] = [
    ("daemon", Directory::Daemon),
    ("pools", Directory::Pools),
    ("volumes", Directory::Volumes),
    ("jobs", Directory::Jobs),
];

/// Returns the meaning of a path, if it has one.
pub(super) fn parse(path: &str) -> Option<Node<'_>> {
    use Node::{Directory as Dir, File as Leaf};
    let mut parts = path.split('/');
    let first = parts.next().unwrap_or_default();
    let rest: Vec<&str> = parts.take(4).collect(); // one more than any path has
    let top = TOP.iter().find(|(name, _)| *name == first).map(|(_, directory)| *directory);
    Some(match (top, rest.as_slice()) {
        (None, []) if first.is_empty() => Dir(Directory::Root),
        (None, []) if first == ALARMS => Leaf(File::Alarms),
        (Some(directory), []) => Dir(directory),
        (Some(Directory::Daemon), [LAST_ERROR]) => Leaf(File::LastError(None)),
        (Some(Directory::Daemon), [METRICS]) => Leaf(File::Metrics),
        (Some(Directory::Daemon), [name]) => Leaf(File::Daemon(field(DAEMON, name)?)),
        (Some(Directory::Pools), [pool, rest @ ..]) => in_pool(pool, rest)?,
        (Some(Directory::Volumes), [volume, rest @ ..]) => in_volume(volume, rest)?,
        (Some(Directory::Jobs), [job]) => Dir(Directory::Job(job)),
        (Some(Directory::Jobs), [job, CANCEL]) => Leaf(File::Cancel(job)),
        (Some(Directory::Jobs), [job, name]) => Leaf(File::Job(job, field(JOB, name)?)),
        _ => return None,
    })
}

fn field<T>(fields: &'static [Field<T>], name: &str) -> Option<&'static Field<T>> {
    fields.iter().find(|field| field.name == name)
}

fn in_pool<'a>(pool: &'a str, rest: &[&'a str]) -> Option<Node<'a>> {
    let target = Target::Pool(pool);
    match rest {
        [LAST_ERROR] => Some(Node::File(File::LastError(Some(target)))),
        [name] if *name != CONFIG => Some(Node::File(File::Pool(pool, field(POOL, name)?))),
        _ => common(target, rest),
    }
}

fn in_volume<'a>(volume: &'a str, rest: &[&'a str]) -> Option<Node<'a>> {
    let [name] = rest else { return common(Target::Volume(volume), rest) };
    if *name == CONFIG {
        return common(Target::Volume(volume), rest);
    }
    if let Some((_, make)) = VOLUME_FILES.iter().find(|(file, _)| file == name) {
        return Some(Node::File(make(volume)));
    }
    Some(Node::File(File::Volume(volume, field(VOLUME, name)?)))
}

/// Parses the part that pools and volumes have in common.
fn common<'a>(target: Target<'a>, rest: &[&'a str]) -> Option<Node<'a>> {
    match rest {
        [] => Some(Node::Directory(Directory::Of(target))),
        [CONFIG] => Some(Node::Directory(Directory::Config(target))),
        [CONFIG, key] => Some(Node::File(File::Setting(target, key))),
        _ => None,
    }
}

/// Returns the names of directories in the root, in order.
pub(super) fn top_directories() -> impl Iterator<Item = &'static str> {
    TOP.iter().map(|(name, _)| *name)
}

/// Returns the name of the file in the root.
pub(super) fn alarms_name() -> &'static str {
    ALARMS
}

/// Returns the names of the files of a directory with fixed content, except those of the root.
pub(super) fn file_names(directory: Directory<'_>) -> Vec<&'static str> {
    fn names<T>(fields: &'static [Field<T>], further: &[&'static str]) -> Vec<&'static str> {
        fields.iter().map(|field| field.name).chain(further.iter().copied()).collect()
    }
    match directory {
        Directory::Daemon => names(DAEMON, &[METRICS, LAST_ERROR]),
        Directory::Of(Target::Pool(_)) => names(POOL, &[LAST_ERROR]),
        Directory::Of(Target::Volume(_)) => {
            let further: Vec<&str> = VOLUME_FILES.iter().map(|(name, _)| *name).collect();
            names(VOLUME, &further)
        }
        Directory::Job(_) => names(JOB, &[CANCEL]),
        _ => Vec::new(),
    }
}

/// Returns the names of the subdirectories of a directory in which they are fixed.
pub(super) fn directory_names(directory: Directory<'_>) -> &'static [&'static str] {
    if matches!(directory, Directory::Of(_)) { &[CONFIG] } else { &[] }
}

/// Returns true if a name can be part of a path. (The names of pools and volumes can; this is a
/// second check.)
pub(super) fn is_file_name(name: &str) -> bool {
    const NAME_BYTES_MAX: usize = 255;
    !matches!(name, "" | "." | "..") && name.len() <= NAME_BYTES_MAX && !name.contains(['/', '\0'])
}

/// Formats a number; empty if it is unknown.
fn known(number: Option<u64>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_names_can_be_parsed() {
        let directories = [
            ("daemon", Directory::Daemon),
            ("pools/p", Directory::Of(Target::Pool("p"))),
            ("volumes/v", Directory::Of(Target::Volume("v"))),
            ("jobs/j1", Directory::Job("j1")),
        ];
        for (path, directory) in directories {
            assert!(matches!(parse(path), Some(Node::Directory(found)) if found == directory), "{path}");
            let names = file_names(directory);
            assert!(names.len() > 5, "{path}");
            for name in names {
                let path = format!("{path}/{name}");
                assert!(matches!(parse(&path), Some(Node::File(_))), "{path}");
                assert!(parse(&format!("{path}/x")).is_none(), "{path} is no directory");
            }
            for name in directory_names(directory) {
                assert!(matches!(parse(&format!("{path}/{name}")), Some(Node::Directory(_))));
            }
        }
    }

    #[test]
    fn other_paths_are_refused() {
        let wrong = [
            "x",
            "daemon/x",
            "daemon/version/x",
            "pools/p/state",
            "pools/p/config/k/x",
            "volumes/v/x",
            "volumes/v/config/k/x",
            "volumes/v/stats/x/y/z",
            "jobs/j/x",
            "/",
            "daemon/",
            "alarms/x",
        ];
        for path in wrong {
            assert!(parse(path).is_none(), "{path}");
        }
        assert!(matches!(
            parse("volumes/v/config/k"),
            Some(Node::File(File::Setting(Target::Volume("v"), "k")))
        ));
    }
}
