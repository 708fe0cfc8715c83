//! Rule sets: compared with a naive evaluation, and with several threads. Processes that end are in
//! `processes`.

mod processes;

use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::arbitrary::{SMALL_VOLUME_BYTES, small_rule};
use super::*;

const VOLUME_BYTES: u64 = 1 << 30;

/// A process file system with process 10 (threads 10 and 11; rsync in /a/x) and 20 (unreadable
/// executable, in /b).
static WORLD: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    for (pid, tgid, exe, comm, cgroup) in [
        (10, 10, Some("/bin/rsync"), "other", "/a/x"),
        (11, 10, Some("/bin/rsync"), "other", "/a"),
        (20, 20, None, "shy", "/b"),
    ] {
        let folder = dir.path().join(pid.to_string());
        std::fs::create_dir(&folder).unwrap();
        let write = |file: &str, text: String| std::fs::write(folder.join(file), text).unwrap();
        let zeroes = "0 ".repeat(16);
        write("stat", format!("{pid} (x) S {zeroes}2 0 {} 0 0", pid * 100));
        write("status", format!("Name:\tx\nTgid:\t{tgid}\n"));
        write("comm", format!("{comm}\n"));
        write("cgroup", format!("0::{cgroup}\n"));
        if let Some(exe) = exe {
            symlink(exe, folder.join("exe")).unwrap();
        }
    }
    dir
});

fn world() -> ProcFs {
    ProcFs::at(WORLD.path())
}

fn rule(words: &str) -> Rule {
    words.parse().unwrap()
}

fn set() -> RuleSet {
    RuleSet::new(DefaultAction::Cache, VOLUME_BYTES)
}

fn add(set: &RuleSet, words: &str) -> RuleId {
    set.add(rule(words), Position::Last, Instant::now()).unwrap().id
}

fn order(set: &RuleSet) -> Vec<u64> {
    set.list(Instant::now()).iter().map(|report| report.id.0).collect()
}

/// Starts a real process that does nothing.
fn sleeper() -> Child {
    Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap()
}

fn end(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

// --- against the naive evaluation

/// Matches globs with `*` only, by trying everything.
fn glob(pattern: &[u8], name: &[u8], stops: bool) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len())
            .take_while(|end| !stops || !name[..*end].contains(&b'/'))
            .any(|end| glob(rest, &name[end..], stops)),
        Some((c, rest)) => name.first() == Some(c) && glob(rest, &name[1..], stops),
    }
}

/// Returns whether a rule matches a request, from its text and the content of `WORLD`.
fn plainly(rule: &Rule, pid: u32, uid: u32, export: &str, direction: Direction, at: u64, len: u64) -> bool {
    let (tgid, exe, name, cgroup) = match pid {
        10 => (10, "/bin/rsync", "rsync", "/a/x"),
        11 => (10, "/bin/rsync", "rsync", "/a"),
        20 => (20, "", "shy", "/b"),
        // No such process: only its number is known, and numbers alone match nothing.
        _ => (0, "", "", ""),
    };
    rule.to_string().split(' ').skip(1).all(|word| {
        let (key, value) = word.split_once('=').unwrap();
        let in_range = |n: u64| {
            let range = rule.conditions.lba.filter(|_| key == "lba").or(rule.conditions.size).unwrap();
            range.first() <= n && n <= range.last()
        };
        match key {
            "pid" => tgid != 0 && value == pid.to_string(),
            "tgid" => tgid != 0 && value == tgid.to_string(),
            "uid" => value == uid.to_string(),
            "exe" if value.contains('/') => glob(value.as_bytes(), exe.as_bytes(), true),
            "exe" => glob(value.as_bytes(), name.as_bytes(), true),
            "cgroup" if value.ends_with('/') => format!("{cgroup}/").starts_with(value) && !cgroup.is_empty(),
            "cgroup" => glob(value.as_bytes(), cgroup.as_bytes(), true),
            "export" => glob(value.as_bytes(), export.as_bytes(), false),
            "lba" => in_range(at),
            "size" => in_range(len),
            "direction" => value == direction.to_string(),
            other => panic!("{other}"),
        }
    })
}

