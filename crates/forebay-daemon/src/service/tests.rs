//! Tests of a service with real pools on files: failures of a pool, and handovers.

use super::*;
use forebay_admin::ErrorKind;
use forebay_admin::MessageId;
use forebay_admin::Taking;
use forebay_admin::events::{EventKind, Severity};
use forebay_admin::jobs::JobId;
use forebay_admin::{DetachHow, DeviceRequest, VolumeState};
use forebay_pool::handover::HandoverSockets;
use forebay_pool::{Pool, PoolGone};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

pub(super) fn start(folder: &Path, listener_store: Arc<ListenerStore>, io: &str) -> Arc<Service> {
    let path = folder.join("forebay.toml");
    let at = |name: &str| folder.join(name).display().to_string();
    let mut text = format!("[daemon]\nadmin_socket = {:?}\nstate_dir = {:?}\n", at("admin"), at("state"));
    for name in ["a", "b"] {
        let image = at(&format!("{name}.img"));
        if !Path::new(&image).exists() {
            std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        }
        text += &format!(
            "[pool.{name}]\ndevices = [{{ path = {:?}, size = \"16MiB\" }}]\nio = {io:?}\n\
             [volume.{name}]\npool = \"{name}\"\nbacking = \"file:{}\"\nexports = [\"nbd+unix:///v?socket={}\"]\n",
            at(&format!("{name}.cache")),
            at(&format!("{name}.img")),
            at(&format!("{name}.sock")),
        );
    }
    std::fs::write(&path, text).unwrap();
    start_as_written(&path, listener_store)
}

pub(super) fn start_as_written(path: &Path, listener_store: Arc<ListenerStore>) -> Arc<Service> {
    let (file, checked) = load(path).unwrap();
    let on_event = Box::new(|_| ());
    let start = ServiceStart {
        config: checked.config,
        file: Some(file),
        path: Some(path.display().to_string()),
        strict: true,
        new_cache: Vec::new(),
        taking: Taking::default(),
        log_threshold: crate::log_level::LogThreshold::default(),
        on_event,
        listener_store,
        upgrader: None,
        has_api: true,
        patience: Duration::ZERO,
    };
    Service::start(start).unwrap()
}

fn keep(force: bool) -> DetachRequest {
    DetachRequest { how: DetachHow::Keep, force, save_to: None }
}

fn served(service: &Service) -> Vec<String> {
    let all = service.volume_infos();
    let served = all.into_iter().filter(|volume| volume.state != VolumeState::Absent);
    served.map(|volume| volume.name).collect()
}

#[test]
fn panicking_pool_can_be_reopened() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "auto");
    assert_eq!(served(&service), ["a", "b"]);
    let handle = service.handle("a").unwrap();
    let answer: Result<(), PoolGone> = handle.ask(|_| panic!("planted by a test"));
    assert_eq!(answer, Err(PoolGone::Stopped));
    let until = Instant::now() + Duration::from_secs(30);
    while !service.ended() {
        assert!(Instant::now() < until, "its thread does not end");
        std::thread::yield_now();
    }
    service.look_for_ended_pools();
    assert_eq!(served(&service), ["b"]);
    let away = service.volume_info("a").unwrap();
    assert_eq!((away.state, away.why.as_deref()), (VolumeState::Absent, Some("pool a is not open")));
    let closed = service.closed_infos();
    assert!(closed[0].why.as_ref().unwrap().contains("pool a has stopped"), "{closed:?}");
    let alarms = service.hub.alarms();
    assert_eq!(alarms.len(), 1);
    assert!(alarms[0].message.contains("pool a has stopped"), "{}", alarms[0].message);
    assert!(service.reopen("b", OpenHow::default()).unwrap_err().what.contains("is open"));
    service.reopen("a", OpenHow::default()).unwrap();
    assert_eq!(served(&service), ["a", "b"]);
    assert!(service.hub.alarms().is_empty());
    assert!(service.stop().is_empty());
}

#[test]
fn handover_can_be_taken_back() {
    ["auto", "psync"].into_iter().for_each(changes_hands);
}

fn hears(client: &mut UnixStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    client.read_exact(&mut bytes).unwrap();
    bytes
}

fn connect(folder: &Path) -> UnixStream {
    let mut client = UnixStream::connect(folder.join("a.sock")).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    hears(&mut client, 18);
    client
}

/// Performs the old-style handshake: flags, then EXPORT_NAME.
fn greet(folder: &Path) -> UnixStream {
    let mut client = connect(folder);
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend(1u32.to_be_bytes());
    hello.extend(1u32.to_be_bytes());
    hello.extend(b"v");
    client.write_all(&hello).unwrap();
    hears(&mut client, 10);
    client
}

