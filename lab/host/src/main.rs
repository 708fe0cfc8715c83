//! `forebay-null`: a volume without storage, for measuring the export path.
//!
//! Contract with scripts, as with `forebay run`: `ready: URI` on stdout reports that clients can
//! connect, everything else is on stderr; exit code 0 done, 1 failed, 2 wrong usage.
#![forbid(unsafe_code)]

use clap::Parser;
use forebay_admin::size::ByteSize;
use forebay_export::uri::ExportUri;
use forebay_io::EnginePreference;
use forebay_pool::RunError;
use std::process::ExitCode;

/// Serves a volume without storage until a signal arrives.
#[derive(Debug, Parser)]
#[command(name = "forebay-null", version, arg_required_else_help = true)]
struct Options {
    /// URI at which clients find the volume: nbd+unix:///name?socket=/path or nbd://host:port/name
    #[arg(long, value_name = "URI")]
    export: ExportUri,
    /// Size of the volume
    #[arg(long, value_name = "SIZE", default_value = "1TiB")]
    size: ByteSize,
    /// How operations reach the kernel: auto, uring or psync
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    io: EnginePreference,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let ready = |uri: &str| println!("ready: {uri}");
    match forebay_lab_host::null::serve(&options.export, options.size.bytes(), options.io, ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-null: {error}");
            ExitCode::from(if matches!(error, RunError::Usage { .. }) { 2 } else { 1 })
        }
    }
}
