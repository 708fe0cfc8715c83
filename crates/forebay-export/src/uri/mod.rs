//! The URIs of exports and backing stores.
//!
//! | text | as an export | as a backing store |
//! | --- | --- | --- |
//! | `nbd+unix:///name?socket=/run/f.sock` | yes | an export of another server |
//! | `nbd://127.0.0.1:10809/name`, `nbd://[::1]/name` | yes (port 10809 if left out) | an export of another server |
//! | `nbds://host/name?tls=lan`, `nbds+unix:///name?socket=/p&tls=lan` | yes: with TLS only, by `[tls.lan]` | no |
//! | any of these with `access=staff` | yes: only for clients in `[access.staff]` | no |
//! | any with a socket, and `mode=0660`, `user=qemu`, `group=kvm` | yes: permissions of the socket's file | no |
//! | `/dev/sdb` | no | a block device |
//! | `file:/p`, `file:///p`, `/p`, `./p`, `p` | no | a file |
//! | `fuse:/mnt/x/volume` | yes: a file, see `docs/use/fuse.md` | no |
//! | `ublk:`, `ublk:name` | yes: a block device, see `docs/use/ublk.md` | no |
//! | `vhost-user:/run/x.sock` | yes: a device of a virtual machine, see `docs/use/vhost-user.md` | no |
//! | `s3:` | no | no |
//!
//! Invariants
//! - In `nbd`, `fuse:`, `vhost-user:` and `file:` URIs, `%41` is decoded; bare paths are taken
//!   literally.
//! - Printed values read back as the same value.
//! - Every error states the problem and its byte in the text, and shows a valid text.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// Default port of NBD over TCP.
pub const PORT: u16 = 10809;
/// Longest name, description or message on the wire.
pub const STRING_BYTES_MAX: usize = 4096;

const EXAMPLE_UNIX: &str = "nbd+unix:///db?socket=/run/forebay.sock";
const EXAMPLE_TCP: &str = "nbd://127.0.0.1:10809/db";
const EXAMPLE_TLS: &str = "nbds://0.0.0.0:10809/db?tls=lan";
const EXAMPLE_VHOST_USER: &str = "vhost-user:/run/forebay/vm1.sock";
const EXAMPLE_FUSE: &str = "fuse:/mnt/forebay/volume";
const EXAMPLE_UBLK: &str = "ublk:db";
const EXAMPLE_BACKING: &str = "file:/srv/disk.img or /dev/sdb";
const EXAMPLE_NBD_BACKING: &str = "nbd+unix:///db?socket=/run/server.sock or nbd://192.0.2.7:10809/db";

/// Longest path of a unix socket: the kernel's address has 108 bytes, one of them the final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Why a text is not a valid URI here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("\"{text}\", at byte {at}: {problem}. For example: {example}")]
pub struct UriError {
    /// The given text.
    pub text: String,
    /// Byte of the problem in `text`; its length if something is missing at the end.
    pub at: usize,
    /// The problem.
    pub problem: String,
    /// A valid example.
    pub example: &'static str,
}

/// Where an NBD server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A host name or address (without brackets), and a port.
    Tcp {
        /// Name, IPv4 or IPv6 address.
        host: String,
        /// Port.
        port: u16,
    },
}

/// Where a volume is served.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ExportUri {
    /// Over NBD.
    Nbd {
        /// Where the server listens.
        endpoint: Endpoint,
        /// The name of the export; may be empty.
        name: String,
        /// Requirements on clients.
        guards: Guards,
        /// Permissions of the socket, if it is one in the file system.
        permissions: FilePermissions,
    },
    /// As a file, over FUSE.
    Fuse {
        /// The file; absolute.
        path: PathBuf,
    },
    /// As a block device, by ublk.
    Ublk {
        /// Its name below `/dev/forebay`; by default that of the volume.
        name: Option<String>,
    },
    /// As a block device of a virtual machine, over vhost-user.
    VhostUser {
        /// The socket; absolute.
        path: PathBuf,
        /// Its permissions.
        permissions: FilePermissions,
    },
}

