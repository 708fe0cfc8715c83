//! A volume as a device of a virtual machine: the real program, and a hand-written guest. No root,
//! no network, one private directory for each test.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod guest;
#[path = "../it/world/mod.rs"]
mod world;

use guest::*;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use vhost::VhostBackend;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vm_memory::{Bytes, GuestAddress};
use world::{DISK_BYTES, World, text};

const SECTORS: u64 = DISK_BYTES / 512;

impl World {
    fn socket(&self) -> PathBuf {
        self.path("vol.sock")
    }

    fn with_guests(&self, more: &[&str]) -> Command {
        let mut command = self.command("32MiB");
        command.args(["--export", &format!("vhost-user:{}", self.socket().display())]).args(more);
        command
    }

    fn start_with(&mut self, more: &[&str]) {
        self.serve(self.with_guests(more), 2);
    }

    fn start(&mut self) {
        self.start_with(&[]);
    }

    /// Reads bytes of the volume through another client.
    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.client().read_at(offset, &mut bytes).unwrap();
        bytes
    }

    fn forebay(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(arguments).args(["--admin", text(&self.path("admin"))]).output().unwrap()
    }
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ (at as u8).wrapping_mul(7) ^ seed).collect()
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn guest_writes_are_stored() {
    let mut world = World::new();
    world.start();
    let mut guest = Guest::new(1);
    guest.connect(&world.socket());
    // Within a block, across its boundary, and longer than a piece.
    for (number, (sector, len)) in
        [(0, 512), (7, 1024), (11, 4096), (64, 65536), (3001, (5 << 19) + 512)].into_iter().enumerate()
    {
        let bytes = pattern(number as u8 + 1, len);
        guest.write(0, 0, sector, &bytes);
        guest.kick(0);
        assert_eq!((guest.wait(0, 1), guest.status(0)), (vec![(0, 1)], 0));
        assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
        assert!(world.read(sector * 512, len) == bytes, "{sector} {len}: another client sees other data");
        guest.memory.write_slice(&vec![0; len], GuestAddress(Guest::data_at(1))).unwrap();
        guest.submit(0, 1, IN, sector, len as u32);
        guest.kick(0);
        assert_eq!((guest.wait(0, 1), guest.status(1)), (vec![(1, len as u32 + 1)], 0));
        assert!(guest.data(1, len) == bytes, "{sector} {len}: other data is read");
    }
    guest.rings[0].call.read().expect("the guest was signalled");
    assert_eq!(guest.run(0, IN, SECTORS, 512), 1, "behind the end");
    assert_eq!(guest.run(0, 99, 0, 0), 2, "unknown");
    world.stop();
}

#[test]
fn guests_discard_zero_and_identify() {
    let mut world = World::new();
    world.start();
    let mut guest = Guest::new(1);
    guest.connect(&world.socket());
    guest.write(0, 0, 0, &pattern(9, 1 << 20));
    guest.kick(0);
    guest.wait(0, 1);
    for (kind, ranges) in [
        (DISCARD, [range(0, 16, 0), range(64, 8, 0)].concat()),
        (WRITE_ZEROES, range(100, 3, 1)),
        (WRITE_ZEROES, range(200, 40, 0)),
    ] {
        guest.memory.write_slice(&ranges, GuestAddress(Guest::data_at(1))).unwrap();
        guest.submit(0, 1, kind, 0, ranges.len() as u32);
        guest.kick(0);
        guest.wait(0, 1);
        assert_eq!(guest.status(1), 0, "{kind}");
    }
    let mut expected = pattern(9, 1 << 20);
    for (sector, sectors) in [(0, 16), (64, 8), (100, 3), (200, 40)] {
        expected[sector * 512..(sector + sectors) * 512].fill(0);
    }
    assert!(world.read(0, 1 << 20) == expected);
    guest.memory.write_slice(&range(SECTORS, 1, 0), GuestAddress(Guest::data_at(1))).unwrap();
    guest.submit(0, 1, DISCARD, 0, 16);
    guest.kick(0);
    guest.wait(0, 1);
    assert_eq!(guest.status(1), 1);
    assert_eq!(guest.run(0, GET_ID, 0, 20), 0);
    assert_eq!(guest.data(0, 20), b"vol\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    let frontend = guest.frontend.as_mut().unwrap();
    let (_, config) = frontend.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]).unwrap();
    assert_eq!(config[..8], SECTORS.to_le_bytes());
    world.stop();
}

