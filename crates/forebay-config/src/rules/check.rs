//! Refuses rules that can match nothing, and binds rules on processes to the current process with
//! that number.

use std::io;
use std::num::NonZeroU32;

use forebay_admin::size::ByteSize;

use super::error::RuleError;
use super::identity::KernelTask;
use super::proc::ProcFs;
use super::rule::{Conditions, Rule};

/// The processes that a rule names, at the time of its addition: a later process with the same
/// number is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bound {
    pub(super) pid: Option<KernelTask>,
    pub(super) tgid: Option<KernelTask>,
    /// The group of `pid`.
    pub(super) pid_tgid: Option<KernelTask>,
}

impl Bound {
    /// Returns whether a process that the rule needs has ended. A failed read does not count as an
    /// end.
    pub(super) fn has_ended(&self, proc: &ProcFs) -> bool {
        let ended = |task: KernelTask| match proc.stat(task.id) {
            Ok(Some(stat)) => stat.has_ended() || Some(stat.start_ticks) != task.start_ticks,
            Ok(None) => true,
            Err(_) => false,
        };
        self.pid.is_some_and(ended) || self.tgid.is_some_and(ended)
    }
}

/// Checks that a request to a volume of that size can match.
pub(super) fn ranges(conditions: &Conditions, volume_bytes: u64) -> Result<(), RuleError> {
    let nothing = |key, problem| Err(RuleError::MatchesNothing { key, problem });
    let begin = conditions.lba.map_or(0, |lba| lba.first());
    if conditions.lba.is_some() && begin >= volume_bytes {
        let (begin, size) = (ByteSize(begin), ByteSize(volume_bytes));
        return nothing("lba", format!("the range begins at {begin}, but the volume has {size}"));
    }
    let Some(size) = conditions.size else { return Ok(()) };
    if size.last() == 0 {
        return nothing("size", "no request has 0 bytes; give a range like ..64KiB".into());
    }
    let room = volume_bytes.saturating_sub(begin);
    if size.first() > room {
        let (least, room) = (ByteSize(size.first()), ByteSize(room));
        return nothing(
            "size",
            format!("a request of {least} does not fit: from there the volume has {room}"),
        );
    }
    Ok(())
}

/// Looks up the processes that a rule names.
pub(super) fn bind(rule: &Rule, proc: &ProcFs) -> Result<Bound, RuleError> {
    let Conditions { pid, tgid, .. } = rule.conditions;
    let mut bound = Bound::default();
    if let Some(tgid) = tgid {
        bound.tgid = Some(task(proc, "tgid", tgid)?);
        if let Some(group) = proc.tgid(tgid.get()).filter(|group| *group != tgid.get()) {
            let problem = format!("{tgid} is a thread of process {group}: write tgid={group}, or pid={tgid}");
            return Err(RuleError::MatchesNothing { key: "tgid", problem });
        }
    }
    if let Some(pid) = pid {
        bound.pid = Some(task(proc, "pid", pid)?);
        let group = proc.tgid(pid.get()).and_then(NonZeroU32::new);
        if let (Some(group), Some(tgid)) = (group, tgid)
            && group != tgid
        {
            let problem = format!("{pid} belongs to thread group {group}, not {tgid}: leave one of them out");
            return Err(RuleError::MatchesNothing { key: "pid", problem });
        }
        bound.pid_tgid = group.and_then(|group| task(proc, "pid", group).ok());
    }
    Ok(bound)
}

fn task(proc: &ProcFs, key: &'static str, id: NonZeroU32) -> Result<KernelTask, RuleError> {
    let pid = id.get();
    let cannot = |error: io::Error| RuleError::CannotCheck { key, pid, problem: error.to_string() };
    match proc.stat(pid).map_err(cannot)? {
        Some(stat) if !stat.has_ended() => Ok(KernelTask { id: pid, start_ticks: Some(stat.start_ticks) }),
        _ => {
            let problem = format!(
                "no process {pid} runs now, as far as the daemon can see (other PID name spaces, or a /proc \
                 mounted with hidepid, hide some); to match later processes use exe, uid or cgroup"
            );
            Err(RuleError::MatchesNothing { key, problem })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(words: &str, volume_bytes: u64) -> Option<String> {
        let rule: Rule = words.parse().unwrap();
        ranges(&rule.conditions, volume_bytes).err().map(|error| error.to_string())
    }

    #[test]
    fn ranges_must_reach_into_the_volume() {
        assert_eq!(refused("pin lba=0..1GiB", 1 << 20), None);
        assert_eq!(refused("pin lba=1MiB..", (1 << 20) + 1), None);
        assert_eq!(refused("pin size=1..", 1), None);
        for (words, part) in [
            ("pin lba=1MiB..", "begins at 1MiB, but the volume has 1MiB"),
            ("pin size=..1", "no request has 0 bytes"),
            ("pin size=0", "no request has 0 bytes"),
            ("pin size=2MiB..", "a request of 2MiB does not fit"),
            ("pin lba=512KiB.. size=768KiB..", "from there the volume has 512KiB"),
        ] {
            let message = refused(words, 1 << 20).expect(words);
            assert!(message.starts_with("the rule can match nothing") && message.contains(part), "{message}");
        }
    }

    #[test]
    fn processes_must_exist_and_agree() {
        let (me, proc) = (std::process::id(), ProcFs::default());
        let bind = |words: String| bind(&words.parse().unwrap(), &proc).map_err(|error| error.to_string());
        let bound = bind(format!("pin pid={me} tgid={me}")).unwrap();
        assert!(bound.pid.is_some() && bound.pid == bound.tgid && bound.pid_tgid == bound.pid);
        assert!(!bound.has_ended(&proc));
        let message = bind("pin pid=4294967295".into()).unwrap_err();
        assert!(message.contains("pid: no process 4294967295 runs now"), "{message}");
        let message = bind(format!("pin pid={me} tgid=1")).unwrap_err();
        assert!(message.contains(&format!("{me} belongs to thread group {me}, not 1")), "{message}");
    }

    #[test]
    fn reused_process_number_is_another_process() {
        let proc = ProcFs::default();
        let mut bound = bind(&format!("pin pid={}", std::process::id()).parse().unwrap(), &proc).unwrap();
        let task = bound.pid.as_mut().unwrap();
        task.start_ticks = task.start_ticks.map(|ticks| ticks + 1);
        assert!(bound.has_ended(&proc));
    }

    #[test]
    fn unreadable_proc_neither_ends_nor_binds() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("5")).unwrap();
        std::fs::write(dir.path().join("5/stat"), "nonsense").unwrap();
        let proc = ProcFs::at(dir.path());
        let message = bind(&"pin pid=5".parse().unwrap(), &proc).unwrap_err().to_string();
        assert!(message.contains("cannot look up process 5") && message.contains("malformed"), "{message}");
        let bound = Bound { pid: Some(KernelTask { id: 5, start_ticks: Some(1) }), ..Bound::default() };
        assert!(!bound.has_ended(&proc));
        assert!(bound.has_ended(&ProcFs::at(dir.path().join("5"))));
    }
}