/// Requirements on the clients of an export: names of sections of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Guards {
    /// All traffic goes through TLS, with the certificates of `[tls.NAME]`.
    pub tls: Option<String>,
    /// Only clients that `[access.NAME]` lists find the export.
    pub access: Option<String>,
}

/// Permissions of a socket's file: write permission permits connecting. The server's defaults apply
/// to unset fields.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FilePermissions {
    /// Permission bits, at most `0o777`.
    pub mode: Option<u32>,
    /// Name or number of its owner.
    pub user: Option<String>,
    /// Name or number of its group.
    pub group: Option<String>,
}

/// The backing store of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BackingUri {
    /// A file.
    File(PathBuf),
    /// A block device: a path below `/dev`.
    Device(PathBuf),
    /// An export of an NBD server.
    Nbd(NbdBacking),
}

/// An export of an NBD server, as a backing store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NbdBacking {
    endpoint: Endpoint,
    name: String,
    /// The printed URI.
    address: PathBuf,
}

impl NbdBacking {
    /// Where the server listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The name of the export; may be empty.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl BackingUri {
    /// Returns the path of the file or device; for an export of a server its URI, which differs
    /// from every path of a file.
    pub fn path(&self) -> &Path {
        match self {
            BackingUri::File(path) | BackingUri::Device(path) => path,
            BackingUri::Nbd(export) => &export.address,
        }
    }

    /// Returns the export, if it is one of a server.
    pub fn nbd(&self) -> Option<&NbdBacking> {
        if let BackingUri::Nbd(export) = self { Some(export) } else { None }
    }
}

/// A text being parsed; creates errors that point into it.
#[derive(Clone, Copy)]
struct Text<'a> {
    whole: &'a str,
    example: &'static str,
}

impl Text<'_> {
    fn error(self, at: usize, problem: impl Into<String>) -> UriError {
        let text = self.whole.to_owned();
        UriError { text, at, problem: problem.into(), example: self.example }
    }
}

/// Longest name of a block device: it is a file name, with a prefix while it is created.
const DEVICE_NAME_BYTES_MAX: usize = 200;

/// Schemes that are for exports only.
const FOR_EXPORTS: [&str; 3] = ["fuse", "ublk", "vhost-user"];

/// Returns the part before the first colon, if it can be a scheme.
fn scheme_of(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once(':')?;
    let mut letters = scheme.chars();
    let starts = letters.next().is_some_and(|c| c.is_ascii_alphabetic());
    let goes_on = letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    (starts && goes_on).then_some(scheme)
}

impl FromStr for ExportUri {
    type Err = UriError;

    fn from_str(whole: &str) -> Result<ExportUri, UriError> {
        let text = Text { whole, example: EXAMPLE_UNIX };
        let Some(scheme) = scheme_of(whole) else {
            return Err(
                text.error(0, "an export needs a scheme, nbd+unix:, nbd:, fuse:, ublk: or vhost-user:")
            );
        };
        match scheme.to_ascii_lowercase().as_str() {
            "nbd+unix" | "nbds+unix" => parse_unix(text, scheme),
            "nbd" => parse_tcp(Text { example: EXAMPLE_TCP, ..text }, scheme),
            "nbds" => parse_tcp(Text { example: EXAMPLE_TLS, ..text }, scheme),
            "fuse" => parse_fuse(Text { example: EXAMPLE_FUSE, ..text }),
            "ublk" => parse_ublk(Text { example: EXAMPLE_UBLK, ..text }),
            "vhost-user" => parse_vhost_user(Text { example: EXAMPLE_VHOST_USER, ..text }),
            "s3" => Err(text.error(0, "s3: is not supported")),
            "nbd+vsock" => Err(text.error(0, "NBD over vsock is not supported yet")),
            name => Err(text.error(0, format!("{name}: is not a scheme of exports"))),
        }
    }
}