/// Requests of frontends other than QEMU, by their sources in 2026: Cloud Hypervisor
/// (`virtio-devices/src/vhost_user/blk.rs`) also requests a log of dirty memory, which is not
/// supported, and does not request notifications of a changed size; crosvm shares no in-flight
/// memory and waits for no replies.
#[test]
fn frontends_that_ask_for_less_are_served() {
    let cloud_hypervisor = VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::LOG_SHMFD;
    let crosvm = VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::BACKEND_REQ;
    let least = VhostUserProtocolFeatures::CONFIG;
    // Without indirect descriptors (28), event indices (29), discards (13), zeroes (14), more rings
    // (12).
    let few = !(1 << 28 | 1 << 29 | 1 << 12 | 1 << 13 | 1 << 14_u64);
    let asking = [(cloud_hypervisor, u64::MAX), (crosvm, u64::MAX), (least, few)];
    let mut world = World::new();
    world.start();
    for (at, (protocol, virtio)) in asking.into_iter().enumerate() {
        let mut guest = Guest::new(1);
        let given = guest.connect_with(&world.socket(), protocol, virtio);
        assert_eq!(given, protocol & !VhostUserProtocolFeatures::LOG_SHMFD);
        let frontend = guest.frontend.as_mut().unwrap();
        let (_, config) = frontend.get_config(0, 60, VhostUserConfigFlags::WRITABLE, &[0; 60]).unwrap();
        assert_eq!(config[..8], SECTORS.to_le_bytes());
        let (sector, bytes) = (at as u64 * 64, pattern(at as u8 + 1, 8192));
        guest.write(0, 0, sector, &bytes);
        guest.kick(0);
        guest.wait(0, 1);
        assert_eq!((guest.status(0), guest.run(0, FLUSH, 0, 0)), (0, 0));
        assert_eq!(guest.run(0, IN, sector, 8192), 0);
        assert_eq!(guest.data(0, 8192), bytes);
        assert_eq!(world.read(sector * 512, 8192), bytes);
        drop(guest);
    }
    world.stop();
}

#[test]
fn several_rings_are_served_at_once() {
    let mut world = World::new();
    world.start();
    const RINGS: usize = 4;
    let mut guest = Guest::new(RINGS);
    guest.connect(&world.socket());
    for round in 0..40u8 {
        for slot in 0..8u16 {
            let ring = usize::from(slot) % RINGS;
            guest.write(
                ring,
                slot,
                u64::from(round) * 64 + u64::from(slot) * 8,
                &pattern(round ^ slot as u8, 4096),
            );
        }
        (0..RINGS).for_each(|ring| guest.kick(ring));
        for ring in 0..RINGS {
            let mut slots: Vec<u16> = guest.wait(ring, 2).into_iter().map(|(slot, _)| slot).collect();
            slots.sort_unstable();
            assert_eq!(slots, [ring as u16, ring as u16 + 4]);
        }
        for slot in 0..8 {
            assert_eq!(guest.status(slot), 0);
        }
    }
    for round in 0..40u8 {
        for slot in 0..8u64 {
            let at = (u64::from(round) * 64 + slot * 8) * 512;
            assert!(world.read(at, 4096) == pattern(round ^ slot as u8, 4096), "{round} {slot}");
        }
    }
    // One ring stops, and resumes from its position; the others are unaffected.
    let base = guest.frontend.as_ref().unwrap().get_vring_base(1).unwrap();
    assert_eq!(base, u32::from(guest.available(1)));
    assert_eq!(guest.run(2, FLUSH, 0, 0), 0);
    world.stop();
}

