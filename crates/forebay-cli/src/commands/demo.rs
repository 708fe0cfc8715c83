//! stub
use crate::failure::Failure;
/// Options.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {}
/// x
pub(crate) fn execute(_: &Options) -> Result<(), Failure> {
    Ok(())
}