/// Parses `nbd+unix:///name?socket=/path`.
fn parse_unix(text: Text<'_>, scheme: &str) -> Result<ExportUri, UriError> {
    let start = scheme.len() + 1;
    let rest = &text.whole[start..];
    let Some(rest) = rest.strip_prefix("//") else {
        return Err(text.error(start, "\"//\" is missing after the scheme"));
    };
    let start = start + 2;
    no_fragment(text)?;
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let Some(name) = path.strip_prefix('/') else {
        return Err(text.error(start, "a unix URI has no host: three slashes come before the export's name"));
    };
    let name = export_name(text, start + 1, name)?;
    let query_at = (start + path.len() + 1).min(text.whole.len());
    let Parameters { socket, guards, permissions, .. } = parse_query(text, query_at, query, scheme)?;
    let Some((at, socket)) = socket else {
        return Err(text.error(text.whole.len(), "?socket=/path is missing"));
    };
    let socket = decode(text, at, socket)?;
    if socket.is_empty() {
        return Err(text.error(at, "the path of the socket is empty"));
    }
    if socket.contains(&0) || socket.len() > SOCKET_PATH_BYTES_MAX {
        let problem = format!("a socket's path has 1 to {SOCKET_PATH_BYTES_MAX} bytes, none of them zero");
        return Err(text.error(at, problem));
    }
    let endpoint = Endpoint::Unix(PathBuf::from(OsString::from_vec(socket)));
    Ok(ExportUri::Nbd { endpoint, name, guards, permissions })
}

/// Parses `nbd://host[:port][/name]`.
fn parse_tcp(text: Text<'_>, scheme: &str) -> Result<ExportUri, UriError> {
    let start = scheme.len() + 1;
    let Some(rest) = text.whole[start..].strip_prefix("//") else {
        return Err(text.error(start, "\"//\" is missing after the scheme"));
    };
    let start = start + 2;
    no_fragment(text)?;
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let query_at = (start + path.len() + 1).min(text.whole.len());
    let Parameters { socket, guards, permissions } = parse_query(text, query_at, query, scheme)?;
    if socket.is_some() {
        return Err(text.error(query_at, format!("a socket's path needs {scheme}+unix:")));
    }
    if permissions != FilePermissions::default() {
        let problem = format!("mode=, user= and group= are those of a socket's file: {scheme}+unix: has one");
        return Err(text.error(query_at, problem));
    }
    let (authority, name) = path.split_once('/').unwrap_or((path, ""));
    if authority.contains('@') {
        return Err(text.error(start, "user names are not supported"));
    }
    let (host, port) = parse_authority(text, start, authority)?;
    let name_at = (start + authority.len() + 1).min(text.whole.len());
    let name = export_name(text, name_at, name)?;
    Ok(ExportUri::Nbd { endpoint: Endpoint::Tcp { host, port }, name, guards, permissions })
}

fn parse_authority(text: Text<'_>, at: usize, authority: &str) -> Result<(String, u16), UriError> {
    let (host, port) = if let Some(inner) = authority.strip_prefix('[') {
        let Some((host, after)) = inner.split_once(']') else {
            return Err(text.error(at, "the bracket of the IPv6 address is not closed"));
        };
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(text.error(at + 1, format!("\"{host}\" is not an IPv6 address")));
        }
        let port_at = at + host.len() + 2;
        match after.strip_prefix(':') {
            Some(port) => (host.to_owned(), Some((port_at + 1, port))),
            None if after.is_empty() => (host.to_owned(), None),
            None => return Err(text.error(port_at, "only a colon and a port may follow the address")),
        }
    } else {
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => (host, Some((at + host.len() + 1, port))),
            None => (authority, None),
        };
        if port.is_some_and(|(_, port)| port.contains(':')) {
            return Err(text.error(at, "an IPv6 address goes in brackets, like [::1]"));
        }
        if host.is_empty() {
            return Err(text.error(at, "the host is missing"));
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if let Some(bad) = host.find(|c| !legal(c)) {
            return Err(text.error(at + bad, "a host name has letters, digits, dots and hyphens"));
        }
        (host.to_owned(), port)
    };
    let port = match port {
        None | Some((_, "")) => PORT,
        Some((at, digits)) => {
            let number = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u16>());
            match number {
                Some(Ok(port)) if port > 0 => port,
                _ => return Err(text.error(at, format!("port \"{digits}\" is not in 1 to 65535"))),
            }
        }
    };
    Ok((host, port))
}