fn changes_hands(io: &str) {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<ListenerStore> = Arc::default();
    let service = start(folder.path(), Arc::clone(&store), io);
    let mut client = greet(folder.path());
    let mut stranger = connect(folder.path());
    let request = |kind: u16, cookie: u64| {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(0u16.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(0u64.to_be_bytes());
        bytes.extend(512u32.to_be_bytes());
        bytes
    };
    let mut write = request(1, 1);
    write.extend([7; 512]);
    client.write_all(&write).unwrap();
    assert_eq!(hears(&mut client, 16)[8..], 1u64.to_be_bytes());
    // One request and half of another one: the rest comes after the handover.
    let (read, later) = (request(0, 2), request(0, 3));
    client.write_all(&later[..10]).unwrap();
    let (state, manifest) = service.hand_over().unwrap();
    assert_eq!(stranger.read(&mut [0]).unwrap(), 0, "who has not chosen an export cannot be passed on");
    let late = service.reload_file().unwrap_err();
    assert_eq!(late.kind, ErrorKind::Unavailable, "a change that comes too late: {late:?}");
    let late = service.jobs.begin(JobSpec::volume(JobKind::Flush, "a", "a")).unwrap_err();
    assert_eq!(late.kind, ErrorKind::Unavailable, "a job that comes too late: {late:?}");
    assert_eq!(manifest.volumes, ["a".to_owned(), "b".to_owned()].into());
    let HandoverSockets { listeners, guests } = state.sockets;
    assert_eq!((listeners.len(), guests.len()), (2, 1));
    assert!(guests[0].unread.len() <= 10, "what is not here is still in the socket");
    client.write_all(&later[10..]).unwrap();
    client.write_all(&read).unwrap();
    drop(service);
    let listeners = Arc::new(ListenerStore::parked(HandoverSockets { listeners, guests }, None, false));
    let service = start(folder.path(), Arc::clone(&listeners), io);
    service.check_manifest(&manifest).unwrap();
    client.set_nonblocking(true).unwrap();
    assert!(client.read(&mut [0]).is_err(), "nothing moves before the word to go on");
    client.set_nonblocking(false).unwrap();
    service.go_on();
    let mut cookies = [0, 0].map(|_| {
        let answer = hears(&mut client, 16 + 512);
        assert_eq!(answer[4..8], [0; 4]);
        assert!(answer[16..].iter().all(|byte| *byte == 7));
        answer[15]
    });
    cookies.sort_unstable(); // both are in flight at once
    assert_eq!(cookies, [2, 3]);
    assert!(service.stop().is_empty());
}

#[test]
fn connection_resumes_on_its_own_volume() {
    let folder = tempfile::tempdir().unwrap();
    let mut service = start(folder.path(), Arc::default(), "auto");
    for (kept, change) in [(false, "volume"), (false, "smaller"), (true, "larger")] {
        let mut client = greet(folder.path());
        let (mut state, _) = service.hand_over().unwrap();
        let guests = &mut state.sockets.guests;
        assert_eq!((guests.len(), guests[0].size_bytes), (1, 1 << 20));
        match change {
            "volume" => guests[0].volume.push('x'), // as if the names of two exports had been swapped in the file
            "smaller" => guests[0].size_bytes += 512,
            _ => guests[0].size_bytes -= 512,
        }
        let listeners = Arc::new(ListenerStore::parked(state.sockets, None, false));
        service = start(folder.path(), Arc::clone(&listeners), "auto");
        service.go_on();
        listeners.close_rest();
        let mut flush = 0x2560_9513_u32.to_be_bytes().to_vec();
        flush.extend(3u32.to_be_bytes()); // FLUSH
        flush.resize(28, 0);
        let _ = client.write_all(&flush); // fails if the connection is closed already
        assert_eq!(client.read(&mut [0; 16]).is_ok_and(|length| length == 16), kept, "{change}");
        drop(client);
    }
    assert!(service.stop().is_empty());
}

#[test]
fn failed_successor_keeps_socket_files() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "auto");
    let (state, _) = service.hand_over().unwrap();
    let HandoverSockets { listeners, .. } = state.sockets;
    let copies = listeners.iter().map(|listener| forebay_pool::handover::Listener {
        endpoint: listener.endpoint.clone(),
        fd: listener.fd.try_clone().unwrap(),
    });
    let copies = HandoverSockets { listeners: copies.collect(), guests: Vec::new() };
    let successor = start(folder.path(), Arc::new(ListenerStore::parked(copies, None, false)), "auto");
    // A client that connects now reaches the predecessor.
    let mut waits = UnixStream::connect(folder.path().join("a.sock")).unwrap();
    assert!(successor.stop().is_empty());
    assert!(["a.sock", "b.sock"].iter().all(|name| folder.path().join(name).exists()));
    let store: Arc<ListenerStore> = Arc::default();
    store.put_back(HandoverSockets { listeners, guests: Vec::new() });
    let service = start(folder.path(), store, "auto");
    waits.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    hears(&mut waits, 18);
    assert!(service.stop().is_empty());
    assert!(!folder.path().join("a.sock").exists(), "an orderly end removes them");
}

