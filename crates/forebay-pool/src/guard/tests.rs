//! Allowed clients, and guards that a reload leaves in force.

use super::testing::{Authority, section, write};
use super::*;
use forebay_config::{AccessList, AddressRange, ClientName, VolumeConfig};
use forebay_config::{Scope, Settings};

fn list(clients: &[&str], uids: &[u32], gids: &[u32], addresses: &[&str]) -> AccessList {
    AccessList {
        clients: clients.iter().map(|name| name.parse().unwrap()).collect(),
        uids: uids.to_vec(),
        gids: gids.to_vec(),
        addresses: addresses.iter().map(|range| range.parse().unwrap()).collect(),
    }
}

fn allows(list: &AccessList, peer: &Peer) -> bool {
    let entry = AccessEntry::default();
    entry.replace(Some(list.clone()));
    entry.allows(peer)
}

#[test]
fn every_kind_of_condition_must_be_met() {
    let user = |uid, gids: &[u32]| Peer { uid: Some(uid), gids: gids.to_vec(), ..Peer::default() };
    let from = |address: &str| Peer { address: Some(address.parse().unwrap()), ..Peer::default() };
    let users = list(&[], &[7], &[50], &[]);
    assert!(allows(&users, &user(7, &[1])) && allows(&users, &user(8, &[1, 50])));
    assert!(!allows(&users, &user(8, &[1])) && !allows(&users, &from("10.0.0.1")));
    assert!(!allows(&users, &Peer::default()), "what is not known meets nothing");
    assert!(!allows(&list(&[], &[0], &[], &[]), &Peer::default()), "nobody is not root");

    let named = list(&["cn:a", "dns:host.example"], &[], &[], &["10.0.0.0/8"]);
    let with = |mut peer: Peer, names: &[&str]| {
        peer.names = names.iter().map(|name| name.parse().unwrap()).collect();
        peer
    };
    assert!(allows(&named, &with(from("10.2.3.4"), &["cn:a"])));
    assert!(allows(&named, &with(from("::ffff:10.2.3.4"), &["cn:x", "dns:HOST.example"])));
    assert!(!allows(&named, &with(from("11.2.3.4"), &["cn:a"])), "the name alone is not enough");
    assert!(!allows(&named, &with(from("10.2.3.4"), &["cn:host.example", "dns:a", "uri:a"])));
    assert!(!allows(&named, &from("10.2.3.4")), "the address alone is not enough");
    assert!(!allows(&AccessList::default(), &with(user(0, &[0]), &["cn:a"])), "an empty list is for nobody");
}