fn no_fragment(text: Text<'_>) -> Result<(), UriError> {
    match text.whole.find('#') {
        Some(at) => Err(text.error(at, "\"#\" must be written as %23")),
        None => Ok(()),
    }
}

fn export_name(text: Text<'_>, at: usize, encoded: &str) -> Result<String, UriError> {
    let bytes = decode(text, at, encoded)?;
    if bytes.len() > STRING_BYTES_MAX {
        return Err(text.error(at, format!("the export's name is longer than {STRING_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| text.error(at, "the export's name is not UTF-8"))
}

/// The part after the question mark.
#[derive(Default)]
struct Parameters<'a> {
    /// The value of `socket=`, and its offset.
    socket: Option<(usize, &'a str)>,
    guards: Guards,
    permissions: FilePermissions,
}

fn parse_query<'a>(
    text: Text<'_>,
    at: usize,
    query: &'a str,
    scheme: &str,
) -> Result<Parameters<'a>, UriError> {
    let with_tls = scheme.to_ascii_lowercase().starts_with("nbds");
    let mut found = Parameters::default();
    let mut at = at;
    for pair in query.split('&') {
        let twice = |key: &str| text.error(at, format!("{key}= is given twice"));
        match pair.split_once('=') {
            Some(("socket", _)) if found.socket.is_some() => return Err(twice("socket")),
            Some(("socket", value)) => found.socket = Some((at + "socket=".len(), value)),
            Some(("tls", _)) if !with_tls => {
                return Err(text.error(at, format!("tls= needs {}:", scheme.replacen("nbd", "nbds", 1))));
            }
            Some((key @ ("tls" | "access"), value)) => {
                let guards = &mut found.guards;
                let guard = if key == "tls" { &mut guards.tls } else { &mut guards.access };
                if guard.is_some() {
                    return Err(twice(key));
                }
                *guard = Some(section_name(text, at + key.len() + 1, value)?);
            }
            Some((key @ ("mode" | "user" | "group"), value)) => {
                found.permissions.parse(text, at, (key, value))?;
            }
            _ if pair.is_empty() => {}
            _ => {
                let key = pair.split('=').next().unwrap_or(pair);
                let problem = format!(
                    "unknown parameter \"{key}\"; socket=, mode=, user=, group=, tls= and access= are known"
                );
                return Err(text.error(at, problem));
            }
        }
        at += pair.len() + 1;
    }
    if with_tls && found.guards.tls.is_none() {
        let problem = "tls=NAME is missing: it names the section [tls.NAME] with the certificates";
        return Err(text.error(text.whole.len(), problem));
    }
    Ok(found)
}

impl FilePermissions {
    /// Parses one of `mode=`, `user=` and `group=`, which begins at this byte.
    fn parse(&mut self, text: Text<'_>, at: usize, (key, value): (&str, &str)) -> Result<(), UriError> {
        let (twice, value_at) = (|| text.error(at, format!("{key}= is given twice")), at + key.len() + 1);
        if key == "mode" {
            let octal = !value.is_empty() && value.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
            let mode = octal.then(|| u32::from_str_radix(value, 8).ok()).flatten();
            let Some(mode) = mode.filter(|mode| *mode <= 0o777) else {
                return Err(text.error(value_at, "mode= takes permissions, octal, like 0660"));
            };
            return self.mode.replace(mode).map_or(Ok(()), |_| Err(twice()));
        }
        let name = String::from_utf8(decode(text, value_at, value)?)
            .ok()
            .filter(|name| !name.is_empty() && !name.contains(['\0', '/', ':', '\n']));
        let name = name
            .ok_or_else(|| text.error(value_at, format!("{key}= takes the name or the number of a {key}")))?;
        let place = if key == "user" { &mut self.user } else { &mut self.group };
        place.replace(name).map_or(Ok(()), |_| Err(twice()))
    }

    /// Returns them as parameters of a URI.
    fn parameters(&self) -> impl Iterator<Item = (&'static str, String)> {
        let named = |key, name: &Option<String>| Some((key, encode(name.as_ref()?.as_bytes())));
        let mode = self.mode.map(|mode| ("mode", format!("{mode:04o}")));
        [mode, named("user", &self.user), named("group", &self.group)].into_iter().flatten()
    }
}

/// Parses the name of a section of the configuration.
fn section_name(text: Text<'_>, at: usize, name: &str) -> Result<String, UriError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(legal) {
        return Err(text.error(at, "the name of a section has letters, digits, `-`, `_` and `.`"));
    }
    Ok(name.to_owned())
}

/// Decodes percent encoding.
fn decode(text: Text<'_>, at: usize, encoded: &str) -> Result<Vec<u8>, UriError> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first != b'%' {
            bytes.push(*first);
            rest = tail;
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let value = digit(0).zip(digit(1)).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        let Some(value) = value else {
            let at = at + encoded.len() - rest.len();
            return Err(text.error(at, "\"%\" must be followed by two hexadecimal digits (\"%25\" is \"%\")"));
        };
        bytes.push(value);
        rest = &tail[2..];
    }
    Ok(bytes)
}

