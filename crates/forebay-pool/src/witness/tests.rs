use super::*;
use forebay_io::SharedPage;

const S: i64 = 1_000_000_000;
/// The machine was booted at 1,000 s; it is 2,000 s now; the last write ended at 1,500 s.
const LAST: i64 = 1_500 * S;

fn clock() -> Clock {
    Clock { boot_id: "0123456789abcdeffedc".into(), now_ns: 2_000 * S, boot_ns: 1_000 * S }
}

fn file() -> Facts {
    Facts {
        unique: "file:1:2".into(),
        size_bytes: 1 << 20,
        mtime_ns: Some(LAST - S),
        ctime_ns: Some(LAST - S),
        heads: vec![1, 2, 3],
        ..Facts::default()
    }
}

fn disk() -> Facts {
    let block = Facts { is_block: true, mtime_ns: None, ctime_ns: None, ..file() };
    Facts { generation: Some(5), written_sectors: Some(100), ..block }
}

/// Seen when no write was in flight, with no write since.
fn settled(facts: Facts) -> Memory {
    Memory { began: 9, ended: 9, last_ns: LAST, facts, seen_at: 9, heads_at: 9, ..Memory::default() }
}

fn at(facts: &Facts, ns: i64) -> Facts {
    Facts { mtime_ns: Some(ns), ctime_ns: Some(ns), ..facts.clone() }
}

fn after_kill(now: &Facts, memory: &Memory) -> Suspicion {
    judge(now, Some(memory), None, &clock()).0
}

#[test]
fn file_at_rest_must_keep_its_exact_times() {
    let memory = settled(file());
    assert_eq!(after_kill(&file(), &memory), Suspicion::None);
    for later in [1, 4_000_000, S, 400 * S] {
        assert_eq!(after_kill(&at(&file(), LAST - S + later), &memory), Suspicion::Changed);
    }
    assert_eq!(after_kill(&at(&file(), 0), &memory), Suspicion::Changed);
    // chmod, chown, a new name; or a write whose time was set back.
    let renamed = Facts { ctime_ns: Some(1_800 * S), ..file() };
    assert_eq!(after_kill(&renamed, &memory), Suspicion::Uncertain);
}

#[test]
fn own_last_writes_explain_later_times() {
    let memory = Memory { began: 12, ended: 12, ..settled(file()) };
    assert_eq!(after_kill(&at(&file(), LAST), &memory), Suspicion::None);
    assert_eq!(after_kill(&at(&file(), LAST + 1), &memory), Suspicion::Changed);
    assert_eq!(after_kill(&file(), &memory), Suspicion::None);
    assert_eq!(after_kill(&at(&file(), 7), &memory), Suspicion::Changed);
}

#[test]
fn write_in_flight_leaves_times_uncertain() {
    let memory = Memory { began: 13, ended: 12, ..settled(file()) };
    assert_eq!(after_kill(&at(&file(), LAST), &memory), Suspicion::None);
    assert_eq!(after_kill(&at(&file(), LAST + SLACK_NS), &memory), Suspicion::Uncertain);
    assert_eq!(after_kill(&at(&file(), LAST + SLACK_NS + 1), &memory), Suspicion::Changed);
}

#[test]
fn foreign_first_block_is_always_a_change() {
    let other = Facts { heads: vec![1, 2, 4], ..file() };
    let mut memory = Memory { began: 13, ended: 12, ..settled(file()) };
    assert_eq!(after_kill(&other, &memory), Suspicion::Changed);
    memory.heads_written_at[2] = 13;
    assert_eq!(after_kill(&other, &memory), Suspicion::None);
}

#[test]
fn replaced_file_is_at_best_uncertain() {
    let memory = settled(file());
    let moved = Facts { unique: "file:1:3".into(), ..file() };
    assert_eq!(after_kill(&moved, &memory), Suspicion::Uncertain);
    assert_eq!(after_kill(&at(&moved, 1_800 * S), &memory), Suspicion::Changed);
}

