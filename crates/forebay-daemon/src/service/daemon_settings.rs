//! Settings of the daemon itself that change at run time: the log level, and the port that serves
//! metrics without a token.

use super::errors::invalid;
use super::settings::{Changed, only_written};
use super::{Service, ServiceEvent};
use crate::api::ApiError;
use forebay_admin::events::{EventKind, NewEvent};
use forebay_admin::{AdminError, MessageId, SettingInfo, SettingsDone, SettingsRequest};
use forebay_config::choices::{LogLevel, Words};
use forebay_config::keys::{Key, Shape};
use forebay_config::{DaemonConfig, Edit};
use forebay_pool::handover::Listener;
use std::collections::BTreeMap;
use std::net::SocketAddr;

impl Service {
    pub(super) fn daemon_setting_infos(&self) -> BTreeMap<String, SettingInfo> {
        let daemon = self.catalog.config().daemon.clone();
        let info = |(key, value): (&Key, String)| {
            let info = SettingInfo {
                value,
                default: key.default.trim_matches('"').into(),
                takes: takes(key),
                live: true,
                help: key.help.into(),
            };
            (key.name.to_owned(), info)
        };
        daemon.live().into_iter().map(info).collect()
    }

    /// Changes settings of the daemon: all of them or none.
    pub(super) fn change_daemon(&self, request: &SettingsRequest) -> Result<SettingsDone, AdminError> {
        let mut file = self.changing()?;
        let old = self.catalog.config().daemon.clone();
        let mut new = old.clone();
        if request.set.is_empty() {
            return Err(invalid(MessageId::SettingMissing, "no setting is given", "give KEY=VALUE"));
        }
        for (key, value) in &request.set {
            let set = new.set_live(key, value.as_deref());
            set.map_err(|error| invalid(error.id, format!("{key}: {error}"), ""))?;
        }
        let changed = differences(&old, &new);
        let (mut change, mut undo, mut stale) = (Vec::new(), Vec::new(), Vec::new());
        if !request.temporary
            && let Some(written) = file.newest()?
        {
            // The file may differ from the running value: a port that could not be bound.
            (change, undo) = (edits(&new, request), edits(&written.daemon, request));
            let both = undo.iter().zip(&change);
            stale = both.filter(|(from, to)| from != to).filter_map(|(edit, _)| key_of(edit)).collect();
        }
        file.commit(&change, &undo, || self.apply_daemon(&new))?;
        drop(file);
        for (key, from, to) in &changed {
            self.telemetry.emit(ServiceEvent::Note(
                MessageId::ConfigReloaded,
                format!("{key} of the daemon is {to} now, not {from}"),
            ));
        }
        let written = only_written(stale, &changed);
        self.telemetry.tell_written("the daemon", &written);
        Ok(SettingsDone { changed, written, job: None })
    }

    /// Applies all of these settings, or none.
    fn apply_daemon(&self, new: &DaemonConfig) -> Result<(), AdminError> {
        self.listen_for_metrics(new.metrics_listen)?;
        self.log_threshold.set(new.log_level);
        self.catalog.change_daemon(|daemon| daemon.log_level = new.log_level);
        Ok(())
    }

    // --- the port of the metrics

    /// Serves metrics at this address from now on, or nowhere. If that fails, the present state
    /// stays.
    pub(super) fn listen_for_metrics(&self, wanted: Option<SocketAddr>) -> Result<(), AdminError> {
        let Some(me) = self.me.upgrade() else { return Ok(()) };
        self.metrics.change(wanted, me.services()).map_err(|error| not_listening(&error))?;
        self.catalog.change_daemon(|daemon| daemon.metrics_listen = wanted);
        self.tell_of_metrics();
        Ok(())
    }

    /// Opens the configured port, for [`Service::serve_metrics`]. If that fails, the daemon serves
    /// without it.
    pub(crate) fn open_metrics(&self) {
        let wanted = self.catalog.config().daemon.metrics_listen;
        if let Some(wanted) = wanted
            && let Err(error) = self.metrics.open(wanted)
        {
            self.refuse_metrics(&error);
        }
    }

    /// Starts answering at the port.
    pub(crate) fn serve_metrics(&self) {
        let Some(me) = self.me.upgrade() else { return };
        match self.metrics.serve(me.services()) {
            Ok(()) => self.tell_of_metrics(),
            Err(error) => self.refuse_metrics(&error),
        }
    }

    /// Closes the port and returns its socket, for the successor.
    pub(crate) fn give_metrics_away(&self) -> Option<Listener> {
        self.metrics.give_away()
    }

