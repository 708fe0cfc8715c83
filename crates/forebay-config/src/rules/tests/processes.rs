//! Rules and clients that come and go: processes that end, rules that expire, identities that are
//! refreshed.

use std::path::Path;

use super::*;

fn of_child(child: &Child) -> Identity {
    Identity::of_process(&ProcFs::default(), child.id(), 0)
}

#[test]
fn a_rule_ends_with_its_process() {
    let set = set();
    let mut child = sleeper();
    let by_pid = add(&set, &format!("bypass pid={}", child.id()));
    let by_group = add(&set, &format!("pin tgid={} direction=read", child.id()));
    add(&set, "pin uid=12345");
    let client = of_child(&child);
    assert_eq!(set.compile(&client, "db").decide(Direction::Read, 0, 1, Instant::now()).1, Some(by_pid));
    assert_eq!(set.compile(&Identity::unknown(), "db").decide(Direction::Read, 0, 1, Instant::now()).1, None);
    assert_eq!(set.expire(Instant::now()), []);

    // Killed, but not reaped: a zombie keeps its number and does no I/O.
    child.kill().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut dropped = set.expire(Instant::now());
    while dropped.len() < 2 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
        dropped.extend(set.expire(Instant::now()));
    }
    assert!(Path::new(&format!("/proc/{}", child.id())).exists(), "it is a zombie");
    child.wait().unwrap();
    let ids: Vec<_> = dropped.iter().map(|dropped| (dropped.report.id, dropped.reason)).collect();
    assert_eq!(ids, [(by_pid, DropReason::ProcessEnded), (by_group, DropReason::ProcessEnded)]);
    assert_eq!(order(&set), [3]);
    let words = format!("bypass pid={}", child.id());
    let error = set.add(rule(&words), Position::Last, Instant::now()).unwrap_err();
    assert!(matches!(error, RuleError::MatchesNothing { key: "pid", .. }), "{error}");
}

#[test]
fn later_process_with_the_number_differs() {
    let set = set();
    let mut child = sleeper();
    add(&set, &format!("bypass pid={}", child.id()));
    let mut later = of_child(&child);
    let decide =
        |client: &Identity| set.compile(client, "db").decide(Direction::Read, 0, 1, Instant::now()).0;
    assert_eq!(decide(&later), Action::Bypass);
    later.pid =
        later.pid.map(|task| KernelTask { start_ticks: task.start_ticks.map(|ticks| ticks + 1), ..task });
    assert_eq!(decide(&later), Action::Cache);
    later.pid = later.pid.map(|task| KernelTask { start_ticks: None, ..task });
    assert_eq!(decide(&later), Action::Cache, "unknown is not the same");
    end(&mut child);
}

#[test]
fn a_rule_ends_with_its_time() {
    let set = set();
    let begin = Instant::now();
    set.add(rule("bypass uid=1 expires=60s"), Position::Last, begin).unwrap();
    set.add(rule("bypass uid=2"), Position::Last, begin).unwrap();
    assert_eq!(set.expire(begin + Duration::from_millis(59_999)), []);
    let generation = set.generation();
    let dropped = set.expire(begin + Duration::from_secs(60));
    assert_eq!((dropped.len(), dropped[0].reason), (1, DropReason::Expired));
    assert_eq!(serde_json::to_value(&dropped[0]).unwrap()["reason"], "expired");
    assert_ne!(set.generation(), generation, "clients have to take it up");
    assert_eq!(order(&set), [2]);
}

#[test]
fn a_client_cache_is_bounded_and_refreshed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("10");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(WORLD.path().join("10/stat"), folder.join("stat")).unwrap();
    let call = |name: &str| std::fs::write(folder.join("comm"), name).unwrap();
    call("first\n");
    let set = Arc::new(RuleSet::with_proc(DefaultAction::Cache, VOLUME_BYTES, ProcFs::at(dir.path())));
    add(&set, "bypass exe=first");
    let mut cache = ClientCache::with_clients_max(Arc::clone(&set), "db", 2);
    let begin = Instant::now();
    let mut decide = |pid, ms| {
        let now = begin + Duration::from_millis(ms);
        cache.decide((pid, 0), Direction::Read, 0, 512, now).0
    };
    assert_eq!(decide(10, 0), Action::Bypass);
    call("second\n");
    assert_eq!(decide(10, 999), Action::Bypass, "no look at /proc for each request");
    assert_eq!(decide(10, 1000), Action::Cache, "but one now and then");
    call("first\n");
    assert_eq!((decide(11, 1001), decide(10, 1002)), (Action::Cache, Action::Cache));
    assert_eq!((decide(12, 1003), decide(10, 1004)), (Action::Cache, Action::Cache), "11 was used least");
    assert_eq!((decide(11, 1005), decide(12, 1006)), (Action::Cache, Action::Cache));
    assert_eq!(decide(10, 1007), Action::Bypass, "it had to give way and was looked up again");
}

#[test]
fn clients_are_not_looked_up_without_need() {
    let set = Arc::new(RuleSet::with_proc(DefaultAction::Cache, VOLUME_BYTES, world()));
    add(&set, "bypass direction=read");
    let mut cache = ClientCache::new(Arc::clone(&set), "db");
    let now = Instant::now();
    assert_eq!(cache.decide((10, 0), Direction::Read, 0, 512, now).0, Action::Bypass);
    assert!(cache.is_empty());
    add(&set, "bypass exe=rsync");
    assert_eq!(cache.decide((10, 0), Direction::Write, 0, 512, now).0, Action::Bypass);
    assert!(!cache.is_empty());
}
