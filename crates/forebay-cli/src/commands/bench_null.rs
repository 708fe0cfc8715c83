//! `forebay bench-null`: a volume without storage, for measuring the export path. Hidden: benchmarks use it.

use forebay_export::size::ByteSize;
use forebay_export::uri::ExportUri;
use forebay_io::EnginePreference;

use crate::failure::Failure;
use crate::screen;

/// Options of `forebay bench-null`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where clients find the volume: nbd+unix:///name?socket=/path or nbd://host:port/name
    #[arg(long, value_name = "URI")]
    export: ExportUri,
    /// Size of the volume
    #[arg(long, value_name = "SIZE", default_value = "1TiB")]
    size: ByteSize,
    /// How operations reach the kernel: auto, uring or psync
    #[arg(long, value_name = "ENGINE", default_value = "auto", value_parser = super::run::io_engine)]
    io: EnginePreference,
}

/// Serves until a signal comes.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let mut said = Ok(());
    let ready = |uri: &str| said = screen::print(&format!("ready: {uri}\n"));
    let result = forebay_daemon::null::serve(&options.export, options.size.bytes(), options.io, ready);
    super::run::ended(result).and(said)
}