/// Percent-encodes all but letters, digits and safe characters of paths and query values.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

impl ExportUri {
    /// Returns the URI for clients: without the names of sections of the server's configuration.
    pub fn for_clients(&self) -> String {
        match self {
            ExportUri::Nbd { endpoint, name, guards, .. } => {
                let scheme = if guards.tls.is_some() { "nbds" } else { "nbd" };
                nbd_uri(scheme, endpoint, name)
            }
            ExportUri::Fuse { path } => format!("fuse://{}", encode(path.as_os_str().as_bytes())),
            ExportUri::Ublk { name } => format!("ublk:{}", name.as_deref().unwrap_or_default()),
            ExportUri::VhostUser { path, .. } => {
                format!("vhost-user://{}", encode(path.as_os_str().as_bytes()))
            }
        }
    }
}

fn nbd_uri(scheme: &str, endpoint: &Endpoint, name: &str) -> String {
    let name = encode(name.as_bytes());
    match endpoint {
        Endpoint::Unix(path) => {
            format!("{scheme}+unix:///{name}?socket={}", encode(path.as_os_str().as_bytes()))
        }
        Endpoint::Tcp { host, port } if host.contains(':') => format!("{scheme}://[{host}]:{port}/{name}"),
        Endpoint::Tcp { host, port } => format!("{scheme}://{host}:{port}/{name}"),
    }
}

impl fmt::Display for ExportUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.for_clients();
        f.write_str(&text)?;
        let (guards, permissions) = match self {
            ExportUri::Nbd { guards, permissions, .. } => (Some(guards), permissions),
            ExportUri::VhostUser { permissions, .. } => (None, permissions),
            ExportUri::Fuse { .. } | ExportUri::Ublk { .. } => return Ok(()),
        };
        let guards = guards.into_iter().flat_map(|guards| [("tls", &guards.tls), ("access", &guards.access)]);
        let guards = guards.filter_map(|(key, section)| Some((key, section.clone()?)));
        let mut mark = if text.contains('?') { '&' } else { '?' };
        for (key, value) in permissions.parameters().chain(guards) {
            write!(f, "{mark}{key}={value}")?;
            mark = '&';
        }
        Ok(())
    }
}

