//! Keys of forebay.toml other than tunables: one table per section, from which the reader's
//! suggestions, the JSON schema and the example are generated.

use super::choices::{ClientCertificates, LockMemory, LogLevel, Words};
use super::value::Choice;

/// Accepted values of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// An absolute path.
    Path,
    /// A list of absolute paths.
    Paths,
    /// A group of users, by name or number.
    Group,
    /// A name of a section.
    Name,
    /// `host:port`.
    Address,
    /// An address of loopback and a port, or `off`.
    LoopbackAddress,
    /// A program, by its absolute path, and its arguments.
    Command,
    /// URI of a backing store.
    Backing,
    /// A list of URIs of exports.
    Exports,
    /// A list of cache devices: paths, or tables of [`DEVICE`].
    Devices,
    /// A size in bytes.
    Size,
    /// Permissions, octal.
    FileMode,
    /// A list of numbers of users or groups.
    Ids,
    /// A list of names in certificates.
    ClientNames,
    /// A list of ranges of addresses.
    Addresses,
    /// One of several words.
    Choice(&'static [Choice]),
    /// A table with these keys.
    Table(&'static [Key]),
    /// A list of tables with these keys.
    Tables(&'static [Key]),
    /// A text or a whole number, parsed by the rules.
    Scalar,
}

/// A key of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Name.
    pub name: &'static str,
    /// Accepted values.
    pub shape: Shape,
    /// The key must be given.
    pub required: bool,
    /// The default in the file's syntax; empty if there is none.
    pub default: &'static str,
    /// A value for the example, in the file's syntax.
    pub example: &'static str,
    /// Its effect, in one line.
    pub help: &'static str,
}

const fn required(name: &'static str, shape: Shape, example: &'static str, help: &'static str) -> Key {
    Key { name, shape, required: true, default: "", example, help }
}

const fn optional(name: &'static str, shape: Shape, example: &'static str, help: &'static str) -> Key {
    Key { name, shape, required: false, default: "", example, help }
}

const fn with_default(name: &'static str, shape: Shape, default: &'static str, help: &'static str) -> Key {
    Key { name, shape, required: false, default, example: default, help }
}

/// Default path of the admin socket.
pub const ADMIN_SOCKET: &str = "/run/forebay/admin.sock";
/// Default permissions of the admin socket.
pub const ADMIN_MODE: u32 = 0o660;
/// Default folder of the daemon's persistent state.
pub const STATE_DIR: &str = "/var/lib/forebay";

/// `[daemon]`
pub const DAEMON: &[Key] = &[
    with_default(
        "admin_socket",
        Shape::Path,
        "\"/run/forebay/admin.sock\"",
        "socket of the admin API and of the commands",
    ),
    with_default("admin_mode", Shape::FileMode, "\"0660\"", "permissions of the admin socket"),
    optional(
        "admin_group",
        Shape::Group,
        "\"forebay-admin\"",
        "group of the admin socket, by name or number; without, that of the daemon, which sockets of exports have too",
    ),
    optional(
        "admin_tcp",
        Shape::Table(ADMIN_TCP),
        "{ listen = \"127.0.0.1:8660\", token_file = \"/etc/forebay/token\" }",
        "the admin API over TCP too, for clients with the token",
    ),
    Key {
        name: "metrics_listen",
        shape: Shape::LoopbackAddress,
        required: false,
        default: "\"off\"",
        example: "\"127.0.0.1:8661\"",
        help: "/metrics for Prometheus without a token, for all users of this machine: an address of loopback and a port",
    },
    optional(
        "admin_operate",
        Shape::Table(USERS),
        "{ uids = [1000] }",
        "users and groups that may make changes over the admin socket; with this or admin_read, no others but root and the daemon's user",
    ),
    optional(
        "admin_read",
        Shape::Table(USERS),
        "{ gids = [1001] }",
        "users and groups that may only read over the admin socket",
    ),
    optional(
        "allowed_paths",
        Shape::Paths,
        "[\"/dev\", \"/srv\"]",
        "folders below which the admin API takes devices, files, sockets and keys from users other than root and the daemon's user; without, everywhere",
    ),
    optional(
        "alarm_command",
        Shape::Command,
        "[\"/usr/local/sbin/tell-alarm\"]",
        "program, with its arguments, that is run for each alarm that is raised or ends; the event is its standard input, as JSON",
    ),
    optional("control_fs", Shape::Path, "\"/run/forebay/control\"", "mount point of the control file system"),
    with_default("log_level", Shape::Choice(LogLevel::CHOICES), "\"info\"", "messages to log"),
    with_default(
        "lock_memory",
        Shape::Choice(LockMemory::CHOICES),
        "\"no\"",
        "keep all memory of the daemon from being swapped out; needs an unlimited RLIMIT_MEMLOCK",
    ),
    with_default(
        "state_dir",
        Shape::Path,
        "\"/var/lib/forebay\"",
        "folder for records that the daemon keeps between runs",
    ),
];

/// `admin_operate` and `admin_read` of `[daemon]`
pub const USERS: &[Key] = &[
    optional("uids", Shape::Ids, "[1000]", "users, as numbers"),
    optional("gids", Shape::Ids, "[1001]", "groups, as numbers"),
];

/// `[tls.NAME]`
pub const TLS: &[Key] = &[
    required(
        "cert_file",
        Shape::Path,
        "\"/etc/forebay/cert.pem\"",
        "certificate chain (PEM), the server's own first",
    ),
    required(
        "key_file",
        Shape::Path,
        "\"/etc/forebay/key.pem\"",
        "private key (PEM); only owner and group may read it",
    ),
    optional(
        "client_ca_file",
        Shape::Path,
        "\"/etc/forebay/client-ca.pem\"",
        "authorities (PEM) that certificates of clients must come from; without it clients need none",
    ),
    Key {
        name: "client_certificates",
        shape: Shape::Choice(ClientCertificates::CHOICES),
        required: false,
        default: "\"required\"",
        example: "\"required\"",
        help: "whether clients must have a certificate, if there is a client_ca_file",
    },
];

/// `[access.NAME]`
pub const ACCESS: &[Key] = &[
    optional(
        "clients",
        Shape::ClientNames,
        "[\"cn:vm-host-1\", \"dns:vm-host-2.example\"]",
        "names in the certificates of clients: cn: (common name), dns: or uri: (alternative names)",
    ),
    optional("uids", Shape::Ids, "[1000]", "users of clients on a unix socket, as numbers"),
    optional("gids", Shape::Ids, "[1001]", "groups of clients on a unix socket, as numbers"),
    optional(
        "addresses",
        Shape::Addresses,
        "[\"10.1.0.0/16\", \"2001:db8::/32\"]",
        "addresses of clients over TCP",
    ),
];

/// `admin_tcp` of `[daemon]`
pub const ADMIN_TCP: &[Key] = &[
    required("listen", Shape::Address, "\"127.0.0.1:8660\"", "address and port"),
    required("token_file", Shape::Path, "\"/etc/forebay/token\"", "file with the token that permits changes"),
    optional(
        "read_token_file",
        Shape::Path,
        "\"/etc/forebay/read-token\"",
        "file with the token that permits only reading",
    ),
    optional("cert_file", Shape::Path, "\"/etc/forebay/cert.pem\"", "certificate, for TLS; needs key_file"),
    optional("key_file", Shape::Path, "\"/etc/forebay/key.pem\"", "private key, for TLS; needs cert_file"),
];

/// `[pool.NAME]`
pub const POOL: &[Key] = &[required(
    "devices",
    Shape::Devices,
    "[{ path = \"/srv/flash/cache.img\", size = \"64GiB\" }]",
    "cache devices: block devices, or files that are created with their size if missing",
)];

/// An entry of `devices`
pub const DEVICE: &[Key] = &[
    required("path", Shape::Path, "\"/dev/nvme0n1p4\"", "file or block device"),
    optional("size", Shape::Size, "\"64GiB\"", "bytes to use; needed to make a file"),
];

/// `[volume.NAME]`
pub const VOLUME: &[Key] = &[
    required("pool", Shape::Name, "\"fast\"", "the pool that caches it"),
    required("backing", Shape::Backing, "\"/dev/sdb\"", "the backing store"),
    required(
        "exports",
        Shape::Exports,
        "[\"nbd+unix:///db?socket=/run/forebay/db.sock\"]",
        "where clients find the volume; may be empty",
    ),
    optional("size", Shape::Size, "\"1TiB\"", "bytes to serve, if not the whole backing store"),
    optional(
        "rule",
        Shape::Tables(RULE),
        "",
        "which requests are cached: the first rule that matches decides",
    ),
];

/// `[[volume.NAME.rule]]`
pub const RULE: &[Key] = &[
    required("action", Shape::Scalar, "\"bypass\"", "cache, bypass, pin or write-through"),
    optional("name", Shape::Scalar, "\"backup\"", "for people"),
    optional("pid", Shape::Scalar, "1234", "process of the client"),
    optional("tgid", Shape::Scalar, "1234", "thread group of the client"),
    optional("uid", Shape::Scalar, "1000", "user of the client"),
    optional("exe", Shape::Scalar, "\"rsync\"", "program of the client: its name or path, * and ? allowed"),
    optional("cgroup", Shape::Scalar, "\"/system.slice/backup.service\"", "control group of the client"),
    optional("export", Shape::Scalar, "\"db-ro\"", "name of the export, * and ? allowed"),
    optional("lba", Shape::Scalar, "\"0..1GiB\"", "bytes of the volume; either end may be open"),
    optional("size", Shape::Scalar, "\"..64KiB\"", "bytes of the request; either end may be open"),
    optional("direction", Shape::Scalar, "\"read\"", "read or write"),
    optional("expires", Shape::Scalar, "\"1h\"", "the rule is dropped after this time"),
];

/// Sections of the file, with the name of a pool or volume where there is one.
pub const SECTIONS: [&str; 5] = ["daemon", "tls", "access", "pool", "volume"];

/// Returns the names of keys.
pub(crate) fn names(keys: &'static [Key]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_keys_match_the_rules() {
        let (mut ours, mut theirs) = (names(RULE), crate::rules::KEYS.to_vec());
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(ours, theirs);
    }
}
