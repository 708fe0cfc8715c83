//! Settings of the daemon that can be changed while it runs, by name and as text: `forebay set
//! --daemon`. The file reader uses the same functions.

use super::choices::{LogLevel, Words};
use super::keys::{self, Key};
use super::model::DaemonConfig;
use super::value::{AsValue, ValueError, ValueKind, nearest};
use forebay_admin::MessageId;
use std::net::SocketAddr;

const LOG_LEVEL: &str = "log_level";
const METRICS_LISTEN: &str = "metrics_listen";
/// Their names.
pub const NAMES: [&str; 2] = [LOG_LEVEL, METRICS_LISTEN];

impl DaemonConfig {
    /// Returns their current values, as text.
    #[must_use]
    pub fn live(&self) -> Vec<(&'static Key, String)> {
        let live = keys::DAEMON.iter().filter(|key| NAMES.contains(&key.name));
        live.map(|key| (key, self.text_of(key.name))).collect()
    }

    fn text_of(&self, name: &str) -> String {
        match name {
            METRICS_LISTEN => self.metrics_listen.map_or_else(|| "off".into(), |address| address.to_string()),
            _ => self.log_level.word().into(),
        }
    }

    /// Sets one of them to a value given as text, or to its default.
    ///
    /// There is no such setting, it is only read at the start, or it does not accept the value.
    /// Nothing is changed then.
    pub fn set_live(&mut self, name: &str, text: Option<&str>) -> Result<(), ValueError> {
        let default = Self::default();
        match name {
            LOG_LEVEL => self.log_level = text.map_or(Ok(default.log_level), log_level)?,
            METRICS_LISTEN => {
                self.metrics_listen = text.map_or(Ok(default.metrics_listen), metrics_address)?;
            }
            _ if keys::DAEMON.iter().any(|key| key.name == name) => {
                return Err(ValueError::new(
                    "is read when the daemon starts: change [daemon] of forebay.toml, and restart it",
                )
                .about(MessageId::SettingFixed));
            }
            _ => {
                let near = nearest(name, NAMES).map(|near| format!("; did you mean `{near}`?"));
                let all = NAMES.join(", ");
                return Err(ValueError::new(format!(
                    "the daemon has no such setting{}; there are: {all}",
                    near.unwrap_or_default()
                ))
                .about(MessageId::SettingUnknown));
            }
        }
        Ok(())
    }
}

fn log_level(text: &str) -> Result<LogLevel, ValueError> {
    let level = ValueKind::Choice(LogLevel::CHOICES).parse(text)?;
    Ok(LogLevel::from_value(level).unwrap_or(LogLevel::Info))
}

/// Parses where metrics are served without a token: nowhere (`off`), or on loopback.
pub(crate) fn metrics_address(text: &str) -> Result<Option<SocketAddr>, ValueError> {
    let text = text.trim();
    if text == "off" {
        return Ok(None);
    }
    let address: SocketAddr = text.parse().map_err(|_| {
        ValueError::new(format!(
            "\"{text}\" is neither `off` nor a numeric address and a port, like 127.0.0.1:8661 or [::1]:8661"
        ))
    })?;
    if !address.ip().is_loopback() {
        return Err(ValueError::new(format!(
            "other hosts reach {}, and metrics_listen asks for no token: listen on 127.0.0.1 or [::1]; \
             admin_tcp has /metrics for other hosts, with a token and TLS",
            address.ip()
        )));
    }
    Ok(Some(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_for_loopback_only() {
        for (text, listens) in [
            ("127.0.0.1:8661", Some("127.0.0.1:8661")),
            ("127.8.9.10:1", Some("127.8.9.10:1")),
            ("[::1]:8661", Some("[::1]:8661")),
            ("127.0.0.1:0", Some("127.0.0.1:0")),
            ("off", None),
        ] {
            let read = metrics_address(text).unwrap().map(|address| address.to_string());
            assert_eq!(read.as_deref(), listens, "{text}");
        }
        for other in ["0.0.0.0:8661", "[::]:8661", "10.0.0.1:8661", "[::ffff:127.0.0.1]:8661"] {
            let error = metrics_address(other).unwrap_err().problem;
            assert!(error.contains("admin_tcp"), "{other}: {error}");
        }
        for wrong in ["", "8661", "127.0.0.1", "localhost:8661", "127.0.0.1:65536", "::1:8661", "on"] {
            assert!(metrics_address(wrong).unwrap_err().problem.contains("neither"), "{wrong}");
        }
    }

    #[test]
    fn invalid_live_settings_are_refused() {
        let mut daemon = DaemonConfig::default();
        let mut refused = |name: &str, text| daemon.set_live(name, Some(text)).unwrap_err().problem;
        assert!(refused("admin_tcp", "x").contains("restart"));
        assert!(refused("log_leval", "info").contains("did you mean `log_level`?"));
        assert!(refused("log_level", "inof").contains("is not one of"));
        assert_eq!(daemon, DaemonConfig::default());
        daemon.set_live("log_level", Some("warn")).unwrap();
        daemon.set_live("metrics_listen", Some("127.0.0.1:1")).unwrap();
        let texts: Vec<String> = daemon.live().into_iter().map(|(_, text)| text).collect();
        assert!(texts.contains(&"warn".to_owned()) && texts.contains(&"127.0.0.1:1".to_owned()), "{texts:?}");
        NAMES.iter().for_each(|name| daemon.set_live(name, None).unwrap());
        assert_eq!(daemon, DaemonConfig::default());
    }
}