#[test]
fn hanging_pool_delays_a_stop_briefly() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "auto");
    let (go, hangs) = std::sync::mpsc::channel::<()>();
    let handle = service.handle("a").unwrap();
    let (begun, begins) = std::sync::mpsc::channel::<()>();
    let task = move |_: &mut Pool| {
        begun.send(()).unwrap();
        hangs.recv().is_err()
    };
    let asker = std::thread::spawn(move || handle.ask_and_wait(task));
    begins.recv().unwrap();
    let pools = service.begin_stop();
    let late = || service.close_within(&pools, Duration::from_millis(10)).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while !late().contains("pool a was not closed") {
        assert!(Instant::now() < until, "{}", late());
    }
    drop(go);
    assert_eq!(asker.join().unwrap(), Ok(true));
    assert_eq!(service.close_within(&pools, Duration::from_secs(30)), None);
}

#[test]
fn late_call_is_not_executed() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "auto");
    let handle = service.handle("a").unwrap();
    let (go, hangs) = std::sync::mpsc::channel::<()>();
    handle.order(move |_| {
        let _ = hangs.recv();
    });
    let (did, done) = std::sync::mpsc::channel::<()>();
    let late = handle.ask(move |_| did.send(()).unwrap());
    assert_eq!(late, Err(PoolGone::Late));
    drop(go);
    assert_eq!(handle.ask(|_| 7), Ok(7), "it answers again");
    assert!(done.try_recv().is_err(), "it was told that nothing was done, and it was done");
    assert!(service.stop().is_empty());
}

#[test]
fn waiting_job_does_not_delay_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "auto");
    // A detach that waits for a hanging pool, as with a backing store that does not answer.
    let handle = service.handle("a").unwrap();
    let (go, hangs) = std::sync::mpsc::channel::<()>();
    let (begun, begins) = std::sync::mpsc::channel::<()>();
    let job = service.detach_volume("a", keep(false)).unwrap();
    handle.order(move |_| {
        begun.send(()).unwrap();
        let _ = hangs.recv();
    });
    begins.recv().unwrap();
    let stopper = Arc::clone(&service);
    let stops = std::thread::spawn(move || stopper.stop());
    let until = Instant::now() + Duration::from_secs(30);
    while !service.jobs.is_stopping() {
        assert!(Instant::now() < until, "{}", job.id);
        std::thread::yield_now();
    }
    drop(go);
    assert!(stops.join().unwrap().is_empty());
}

#[test]
fn unwritten_change_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "auto");
    let path = folder.path().join("forebay.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let resized = service.resize_volume("a", "512KiB", false).unwrap();
    let why = |job: &str| service.wait_for_job(job, Duration::from_secs(60)).unwrap().error;
    assert_eq!(why(&resized.id), None);
    // A change of the file is in progress.
    let text_now = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text_now + "nonsense").unwrap();
    let resized = service.resize_volume("a", "1MiB", false).unwrap();
    let told = why(&resized.id).unwrap();
    assert!(told.starts_with("a has 1MiB now, but the configuration file has the old state"), "{told}");
    let request = ShrinkRequest { size: Some("8MiB".into()), ..ShrinkRequest::default() };
    let shrunk = service.shrink_pool("a", request).unwrap();
    let told = why(&shrunk.id).unwrap();
    assert!(
        told.starts_with("pool a is smaller now, but the configuration file has the old state"),
        "{told}"
    );
    std::fs::write(&path, text).unwrap();
    assert!(service.stop().is_empty());
}

#[test]
fn refused_reload_changes_nothing() {
    use forebay_admin::Admin;
    use forebay_admin::events::{Delivery, Filter, Received, Start};
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "auto");
    std::fs::write(folder.path().join("forebay.toml"), "[pool.a]\nno_such = 1\n").unwrap();
    let mut events = service.hub.subscribe(Filter::default().kind("config").unwrap(), Start::Oldest).unwrap();
    assert_eq!(service.reload().unwrap_err().hint, "the old configuration stays in force");
    let Received::Delivery(Delivery::Event(event)) = events.receive(Duration::from_secs(5)) else {
        panic!("no event");
    };
    assert_eq!(event.kind, EventKind::ConfigRefused);
    assert!(event.message.contains("the old configuration stays in force"), "{}", event.message);
    assert_eq!(served(&service), ["a", "b"]);
    assert!(service.stop().is_empty());
}

