//! Valid and invalid URIs, and the byte that an error points to.

use super::*;
use proptest::prelude::*;

fn unix(name: &str, socket: &str) -> ExportUri {
    ExportUri::Nbd {
        endpoint: Endpoint::Unix(socket.into()),
        name: name.to_owned(),
        guards: Guards::default(),
        permissions: FilePermissions::default(),
    }
}

fn tcp(host: &str, port: u16, name: &str) -> ExportUri {
    let endpoint = Endpoint::Tcp { host: host.to_owned(), port };
    let (guards, permissions) = (Guards::default(), FilePermissions::default());
    ExportUri::Nbd { endpoint, name: name.to_owned(), guards, permissions }
}

fn guarded(uri: ExportUri, tls: Option<&str>, access: Option<&str>) -> ExportUri {
    let ExportUri::Nbd { endpoint, name, permissions, .. } = uri else { panic!("not NBD") };
    let guards = Guards { tls: tls.map(str::to_owned), access: access.map(str::to_owned) };
    ExportUri::Nbd { endpoint, name, guards, permissions }
}

fn permitted(mut uri: ExportUri, mode: Option<u32>, user: Option<&str>, group: Option<&str>) -> ExportUri {
    if let ExportUri::Nbd { permissions, .. } | ExportUri::VhostUser { permissions, .. } = &mut uri {
        *permissions =
            FilePermissions { mode, user: user.map(str::to_owned), group: group.map(str::to_owned) };
    }
    uri
}

fn vhost_user(path: &str) -> ExportUri {
    ExportUri::VhostUser { path: path.into(), permissions: FilePermissions::default() }
}

#[test]
fn valid_exports_are_parsed() {
    for (text, expected) in [
        ("nbd+unix:///db?socket=/run/f.sock", unix("db", "/run/f.sock")),
        ("nbd+unix:///?socket=f.sock", unix("", "f.sock")),
        ("NBD+UNIX:///a%20b%2Fc/d?socket=/tmp/%c3%a9", unix("a b/c/d", "/tmp/é")),
        ("nbd+unix:///a?socket=/x=y", unix("a", "/x=y")),
        ("nbd://127.0.0.1:10809/db", tcp("127.0.0.1", 10809, "db")),
        ("nbd://localhost", tcp("localhost", 10809, "")),
        ("nbd://localhost:/", tcp("localhost", 10809, "")),
        ("nbd://host-1.example:1/a/b", tcp("host-1.example", 1, "a/b")),
        ("nbd://[::1]:99/x", tcp("::1", 99, "x")),
        ("nbd://[fe80::1]/x", tcp("fe80::1", 10809, "x")),
        ("nbds://h/x?tls=lan", guarded(tcp("h", 10809, "x"), Some("lan"), None)),
        ("NBDS://h?access=a.b&tls=lan", guarded(tcp("h", 10809, ""), Some("lan"), Some("a.b"))),
        ("nbd://h/x?access=ops", guarded(tcp("h", 10809, "x"), None, Some("ops"))),
        ("nbd+unix:///x?access=ops&socket=/s", guarded(unix("x", "/s"), None, Some("ops"))),
        ("nbds+unix:///x?socket=/s&tls=l", guarded(unix("x", "/s"), Some("l"), None)),
        ("fuse:/mnt/x", ExportUri::Fuse { path: "/mnt/x".into() }),
        ("nbd+unix:///x?mode=0600&socket=/s", permitted(unix("x", "/s"), Some(0o600), None, None)),
        (
            "nbds+unix:///x?group=a%20b&socket=/s&tls=l&user=1",
            guarded(permitted(unix("x", "/s"), None, Some("1"), Some("a b")), Some("l"), None),
        ),
        ("vhost-user:/run/v%20m.sock", vhost_user("/run/v m.sock")),
        ("vhost-user:/s?", vhost_user("/s")),
        (
            "vhost-user:///s?mode=660&group=kvm&user=qemu",
            permitted(vhost_user("/s"), Some(0o660), Some("qemu"), Some("kvm")),
        ),
        ("FUSE:///mnt/x%20y", ExportUri::Fuse { path: "/mnt/x y".into() }),
        ("ublk:", ExportUri::Ublk { name: None }),
        ("UBLK:db-1.x_y", ExportUri::Ublk { name: Some("db-1.x_y".into()) }),
    ] {
        assert_eq!(text.parse(), Ok(expected), "{text}");
    }
}

