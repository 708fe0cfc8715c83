//! Fuzz targets: all code that reads bytes from outside, as plain functions over bytes.
//!
//! A target takes any input and must not panic; most check more than that (see each). The same
//! functions run in three ways:
//!
//! - `cargo test -p forebay-fuzz`: the kept corpus and a short run of [`mutate`] from fixed seeds,
//!   on every change;
//! - `forebay-fuzz run TARGET`: the same for a chosen time, without coverage, on any toolchain;
//! - `scripts/fuzz TARGET --minutes N`: libFuzzer, guided by coverage.
//!
//! `corpus/TARGET/` has inputs that once failed, or that reach rare code; [`Target::seeds`] creates
//! valid ones to start with. `docs/internals/fuzzing.md` lists the runs so far.
//!
//! Invariant: a target is deterministic, apart from [`targets::api`] (sockets, jobs).

pub mod mutate;
pub mod targets;

use std::path::PathBuf;

/// Code that reads bytes from outside.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name, also of its corpus folder.
    pub name: &'static str,
    /// Description of the input.
    pub about: &'static str,
    /// Runs an input; panics on an error.
    pub run: fn(&[u8]),
    /// Returns valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that mutations insert.
    pub words: &'static [&'static str],
    /// Longest useful input, in bytes.
    pub bytes_max: usize,
    /// Mutated inputs of the short run.
    pub short_run: u64,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Target {
    /// Returns the target with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        targets::ALL.iter().find(|target| target.name == name)
    }

    /// Returns its corpus folder.
    #[must_use]
    pub fn corpus(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }

    /// Returns seeds and kept inputs, in order of name.
    ///
    /// # Errors
    /// Returns an error if the corpus cannot be read.
    pub fn inputs(&self) -> std::io::Result<Vec<Vec<u8>>> {
        let mut inputs = (self.seeds)();
        let mut paths = Vec::new();
        match std::fs::read_dir(self.corpus()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            folder => {
                for entry in folder? {
                    paths.push(entry?.path());
                }
            }
        }
        paths.sort();
        for path in paths {
            inputs.push(std::fs::read(path)?);
        }
        Ok(inputs)
    }
}
