//! Tests of the oracle.

use super::*;

fn oracle() -> Oracle {
    Oracle::new(&[128], false, true, |_, _| Some(Content::Zero))
}

fn write(oracle: &mut Oracle, tag: u64) -> WriteTicket {
    assert!(oracle.can_write(0, 0, 512));
    oracle.begin_write(0, (0, 512), Way::Cached, |_, _, _| Content::Tag(tag))
}

fn read(oracle: &mut Oracle, tag: u64) -> bool {
    let mut bytes = [0; 512];
    (if tag == 0 { Content::Zero } else { Content::Tag(tag) }).fill(&mut bytes);
    let begun = oracle.begin();
    oracle.check_read(0, 0, &bytes, begun).is_ok()
}

fn legal(oracle: &Oracle, tags: &[u64]) {
    for tag in 0..9 {
        assert_eq!(read(&mut oracle.clone(), tag), tags.contains(&tag), "content {tag}");
    }
}

#[test]
fn reads_see_last_and_concurrent_writes() {
    let mut o = oracle();
    legal(&o, &[0]);
    let one = write(&mut o, 1);
    legal(&o, &[0, 1]);
    o.end_write(one, true, false);
    legal(&o, &[1]);
    let (two, three) = (write(&mut o, 2), write(&mut o, 3));
    o.end_write(two, true, false);
    legal(&o, &[2, 3]);
    o.end_write(three, true, false);
    legal(&o, &[2, 3]);
    assert!(read(&mut o, 2));
    legal(&o, &[2]);
}

#[test]
fn a_read_may_be_as_old_as_its_submission() {
    let mut o = oracle();
    let begun = o.begin_read();
    let one = write(&mut o, 1);
    o.end_write(one, true, true);
    let flush = o.begin();
    o.flushed(0, flush);
    assert!(o.clone().check_read(0, 0, &[0; 512], begun).is_ok());
    let later = o.begin();
    assert!(o.check_read(0, 0, &[0; 512], later).is_err());
    o.power_cut();
    legal(&o, &[1]);
}

#[test]
fn power_cut_reverts_only_to_unflushed_data() {
    let mut o = oracle();
    for tag in 1..=4 {
        let ticket = write(&mut o, tag);
        o.end_write(ticket, true, false);
        if tag == 2 {
            let begun = o.begin();
            o.flushed(0, begun);
        }
    }
    write(&mut o, 5);
    let mut cut = o.clone();
    cut.power_cut();
    legal(&cut, &[2, 3, 4, 5]);
    assert!(read(&mut cut, 3));
    legal(&cut, &[3]);
    cut.power_cut();
    legal(&cut, &[3]);
    o.kill();
    legal(&o, &[4, 5]);
}

#[test]
fn surviving_bypass_writes_are_not_hidden() {
    let mut o = oracle();
    let one = write(&mut o, 1);
    o.end_write(one, true, false);
    let two = o.begin_write(0, (0, 512), Way::Past, |_, _, _| Content::Tag(2));
    o.end_write(two, true, false);
    let mut image = Image::new(4096);
    let mut lost = o.clone();
    lost.no_resurrection(0, &image);
    lost.power_cut();
    legal(&lost, &[0, 1, 2]);
    let mut bytes = [0; 512];
    Content::Tag(2).fill(&mut bytes);
    image.write(0, &bytes);
    o.no_resurrection(0, &image);
    o.power_cut();
    legal(&o, &[2]);
}

#[test]
fn fua_drops_earlier_versions() {
    let mut o = oracle();
    let one = write(&mut o, 1);
    o.end_write(one, true, false);
    let two = write(&mut o, 2);
    o.end_write(two, true, true);
    o.power_cut();
    legal(&o, &[2]);
}

