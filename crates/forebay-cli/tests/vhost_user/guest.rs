//! A virtual machine without a processor: memory, rings filled by hand, and a frontend of another
//! project (the crate `vhost`), so that one side of the protocol is independent code.

use forebay_export::virtio::GuestMemory;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{
    VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{
    ByteValued, Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap,
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Descriptors of a ring.
pub(crate) const SIZE: u16 = 64;
/// Descriptors per request.
pub(crate) const PARTS: u16 = 4;
pub(crate) const MEMORY_BYTES: u64 = 64 << 20;
/// Memory of a request, regardless of its ring: two that are in flight at once have different
/// slots, otherwise one changes the other's data.
const SLOT_BYTES: u64 = 4 << 20;
const SLOTS: u16 = 14;
const SLOTS_AT: u64 = 8 << 20;
const _: () = assert!(SLOTS_AT + SLOTS as u64 * SLOT_BYTES <= MEMORY_BYTES);
const _: () = assert!(SLOTS * PARTS <= SIZE);
const RINGS_AT: u64 = 0x1_0000;
const RING_BYTES: u64 = 0x1_0000;

/// Flags of descriptors.
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// Kinds of requests.
pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

/// Time limit for any wait before the test fails.
const WITHIN: Duration = Duration::from_secs(60);

/// The driver's side of a ring.
pub(crate) struct Ring {
    at: u64,
    available: u16,
    seen: u16,
    kick: EventFd,
    pub(crate) call: EventFd,
    pub(crate) error: EventFd,
}

/// The machine; its memory and rings remain when the device ends.
pub(crate) struct Guest {
    pub(crate) memory: GuestMemory,
    pub(crate) rings: Vec<Ring>,
    pub(crate) frontend: Option<Frontend>,
    inflight: Option<(VhostUserInflight, File)>,
}

impl Guest {
    pub(crate) fn new(rings: usize) -> Self {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, MEMORY_BYTES).unwrap();
        let place = FileOffset::new(File::from(file), 0);
        let region =
            GuestRegionMmap::from_range(GuestAddress(0), MEMORY_BYTES as usize, Some(place)).unwrap();
        let counter = || EventFd::new(EFD_NONBLOCK).unwrap();
        let ring = |index: usize| Ring {
            at: RINGS_AT + index as u64 * RING_BYTES,
            available: 0,
            seen: 0,
            kick: counter(),
            call: counter(),
            error: counter(),
        };
        Self {
            memory: GuestMemory::from_regions(vec![region]).unwrap(),
            rings: (0..rings).map(ring).collect(),
            frontend: None,
            inflight: None,
        }
    }

    /// Connects as QEMU does.
    pub(crate) fn connect(&mut self, path: &Path) {
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        assert_eq!(self.connect_with(path, wanted, u64::MAX), wanted);
    }

    /// Connects to a device without other users. The previous guest is gone only once its
    /// connection is closed everywhere: a process forked by another test keeps it open until it
    /// executes its program.
    fn let_in(path: &Path) -> (Frontend, u64) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let frontend = Frontend::connect(path, 64).unwrap();
            match frontend.set_owner().and_then(|()| frontend.get_features()) {
                Ok(features) => return (frontend, features),
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Negotiates those of the features that the device supports, and starts all rings; returns the
    /// protocol features. Passes on the in-flight memory if there was a device before.
    pub(crate) fn connect_with(
        &mut self,
        path: &Path,
        protocol: VhostUserProtocolFeatures,
        virtio: u64,
    ) -> VhostUserProtocolFeatures {
        let (mut frontend, features) = Self::let_in(path);
        let protocol = protocol & frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(protocol).unwrap();
        if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        if protocol.contains(VhostUserProtocolFeatures::MQ) {
            assert!(frontend.get_queue_num().unwrap() >= self.rings.len() as u64);
        }
        assert!(features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0);
        // Without event indices (29): each kick and signal is sent.
        frontend.set_features(features & virtio & !(1 << 29)).unwrap();
        let region = self.memory.iter().next().unwrap();
        frontend.set_mem_table(&[VhostUserMemoryRegionInfo::from_guest_region(region).unwrap()]).unwrap();
        if protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD) {
            let (area, file) = self.inflight.take().unwrap_or_else(|| {
                let wanted = VhostUserInflight::new(0, 0, self.rings.len() as u16, SIZE);
                frontend.get_inflight_fd(&wanted).unwrap()
            });
            frontend.set_inflight_fd(&area, file.as_raw_fd()).unwrap();
            self.inflight = Some((area, file));
        }
        for (index, ring) in self.rings.iter().enumerate() {
            let host = |at| self.memory.get_host_address(GuestAddress(at)).unwrap() as u64;
            let config = VringConfigData {
                queue_max_size: SIZE,
                queue_size: SIZE,
                flags: 0,
                desc_table_addr: host(ring.at),
                avail_ring_addr: host(ring.at + 0x4000),
                used_ring_addr: host(ring.at + 0x8000),
                log_addr: None,
            };
            frontend.set_vring_num(index, SIZE).unwrap();
            frontend.set_vring_addr(index, &config).unwrap();
            frontend.set_vring_base(index, ring.seen).unwrap();
            frontend.set_vring_call(index, &ring.call).unwrap();
            frontend.set_vring_err(index, &ring.error).unwrap();
            frontend.set_vring_kick(index, &ring.kick).unwrap();
            frontend.set_vring_enable(index, true).unwrap();
        }
        self.frontend = Some(frontend);
        protocol
    }

    /// Truncates a file that the device has mapped, the guest's memory or the in-flight memory, and
    /// makes the device access it.
    pub(crate) fn cut(&mut self, of_guest: bool) {
        let kick = self.rings[0].kick.try_clone().unwrap();
        if !of_guest {
            self.submit(0, 0, FLUSH, 0, 0);
            let (_, file) = self.inflight.as_ref().unwrap();
            ftruncate(file, 0).unwrap();
        } else {
            // After this the test must not access it either.
            let region = self.memory.iter().next().unwrap();
            ftruncate(region.file_offset().unwrap().file(), 0).unwrap();
        }
        kick.write(1).unwrap();
    }

    /// Returns the address of a request's data; its header and status are before it.
    pub(crate) fn data_at(slot: u16) -> u64 {
        assert!(slot < SLOTS, "there is no slot {slot}");
        SLOTS_AT + u64::from(slot) * SLOT_BYTES + 0x1000
    }

    fn status_at(slot: u16) -> u64 {
        Self::data_at(slot) - 0x800
    }

    pub(crate) fn describe(&self, table: u64, index: u16, (address, len, flags, next): (u64, u32, u16, u16)) {
        let at = table + u64::from(index) * 16;
        self.put(at, address);
        self.put(at + 8, len);
        self.put(at + 12, flags);
        self.put(at + 14, next);
    }

    pub(crate) fn put<T: ByteValued>(&self, at: u64, value: T) {
        self.memory.write_obj(value, GuestAddress(at)).unwrap();
    }

    pub(crate) fn get<T: ByteValued>(&self, at: u64) -> T {
        self.memory.read_obj(GuestAddress(at)).unwrap()
    }

    pub(crate) fn table(&self, ring: usize) -> u64 {
        self.rings[ring].at
    }

    /// Writes the header of a request into memory; returns its address.
    pub(crate) fn header(&self, slot: u16, kind: u32, sector: u64) -> u64 {
        let at = Self::data_at(slot) - 0x1000;
        self.put(at, kind);
        self.put(at + 4, 0u32);
        self.put(at + 8, sector);
        self.put(Self::status_at(slot), 0xEEu8);
        at
    }

    /// Makes a request available: header, data that the device reads or writes, status.
    pub(crate) fn submit(&mut self, ring: usize, slot: u16, kind: u32, sector: u64, len: u32) {
        let header = self.header(slot, kind, sector);
        let (table, head) = (self.table(ring), slot * PARTS);
        let is_written = if matches!(kind, IN | GET_ID) { WRITE } else { 0 };
        self.describe(table, head, (header, 16, NEXT, head + 1));
        let status = if len > 0 { head + 2 } else { head + 1 };
        if len > 0 {
            self.describe(table, head + 1, (Self::data_at(slot), len, NEXT | is_written, status));
        }
        self.describe(table, status, (Self::status_at(slot), 1, WRITE, 0));
        self.offer(ring, head);
    }

    pub(crate) fn write(&mut self, ring: usize, slot: u16, sector: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(Self::data_at(slot))).unwrap();
        self.submit(ring, slot, OUT, sector, bytes.len() as u32);
    }

    pub(crate) fn data(&self, slot: u16, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_slice(&mut bytes, GuestAddress(Self::data_at(slot))).unwrap();
        bytes
    }

    pub(crate) fn status(&self, slot: u16) -> u8 {
        self.get(Self::status_at(slot))
    }

    /// Makes a chain available, without a kick.
    pub(crate) fn offer(&mut self, ring: usize, head: u16) {
        let Ring { at, available, .. } = self.rings[ring];
        self.put(at + 0x4000 + 4 + u64::from(available % SIZE) * 2, head);
        self.set_available(ring, available.wrapping_add(1));
    }

    pub(crate) fn set_available(&mut self, ring: usize, available: u16) {
        self.rings[ring].available = available;
        let at = GuestAddress(self.rings[ring].at + 0x4000 + 2);
        self.memory.store(available, at, std::sync::atomic::Ordering::Release).unwrap();
    }

    pub(crate) fn available(&self, ring: usize) -> u16 {
        self.rings[ring].available
    }

    pub(crate) fn kick(&self, ring: usize) {
        self.rings[ring].kick.write(1).unwrap();
    }

    /// Returns completed requests not returned before: slot, and bytes that the device has written.
    pub(crate) fn used(&mut self, ring: usize) -> Vec<(u16, u32)> {
        let at = self.rings[ring].at + 0x8000;
        let index: u16 =
            self.memory.load(GuestAddress(at + 2), std::sync::atomic::Ordering::Acquire).unwrap();
        let mut ended = Vec::new();
        while self.rings[ring].seen != index {
            let entry = at + 4 + u64::from(self.rings[ring].seen % SIZE) * 8;
            ended.push((self.get::<u32>(entry) as u16 / PARTS, self.get::<u32>(entry + 4)));
            self.rings[ring].seen = self.rings[ring].seen.wrapping_add(1);
        }
        ended
    }

    /// Waits for the completion of so many requests.
    pub(crate) fn wait(&mut self, ring: usize, count: usize) -> Vec<(u16, u32)> {
        let mut ended = Vec::new();
        let until = Instant::now() + WITHIN;
        loop {
            ended.extend(self.used(ring));
            if ended.len() >= count {
                assert_eq!(ended.len(), count, "more requests have ended than there were");
                return ended;
            }
            assert!(Instant::now() < until, "{} of {count} requests have ended", ended.len());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Executes one request; returns its status.
    pub(crate) fn run(&mut self, ring: usize, kind: u32, sector: u64, len: u32) -> u8 {
        self.submit(ring, 0, kind, sector, len);
        self.kick(ring);
        let ended = self.wait(ring, 1);
        assert_eq!(ended[0].0, 0);
        self.status(0)
    }
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + WITHIN;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
