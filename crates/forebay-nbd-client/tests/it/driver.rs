//! A store over a real socket, served by the project's own server session in this process.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::{Disk, Peer, two_exports};
use forebay_export::uri::Endpoint;
use forebay_io::{Device, RemoteOp, RemoteStore};
use forebay_nbd_client::driver::NbdStore;
use forebay_nbd_client::lane::LaneConfig;

/// Serves until `bytes_left` bytes have come on one connection.
fn serve(mut stream: UnixStream, disk: Arc<Mutex<Disk>>, bytes_left: &AtomicU64) {
    let mut peer = Peer::new(two_exports());
    peer.disk = disk;
    let (mut bytes, mut out) = (vec![0; 4096], Vec::new());
    peer.feed(&[], &mut out);
    loop {
        if stream.write_all(&out).is_err() {
            return;
        }
        out.clear();
        let Ok(count @ 1..) = stream.read(&mut bytes) else { return };
        let left = bytes_left.load(Ordering::Relaxed);
        bytes_left.store(left.saturating_sub(count as u64), Ordering::Relaxed);
        if left < count as u64 {
            bytes_left.store(u64::MAX, Ordering::Relaxed);
            return;
        }
        peer.feed(&bytes[..count], &mut out);
    }
}

fn server(path: PathBuf, bytes_left: u64) {
    let listener = UnixListener::bind(path).unwrap();
    let (disk, left) = (Arc::<Mutex<Disk>>::default(), Arc::new(AtomicU64::new(bytes_left)));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (disk, left) = (Arc::clone(&disk), Arc::clone(&left));
            std::thread::spawn(move || serve(stream.unwrap(), disk, &left));
        }
    });
}

fn open(path: &Path, export: &str) -> Result<NbdStore, String> {
    let config = LaneConfig {
        export: export.to_owned(),
        quarantine: Duration::from_millis(30),
        probe_after: Duration::from_millis(10),
        retry: (Duration::from_millis(1), Duration::from_millis(10)),
        ..LaneConfig::default()
    };
    NbdStore::open(Endpoint::Unix(path.to_owned()), config).map_err(|error| error.to_string())
}

fn socket(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("forebay-driver-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

#[test]
fn a_device_over_a_socket_keeps_what_it_is_given_through_cuts() {
    let path = socket("cuts");
    server(path.clone(), 300_000);
    let store = Arc::new(open(&path, "db").unwrap());
    assert_eq!((store.size_bytes(), store.sector_bytes()), (8 << 30, 512));
    let address = PathBuf::from("nbd+unix:///db");
    let device = Device::remote(Arc::clone(&store) as Arc<dyn RemoteStore>, address).unwrap();
    let block = |at: u64| vec![at as u8 + 1; 100_000];
    for at in 0..10 {
        device.write_at(at * 100_000, &block(at)).unwrap();
    }
    device.flush().unwrap();
    let mut bytes = vec![0; 100_000];
    for at in 0..10 {
        device.read_at(at * 100_000, &mut bytes).unwrap();
        assert_eq!(bytes, block(at), "piece {at}");
    }
    let (sender, receiver) = mpsc::channel();
    let zero = RemoteOp::Zero { offset: 0, len: 100_000, may_unmap: true };
    store.submit(zero, Box::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap().unwrap();
    device.read_at(50_000, &mut bytes).unwrap();
    assert_eq!(bytes, [vec![0; 50_000], block(1)[..50_000].to_vec()].concat());
    store.close();
    for _ in 0..3 {
        assert!(device.read_at(0, &mut bytes).is_err(), "a closed store answers at once");
    }
}

#[test]
fn a_store_that_cannot_be_used_is_refused_with_its_reason() {
    let path = socket("refused");
    let error = open(&path, "db").unwrap_err();
    assert!(error.contains("cannot connect to") && error.contains("refused"), "{error}");
    server(path.clone(), u64::MAX);
    let error = open(&path, "nope").unwrap_err();
    assert!(error.contains("there is no export named \"nope\""), "{error}");
    let error = open(&path, "iso").unwrap_err();
    assert!(error.contains("read-only"), "{error}");
}
