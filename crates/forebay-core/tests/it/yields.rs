//! When an ordered volume that is kept gives up its order: only if nothing else makes room.

use crate::rig::Rig;
use forebay_core::{CoverageMark, DestageOrder, DetachHow, Notice, PoolSettings, VolumeSettings};
use forebay_format::VolumeId;

const SECOND_NS: u64 = 1_000_000_000;
const YIELDS: Notice = Notice::OrderYielded { volume: VolumeId(0) };

#[test]
fn kept_volume_keeps_its_order_if_possible() {
    let held =
        VolumeSettings { dirty_low_pct: 85, dirty_high_pct: 90, idle_delay: 0, ..VolumeSettings::default() };
    let ordered = VolumeSettings { destage_order: DestageOrder::Ordered, ..held };
    let pool = PoolSettings { dirty_limit_pct: 90, ..PoolSettings::default() };
    let mut rig = Rig::new((24, 32), 1 << 15, &[ordered, held], pool);
    // A batch for each write: a segment has about fifteen.
    rig.depth = 1;
    rig.rest(SECOND_NS);
    // Ordered blocks are never relocated, and every segment has some.
    rig.failing_backing_writes = u32::MAX;
    let mut block = 0;
    while rig.engine.stats().requests_in_flight == 0 {
        rig.write(if block % 8 == 3 { 0 } else { 1 }, 2 * block);
        block += 1;
    }
    rig.detach(0, DetachHow::Keep);
    (0..20).for_each(|at| rig.write(1, 10_000 + at));
    rig.rest(100 * SECOND_NS);
    assert!(rig.engine.stats().requests_in_flight > 0, "there is no room");
    assert!(
        !rig.notices.contains(&YIELDS),
        "what the other one has dirty may make room once it is written back"
    );
    assert!(!rig.engine.coverage().contains(CoverageMark::OrderYielded));
    rig.failing_backing_writes = 0;
    rig.rest(100 * SECOND_NS);
    assert_eq!(rig.engine.stats().requests_in_flight, 0, "{}", rig.engine.describe());
    assert!(rig.notices.contains(&YIELDS), "it did not: all segments had something of the kept one");
    assert!(rig.engine.coverage().contains(CoverageMark::OrderYielded));
    rig.engine.check_invariants();
}