impl FromStr for BackingUri {
    type Err = UriError;

    fn from_str(whole: &str) -> Result<BackingUri, UriError> {
        let text = Text { whole, example: EXAMPLE_BACKING };
        if whole.is_empty() {
            return Err(text.error(0, "the backing store is missing"));
        }
        if whole.contains('\0') {
            return Err(text.error(whole.find('\0').unwrap_or(0), "a path has no zero byte"));
        }
        // A path may have a colon in a later component, and so may a text that starts like a path.
        let scheme = scheme_of(whole).filter(|scheme| !scheme.contains('.'));
        let Some(scheme) = scheme else { return Ok(backing(PathBuf::from(whole))) };
        match scheme.to_ascii_lowercase().as_str() {
            "file" => parse_file(text),
            "nbd" | "nbd+unix" => parse_nbd_backing(text, scheme),
            "nbds" | "nbds+unix" => {
                let problem = "a backing store over NBD with TLS is not supported: use nbd+unix:, or nbd: \
                               through a tunnel";
                Err(without_secret(text).error(0, problem))
            }
            "s3" => Err(text.error(0, "s3: is not supported")),
            name if FOR_EXPORTS.contains(&name) => {
                Err(text.error(0, format!("{name}: is for exports, not for backing stores")))
            }
            name => {
                let problem =
                    format!("{name}: is not a kind of backing store; write ./{whole} if it is a file");
                Err(text.error(0, problem))
            }
        }
    }
}

/// Parses `nbd+unix:///name?socket=/path` or `nbd://host[:port][/name]` as a backing store.
fn parse_nbd_backing(text: Text<'_>, scheme: &str) -> Result<BackingUri, UriError> {
    let text = Text { example: EXAMPLE_NBD_BACKING, ..text };
    if has_secret(text.whole) {
        let problem = "NBD has no user names and passwords";
        return Err(without_secret(text).error(scheme.len() + 3, problem));
    }
    let export =
        if scheme.eq_ignore_ascii_case("nbd") { parse_tcp(text, scheme) } else { parse_unix(text, scheme) };
    let ExportUri::Nbd { endpoint, name, guards, permissions } = export? else {
        return Err(text.error(0, "not an export of a server"));
    };
    if guards != Guards::default() || permissions != FilePermissions::default() {
        let at = text.whole.find('?').map_or(0, |mark| mark + 1);
        return Err(text.error(at, "access=, mode=, user= and group= are for exports of this program"));
    }
    let address = ExportUri::Nbd { endpoint: endpoint.clone(), name: name.clone(), guards, permissions };
    Ok(BackingUri::Nbd(NbdBacking { endpoint, name, address: PathBuf::from(address.to_string()) }))
}

/// The host may come with a user name and a password.
fn has_secret(text: &str) -> bool {
    let authority = text.split_once("//").map_or("", |(_, rest)| rest);
    authority.split(['/', '?']).next().is_some_and(|authority| authority.contains('@'))
}