#[test]
fn address_ranges_contain_their_addresses() {
    let range = |text: &str| text.parse::<AddressRange>();
    let holds = |text: &str, address: &str| range(text).unwrap().contains(address.parse().unwrap());
    assert!(holds("0.0.0.0/0", "255.255.255.255") && holds("::/0", "ff::1"));
    assert!(!holds("0.0.0.0/0", "::1") && !holds("::/0", "1.2.3.4"), "kinds are apart");
    assert!(holds("192.0.2.7", "192.0.2.7") && !holds("192.0.2.7", "192.0.2.6"));
    assert!(holds("192.0.2.4/30", "192.0.2.7") && !holds("192.0.2.4/30", "192.0.2.8"));
    assert!(holds("2001:db8::/32", "2001:db8:ffff::") && !holds("2001:db8::/32", "2001:db9::"));
    for wrong in ["", "10.0.0.0/33", "10.0.0.0/+8", "10.0.0.0/", "10/8", "host", "::/129", "10.0.0.1/8 "] {
        assert!(range(wrong).is_err(), "{wrong}");
    }
    assert!(range("10.0.0.1/8").unwrap_err().contains("10.0.0.0/8"));
    assert!(range("2001:db8::1/32").unwrap_err().contains("2001:db8::/32"));
    assert!(range("::ffff:1.2.3.4").unwrap_err().contains("1.2.3.4"));
    assert_eq!(range("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
}

#[test]
fn client_names_come_from_the_certificate() {
    let authority = Authority::new();
    let names = |common: &[&str], dns: &[&str], uris: &[&str]| {
        let mut peer = Peer::default();
        peer.certified(&authority.sign(common, dns, uris).der);
        peer.names.iter().map(ClientName::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        names(&["vm 1"], &["Host.Example"], &["spiffe://a/b"]),
        ["cn:vm 1", "dns:host.example", "uri:spiffe://a/b"]
    );
    assert_eq!(names(&["a", "b"], &["d"], &[]), ["dns:d"], "two common names are none");
    assert_eq!(names(&[], &[], &[]), Vec::<String>::new());
    let mut peer = Peer { names: vec![ClientName::Common("old".into())], ..Peer::default() };
    peer.certified(b"garbage");
    assert!(peer.names.is_empty());
    for wrong in ["", "a", "cn:", "ip:1", "dns:*.example", "uri:*", "cn:a\u{7}"] {
        assert!(wrong.parse::<ClientName>().is_err(), "{wrong}");
    }
}

fn config(tls: &TlsConfig) -> Config {
    let volume = VolumeConfig {
        pool: "p".into(),
        backing: "/b".parse().unwrap(),
        exports: vec!["nbds://127.0.0.1:1/x?tls=lan&access=ops".parse().unwrap()],
        size_bytes: None,
        settings: Settings::new(Scope::Volume),
        rules: Vec::new(),
    };
    let mut config = Config::default();
    config.volumes.insert("v".into(), volume);
    config.tls.insert("lan".into(), tls.clone());
    config.access.insert("ops".into(), list(&[], &[1], &[], &[]));
    config
}

use forebay_config::TlsConfig;

#[test]
fn reload_keeps_old_certificate_on_error() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let first = authority.sign(&["server"], &["localhost"], &[]);
    let tls = section(folder.path(), &first, Some(&authority));
    let mut config = config(&tls);
    let book = GuardBook::default();
    assert!(book.tls("lan").unwrap_err().contains("no [tls.lan]"));

    let updated = book.update(&config);
    assert_eq!(updated.changed, ["certificates of tls.lan", "access.ops"]);
    let entry = book.tls("lan").unwrap();
    let running = entry.current().unwrap();
    assert_eq!(book.update(&config), Updated::default(), "nothing is new");

    let second = authority.sign(&["server"], &["localhost"], &[]);
    section(folder.path(), &second, Some(&authority));
    assert_eq!(book.update(&config).changed, ["certificates of tls.lan"]);
    let renewed = entry.current().unwrap();
    assert!(!Arc::ptr_eq(&running, &renewed), "who holds the entry has the new one");

    // The key of another certificate, and of none; a key that all users may read; an authority that
    // is none.
    write(&tls.files.key_file, &first.key_pem, 0o600);
    for (file, text, mode, problem) in [
        (&tls.files.key_file, first.key_pem.as_str(), 0o600, "does not match"),
        (&tls.files.key_file, "", 0o600, "no PEM private key"),
        (&tls.files.key_file, second.key_pem.as_str(), 0o644, "mode 0644"),
        (tls.client_ca_file.as_ref().unwrap(), "", 0o644, "no certificate"),
    ] {
        let before = std::fs::read_to_string(file).unwrap();
        write(file, text, mode);
        let updated = book.update(&config);
        assert!(updated.refused[0].contains(problem), "{updated:?}");
        assert!(Arc::ptr_eq(&renewed, &entry.current().unwrap()), "TLS goes on as it was");
        write(file, &before, 0o600);
        write(&tls.files.key_file, &second.key_pem, 0o600);
    }

    let access = book.access("ops").unwrap();
    let peer = Peer { uid: Some(1), ..Peer::default() };
    assert!(access.allows(&peer));
    config.access.insert("ops".into(), list(&[], &[2], &[], &[]));
    assert!(book.update(&config).access && !access.allows(&peer));
    config.access.clear();
    assert!(book.update(&config).access && !access.allows(&Peer { uid: Some(2), ..Peer::default() }));
}

#[test]
fn unused_sections_need_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let server = Authority::new().sign(&[], &["localhost"], &[]);
    let mut config = config(&section(folder.path(), &server, None));
    config.volumes.clear();
    std::fs::remove_file(folder.path().join("key.pem")).unwrap();
    let book = GuardBook::default();
    assert_eq!(book.update(&config).refused, Vec::<String>::new());
    assert!(book.tls("lan").is_err());
    let exports = ["nbds://127.0.0.1:1/y?tls=lan".parse().unwrap()];
    book.prepare(&config.tls, &exports);
    let problem = book.tls("lan").unwrap_err();
    assert!(problem.contains("key.pem") && problem.contains("cannot be read"), "{problem}");
    write(&folder.path().join("key.pem"), &server.key_pem, 0o600);
    book.prepare(&config.tls, &exports);
    assert!(book.tls("lan").is_ok(), "a volume that is attached later finds it");
}

#[test]
fn no_key_is_in_an_error_or_a_debug_format() {
    let folder = tempfile::tempdir().unwrap();
    let server = Authority::new().sign(&[], &["localhost"], &[]);
    let tls = section(folder.path(), &server, None);
    let config = config(&tls);
    let book = GuardBook::default();
    book.update(&config);
    let mut text = format!("{book:?} {:?} {config:?}", book.tls("lan").unwrap());
    let body: String = server.key_pem.lines().filter(|line| !line.contains("-----")).collect();
    // As after a careless paste: all in one line, without its end, with a character missing.
    for damaged in [
        server.key_pem.replace('\n', " "),
        server.key_pem.replace("-----END", "-----"),
        server.key_pem.replacen(&body[10..11], "?", 1),
        body.clone(),
    ] {
        write(&tls.files.key_file, &damaged, 0o600);
        let refused = book.update(&config).refused;
        assert_eq!(refused.len(), 1, "{damaged}");
        text += &refused[0];
    }
    for at in (0..body.len() - 12).step_by(4) {
        assert!(!text.contains(&body[at..at + 12]), "a part of the key is in: {text}");
    }
}