#[test]
fn remote_times_are_compared_for_equality() {
    let remote = Facts { served_elsewhere: true, ..file() };
    let memory = settled(remote.clone());
    assert_eq!(after_kill(&remote, &memory), Suspicion::None);
    assert_eq!(after_kill(&at(&remote, 1_800 * S), &memory), Suspicion::Uncertain);
}

#[test]
fn sectors_written_at_rest_are_by_others() {
    let memory = settled(disk());
    assert_eq!(after_kill(&disk(), &memory), Suspicion::None);
    let written = Facts { written_sectors: Some(108), ..disk() };
    assert_eq!(after_kill(&written, &memory), Suspicion::Changed);
    let late = Memory { through_page_cache: true, ..memory.clone() };
    assert_eq!(after_kill(&written, &late), Suspicion::Uncertain);
    let busy = Memory { began: 10, ..memory.clone() };
    assert_eq!(after_kill(&written, &busy), Suspicion::Uncertain);
    let back = Facts { generation: Some(6), ..disk() };
    assert_eq!(after_kill(&back, &memory), Suspicion::Uncertain);
    let uncounted = Facts { written_sectors: None, ..disk() };
    assert_eq!(after_kill(&uncounted, &memory), Suspicion::Uncertain);
}

fn record(facts: Facts, boot_id: &str) -> Record {
    let written_heads = vec![1];
    Record {
        version: VERSION,
        volume: "db".into(),
        boot_id: boot_id.into(),
        noted_unix_ns: 900 * S,
        facts,
        written_heads,
    }
}

#[test]
fn times_after_boot_are_those_of_others() {
    let then = at(&file(), 900 * S);
    let record = record(then.clone(), "an earlier one");
    let judged = |now: &Facts, clock: &Clock| judge(now, None, Some(&record), clock).0;
    assert_eq!(judged(&then, &clock()), Suspicion::None);
    // The daemon's own writes after the record.
    assert_eq!(judged(&at(&then, 905 * S), &clock()), Suspicion::None);
    assert_eq!(judged(&at(&then, 1_001 * S), &clock()), Suspicion::Changed);
    let unset = Clock { now_ns: 100 * S, boot_ns: 90 * S, ..clock() };
    assert_eq!(judged(&at(&then, 905 * S), &unset), Suspicion::None);
    assert_eq!(judged(&Facts { heads: vec![1, 9, 3], ..then.clone() }, &clock()), Suspicion::None);
    assert_eq!(judged(&Facts { heads: vec![9, 2, 3], ..then }, &clock()), Suspicion::Changed);
}

#[test]
fn disk_after_power_cut_is_judged_by_heads() {
    let record = record(disk(), "an earlier one");
    let again = Facts { generation: Some(1), written_sectors: Some(3), ..disk() };
    assert_eq!(judge(&again, None, Some(&record), &clock()).0, Suspicion::None);
    let mounted = Facts { heads: vec![7, 2, 3], ..again };
    assert_eq!(judge(&mounted, None, Some(&record), &clock()).0, Suspicion::Changed);
}

#[test]
fn missing_memory_requires_equal_times() {
    let record = record(file(), &clock().boot_id);
    assert_eq!(judge(&file(), None, Some(&record), &clock()).0, Suspicion::None);
    assert_eq!(judge(&at(&file(), LAST), None, Some(&record), &clock()).0, Suspicion::Uncertain);
    let record = self::record(disk(), &clock().boot_id);
    assert_eq!(judge(&disk(), None, Some(&record), &clock()).0, Suspicion::None);
    let written = Facts { written_sectors: Some(101), ..disk() };
    assert_eq!(judge(&written, None, Some(&record), &clock()).0, Suspicion::Uncertain);
    assert_eq!(judge(&file(), None, None, &clock()).0, Suspicion::None);
}