/// Chains that no honest driver makes. `None`: they break the ring; otherwise the status in the
/// reply.
#[test]
fn hostile_chains_break_a_ring_at_most() {
    type Make = fn(&mut Guest, u64);
    let rows: [(&str, Option<u8>, Make); 16] = [
        ("a circle", None, |guest, header| {
            let table = guest.table(0);
            guest.describe(table, 0, (header, 16, NEXT, 1));
            guest.describe(table, 1, (header, 16, NEXT, 0));
        }),
        ("a link to nowhere", None, |guest, header| {
            guest.describe(guest.table(0), 0, (header, 16, NEXT, SIZE));
        }),
        ("outside of memory", None, |guest, header| {
            guest.describe(guest.table(0), 0, (header, 16, NEXT, 1));
            guest.describe(guest.table(0), 1, (MEMORY_BYTES - 1, 2, WRITE, 0));
        }),
        ("an address that wraps", None, |guest, _| {
            guest.describe(guest.table(0), 0, (u64::MAX - 3, 16, WRITE, 0));
        }),
        ("4 GiB", None, |guest, header| {
            guest.describe(guest.table(0), 0, (header, u32::MAX, NEXT, 1));
            guest.describe(guest.table(0), 1, (header, 2, WRITE, 0));
        }),
        ("no status", None, |guest, header| guest.describe(guest.table(0), 0, (header, 16, 0, 0))),
        ("a status of no bytes", None, |guest, header| {
            guest.describe(guest.table(0), 0, (header, 16, NEXT, 1));
            guest.describe(guest.table(0), 1, (header, 0, WRITE, 0));
        }),
        ("nothing at all", None, |guest, _| guest.describe(guest.table(0), 0, (0, 0, 0, 0))),
        ("read behind write", None, |guest, header| {
            guest.describe(guest.table(0), 0, (header + 0x800, 1, NEXT | WRITE, 1));
            guest.describe(guest.table(0), 1, (header, 16, 0, 0));
        }),
        ("a table in a table", None, |guest, header| {
            guest.describe(guest.table(0), 0, (header, 16, INDIRECT, 0));
            guest.describe(header, 0, (header, 16, INDIRECT, 0));
        }),
        ("a table of an odd size", None, |guest, header| {
            guest.describe(guest.table(0), 0, (header, 33, INDIRECT, 0));
        }),
        ("a head outside of the ring", None, |guest, _| {
            let available = guest.available(0);
            guest.put(guest.table(0) + 0x4000 + 4 + u64::from(available.wrapping_sub(1) % SIZE) * 2, SIZE);
        }),
        ("more than there can be", None, |guest, _| {
            let available = guest.available(0);
            guest.set_available(0, available.wrapping_add(SIZE));
        }),
        ("a header that is cut", Some(1), |guest, header| {
            guest.describe(guest.table(0), 0, (header, 15, NEXT, 1));
            guest.describe(guest.table(0), 1, (header + 0x800, 1, WRITE, 0));
        }),
        ("a header that is to be written", Some(1), |guest, header| {
            guest.describe(guest.table(0), 0, (header, 16, NEXT | WRITE, 1));
            guest.describe(guest.table(0), 1, (header + 0x800, 1, WRITE, 0));
        }),
        ("a sector that wraps", Some(1), |guest, header| {
            guest.put(header + 8, u64::MAX / 512 + 1);
            guest.describe(guest.table(0), 0, (header, 16, NEXT, 1));
            guest.describe(guest.table(0), 1, (header + 0x1000, 512, NEXT | WRITE, 2));
            guest.describe(guest.table(0), 2, (header + 0x800, 1, WRITE, 0));
        }),
    ];
    let mut world = World::new();
    world.start();
    for (name, status, make) in rows {
        let mut guest = Guest::new(2);
        guest.connect(&world.socket());
        let header = guest.header(0, IN, 0);
        // Complete before the device sees it: the index is moved first, and the kick comes last.
        guest.offer(0, 0);
        make(&mut guest, header);
        guest.kick(0);
        match status {
            Some(status) => {
                assert_eq!(guest.wait(0, 1)[0].0, 0, "{name}");
                assert_eq!(guest.status(0), status, "{name}");
                assert_eq!(guest.run(0, FLUSH, 0, 0), 0, "{name}: the ring goes on");
            }
            None => {
                until(name, || guest.rings[0].error.read().is_ok());
                assert!(guest.used(0).is_empty(), "{name}");
            }
        }
        assert_eq!(guest.run(1, FLUSH, 0, 0), 0, "{name}: the other ring goes on");
        assert!(world.client().read_at(0, &mut [0; 512]).is_ok(), "{name}: other clients go on");
    }
    let log = world.log();
    assert!(log.contains("is no longer served") && log.contains("form a loop"), "{log}");
    world.stop();
}