#[test]
fn bad_exports_report_the_position() {
    for (text, at, problem) in [
        ("", 0, "needs a scheme"),
        ("/run/f.sock", 0, "needs a scheme"),
        ("fuse:", 5, "path is missing"),
        ("fuse:mnt/x", 5, "absolute path"),
        ("fuse:/", 5, "absolute path"),
        ("fuse:/mnt/..", 5, "absolute path"),
        ("fuse://host/x", 7, "no host"),
        ("fuse:/a?b", 7, "%3F and %23 in a fuse: URI"),
        ("ublk:/dev/x", 5, "letters, digits"),
        ("ublk:a b", 6, "letters, digits"),
        ("ublk:.x", 5, "begin with a dot"),
        ("vhost-user:", 11, "path is missing"),
        ("vhost-user:s", 11, "absolute path"),
        ("vhost-user://host/s", 13, "no host"),
        ("vhost-user:/s?x", 14, "written as %3F"),
        ("vhost-user:/s?mode=660&tls=x", 23, "mode=, user= and group= are known"),
        ("vhost-user:/s?mode=660&mode=600", 23, "mode= is given twice"),
        ("vhost-user:/s#x", 13, "%23"),
        ("nbd+unix:///x?socket=/s&mode=0999", 29, "octal"),
        ("nbd+unix:///x?socket=/s&mode=01777", 29, "octal"),
        ("nbd+unix:///x?socket=/s&mode=", 29, "octal"),
        ("nbd+unix:///x?socket=/s&user=", 29, "the name or the number of a user"),
        ("nbd+unix:///x?socket=/s&group=a%00", 30, "the name or the number of a group"),
        ("nbd+unix:///x?group=a&socket=/s&group=b", 32, "group= is given twice"),
        ("nbd://h/x?group=a", 10, "nbd+unix: has one"),
        ("s3://b/p", 0, "not supported"),
        ("nbds://h/x", 10, "tls=NAME is missing"),
        ("nbds://h/x?tls=", 15, "name of a section"),
        ("nbds://h/x?tls=a/b", 15, "name of a section"),
        ("nbds://h/x?tls=a&tls=b", 17, "tls= is given twice"),
        ("nbd://h/x?tls=a", 10, "tls= needs nbds:"),
        ("nbd+unix:///x?socket=/s&tls=a", 24, "tls= needs nbds+unix:"),
        ("nbd://h/x?name=a", 10, "unknown parameter \"name\""),
        ("http://h/x", 0, "not a scheme of exports"),
        ("nbd+unix:/db?socket=/s", 9, "\"//\" is missing"),
        ("nbd+unix://db?socket=/s", 11, "three slashes"),
        ("nbd+unix:///db", 14, "?socket=/path is missing"),
        ("nbd+unix:///db?socket=", 22, "empty"),
        ("nbd+unix:///db?sock=/s", 15, "unknown parameter \"sock\""),
        ("nbd+unix:///db?socket=/s&socket=/t", 25, "twice"),
        ("nbd+unix:///d%zz?socket=/s", 13, "hexadecimal"),
        ("nbd+unix:///d?socket=/s%4", 23, "hexadecimal"),
        ("nbd+unix:///d?socket=/s%00", 21, "none of them zero"),
        ("nbd+unix:///%ff?socket=/s", 12, "not UTF-8"),
        ("nbd+unix:///d#x?socket=/s", 13, "%23"),
        ("nbd:/host", 4, "\"//\" is missing"),
        ("nbd:///x", 6, "host is missing"),
        ("nbd://h:0/x", 8, "not in 1 to 65535"),
        ("nbd://h:65536/x", 8, "not in 1 to 65535"),
        ("nbd://h:+1/x", 8, "not in 1 to 65535"),
        ("nbd://::1/x", 6, "brackets"),
        ("nbd://[::1/x", 6, "not closed"),
        ("nbd://[nope]/x", 7, "not an IPv6 address"),
        ("nbd://[::1]x/x", 11, "colon and a port"),
        ("nbd://h h/x", 7, "host name"),
        ("nbd://me@h/x", 6, "user names"),
        ("nbd://h/x?socket=/s", 10, "nbd+unix"),
    ] {
        let error = text.parse::<ExportUri>().unwrap_err();
        assert_eq!(error.at, at, "{error}");
        assert!(error.problem.contains(problem), "{error}");
        assert!(error.example.parse::<ExportUri>().is_ok());
    }
    let long = format!("nbd+unix:///d?socket=/{}", "x".repeat(107));
    assert!(long.parse::<ExportUri>().unwrap_err().problem.contains("107"));
    let long = format!("vhost-user:/{}", "x".repeat(107));
    assert!(long.parse::<ExportUri>().unwrap_err().problem.contains("107"));
    let long = format!("nbd://h/{}", "x".repeat(4097));
    assert!(long.parse::<ExportUri>().unwrap_err().problem.contains("4096"));
    let long = format!("ublk:{}", "x".repeat(201));
    assert!(long.parse::<ExportUri>().unwrap_err().problem.contains("200"));
}