/// As `forebay serve` does: pools and volumes that cannot be opened have alarms.
fn start_with_what_is_there(folder: &Path, patience: Duration) -> Arc<Service> {
    let path = folder.join("forebay.toml");
    let (file, checked) = load(&path).unwrap();
    let start = ServiceStart {
        config: checked.config,
        file: Some(file),
        path: Some(path.display().to_string()),
        strict: false,
        on_event: Box::new(|_| ()),
        listener_store: Arc::default(),
        upgrader: None,
        has_api: true,
        patience,
        log_threshold: crate::log_level::LogThreshold::default(),
        taking: Taking::default(),
        new_cache: Default::default(),
    };
    Service::start(start).unwrap()
}

fn until(service: &Service, what: impl Fn(&Service) -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !what(service) {
        assert!(Instant::now() < until, "{:?}", service.hub.alarms());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn missing_device_is_opened_on_arrival() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let service = start(folder.path(), Arc::default(), "auto");
    assert!(service.stop().is_empty());
    std::fs::rename(at("a.cache"), at("a.gone")).unwrap();
    std::fs::rename(at("b.img"), at("b.gone")).unwrap();
    let service = start_with_what_is_there(folder.path(), Duration::ZERO);
    assert!(served(&service).is_empty() && service.awaits_devices());
    let alarms = service.hub.alarms();
    let told = |alarm: &forebay_admin::events::Alarm| {
        alarm.message.ends_with("the daemon retries until it can be opened")
    };
    assert!(alarms.len() == 2 && alarms.iter().all(told), "{alarms:?}");
    std::fs::rename(at("b.gone"), at("b.img")).unwrap();
    until(&service, |service| served(service) == ["b"]);
    assert!(service.awaits_devices());
    std::fs::rename(at("a.gone"), at("a.cache")).unwrap();
    until(&service, |service| served(service) == ["a", "b"]);
    until(&service, |service| !service.awaits_devices() && !service.opens_late());
    until(&service, |service| service.hub.alarms().is_empty());
    assert!(service.stop().is_empty());
}

/// A device that is late while the machine boots is no failure yet.
#[test]
fn late_device_is_no_failure_at_boot() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let service = start(folder.path(), Arc::default(), "auto");
    assert!(service.stop().is_empty());
    std::fs::rename(at("a.cache"), at("a.gone")).unwrap();
    std::fs::rename(at("b.img"), at("b.gone")).unwrap();
    let severities = |service: &Service| -> Vec<Severity> {
        service.hub.alarms().iter().map(|alarm| alarm.severity).collect()
    };
    let service = start_with_what_is_there(folder.path(), Duration::from_secs(3600));
    let alarms = service.hub.alarms();
    assert_eq!(severities(&service), [Severity::Info; 2], "{alarms:?}");
    assert!(alarms.iter().all(|alarm| !alarm.message.contains("--new-cache")), "{alarms:?}");
    std::fs::rename(at("a.gone"), at("a.cache")).unwrap();
    std::fs::rename(at("b.gone"), at("b.img")).unwrap();
    until(&service, |service| served(service) == ["a", "b"]);
    until(&service, |service| service.hub.alarms().is_empty());
    assert!(service.stop().is_empty());

    std::fs::rename(at("a.cache"), at("a.gone")).unwrap();
    let service = start_with_what_is_there(folder.path(), Duration::from_secs(2));
    until(&service, |service| severities(service) == [Severity::Error]);
    let alarms = service.hub.alarms();
    assert!(alarms[0].message.contains("--new-cache"), "{alarms:?}");
    std::fs::rename(at("a.gone"), at("a.cache")).unwrap();
    until(&service, |service| service.hub.alarms().is_empty());
    assert!(service.stop().is_empty());
}

/// Another cache in its place is refused, and the retries end.
#[test]
fn foreign_device_is_refused_on_arrival() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let service = start(folder.path(), Arc::default(), "auto");
    assert!(service.stop().is_empty());
    std::fs::rename(at("a.cache"), at("a.gone")).unwrap();
    let service = start_with_what_is_there(folder.path(), Duration::ZERO);
    assert!(service.awaits_devices());
    std::fs::write(at("a.new"), vec![7; 16 << 20]).unwrap();
    std::fs::rename(at("a.new"), at("a.cache")).unwrap();
    until(&service, |service| service.hub.alarms()[0].message.contains("another file or device"));
    let alarms = service.hub.alarms();
    assert!(alarms.len() == 1 && alarms[0].message.contains("a.cache"), "{alarms:?}");
    assert!(std::fs::read(at("a.cache")).unwrap().iter().all(|byte| *byte == 7), "it was written to");
    assert_eq!(served(&service), ["b"]);
    std::fs::rename(at("a.gone"), at("a.cache")).unwrap();
    until(&service, |service| service.hub.alarms().is_empty());
    assert!(service.stop().is_empty());
}