#[test]
fn hostile_messages_end_a_connection_only() {
    let mut world = World::new();
    world.start();
    let message = |request: u32, flags: u32, body: &[u8]| {
        [&request.to_le_bytes()[..], &flags.to_le_bytes(), &(body.len() as u32).to_le_bytes(), body].concat()
    };
    let kick = message(12, 1, &[0; 8]);
    for bytes in [
        message(99, 1, &[]),
        message(1, 2, &[]),
        message(8, 1, &[0; 3]),
        message(8, 1, &[0xFF; 8]),
        [&12u32.to_le_bytes()[..], &1u32.to_le_bytes(), &u32::MAX.to_le_bytes()].concat(),
        kick,
        message(5, 1, &[1, 0, 0, 0, 0, 0, 0, 0]),
        message(2, 1, &u64::MAX.to_le_bytes()),
    ] {
        use std::io::{Read, Write};
        let mut stream = UnixStream::connect(world.socket()).unwrap();
        stream.write_all(&bytes).unwrap();
        assert_eq!(stream.read(&mut [0; 64]).unwrap_or(0), 0, "{bytes:?}");
    }
    let mut guest = Guest::new(1);
    guest.connect(&world.socket());
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    world.stop();
}

#[test]
fn a_vanished_frontend_is_cleaned_up() {
    let mut world = World::new();
    world.start_with(&["--emulate", "hdd-7200"]);
    for round in 0..8u8 {
        let mut guest = Guest::new(2);
        guest.connect(&world.socket());
        for slot in 0..12u16 {
            // Reads that miss are slow.
            guest.submit(1, slot, IN, u64::from(slot) * 9000 + u64::from(round) * 64, 4096);
        }
        guest.kick(1);
        guest.write(0, 12, u64::from(round), &pattern(round, 512));
        guest.kick(0);
        guest.wait(0, 1);
        drop(guest);
    }
    let mut guest = Guest::new(1);
    guest.connect(&world.socket());
    for round in 0..8u8 {
        assert_eq!(guest.run(0, IN, u64::from(round), 512), 0);
        assert_eq!(guest.data(0, 512), pattern(round, 512));
    }
    world.stop();
}

#[test]
fn a_second_frontend_is_turned_away() {
    let mut world = World::new();
    world.start();
    let mut guest = Guest::new(1);
    guest.connect(&world.socket());
    for _ in 0..3 {
        let second = Frontend::connect(world.socket(), 1).unwrap();
        assert!(second.get_features().is_err());
    }
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    until("it is told", || world.log().contains("has a vhost-user frontend already"));
    drop(guest);
    let mut guest = Guest::new(1);
    guest.connect(&world.socket());
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    world.stop();
    assert!(!world.socket().exists(), "the socket is taken away");
}