/// Creates a set, without the rules that can match nothing.
fn small_set(rules: Vec<Rule>) -> (RuleSet, Vec<(RuleId, Rule)>, Vec<Shadowed>) {
    let now = Instant::now();
    let set = RuleSet::with_proc(DefaultAction::Bypass, SMALL_VOLUME_BYTES, world());
    let accepted: Vec<Rule> =
        rules.into_iter().filter(|rule| set.replace_all(vec![rule.clone()], now).is_ok()).collect();
    let warnings = set.replace_all(accepted, now).unwrap();
    let listed = set.list(now).into_iter().map(|report| (report.id, report.rule)).collect();
    (set, listed, warnings)
}

type Request = (u32, u32, &'static str, Direction, u64, u64);

fn requests() -> impl Iterator<Item = Request> {
    let clients = [(10, 0), (10, 5), (11, 0), (11, 5), (20, 0), (20, 5), (99, 5), (0, 0)];
    let exports = clients.into_iter().flat_map(|client| ["db", "vm", "d/x"].map(|export| (client, export)));
    exports.flat_map(|((pid, uid), export)| {
        (0..SMALL_VOLUME_BYTES).flat_map(move |at| {
            (1..=SMALL_VOLUME_BYTES - at).flat_map(move |len| {
                [Direction::Read, Direction::Write].map(|direction| (pid, uid, export, direction, at, len))
            })
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The compiled rules of a client, the cache by process and the naive evaluation agree, and the
    /// counters agree with them.
    #[test]
    fn compiled_rules_agree_with_the_list(rules in prop::collection::vec(small_rule(), 0..12)) {
        let now = Instant::now();
        let (set, listed, _) = small_set(rules);
        let set = Arc::new(set);
        let mut caches = ["db", "vm", "d/x"].map(|export| (export, ClientCache::new(Arc::clone(&set), export)));
        let mut counts = vec![(0u64, 0u64); listed.len()];
        for (pid, uid, export, direction, at, len) in requests() {
            let holds = |(_, rule): &(RuleId, Rule)| plainly(rule, pid, uid, export, direction, at, len);
            let first = listed.iter().position(holds);
            let expected = match first {
                Some(first) => (listed[first].1.action, Some(listed[first].0)),
                None => (Action::Bypass, None),
            };
            if let Some(first) = first {
                // Twice, because both ways are called.
                counts[first] = (counts[first].0 + 2, counts[first].1 + 2 * len);
            }
            let compiled = set.compile(&Identity::of_process(set.proc(), pid, uid), export);
            prop_assert_eq!(compiled.decide(direction, at, len, now), expected);
            let (_, cache) = caches.iter_mut().find(|(name, _)| *name == export).unwrap();
            prop_assert_eq!(cache.decide((pid, uid), direction, at, len, now), expected);
        }
        let reported: Vec<_> = set.list(now).iter().map(|report| (report.requests, report.bytes)).collect();
        prop_assert_eq!(reported, counts);
    }

    /// If a rule has a warning, then for each request that it matches, an earlier rule named by the
    /// warning matches too.
    #[test]
    fn shadowed_rules_decide_nothing(rules in prop::collection::vec(small_rule(), 2..16)) {
        let (_, listed, warnings) = small_set(rules);
        let index = |id: RuleId| listed.iter().position(|(other, _)| *other == id).unwrap();
        for warning in warnings {
            prop_assert!(!warning.by.is_empty());
            for (pid, uid, export, direction, at, len) in requests() {
                let holds = |rule: &Rule| plainly(rule, pid, uid, export, direction, at, len);
                if holds(&listed[index(warning.rule)].1) {
                    let taken = warning.by.iter().any(|(id, _)| {
                        index(*id) < index(warning.rule) && holds(&listed[index(*id)].1)
                    });
                    prop_assert!(taken, "{}", warning);
                }
            }
        }
    }

    /// The warnings are complete for rules on requests alone: each rule that decides nothing has
    /// one.
    #[test]
    fn rules_on_requests_are_shadowed_or_decide(
        rules in prop::collection::vec(small_rule(), 2..8).prop_map(|rules| {
            rules.into_iter().map(|rule| {
                let Conditions { lba, direction, .. } = rule.conditions;
                Rule { conditions: Conditions { lba, direction, ..Conditions::default() }, ..rule }
            }).collect::<Vec<_>>()
        })
    ) {
        let now = Instant::now();
        let (set, listed, warnings) = small_set(rules);
        let compiled = set.compile(&Identity::unknown(), "db");
        for (_, _, _, direction, at, len) in requests() {
            compiled.decide(direction, at, len, now);
        }
        let idle: Vec<_> = set.list(now).iter().filter(|r| r.requests == 0).map(|r| r.id).collect();
        let warned: Vec<_> = warnings.iter().map(|warning| warning.rule).collect();
        prop_assert_eq!(idle, warned, "{:?}", listed);
    }
}

// --- the list

#[test]
fn positions_numbers_and_names() {
    let set = set();
    let now = Instant::now();
    add(&set, "bypass name=a exe=a");
    add(&set, "bypass exe=b");
    let put = |words: &str, position| set.add(rule(words), position, now).map(|added| added.id);
    put("bypass exe=c", Position::First).unwrap();
    put("bypass exe=d", Position::Before(RuleId(2))).unwrap();
    put("bypass exe=e", Position::After(RuleId(1))).unwrap();
    assert_eq!(order(&set), [3, 1, 5, 4, 2]);
    put("bypass exe=f", Position::At(5)).unwrap();
    assert_eq!(order(&set), [3, 1, 5, 4, 2, 6]);
    let error = put("bypass exe=g", Position::At(7)).unwrap_err();
    assert!(error.to_string().contains("there is no place 7: the volume has 6 rules"), "{error}");
    assert_eq!(set.find_name("a"), Some(RuleId(1)));

    let generation = set.generation();
    let error = put("pin name=a", Position::Last).unwrap_err();
    assert!(error.to_string().contains("rule 1 is already called \"a\""), "{error}");
    assert_eq!(put("pin", Position::After(RuleId(9))).unwrap_err(), RuleError::NoSuchRule { id: RuleId(9) });
    assert_eq!(set.generation(), generation, "what failed changed nothing");

    assert_eq!(set.remove(RuleId(1), now).unwrap().rule, rule("bypass name=a exe=a"));
    assert_eq!(set.remove(RuleId(1), now).unwrap_err(), RuleError::NoSuchRule { id: RuleId(1) });
    assert_eq!(put("pin name=a", Position::Last).unwrap(), RuleId(7), "numbers are not used again");
}

#[test]
fn rule_errors_have_admin_error_kinds() {
    use forebay_admin::{AdminError, ErrorKind};
    let kind = |error: RuleError| AdminError::from(error).kind;
    assert_eq!(kind(RuleError::NoSuchRule { id: RuleId(1) }), ErrorKind::NotFound);
    assert_eq!(kind(RuleError::TooMany { max: 1 }), ErrorKind::Conflict);
    assert_eq!(kind("bypas".parse::<Rule>().unwrap_err()), ErrorKind::Invalid);
    let source = Box::new(RuleError::NameTaken { name: "a".into(), id: RuleId(1) });
    assert_eq!(kind(RuleError::InList { number: 1, source }), ErrorKind::Conflict);
    assert_eq!("7".parse::<RuleId>(), Ok(RuleId(7)));
    assert!("seven".parse::<RuleId>().unwrap_err().to_string().contains("number of a rule"));
}

#[test]
fn number_of_rules_is_limited() {
    let set = set();
    let many: Vec<Rule> = (0..RULES_MAX).map(|n| rule(&format!("pin uid={n}"))).collect();
    assert_eq!(set.replace_all(many.clone(), Instant::now()).unwrap(), []);
    let error = set.add(rule("pin uid=5000"), Position::Last, Instant::now()).unwrap_err();
    assert!(error.to_string().contains("already has 1000 rules"), "{error}");
    let too_many = many.into_iter().chain([rule("pin uid=5000")]).collect();
    assert!(matches!(set.replace_all(too_many, Instant::now()), Err(RuleError::TooMany { .. })));
}

#[test]
fn replacement_keeps_rules_and_is_atomic() {
    let set = set();
    let now = Instant::now();
    add(&set, "bypass uid=1");
    add(&set, "bypass uid=2");
    let client = Identity { uid: Some(2), ..Identity::default() };
    set.compile(&client, "db").decide(Direction::Read, 0, 512, now);
    set.replace_all(vec![rule("pin uid=3"), rule("bypass uid=2")], now).unwrap();
    assert_eq!(order(&set), [3, 2]);
    assert_eq!(set.list(now)[1].requests, 1);

    let error = set.replace_all(vec![rule("pin"), rule("pin size=0")], now).unwrap_err();
    assert!(error.to_string().starts_with("rule 2 of the list: the rule can match nothing: size"), "{error}");
    assert_eq!((error.key(), order(&set)), (Some("size"), vec![3, 2]));
    assert!(set.replace_all(vec![rule("pin name=x"), rule("bypass name=x")], now).is_err());
}

#[test]
fn rule_beyond_the_end_stays_in_the_list() {
    let set = set();
    set.replace_all(vec![rule("pin lba=2GiB..")], Instant::now()).unwrap();
    assert_eq!(order(&set), [1]);
    assert!(set.add(rule("bypass lba=2GiB.."), Position::Last, Instant::now()).is_err());
}

#[test]
fn rule_of_an_ended_process_may_stay_listed() {
    let set = set();
    let mut child = sleeper();
    let words = format!("bypass pid={}", child.id());
    add(&set, &words);
    end(&mut child);
    set.replace_all(vec![rule(&words), rule("pin uid=1")], Instant::now()).unwrap();
    assert_eq!(order(&set), [1, 2]);
    assert_eq!(set.expire(Instant::now()).len(), 1);
    assert!(set.replace_all(vec![rule(&words)], Instant::now()).is_err(), "now it would be a new one");
}

#[test]
fn clients_take_up_changes() {
    let set = Arc::new(set());
    let now = Instant::now();
    let mut client = Client::new(Arc::clone(&set), "db", Identity::unknown());
    let mut decide = |direction| client.decide(direction, 0, 4096, now).0;
    assert_eq!(decide(Direction::Read), Action::Cache);
    set.set_default_action(DefaultAction::Bypass);
    assert_eq!(decide(Direction::Read), Action::Bypass);
    let id = add(&set, "write-through direction=write");
    assert_eq!((decide(Direction::Read), decide(Direction::Write)), (Action::Bypass, Action::WriteThrough));
    set.remove(id, now).unwrap();
    assert_eq!(decide(Direction::Write), Action::Bypass);
    assert_eq!(set.default_action(), DefaultAction::Bypass);
}

#[test]
fn rule_counts_its_requests_and_expiry() {
    let set = set();
    let begin = Instant::now();
    set.add(rule("bypass size=4KiB expires=1min"), Position::Last, begin).unwrap();
    let compiled = set.compile(&Identity::unknown(), "db");
    compiled.decide(Direction::Read, 0, 512, begin);
    assert_eq!((set.list(begin)[0].requests, set.list(begin)[0].last_match_ago_ms), (0, None));
    compiled.decide(Direction::Read, 0, 4096, begin + Duration::from_secs(2));
    let report = set.list(begin + Duration::from_secs(5)).remove(0);
    assert_eq!((report.requests, report.bytes, report.last_match_ago_ms), (1, 4096, Some(3000)));
    assert_eq!(report.expires_in_ms, Some(55_000));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["rule"]["size"], "4KiB..=4KiB");
    assert_eq!(json["id"], 1);
}

#[test]
fn rules_can_change_while_a_thread_serves() {
    let set = Arc::new(set());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            let mut client = Client::new(Arc::clone(&set), "db", Identity::unknown());
            let mut served = 0u64;
            while !stop.load(Ordering::Relaxed) || served == 0 {
                let (action, id) = client.decide(Direction::Read, 0, 4096, Instant::now());
                assert_eq!(action == Action::Bypass, id.is_some());
                served += 1;
            }
            client.decide(Direction::Read, 0, 4096, Instant::now())
        });
        for _ in 0..500 {
            let id = add(&set, "bypass");
            set.remove(id, Instant::now()).unwrap();
        }
        let last = add(&set, "bypass");
        stop.store(true, Ordering::Relaxed);
        assert_eq!(served.join().unwrap(), (Action::Bypass, Some(last)), "the last change is seen");
    });
}