#[test]
fn mirrored_pool_awaits_both_devices() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let text = format!(
        "[daemon]\nstate_dir = {:?}\n[pool.a]\nmirror = \"on\"\ndevices = [{{ path = {:?}, size = \"16MiB\" }}, {{ path = {:?}, size = \"16MiB\" }}]\n",
        at("state"),
        at("x"),
        at("y")
    );
    std::fs::write(at("forebay.toml"), text).unwrap();
    let patient = Duration::from_secs(3600);
    // The file does not exist yet, which is no reason to wait.
    let service = start_with_what_is_there(folder.path(), patient);
    assert!(!service.awaits_devices(), "{:?}", service.hub.alarms());
    assert!(service.stop().is_empty());
    std::fs::rename(at("y"), at("y.gone")).unwrap();
    let service = start_with_what_is_there(folder.path(), patient);
    let alarms = service.hub.alarms();
    assert!(alarms[0].message.contains("its devices cannot both be opened"), "{alarms:?}");
    assert!(service.awaits_devices() && service.pools.names().is_empty());
    std::fs::rename(at("y.gone"), at("y")).unwrap();
    until(&service, |service| !service.awaits_devices());
    until(&service, |service| service.hub.alarms().is_empty());
    assert!(service.stop().is_empty());
    // Later one member suffices.
    std::fs::rename(at("y"), at("y.gone")).unwrap();
    let service = start_with_what_is_there(folder.path(), Duration::ZERO);
    assert!(!service.awaits_devices());
    let is_degraded = |alarm: &forebay_admin::events::Alarm| alarm.key.condition == EventKind::CacheDegraded;
    until(&service, |service| service.hub.alarms().iter().any(is_degraded));
    assert!(service.stop().is_empty());
}

#[test]
fn locked_cache_is_opened_once_free() {
    use forebay_io::{Device, DeviceOptions};
    let folder = tempfile::tempdir().unwrap();
    assert!(start(folder.path(), Arc::default(), "auto").stop().is_empty());
    let held = Device::open_cache(folder.path().join("a.cache"), DeviceOptions::default()).unwrap();
    let service = start_with_what_is_there(folder.path(), Duration::ZERO);
    assert_eq!(served(&service), ["b"]);
    let alarms = service.hub.alarms();
    assert!(alarms[0].message.contains("the daemon retries until it is free"), "{}", alarms[0].message);
    drop(held);
    until(&service, |service| served(service) == ["a", "b"]);
    until(&service, |service| service.hub.alarms().is_empty());
    assert!(service.stop().is_empty());
}

