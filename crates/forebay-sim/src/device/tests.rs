//! Tests of the simulated device.

use super::*;

const LATENCY: Latency =
    Latency { read_ns: 1, write_ns: 1, flush_ns: 1, block_ns: 1, spread: 1, slow_ppm: 0, slow_ns: 0 };

fn device() -> SimDevice {
    SimDevice::new(64 << 10, LATENCY)
}

fn put(device: &mut SimDevice, offset: u64, byte: u8, len: usize, rng: &mut Rng) {
    let number = device.submit_write(offset, Rc::new(vec![byte; len]), rng);
    assert_eq!(device.complete_write(number), WriteEnd::Good);
}

fn first(device: &SimDevice, offset: u64) -> u8 {
    let mut byte = [0; 512];
    device.visible().read(offset, &mut byte);
    assert!(byte.iter().all(|other| *other == byte[0]), "a sector is never torn");
    byte[0]
}

#[test]
fn flushed_bytes_survive_every_power_cut() {
    let mut rng = Rng::new(3);
    let mut device = device();
    put(&mut device, 0, 1, 8192, &mut rng);
    let covered = device.submit_flush();
    put(&mut device, 8192, 2, 4096, &mut rng);
    assert!(device.complete_flush(covered, &mut rng));
    for _ in 0..100 {
        let cut = device.power_cut(&mut rng);
        assert!((0..16).all(|sector| first(&cut, sector * 512) == 1));
    }
}

#[test]
fn power_cut_reaches_each_unflushed_version() {
    let mut rng = Rng::new(4);
    let mut device = device();
    put(&mut device, 0, 1, 4096, &mut rng);
    let covered = device.submit_flush();
    assert!(device.complete_flush(covered, &mut rng));
    put(&mut device, 0, 2, 4096, &mut rng);
    put(&mut device, 0, 3, 4096, &mut rng);
    device.submit_write(0, Rc::new(vec![4; 4096]), &mut rng);
    let (mut seen, mut mixed) = ([false; 5], false);
    for _ in 0..500 {
        let cut = device.power_cut(&mut rng);
        let sectors: Vec<u8> = (0..8).map(|sector| first(&cut, sector * 512)).collect();
        sectors.iter().for_each(|byte| seen[usize::from(*byte)] = true);
        mixed |= sectors.iter().any(|byte| *byte != sectors[0]);
    }
    assert_eq!(seen, [false, true, true, true, true]);
    assert!(mixed);
}

#[test]
fn kill_keeps_completed_writes_volatile() {
    let mut rng = Rng::new(5);
    let mut device = device();
    put(&mut device, 0, 1, 512, &mut rng);
    assert!(!device.is_durable(0, 512) && device.is_durable(512, 512));
    device.submit_write(512, Rc::new(vec![2; 512]), &mut rng);
    let (mut landed, mut lost) = (0, 0);
    for _ in 0..200 {
        let killed = device.kill(&mut rng);
        assert_eq!(first(&killed, 0), 1);
        landed += u32::from(first(&killed, 512) == 2);
        lost += u32::from(first(&killed.power_cut(&mut rng), 0) == 0);
    }
    assert!(landed > 20 && landed < 180 && lost > 20);
}

#[test]
fn failed_flush_neither_persists_nor_drops() {
    let mut rng = Rng::new(6);
    let mut device = device();
    put(&mut device, 0, 1, 512, &mut rng);
    device.faults.flush_error = 1_000_000;
    let covered = device.submit_flush();
    assert!(!device.complete_flush(covered, &mut rng));
    assert!((0..100).any(|_| first(&device.power_cut(&mut rng), 0) == 0));
    device.quiet();
    let covered = device.submit_flush();
    assert!(device.complete_flush(covered, &mut rng));
    assert_eq!(first(&device.power_cut(&mut rng), 0), 1);
}

#[test]
fn failed_flush_may_drop_data() {
    let mut rng = Rng::new(9);
    let mut device = device();
    device.faults = Faults { flush_error: 1_000_000, flush_drops: true, ..Faults::default() };
    for sector in 0..16 {
        put(&mut device, sector * 512, 1, 512, &mut rng);
    }
    let covered = device.submit_flush();
    assert!(!device.complete_flush(covered, &mut rng));
    device.quiet();
    let covered = device.submit_flush();
    assert!(device.complete_flush(covered, &mut rng));
    let cut = device.power_cut(&mut rng);
    let kept = (0..16).filter(|sector| first(&cut, sector * 512) == 1).count();
    assert!((0..16).all(|sector| first(&device, sector * 512) == 1) && kept > 0 && kept < 16);
}

#[test]
fn lost_and_misdirected_writes_are_answered() {
    let mut rng = Rng::new(7);
    let mut device = device();
    device.faults.lost = 1_000_000;
    let number = device.submit_write(0, Rc::new(vec![1; 4096]), &mut rng);
    assert_eq!(device.complete_write(number), WriteEnd::Lost { offset: 0, len: 4096 });
    assert_eq!(first(&device, 0), 0);
    device.faults = Faults { misdirected: 1_000_000, ..Faults::default() };
    let number = device.submit_write(0, Rc::new(vec![1; 4096]), &mut rng);
    let WriteEnd::Misdirected { landed, .. } = device.complete_write(number) else { panic!() };
    assert_eq!(first(&device, landed), 1);
}

#[test]
fn spoiled_sectors_fail_until_written() {
    let mut rng = Rng::new(8);
    let mut device = device();
    device.spoil(1024);
    let mut bytes = [0; 4096];
    assert!(!device.read(0, &mut bytes, &mut rng));
    assert!(device.read(4096, &mut bytes, &mut rng));
    put(&mut device, 1024, 9, 512, &mut rng);
    assert!(device.read(0, &mut bytes, &mut rng));
}