    /// Closes the port.
    pub(crate) fn close_metrics(&self) {
        self.metrics.close();
    }

    /// Logs the address: the system may have chosen the port.
    fn tell_of_metrics(&self) {
        if let Some(address) = self.metrics.address() {
            self.telemetry.emit(ServiceEvent::Note(
                MessageId::ApiReady,
                format!("metrics are served at http://{address}/metrics"),
            ));
        }
    }

    /// Reports that the configured address is not in effect: a reload retries it.
    fn refuse_metrics(&self, error: &ApiError) {
        self.catalog.change_daemon(|daemon| daemon.metrics_listen = None);
        let error = not_listening(error);
        let message = format!("{}; {}; then: forebay reload", error.what, error.hint);
        self.telemetry
            .emit(ServiceEvent::Problem(MessageId::Event(EventKind::ConfigRefused), message.clone()));
        self.hub.publish(NewEvent::new(EventKind::ConfigRefused, message));
    }
}

fn not_listening(error: &ApiError) -> AdminError {
    if let ApiError::Thread(error) = error {
        return AdminError::no_thread(error);
    }
    let hint = match error {
        ApiError::Metrics { address, source } if source.kind() == std::io::ErrorKind::AddrInUse => format!(
            "another program uses the port (ss -ltnp sport = :{}): choose another port, or stop it",
            address.port()
        ),
        _ => "choose another address".into(),
    };
    AdminError::new(MessageId::ApiListen, error, hint)
}

fn takes(key: &Key) -> String {
    match key.shape {
        Shape::Choice(_) => LogLevel::CHOICES.iter().map(|choice| choice.name).collect::<Vec<_>>().join(", "),
        _ => "127.0.0.1:PORT, [::1]:PORT or off".into(),
    }
}

fn differences(old: &DaemonConfig, new: &DaemonConfig) -> Changed {
    let both = old.live().into_iter().zip(new.live());
    both.filter(|((_, from), (_, to))| from != to)
        .map(|((key, from), (_, to))| (key.name.to_owned(), from, to))
        .collect()
}

fn key_of(edit: &Edit) -> Option<String> {
    match edit {
        Edit::Daemon { key, .. } => Some(key.clone()),
        _ => None,
    }
}