/// Starts a pool whose failed cache has lost no data: on the files in `names`, mirrored if there
/// are two.
fn start_without_cache(folder: &Path, names: &[&str]) -> Arc<Service> {
    let at = |name: &str| folder.join(name).display().to_string();
    std::fs::File::create(at("a.img")).unwrap().set_len(1 << 20).unwrap();
    let device = |name: &&str| format!("{{ path = {:?}, size = \"16MiB\" }}", at(name));
    let devices: Vec<String> = names.iter().map(device).collect();
    let text = format!(
        "[daemon]\nadmin_socket = {:?}\nstate_dir = {:?}\n[pool.a]\nmirror = {}\nsegment_size = \"64KiB\"\n\
         devices = [{}]\n\
         [volume.a]\npool = \"a\"\nbacking = \"file:{}\"\nexports = [\"nbd+unix:///v?socket={}\"]\n",
        at("admin"),
        at("state"),
        names.len() == 2,
        devices.join(", "),
        at("a.img"),
        at("a.sock"),
    );
    let path = folder.join("forebay.toml");
    std::fs::write(&path, text).unwrap();
    let service = start_as_written(&path, Arc::default());
    let handle = service.handle("a").unwrap();
    let members = if names.len() == 2 { vec![Some(0), Some(1)] } else { vec![None] };
    for member in members {
        handle.ask(move |pool| pool.device_gone(member)).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(30);
    let failed = || service.pool_snapshot("a").is_ok_and(|now| now.cache_failed && now.rescue_over);
    while !failed() {
        assert!(Instant::now() < until, "the cache has not failed");
        std::thread::yield_now();
    }
    service
}

#[test]
fn impossible_replacement_is_refused_early() {
    let folder = tempfile::tempdir().unwrap();
    let service = start_without_cache(folder.path(), &["one", "two"]);
    let file = || std::fs::read_to_string(folder.path().join("forebay.toml")).unwrap();
    let (before, devices) = (file(), service.catalog.config().pools["a"].devices.clone());
    let at = |name: &str| folder.path().join(name).display().to_string();
    let request = |paths: [&str; 2], size: &str| {
        let [device, other] = paths.map(|path| DeviceRequest { path: at(path), size: Some(size.into()) });
        ReplaceRequest {
            device,
            other: Some(other),
            old: None,
            discard_lost: true,
            overwrite: true,
            fill: true,
        }
    };
    let mirrors = folder.path().join("state/mirrors");
    let refused = |paths, size, why: &str| {
        let error = service.replace("a", &request(paths, size)).unwrap_err();
        assert!(error.what.contains(why), "{}", error.what);
        assert_eq!((file(), &service.catalog.config().pools["a"].devices), (before.clone(), &devices));
        assert!(service.pool_snapshot("a").unwrap().cache_failed, "it is served as before");
        assert_eq!(served(&service), ["a"]);
        assert!(!folder.path().join("x").exists() && !folder.path().join("y").exists());
    };
    refused(["x", "x"], "16MiB", "are the same device");
    refused(["x", "./x"], "16MiB", "are the same device");
    refused(["x", "y"], "512KiB", "too small");
    std::fs::File::create(at("small")).unwrap().set_len(1 << 20).unwrap();
    refused(["small", "y"], "16MiB", "too little for a mirrored cache");
    refused(["x", "a.img"], "16MiB", "a.img");
    std::fs::rename(&mirrors, mirrors.with_extension("away")).unwrap();
    std::fs::write(&mirrors, "no folder").unwrap();
    refused(["x", "y"], "16MiB", "cannot write");
    std::fs::remove_file(&mirrors).unwrap();
    let info = service.replace("a", &request(["x", "y"], "16MiB")).unwrap();
    assert_eq!(info.name, "a");
    assert!(!service.pool_snapshot("a").unwrap().cache_failed);
    assert!(file().contains(&at("x")));
    assert!(service.stop().is_empty());
}

#[test]
fn removal_reports_devices_not_erased() {
    let folder = tempfile::tempdir().unwrap();
    assert!(start_without_cache(folder.path(), &["one"]).stop().is_empty());
    let path = folder.path().join("forebay.toml");
    let service = start_as_written(&path, Arc::default());
    let job = service.detach_volume("a", keep(true)).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let ended = || service.job(&job.id).unwrap().error;
    while ended().is_none() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(
        ended().unwrap().contains("forebay pool replace"),
        "what has to be done first is said: {:?}",
        ended()
    );
    assert!(service.stop().is_empty());
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.find("[volume.a]").unwrap()]).unwrap();
    let service = start_as_written(&path, Arc::default());
    let error = service.close_pool("a", true, false).unwrap_err();
    assert!(error.what.contains("is removed, but its devices are not erased"), "{}", error.what);
    assert!(!service.catalog.has_pool("a"));
    assert!(service.stop().is_empty());
}

/// Writes the configuration that a daemon leaves if it is killed while it replaces a cache.
fn configured_instead(folder: &Path, names: [(&str, &str); 2]) -> std::path::PathBuf {
    let path = folder.join("forebay.toml");
    let mut text = std::fs::read_to_string(&path).unwrap();
    for (from, to) in names {
        text = text.replace(&folder.join(from).display().to_string(), &folder.join(to).display().to_string());
    }
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn start_serves_without_a_failed_cache() {
    for names in [&["one"][..], &["one", "two"]] {
        let folder = tempfile::tempdir().unwrap();
        let service = start_without_cache(folder.path(), names);
        assert!(service.stop().is_empty());
        let path = configured_instead(folder.path(), [("one", "x"), ("two", "y")]);
        let without = || {
            let service = start_as_written(&path, Arc::default());
            assert_eq!(served(&service), ["a"]);
            assert!(service.pool_snapshot("a").unwrap().cache_failed, "{names:?}");
            service
        };
        assert!(without().stop().is_empty()); // nothing was created yet
        for name in ["x", "y"] {
            let begun = forebay_format::superblock::being_made();
            forebay_io::create_cache_file(folder.path().join(name), 16 << 20, false, &begun).unwrap();
        }
        let service = without();
        let device = |name: &str| DeviceRequest {
            path: folder.path().join(name).display().to_string(),
            size: Some("16MiB".into()),
        };
        let other = (names.len() == 2).then(|| device("y"));
        let request = ReplaceRequest {
            device: device("x"),
            other,
            old: None,
            discard_lost: false,
            overwrite: false,
            fill: false,
        };
        service.replace("a", &request).unwrap();
        assert!(!service.pool_snapshot("a").unwrap().cache_failed, "{names:?}");
        assert!(service.stop().is_empty());
        let service = start_as_written(&path, Arc::default());
        assert!(!service.pool_snapshot("a").unwrap().cache_failed, "{names:?}");
        assert!(service.stop().is_empty());
    }
}

#[test]
fn start_opens_a_complete_new_cache() {
    let folder = tempfile::tempdir().unwrap();
    let service = start_without_cache(folder.path(), &["one"]);
    assert!(service.stop().is_empty());
    let state = folder.path().join("state");
    let failed = forebay_pool::register::of_pool(&state, "a").unwrap().remove(0);
    let spec = forebay_config::CacheSpec { path: folder.path().join("x"), size_bytes: Some(16 << 20) };
    drop(
        forebay_pool::open::open_caches(
            &forebay_pool::MayWait::here(),
            &[spec],
            forebay_pool::open::Making::default(),
            &state,
        )
        .unwrap(),
    );
    let path = configured_instead(folder.path(), [("one", "x"), ("two", "y")]);
    for _ in 0..2 {
        let service = start_as_written(&path, Arc::default());
        assert_eq!(served(&service), ["a"]);
        assert!(!service.pool_snapshot("a").unwrap().cache_failed);
        let recorded = forebay_pool::register::of_pool(&state, "a").unwrap();
        assert!(recorded.len() == 1 && recorded[0].cache_uuid != failed.cache_uuid, "{recorded:?}");
        assert!(service.stop().is_empty());
    }
}

#[test]
fn unwritable_state_stops_a_replacement() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "auto");
    let caches = folder.path().join("state/caches");
    let alarmed =
        || service.hub.alarms().iter().any(|alarm| alarm.key.condition == EventKind::StateUnwritable);
    std::fs::rename(&caches, caches.with_extension("away")).unwrap();
    std::fs::write(&caches, "no folder").unwrap();
    let refused = service.hand_over().err().unwrap();
    assert!(refused.what.contains("cannot write"), "{refused:?}");
    assert_eq!(served(&service), ["a", "b"], "everything goes on");
    // The next changes must be recorded.
    service.detach_volume("a", keep(true)).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while served(&service) != ["b"] {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    service.raise_record("a");
    assert!(alarmed(), "{:?}", service.hub.alarms());
    std::fs::remove_file(&caches).unwrap();
    std::fs::rename(caches.with_extension("away"), &caches).unwrap();
    service.raise_record("a");
    assert!(!alarmed(), "{:?}", service.hub.alarms());
    assert!(service.check_recordable().is_ok());
    assert!(service.stop().is_empty());
}