#[test]
fn image_in_order_matches_one_instant() {
    let mut o = oracle();
    let mut put = |sector: u64, tag: u64, flush: bool| {
        let range = (sector * 512, 512);
        let ticket = o.begin_write(0, range, Way::Cached, |_, _, _| Content::Tag(tag));
        o.end_write(ticket, true, false);
        if flush {
            let begun = o.begin();
            o.flushed(0, begun);
        }
    };
    put(0, 1, false);
    put(1, 2, true);
    put(0, 3, false);
    put(1, 4, true);
    put(2, 5, true);
    let fits = |tags: [u64; 3]| {
        let mut image = Image::new(128 * 512);
        for (sector, tag) in (0..).zip(tags).filter(|(_, tag)| *tag > 0) {
            let mut bytes = [0; 512];
            Content::Tag(tag).fill(&mut bytes);
            image.write(sector * 512, &bytes);
        }
        o.check_order(0, u64::MAX, &image).is_ok()
    };
    for legal in [[0, 0, 0], [1, 0, 0], [0, 2, 0], [1, 2, 0], [3, 2, 0], [1, 4, 0], [3, 4, 0], [3, 4, 5]] {
        assert!(fits(legal), "{legal:?}");
    }
    for illegal in [[3, 0, 0], [0, 4, 0], [1, 2, 5], [3, 2, 5], [0, 0, 5], [1, 4, 5], [9, 2, 0]] {
        assert!(!fits(illegal), "{illegal:?}");
    }
}

#[test]
fn flush_covers_only_acknowledged_writes() {
    let mut o = oracle();
    let begun = o.begin();
    let one = write(&mut o, 1);
    o.end_write(one, true, false);
    o.flushed(0, begun);
    o.power_cut();
    legal(&o, &[0, 1]);
}

#[test]
fn first_read_after_a_kill_settles_content() {
    let mut o = oracle();
    write(&mut o, 1);
    o.kill();
    legal(&o, &[0, 1]);
    let mut undone = o.clone();
    assert!(read(&mut undone, 0));
    undone.power_cut();
    legal(&undone, &[0]);
    assert!(read(&mut o, 1));
    legal(&o, &[1]);
    o.power_cut();
    legal(&o, &[0, 1]);
}

#[test]
fn parts_of_sectors_compose() {
    let mut o = oracle();
    let ticket = o.begin_write(0, (500, 20), Way::Cached, |_, base, range| {
        base.with(range.start, &vec![7; range.len()])
    });
    assert!(!o.can_write(0, 0, 512) && !o.can_write(0, 512, 100) && o.can_write(0, 1024, 512));
    o.end_write(ticket, true, false);
    let mut bytes = [0; 1024];
    bytes[500..520].fill(7);
    let begun = o.begin();
    assert!(o.check_read(0, 0, &bytes, begun).is_ok());
    assert!(o.check_read(0, 490, &bytes[490..600], begun).is_ok());
    assert!(o.check_read(0, 0, &[0; 1024], begun).is_err());
}

#[test]
fn failed_write_allows_old_and_new_data() {
    let mut o = oracle();
    let one = write(&mut o, 1);
    o.end_write(one, false, false);
    legal(&o, &[0, 1]);
    assert!(read(&mut o, 0));
    legal(&o, &[0, 1]);
    let two = write(&mut o, 2);
    o.end_write(two, true, false);
    legal(&o, &[2]);
}

#[test]
fn damage_leaves_all_contents_until_a_read() {
    let mut o = Oracle::new(&[128], true, false, |_, _| Some(Content::Zero));
    for tag in [1, 2, 3] {
        let written = write(&mut o, tag);
        o.end_write(written, true, true);
    }
    o.power_cut();
    legal(&o, &[3]);
    o.doubt(vec![(0, 0)]);
    legal(&o, &[0, 1, 2, 3]);
    assert!(!o.can_write(0, 0, 100) && o.can_write(0, 0, 512));
    assert!(read(&mut o, 1));
    legal(&o, &[1]);
    // Not flushed: another crash with damage may bring back any of them, and a later one may not.
    o.power_cut();
    o.doubt(Vec::new());
    legal(&o, &[0, 1, 2, 3]);
    let written = write(&mut o, 4);
    o.end_write(written, true, false);
    legal(&o, &[4]);
    let flush = o.begin();
    o.flushed(0, flush);
    o.power_cut();
    o.doubt(Vec::new());
    legal(&o, &[4]);
}