/// Returns the edits of the file that set the requested keys to the values in `settings`. A default
/// needs no line.
fn edits(settings: &DaemonConfig, request: &SettingsRequest) -> Vec<Edit> {
    let default = DaemonConfig::default().live();
    let live = settings.live().into_iter().zip(default);
    live.filter(|((key, _), _)| request.set.contains_key(key.name))
        .map(|((key, text), (_, default))| Edit::Daemon {
            key: key.name.into(),
            value: Some(text).filter(|text| *text != default),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::start;
    use super::*;
    use forebay_admin::Admin;
    use forebay_admin::events::{Delivery, Filter, Received, Start};
    use forebay_pool::handover::{HandoverSockets, ListenerStore};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    fn set(service: &Service, key: &str, value: Option<String>) -> Result<SettingsDone, AdminError> {
        let set = BTreeMap::from([(key.to_owned(), value)]);
        service.set_daemon(SettingsRequest { set, ..SettingsRequest::default() })
    }

    fn listen(service: &Service, address: &str) -> Result<String, AdminError> {
        set(service, "metrics_listen", Some(address.into()))?;
        Ok(service.daemon().metrics.unwrap_or_default())
    }

    fn connect(address: &str) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    fn hears(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Sends `GET /path` with more headers; returns the response.
    fn asks(address: &str, what: &str, headers: &str) -> String {
        let mut stream = connect(address);
        write!(stream, "{what} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").unwrap();
        hears(stream)
    }

    const HOST: &str = "Host: localhost\r\n";
    const STATE: &str = "forebay_pool_state{pool=\"a\",state=\"open\"} 1\n";

    fn text_of(folder: &Path) -> String {
        std::fs::read_to_string(folder.join("forebay.toml")).unwrap()
    }

    #[test]
    fn metrics_port_serves_only_metrics() {
        let folder = tempfile::tempdir().unwrap();
        let service = start(folder.path(), Arc::default(), "auto");
        let at = listen(&service, "127.0.0.1:0").unwrap();
        assert!(asks(&at, "GET /metrics", HOST).contains(STATE));
        let head = asks(&at, "HEAD /metrics", HOST);
        assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(asks(&at, "GET /", HOST).contains("This is Forebay."));
        for (what, headers, status) in [
            ("GET /v1/daemon", HOST, "404"),
            ("GET /ui/", HOST, "404"),
            ("POST /metrics", HOST, "405"),
            ("GET /metrics", "Host: evil.example\r\n", "403"),
            ("GET /metrics", "Host: localhost\r\nOrigin: http://localhost:1\r\n", "403"),
        ] {
            let answer = asks(&at, what, headers);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{what}: {answer}");
        }
        // One connection more than the limit: the oldest is closed, and a new request is answered.
        let mut silent: Vec<TcpStream> = (0..17).map(|_| connect(&at)).collect();
        assert_eq!(hears(silent.remove(0)), "", "there is no bound");
        assert!(asks(&at, "GET /metrics", HOST).contains(STATE));
        drop(silent);
        assert!(text_of(folder.path()).contains("metrics_listen = \"127.0.0.1:0\""));
        listen(&service, "off").unwrap();
        assert!(TcpStream::connect(&at).is_err() && !text_of(folder.path()).contains("metrics_listen"));
        assert!(service.stop().is_empty());
    }

    /// Returns a listener on a port that the kernel assigns to no connection: once closed, the port
    /// stays free.
    fn listener_below_ephemeral_ports() -> TcpListener {
        let start = 20_000 + (std::process::id() % 10_000) as u16;
        let mut ports = (start..32_000).chain(20_000..start);
        ports.find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).unwrap()
    }

    #[test]
    fn unavailable_port_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let service = start(folder.path(), Arc::default(), "auto");
        let other = listener_below_ephemeral_ports();
        let taken = other.local_addr().unwrap().to_string();
        let at = listen(&service, "127.0.0.1:0").unwrap();
        let before = text_of(folder.path());
        let error = listen(&service, &taken).unwrap_err();
        assert!(error.what.contains(&format!("cannot listen on {taken}")), "{error:?}");
        assert!(error.hint.contains("another program"), "{error:?}");
        assert!(listen(&service, "0.0.0.0:1").unwrap_err().what.contains("admin_tcp"));
        assert!(set(&service, "admin_mode", None).unwrap_err().what.contains("restart"));
        assert!(asks(&at, "GET /metrics", HOST).contains(STATE));
        assert_eq!(text_of(folder.path()), before);

        let filter = Filter::default().kind("config").unwrap();
        let mut events = service.hub.subscribe(filter, Start::Oldest).unwrap();
        let path = folder.path().join("forebay.toml");
        std::fs::write(&path, before.replace("127.0.0.1:0", &taken)).unwrap();
        assert!(service.reload().unwrap().refused[0].contains(&taken));
        let Received::Delivery(Delivery::Event(event)) = events.receive(Duration::from_secs(5)) else {
            panic!("no event");
        };
        assert!(event.message.contains(&taken), "{event:?}");
        assert!(asks(&at, "GET /metrics", HOST).contains(STATE));
        // The same with an address in the file that could not be bound so far.
        listen(&service, "off").unwrap();
        std::fs::write(&path, before.replace("127.0.0.1:0\"", &format!("{taken}\" # mine"))).unwrap();
        let wrong = text_of(folder.path());
        assert!(listen(&service, &taken).unwrap_err().what.contains(&taken));
        assert_eq!(text_of(folder.path()), wrong);
        drop(other);
        assert_eq!(service.reload().unwrap().changed, ["metrics_listen"], "it is tried again");
        assert!(asks(&taken, "GET /metrics", HOST).contains(STATE));
        let set = BTreeMap::from([("metrics_listen".to_owned(), None)]);
        let temporary = SettingsRequest { set, temporary: true, ..SettingsRequest::default() };
        service.set_daemon(temporary).unwrap();
        assert_eq!(text_of(folder.path()), wrong);
        listen(&service, "off").unwrap();
        assert!(!text_of(folder.path()).contains("metrics_listen"), "the file has it still");
        service.close_metrics();
        assert!(service.stop().is_empty());
    }

    #[test]
    fn metrics_client_survives_a_handover() {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<ListenerStore> = Arc::default();
        let service = start(folder.path(), Arc::clone(&store), "auto");
        let at = listen(&service, "127.0.0.1:0").unwrap();
        let listeners: Vec<_> = service.give_metrics_away().into_iter().collect();
        let mut waits = connect(&at);
        write!(waits, "GET /metrics HTTP/1.1\r\nConnection: close\r\n{HOST}\r\n").unwrap();
        store.put_back(HandoverSockets { listeners, guests: Vec::new() });
        service.open_metrics();
        service.serve_metrics();
        assert!(hears(waits).contains(STATE));
        assert_eq!(service.daemon().metrics, Some(at));
        service.close_metrics();
        assert!(service.stop().is_empty());
    }
}