#[test]
fn an_error_is_one_helpful_line() {
    assert_eq!(
        "nbd://h:99999/x".parse::<ExportUri>().unwrap_err().to_string(),
        "\"nbd://h:99999/x\", at byte 8: port \"99999\" is not in 1 to 65535. \
         For example: nbd://127.0.0.1:10809/db"
    );
}

#[test]
fn backing_stores_are_parsed() {
    let file = |path: &str| Ok(BackingUri::File(path.into()));
    let device = |path: &str| Ok(BackingUri::Device(path.into()));
    assert_eq!("file:/p".parse(), file("/p"));
    assert_eq!("file:///p%20q".parse(), file("/p q"));
    assert_eq!("file:rel/p".parse(), file("rel/p"));
    assert_eq!("/p%20q".parse(), file("/p%20q"));
    assert_eq!("disk.img".parse(), file("disk.img"));
    assert_eq!("./a:b".parse(), file("./a:b"));
    assert_eq!("/a:b".parse(), file("/a:b"));
    assert_eq!("a.b:c".parse(), file("a.b:c"));
    assert_eq!("/dev/sdb".parse(), device("/dev/sdb"));
    assert_eq!("file:/dev/sdb".parse(), device("/dev/sdb"));
    assert_eq!("/devices/x".parse(), file("/devices/x"));
    for text in ["nbd+unix:///db%20x?socket=/run/s", "nbd://h:1/db", "nbd://[::1]:10809/"] {
        let uri: BackingUri = text.parse().unwrap();
        let again: BackingUri = uri.to_string().parse().unwrap();
        assert_eq!((&again, uri.path()), (&uri, Path::new(&uri.to_string())));
        assert!(uri.nbd().is_some());
    }
    for text in ["nbd://me:secret@h/x", "nbds://me:secret@h/x"] {
        let error = text.parse::<BackingUri>().unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
    for (text, at, problem) in [
        ("", 0, "missing"),
        ("file:", 5, "missing"),
        ("file://host/p", 7, "no host"),
        ("file:/p?x", 7, "%3F"),
        ("file:/p%g0", 7, "hexadecimal"),
        ("file:/p%00", 5, "zero byte"),
        ("nbd:/h/x", 4, "//"),
        ("nbd+unix:///x", 13, "?socket=/path is missing"),
        ("nbd+unix:///x?socket=/s&access=staff", 14, "for exports of this program"),
        ("nbds://h/x?tls=lan", 0, "TLS is not supported"),
        ("s3://bucket/prefix", 0, "not supported"),
        ("fuse:/m", 0, "for exports"),
        ("ublk:m", 0, "for exports"),
        ("ftp://h/x", 0, "not a kind of backing store"),
        ("a\0b", 1, "zero byte"),
    ] {
        let error = text.parse::<BackingUri>().unwrap_err();
        assert_eq!(error.at, at, "{error}");
        assert!(error.problem.contains(problem), "{error}");
    }
}

proptest! {
    #[test]
    fn printed_uri_reads_back(name in "\\PC{0,20}", socket in "/\\PC{1,20}", port in 1..=u16::MAX, mode in 0..=0o777u32) {
        let uri = unix(&name, &socket);
        prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        let uri = tcp("10.0.0.1", port, &name);
        prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        let uri = tcp("fe80::1", port, &name);
        prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        let uri = guarded(tcp("fe80::1", port, &name), Some("lan"), Some("staff.1"));
        prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        let uri = guarded(unix(&name, &socket), None, Some("x"));
        prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        let uri = permitted(unix(&name, &socket), Some(mode), Some("a b%"), Some("7"));
        prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        let vhost_user = permitted(vhost_user(&socket), Some(mode), None, Some("kvm"));
        let uri = ExportUri::Fuse { path: socket.clone().into() };
        if socket.trim_end_matches('/').rsplit('/').next().is_some_and(|name| !name.is_empty() && !name.starts_with('.')) {
            prop_assert_eq!(uri.to_string().parse(), Ok(uri));
            prop_assert_eq!(vhost_user.to_string().parse(), Ok(vhost_user));
        }
        let uri = ExportUri::Ublk { name: Some(name.clone()) };
        if device_name_problem(&name).is_none() {
            prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        }
        let uri = BackingUri::File(socket.into());
        prop_assert_eq!(uri.to_string().parse(), Ok(uri));
    }

    #[test]
    fn any_text_is_a_uri_or_an_error_inside_it(text in "(nbd|nbd\\+unix|file)?(:///?)?\\PC{0,30}") {
        for error in [text.parse::<ExportUri>().err(), text.parse::<BackingUri>().err()].into_iter().flatten() {
            prop_assert!(error.at <= text.len());
        }
    }
}