#[test]
fn refused_volume_is_not_retried() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "auto");
    // Its store is not closed yet: a check for other users of the store finds this process.
    let tried = |kind| {
        let refused =
            AdminError::new(MessageId::BackingNotAnswering, "cannot attach a", "do something").of_kind(kind);
        service.try_again_if_locked(super::deferred_places::Place::Volume("a".into()), refused).hint
    };
    assert_eq!(tried(ErrorKind::Conflict), "do something");
    assert!(service.deferred.all().is_empty());
    assert!(tried(ErrorKind::Failed).ends_with("the daemon retries until it is free"));
    assert!(service.stop().is_empty());
}

#[test]
fn removed_places_have_no_alarm() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "auto");
    for gone in [
        super::deferred_places::Place::Pool("gone".into()),
        super::deferred_places::Place::Volume("gone".into()),
    ] {
        assert!(!service.open_again(&gone), "it would be tried again");
        assert_eq!(service.hub.alarms(), []);
    }
    assert!(service.stop().is_empty());
}

#[test]
fn failed_export_uri_is_not_retried() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::File::create(at("a.img")).unwrap().set_len(1 << 20).unwrap();
    let text = format!(
        "[daemon]\nstate_dir = {:?}\n[pool.fast]\ndevices = [{{ path = {:?}, size = \"16MiB\" }}]\n\
         [volume.a]\npool = \"fast\"\nbacking = {:?}\nexports = [{:?}]\n",
        at("state"),
        at("cache"),
        at("a.img"),
        format!("vhost-user:{}", at("missing/a.sock"))
    );
    std::fs::write(at("forebay.toml"), text).unwrap();
    let (file, checked) = load(Path::new(&at("forebay.toml"))).unwrap();
    let start = ServiceStart {
        config: checked.config,
        file: Some(file),
        path: None,
        strict: false,
        on_event: Box::new(|_| ()),
        listener_store: Arc::default(),
        upgrader: None,
        has_api: true,
        patience: Duration::ZERO,
        taking: Taking::default(),
        log_threshold: crate::log_level::LogThreshold::default(),
        new_cache: Default::default(),
    };
    let service = Service::start(start).unwrap();
    let alarms = service.hub.alarms();
    let told = format!("there is no folder {}: create it, or choose another path", at("missing"));
    assert!(alarms[0].message.contains(&told), "{}", alarms[0].message);
    assert!(alarms[0].message.contains("then: forebay volume attach a"), "{}", alarms[0].message);
    assert!(service.deferred.all().is_empty());
    assert!(service.stop().is_empty());
}