#[test]
fn only_a_stale_own_socket_is_replaced() {
    let mut world = World::new();
    world.start();
    let mode = std::fs::metadata(world.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    world.kill();
    assert!(world.socket().exists());
    world.start();
    let mut guest = Guest::new(1);
    guest.connect(&world.socket());
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    world.stop();
    // A file, and a socket with a listener.
    std::fs::write(world.socket(), b"precious").unwrap();
    let refused = world.with_guests(&[]).output().unwrap();
    assert!(!refused.status.success());
    assert_eq!(std::fs::read(world.socket()).unwrap(), b"precious");
    std::fs::remove_file(world.socket()).unwrap();
    let _listener = UnixListener::bind(world.socket()).unwrap();
    let refused = world.with_guests(&[]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("vol.sock"), "{said}");
}

#[test]
fn guest_memory_must_be_memory() {
    let mut world = World::new();
    world.start();
    let frontend = Frontend::connect(world.socket(), 1).unwrap();
    frontend.set_owner().unwrap();
    frontend.get_features().unwrap();
    let disk = std::fs::File::options().read(true).write(true).open(world.path("disk")).unwrap();
    let region = vhost::VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: 1 << 20,
        userspace_addr: 1 << 30,
        mmap_offset: 0,
        mmap_handle: std::os::fd::AsRawFd::as_raw_fd(&disk),
    };
    let _ = frontend.set_mem_table(&[region]);
    assert!(frontend.get_features().is_err(), "the connection is over");
    let on_disk = || world.log().contains("its file is not in memory");
    let in_memory = std::process::Command::new("stat")
        .args(["-f", "-c", "%T", text(&world.path("disk"))])
        .output()
        .unwrap();
    if String::from_utf8_lossy(&in_memory.stdout).trim() == "tmpfs" {
        println!("skipped: the folder of the test is in memory");
    } else {
        until("it is told", on_disk);
    }
    world.stop();
}

#[test]
fn shrunk_memory_ends_only_its_connection() {
    let mut world = World::new();
    world.start();
    for (told, what) in ["the memory of the guest", "that of requests in flight"].into_iter().enumerate() {
        let mut guest = Guest::new(1);
        guest.connect(&world.socket());
        assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
        guest.cut(what == "the memory of the guest");
        until(what, || guest.frontend.as_ref().unwrap().get_features().is_err());
        drop(guest);
        assert!(world.client().read_at(0, &mut [0; 512]).is_ok(), "{what}: other clients go on");
        until("it is told", || world.log().matches("has truncated the memory of its guest").count() > told);
    }
    let mut guest = Guest::new(1);
    guest.connect(&world.socket());
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    world.stop();
}

/// Submits reads of blocks that are not cached, from slot 0 on.
fn read_misses(guest: &mut Guest, count: u16, sector: u64) {
    for slot in 0..count {
        guest.submit(0, slot, IN, u64::from(slot) * 9000 + sector, 4096);
    }
    guest.kick(0);
}