/// The text for an error message: a password is left out.
fn without_secret(text: Text<'_>) -> Text<'_> {
    if has_secret(text.whole) { Text { whole: "nbd://...", ..text } } else { text }
}

fn parse_file(text: Text<'_>) -> Result<BackingUri, UriError> {
    Ok(backing(path_behind(text, "file:")?))
}

/// Parses `fuse:/path`.
fn parse_fuse(text: Text<'_>) -> Result<ExportUri, UriError> {
    let path = path_behind(text, "fuse:")?;
    if !path.is_absolute() || path.file_name().is_none() {
        return Err(text.error("fuse:".len(), "the absolute path of a file is needed"));
    }
    Ok(ExportUri::Fuse { path })
}

/// Parses `ublk:` or `ublk:name`.
fn parse_ublk(text: Text<'_>) -> Result<ExportUri, UriError> {
    let start = "ublk:".len();
    let name = &text.whole[start..];
    if name.is_empty() {
        return Ok(ExportUri::Ublk { name: None });
    }
    match device_name_problem(name) {
        None => Ok(ExportUri::Ublk { name: Some(name.to_owned()) }),
        Some((at, problem)) => Err(text.error(start + at, problem)),
    }
}

/// Returns why a text cannot be the name of a block device, and the byte of the problem.
pub fn device_name_problem(name: &str) -> Option<(usize, &'static str)> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match name.find(|c| !legal(c)) {
        Some(at) => Some((at, "the name of a block device has letters, digits, `-`, `_` and `.`")),
        None if name.is_empty() || name.starts_with('.') => {
            Some((0, "the name of a block device does not begin with a dot"))
        }
        None if name.len() > DEVICE_NAME_BYTES_MAX => {
            Some((DEVICE_NAME_BYTES_MAX, "the name of a block device has at most 200 bytes"))
        }
        None => None,
    }
}

/// Parses `vhost-user:/path`, with permissions of the socket.
fn parse_vhost_user(text: Text<'_>) -> Result<ExportUri, UriError> {
    let at = "vhost-user:".len();
    no_fragment(text)?;
    let (place, query) = text.whole.split_once('?').unwrap_or((text.whole, ""));
    let path = path_behind(Text { whole: place, ..text }, "vhost-user:").map_err(|mut error| {
        text.whole.clone_into(&mut error.text);
        error
    })?;
    let mut permissions = FilePermissions::default();
    let mut query_at = place.len() + 1;
    for pair in query.split('&').filter(|_| !query.is_empty()) {
        match pair.split_once('=') {
            Some((key @ ("mode" | "user" | "group"), value)) => {
                permissions.parse(text, query_at, (key, value))?;
            }
            _ => {
                let problem = "mode=, user= and group= are known; \"?\" in a path is written as %3F";
                return Err(text.error(query_at, problem));
            }
        }
        query_at += pair.len() + 1;
    }
    if !path.is_absolute() || path.file_name().is_none() {
        return Err(text.error(at, "the absolute path of a socket is needed"));
    }
    if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        return Err(text.error(at, format!("a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes")));
    }
    Ok(ExportUri::VhostUser { path, permissions })
}

/// Returns the path of a URI that has only a path.
fn path_behind(text: Text<'_>, scheme: &str) -> Result<PathBuf, UriError> {
    let mut at = scheme.len();
    let mut path = &text.whole[at..];
    if let Some(rest) = path.strip_prefix("//") {
        if !rest.starts_with('/') {
            return Err(text.error(at + 2, format!("{scheme} URIs have no host; write {scheme}/path")));
        }
        at += 2;
        path = rest;
    }
    if let Some(mark) = path.find(['?', '#']) {
        let problem = format!("\"?\" and \"#\" must be written as %3F and %23 in a {scheme} URI");
        return Err(text.error(at + mark, problem));
    }
    let bytes = decode(text, at, path)?;
    if bytes.is_empty() {
        return Err(text.error(at, "the path is missing"));
    }
    if bytes.contains(&0) {
        return Err(text.error(at, "a path has no zero byte"));
    }
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

fn backing(path: PathBuf) -> BackingUri {
    if path.starts_with("/dev") { BackingUri::Device(path) } else { BackingUri::File(path) }
}

impl fmt::Display for BackingUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackingUri::Device(path) | BackingUri::File(path) => {
                // An absolute path gets the two slashes of an empty host, so that one like //p
                // stays a path.
                let slashes = if path.is_absolute() { "//" } else { "" };
                write!(f, "file:{slashes}{}", encode(path.as_os_str().as_bytes()))
            }
            BackingUri::Nbd(export) => write!(f, "{}", export.address.display()),
        }
    }
}

#[cfg(test)]
mod tests;