/// Returns the names of the volumes in the pools, in the running configuration, and in the file.
fn volumes_of_all_three(service: &Service, folder: &Path) -> [Vec<String>; 3] {
    let pools = service.pools.all().into_iter();
    let mut served: Vec<String> =
        pools.flat_map(|(_, pool)| pool.ask(|pool| pool.names()).unwrap()).collect();
    served.sort();
    let configured = service.catalog.config().volumes.keys().cloned().collect();
    let (_, checked) = load(&folder.join("forebay.toml")).unwrap();
    [served, configured, checked.config.volumes.into_keys().collect()]
}

#[test]
fn volumes_agree_after_concurrent_reloads() {
    use forebay_admin::jobs::JobId;
    use std::sync::atomic::Ordering;
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "auto");
    let stop = Arc::new(AtomicBool::new(false));
    let (reloader, stopped) = (Arc::clone(&service), Arc::clone(&stop));
    let reloads = std::thread::spawn(move || {
        while !stopped.load(Ordering::Acquire) {
            let done = reloader.reload_file().unwrap();
            assert!(done.changed.is_empty() && done.refused.is_empty(), "nothing is new: {done:?}");
        }
    });
    for number in 0..20 {
        let job = service.detach_volume("a", keep(true)).unwrap();
        let id: JobId = job.id.parse().unwrap();
        let ended = service.jobs.wait(id, Duration::from_secs(60)).unwrap();
        assert_eq!(ended.error(), None, "detach {number}");
        let only_b = || ["b".to_owned()].to_vec();
        assert_eq!(volumes_of_all_three(&service, folder.path()), [only_b(), only_b(), only_b()], "{number}");
        let request = VolumeRequest {
            name: "a".into(),
            pool: Some("a".into()),
            backing: format!("file:{}", folder.path().join("a.img").display()),
            exports: vec![format!("nbd+unix:///v?socket={}", folder.path().join("a.sock").display())],
            settings: BTreeMap::new(),
        };
        service.attach(request).unwrap();
        let both = || ["a".to_owned(), "b".to_owned()].to_vec();
        assert_eq!(volumes_of_all_three(&service, folder.path()), [both(), both(), both()], "{number}");
    }
    stop.store(true, Ordering::Release);
    reloads.join().unwrap();
    assert!(service.stop().is_empty());
}

#[test]
fn held_volume_refuses_other_changes() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "auto");
    let config = service.catalog.config().volumes["a"].clone();
    let hold = service.holds.attach("a", &config).unwrap();
    let busy = |error: AdminError| assert_eq!(error.id, MessageId::VolumeBusy, "{error:?}");
    let set = BTreeMap::from([("dirty_high_pct".to_owned(), Some("30".to_owned()))]);
    let request = SettingsRequest { set, ..SettingsRequest::default() };
    busy(Admin::set(&*service, Target::Volume("a"), request).unwrap_err());
    busy(service.detach_volume("a", keep(false)).unwrap_err());
    busy(service.resize_volume("a", "512KiB", false).unwrap_err());
    let rule = RuleRequest { rule: "bypass direction=write".into(), position: None };
    busy(service.new_rule("a", rule).unwrap_err());
    busy(service.begin_export("a", ExportRequest::default()).unwrap_err());
    assert_eq!(service.check_removable("a", false, false).unwrap_err().id, MessageId::PoolInUse);
    assert_eq!(service.check_upgradable().unwrap_err().id, MessageId::UpgradeBlocked);
    // A reload leaves the volume to its holder, even if the file has changed by now.
    let path = folder.path().join("forebay.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("[volume.a]").unwrap();
    std::fs::write(&path, format!("{before}[pool.b]{}", rest.split_once("[pool.b]").unwrap().1)).unwrap();
    let done = service.reload_file().unwrap();
    assert!(done.refused.iter().any(|line| line.contains("volume a is being attached")), "{done:?}");
    std::fs::write(&path, text).unwrap();
    assert!(service.reload_file().unwrap().refused.is_empty());
    // A detach that has begun waits.
    let job = service.jobs.begin(JobSpec::volume(JobKind::Detach(DetachHow::Keep), "a", "a")).unwrap();
    drop(hold);
    assert_eq!(service.wait_for_job(&job.id, Duration::from_secs(60)).unwrap().error, None);
    assert!(service.holds.check_all_free().is_ok());
    assert!(service.stop().is_empty());
}

#[test]
fn waiting_for_jobs_lets_them_end() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), Arc::default(), "psync");
    let (saw, is_stopping) = (Arc::new(AtomicBool::new(false)), Arc::clone(&service));
    let (begin, begun) = std::sync::mpsc::channel();
    let flag = Arc::clone(&saw);
    service.jobs.spawn(JobId(77), move || {
        begun.recv().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        is_stopping.jobs.is_stopping();
        flag.store(true, Ordering::SeqCst);
    });
    begin.send(()).unwrap();
    service.jobs.await_threads(Duration::from_millis(500));
    assert!(saw.load(Ordering::SeqCst), "the job waits for the thread that waits for it");
    assert!(service.stop().is_empty());
}