#[test]
fn requests_in_flight_resume_after_a_kill() {
    let mut world = World::new();
    const OPTIONS: [&str; 2] = ["--emulate", "hdd-7200"];
    /// Slots of reads; the next one is for the writes.
    const READS: u16 = 12;
    const WRITES: u16 = READS;
    let mut guest = Guest::new(2);
    let mut written = Vec::new();
    let mut left_over = 0;
    for round in 0..5u8 {
        world.start_with(&OPTIONS);
        while guest.rings[1].call.read().is_ok() {}
        guest.connect(&world.socket());
        // The completion of a request may not have been signalled before the kill.
        until("signalled at the start", || guest.rings[1].call.read().is_ok());
        if round > 0 {
            // The requests that the last process has not completed: each once.
            let mut slots: Vec<u16> = guest.wait(0, left_over).into_iter().map(|(slot, _)| slot).collect();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), left_over, "a request was completed twice");
        }
        read_misses(&mut guest, READS, u64::from(round) * 800);
        for number in 0..6u64 {
            let sector = u64::from(round) * 100 + number * 8;
            let bytes = pattern(round * 16 + number as u8, 4096);
            guest.write(1, WRITES, sector, &bytes);
            guest.kick(1);
            guest.wait(1, 1);
            assert_eq!(guest.status(WRITES), 0);
            written.push((sector, bytes));
        }
        // On a busy machine all reads may have completed: then submit more of them.
        for more in 1.. {
            world.pause();
            left_over = usize::from(READS) - guest.used(0).len();
            if left_over > 0 {
                break;
            }
            world.resume();
            read_misses(&mut guest, READS, u64::from(round) * 800 + more * 8);
        }
        world.kill();
    }
    world.start_with(&OPTIONS);
    guest.connect(&world.socket());
    let ended = guest.wait(0, left_over);
    assert_eq!(ended.len(), left_over);
    for (slot, len) in ended {
        assert_eq!((guest.status(slot), len), (0, 4097));
    }
    for (sector, bytes) in written {
        assert!(world.read(sector * 512, 4096) == bytes, "{sector}: an acknowledged write is lost");
    }
    world.stop();
    assert_eq!(guest.used(0), [], "and not one more");
}

#[test]
fn a_volume_of_a_guest_is_in_use_and_grows() {
    let mut world = World::new();
    world.start();
    let mut guest = Guest::new(1);
    guest.connect(&world.socket());
    let show = world.forebay(&["volume", "show", "vol", "--json"]);
    let shown = String::from_utf8_lossy(&show.stdout);
    assert!(shown.contains("\"connections\": 1") || shown.contains("\"connections\":1"), "{shown}");
    assert!(shown.contains("vhost-user://"), "{shown}");
    let refused = world.forebay(&["volume", "detach", "vol"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("a virtual machine is connected (uid "), "{said}");
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0, "the guest goes on");
    // The channel for notifications of the device.
    let (ours, theirs) = UnixStream::pair().unwrap();
    guest.frontend.as_mut().unwrap().set_backend_request_fd(&theirs).unwrap();
    drop(theirs);
    std::fs::File::options()
        .write(true)
        .open(world.path("disk"))
        .unwrap()
        .set_len(DISK_BYTES + 8192)
        .unwrap();
    let grown = world.forebay(&["volume", "resize", "vol", "max"]);
    assert!(grown.status.success(), "{}", String::from_utf8_lossy(&grown.stderr));
    let mut told = [0; 12];
    std::io::Read::read_exact(&mut &ours, &mut told).unwrap();
    assert_eq!(told, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    let frontend = guest.frontend.as_mut().unwrap();
    let (_, config) = frontend.get_config(0, 8, VhostUserConfigFlags::empty(), &[0; 8]).unwrap();
    assert_eq!(config, (SECTORS + 16).to_le_bytes());
    assert_eq!(guest.run(0, IN, SECTORS + 15, 512), 0);
    let cut_off = world.forebay(&["volume", "detach", "vol", "--force"]);
    assert!(cut_off.status.success(), "{}", String::from_utf8_lossy(&cut_off.stderr));
    assert!(guest.frontend.as_ref().unwrap().get_features().is_err(), "the guest is cut off");
    assert!(!world.socket().exists());
}

#[test]
fn a_failed_export_is_reported_once() {
    let world = World::new();
    let missing = world.path("missing");
    let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["run", "--backing", text(&world.path("disk"))])
        .args(["--cache", &format!("{}:32MiB", world.path("cache").display())])
        .args(["--export", &format!("vhost-user:{}/v.sock", missing.display())])
        .env("STATE_DIRECTORY", world.path("state"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(log.matches("cannot export v").count(), 1, "{log}");
    assert!(log.contains(&format!("there is no folder {}: create it", missing.display())), "{log}");
}