// --- warnings

#[test]
fn warnings_name_the_earlier_rules() {
    let set = set();
    let now = Instant::now();
    let warn = |words: &str, position| {
        let added = set.add(rule(words), position, now).unwrap();
        added.warnings.iter().map(|warning| (warning.rule.0, ids(warning))).collect::<Vec<_>>()
    };
    fn ids(warning: &Shadowed) -> Vec<u64> {
        warning.by.iter().map(|(id, _)| id.0).collect()
    }
    assert_eq!(warn("bypass exe=rsync", Position::Last), []);
    assert_eq!(warn("pin exe=/usr/bin/rsync uid=0", Position::Last), [(2, vec![1])]);
    assert_eq!(warn("pin exe=rs* uid=0", Position::Last), []);
    assert_eq!(warn("cache direction=read lba=0..1MiB", Position::Last), []);
    assert_eq!(warn("cache direction=read lba=1MiB.. uid=0", Position::Last), []);
    assert_eq!(warn("cache uid=0 direction=read", Position::Last), [(6, vec![4, 5])]);
    assert_eq!(warn("bypass uid=0", Position::First), [(3, vec![7]), (5, vec![7])]);
    // Rules 2 and 6 never applied before, and had their warnings then.

    let warning = set.add(rule("pin uid=0 size=4KiB"), Position::Last, now).unwrap().warnings.remove(0);
    assert_eq!(
        warning.to_string(),
        "rule 8 (pin uid=0 size=4KiB..=4KiB) never applies: all it matches is taken by the earlier rule 7 \
         (bypass uid=0); move it up, or remove it"
    );
}

#[test]
fn expiring_rule_shadows_only_for_a_while() {
    let set = set();
    let now = Instant::now();
    let warnings = |words: &str| set.add(rule(words), Position::Last, now).unwrap().warnings.len();
    assert_eq!(warnings("bypass uid=1 expires=1min"), 0);
    assert_eq!(warnings("pin uid=1"), 0);
    let me = std::process::id();
    assert_eq!(warnings(&format!("bypass tgid={me}")), 0);
    assert_eq!(warnings(&format!("cache pid={me}")), 1, "it ends no later than its group");
    assert_eq!(warnings("pin uid=2 expires=1min"), 0);
    assert_eq!(warnings("pin uid=2 direction=read expires=30s"), 1);
}

#[test]
fn many_overlapping_rules_are_checked_fast() {
    let set = RuleSet::new(DefaultAction::Cache, 1 << 40);
    let rules = (0..1000u64).map(|n| {
        let (at, len) = ((n * 7919) % 997, (n * 104_729) % 991);
        rule(&format!("pin lba={at}MiB..{}MiB size={len}KiB..{}KiB", at + 100, len + 100))
    });
    let begin = Instant::now();
    set.replace_all(rules.collect(), begin).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}
