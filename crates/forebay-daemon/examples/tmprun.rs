//! temporary
use forebay_daemon::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mode = forebay_format::checkpoint::Mode::from_name(a.get(4).map_or("writeback", |s| s)).unwrap();
    let (p, s) = a[2].split_once(':').map_or((a[2].clone(), None), |(p, s)| {
        (p.to_string(), Some(s.parse::<forebay_export::size::ByteSize>().unwrap().0))
    });
    let o = RunOptions {
        backing: a[1].parse().unwrap(),
        cache: CacheSpec { path: p.into(), size_bytes: s },
        exports: vec![a[3].parse().unwrap()],
        mode,
        emulate: std::env::var("HDD").ok().map(|_| forebay_io::DiskModel::Hdd7200),
        settings: a
            .iter()
            .skip(5)
            .map(|s| {
                let (k, v) = s.split_once('=').unwrap();
                (k.to_string(), v.to_string())
            })
            .collect(),
        admin: None,
        io: if std::env::var("PSYNC").is_ok() {
            forebay_io::EnginePreference::Psync
        } else {
            forebay_io::EnginePreference::Auto
        },
    };
    if let Err(e) = run(o, &mut |e| println!("{e}")) {
        println!("ERR {e} {e:?}");
        std::process::exit(1)
    }
}
