//! Devices alone: opening, locks, identity, sizes, and messages to operators.

use std::path::Path;

use forebay_io::{
    Device, DeviceError, DeviceKind, DeviceOptions, EnginePreference, Limits, Op, Reactor, Span,
    create_cache_file,
};

fn unlocked() -> DeviceOptions {
    DeviceOptions { lock: false, ..Default::default() }
}

#[test]
fn device_in_use_is_refused_until_released() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    create_cache_file(&path, 1 << 20, false, &[]).unwrap();
    let first = Device::open_cache(&path, DeviceOptions::default()).unwrap();
    let error = Device::open_cache(&path, DeviceOptions::default()).unwrap_err();
    assert!(matches!(error, DeviceError::InUse { .. }));
    let text = error.to_string();
    assert!(text.contains("cache is in use by this very process: remove it from the pool"), "{text}");
    Device::open_backing(&path, unlocked()).expect("a tool that does not ask for the lock gets in");
    drop(first);
    Device::open_cache(&path, DeviceOptions::default()).unwrap();
}

/// A file that can serve as a cache, in a directory of its own.
fn cache_file() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    create_cache_file(&path, 1 << 20, false, &[]).unwrap();
    (dir, path)
}

fn is_in_use(path: &Path) -> bool {
    match Device::open_backing(path, DeviceOptions::default()) {
        Ok(_) => false,
        Err(DeviceError::InUse { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn file_open_for_writing_is_in_use() {
    let (_dir, path) = cache_file();
    let reader = std::fs::File::open(&path).unwrap();
    assert!(!is_in_use(&path), "a reader does no harm");
    let writer = std::fs::File::options().append(true).open(&path).unwrap();
    let error = Device::open_backing(&path, DeviceOptions::default()).unwrap_err();
    let ours = |holder: &str| holder == "this very process"; // the daemon waits for others only
    assert!(matches!(&error, DeviceError::InUse { holder, .. } if ours(holder)), "{error}");
    let tool = DeviceOptions { read_only: true, ..Default::default() };
    Device::open_cache(&path, tool).expect("who only looks is not in the way");
    drop(writer);
    assert!(!is_in_use(&path));
    drop(reader);
}

/// Locks of this process: it does not own a lock that another open file holds.
fn has_locked(file: &std::fs::File, kind: rustix::fs::FlockOperation) -> bool {
    rustix::fs::fcntl_lock(file, kind).is_ok()
}

#[test]
fn open_device_cannot_be_locked_elsewhere() {
    use rustix::fs::FlockOperation::{NonBlockingLockExclusive, NonBlockingLockShared};
    let (_dir, path) = cache_file();
    let device = Device::open_backing(&path, DeviceOptions::default()).unwrap();
    let other = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    assert!(!has_locked(&other, NonBlockingLockShared));
    let thread = device.for_thread().unwrap();
    drop(device);
    assert!(!has_locked(&other, NonBlockingLockShared), "a thread still has it");
    drop(thread);
    assert!(has_locked(&other, NonBlockingLockExclusive));
}

#[test]
fn non_device_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let error = Device::open_cache(dir.path(), DeviceOptions::default()).unwrap_err();
    assert!(error.to_string().contains("is a directory"), "{error}");
    let error = Device::open_cache("/dev/null", DeviceOptions::default()).unwrap_err();
    assert!(error.to_string().contains("is a character device"), "{error}");
    let error = Device::open_cache(dir.path().join("none"), DeviceOptions::default()).unwrap_err();
    assert!(matches!(error, DeviceError::Open { .. }), "{error}");
}

#[test]
fn identity_distinguishes_files_and_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (a_path, b_path, link) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("link"));
    std::fs::write(&a_path, [1; 5000]).unwrap();
    std::fs::write(&b_path, [1; 5000]).unwrap();
    std::fs::hard_link(&a_path, &link).unwrap();
    let open = |path: &Path| Device::open_backing(path, unlocked()).unwrap();
    let (a, b, same) = (open(&a_path), open(&b_path), open(&link));
    let before = a.identity().unwrap();
    assert_eq!((before.kind, before.size_bytes), (DeviceKind::File, 5000));
    assert_eq!(before, same.identity().unwrap());
    assert_ne!(before.unique, b.identity().unwrap().unique);
    let file = std::fs::File::options().write(true).open(&a_path).unwrap();
    file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(5)).unwrap();
    assert_ne!(before.mtime_ns, a.identity().unwrap().mtime_ns);
}