#[test]
fn hidden_boot_id_matches_none() {
    let hidden = Clock { boot_id: String::new(), ..clock() };
    // Counters begin at 0 with each boot: an idle disk has the same values again.
    let idle = Facts { written_sectors: Some(0), ..disk() };
    let again = Facts { generation: Some(1), ..idle.clone() };
    for (then, now) in [("", &hidden), ("", &clock()), ("0123", &hidden)] {
        let before = record(idle.clone(), then);
        assert_eq!(
            judge(&again, None, Some(&before), now).0,
            Suspicion::None,
            "a loss of power is no change"
        );
        let mounted = Facts { heads: vec![7, 2, 3], ..again.clone() };
        assert_eq!(judge(&mounted, None, Some(&before), now).0, Suspicion::Changed);
        let since = Record { noted_unix_ns: 1_500 * S, ..before };
        assert_eq!(
            judge(&again, None, Some(&since), now).0,
            Suspicion::Uncertain,
            "after a kill it is not known"
        );
        assert_eq!(judge(&idle, None, Some(&since), now).0, Suspicion::None);
    }
    let with_dashes = record(file(), "01234567-89ab-cdef-fedc");
    assert_eq!(judge(&at(&file(), LAST), None, Some(&with_dashes), &clock()).0, Suspicion::Uncertain);
}

#[test]
fn shared_memory_holds_what_was_counted() {
    let page = SharedPage::private().expect("memory");
    let boot = &clock().boot_id;
    assert_eq!(memory::read(&page, boot), None);
    memory::begin(&page, boot, 1, &file());
    let fresh = Memory { facts: file(), ..Memory::default() };
    assert_eq!(memory::read(&page, boot), Some(fresh.clone()));
    assert_eq!(memory::read(&page, "another one"), None);
    assert_eq!(memory::read(&page, ""), None);

    memory::write_begins(&page, 2..40, false, 70);
    memory::write_begins(&page, 40..41, true, 60);
    memory::write_ended(&page, 80);
    let now = memory::read(&page, boot).expect("it is there");
    assert_eq!((now.began, now.ended, now.last_ns, now.through_page_cache), (2, 1, 80, true));
    assert_eq!((now.heads_written_at[1], now.heads_written_at[2], now.heads_written_at[31]), (0, 1, 1));
    assert_eq!(memory::heads_written_since(&page, 0).len(), 30);

    // The daemon died; the next one continues with the same page.
    memory::begin(&page, boot, 2, &disk());
    let next = memory::read(&page, boot).expect("it is there");
    assert_eq!((next.began, next.ended, next.seen_at, next.heads_at), (2, 2, 2, 2));
    assert_eq!((&next.facts, next.through_page_cache), (&disk(), false));
    assert!(!memory::see(&page, 1, &file(), 2, 2), "the page belongs to another process");
    assert!(memory::see(&page, 2, &file(), 2, 2));
    assert_eq!(memory::read(&page, boot).map(|now| now.facts), Some(file()));
}

#[test]
fn oversized_facts_are_not_stored() {
    let page = SharedPage::private().expect("memory");
    memory::begin(&page, &clock().boot_id, 1, &file());
    let long = Facts { unique: "x".repeat(4_096), ..file() };
    assert!(!memory::see(&page, 1, &long, 0, 0));
    let full = Facts { unique: "x".repeat(200), heads: vec![u32::MAX; HEADS], ..disk() };
    assert!(memory::see(&page, 1, &full, 0, 0));
    assert_eq!(memory::read(&page, &clock().boot_id).map(|now| now.facts), Some(full));
}

#[test]
fn record_round_trips_and_damage_is_none() {
    let folder = std::env::temp_dir().join(format!("forebay-witness-{}", std::process::id()));
    let path = Record::path(&folder, [7; 16]);
    assert_eq!(Record::read(&path), None);
    let record = record(disk(), "x");
    record.store(&MayWait::here(), &path).expect("it is written");
    assert_eq!(Record::read(&path), Some(record));
    fs::write(&path, b"{").expect("it is written");
    assert_eq!(Record::read(&path), None);
    fs::remove_dir_all(&folder).expect("it is there");
}