#[test]
fn tools_read_and_write_at_any_offset() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    create_cache_file(&path, 10_000, false, &[]).unwrap();
    let mut device = Device::open_backing(&path, DeviceOptions::default()).unwrap();
    device.write_at(9_990, b"0123456789").unwrap();
    device.flush().unwrap();
    let mut bytes = [0xEE; 20];
    device.read_at(9_985, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0\0\0\0\x000123456789\0\0\0\0\0");
    assert!(device.write_at(9_991, b"0123456789").unwrap_err().to_string().contains("write of"));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(20_000).unwrap();
    assert_eq!((device.size_bytes(), device.refresh_size().unwrap()), (10_000, 20_000));
}

#[test]
fn direct_io_is_left_out_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    create_cache_file(&path, 1 << 20, false, &[]).unwrap();
    let options = DeviceOptions { direct: false, ..Default::default() };
    let device = Device::open_backing(&path, options).unwrap();
    assert_eq!((device.direct_align_bytes(), device.notes().len()), (None, 0));
}

#[test]
fn missing_direct_io_is_noted_not_an_error() {
    // procfs files cannot be opened with O_DIRECT on any machine.
    let options = DeviceOptions { read_only: true, lock: false, ..Default::default() };
    let device = Device::open_backing("/proc/version", options).unwrap();
    assert_eq!(device.direct_align_bytes(), None);
    assert!(device.notes()[0].contains("direct I/O is not possible"), "{:?}", device.notes());
}

#[test]
#[ignore = "needs a scratch block device, named by FOREBAY_TEST_BLOCK_DEVICE; its contents are destroyed"]
fn block_device_allows_any_alignment() {
    let path =
        std::env::var("FOREBAY_TEST_BLOCK_DEVICE").expect("FOREBAY_TEST_BLOCK_DEVICE names a block device");
    for preference in [EnginePreference::Uring, EnginePreference::Psync] {
        let device = Device::open_backing(&path, DeviceOptions::default()).unwrap();
        assert_eq!(device.kind(), DeviceKind::Block);
        println!(
            "{} bytes, logical {}, direct {:?}, {:?}, {:?}",
            device.size_bytes(),
            device.logical_block_bytes(),
            device.direct_align_bytes(),
            device.identity().unwrap(),
            device.notes()
        );
        let error = Device::open_cache(&path, DeviceOptions::default()).unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
        let mut reactor = Reactor::open(preference, Limits::default()).unwrap().0;
        let id = reactor.add_device(device);
        let buf = reactor.pool_mut().alloc(1 << 20).unwrap();
        let run = |reactor: &mut Reactor, op: Op<'_>| {
            reactor.submit(1, op);
            let mut out = Vec::new();
            reactor.wait(None, &mut out).unwrap();
            out[0].result.unwrap()
        };
        reactor.pool_mut().bytes_mut(buf).fill(7);
        run(&mut reactor, Op::Write { device: id, offset: 0, spans: &[Span::new(buf, 0, 1 << 20)] });
        run(&mut reactor, Op::Write { device: id, offset: 512, spans: &[Span::new(buf, 1, 511)] });
        for (offset, len, may_unmap) in [(4096, 8192, true), (32768, 4096, false), (65536 + 512, 1000, true)]
        {
            run(&mut reactor, Op::Zero { device: id, offset, len, may_unmap });
            run(&mut reactor, Op::Flush { device: id });
            run(&mut reactor, Op::Read { device: id, offset: 0, spans: &[Span::new(buf, 0, 1 << 20)] });
            let bytes = reactor.pool().bytes(buf);
            let (first, last) = (offset as usize, (offset + len) as usize);
            assert!(bytes[first..last].iter().all(|&b| b == 0), "{offset} {len}");
            assert!(bytes[first - 1] == 7 && bytes[last] == 7, "{offset} {len}");
        }
        let discard = Op::Discard { device: id, offset: 1 << 19, len: 1 << 19 };
        reactor.submit(1, discard);
        let mut out = Vec::new();
        while out.is_empty() {
            reactor.wait(None, &mut out).unwrap();
        }
        match out[0].result {
            Ok(done) => assert_eq!(done, 0),
            Err(failure) => assert!(failure.is_unsupported(), "{failure}"),
        }
        println!("discard: {:?}", out[0].result);
        // The rest of the device is unchanged.
        run(&mut reactor, Op::Read { device: id, offset: 0, spans: &[Span::new(buf, 0, 1 << 20)] });
        assert_eq!(reactor.pool().bytes(buf)[(1 << 19) - 1], 7);
        println!("{:?}", reactor.stats());
    }
}
