//! Fuzz targets: everything that reads bytes from outside, as plain functions over bytes.
//!
//! A target takes any input and must not panic; most check more than that (see each). The same
//! functions run in three ways:
//!
//! - `cargo test -p forebay-fuzz`: the kept corpus and a short run of [`mutate`] from fixed seeds,
//!   on every change;
//! - `forebay-fuzz run TARGET`: the same for as long as wanted, without coverage, on any toolchain;
//! - `scripts/fuzz TARGET --minutes N`: libFuzzer, guided by coverage.
//!
//! `corpus/TARGET/` has inputs that once failed, or that reach something; [`Target::seeds`] makes
//! good ones to begin with. What was run is in `docs/internals/fuzzing.md`.
//!
//! Invariant: a target is deterministic, apart from [`targets::api`] (sockets, jobs).

pub mod mutate;
pub mod targets;

use std::path::PathBuf;

/// Something that reads bytes from outside.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name, also of the folder of its corpus.
    pub name: &'static str,
    /// What is fed.
    pub about: &'static str,
    /// Takes an input; panics if something is wrong.
    pub run: fn(&[u8]),
    /// Good inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that mutations insert.
    pub words: &'static [&'static str],
    /// Longest input that makes sense.
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
    /// The target with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        targets::ALL.iter().find(|target| target.name == name)
    }

    /// Folder of its corpus.
    #[must_use]
    pub fn corpus(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }

    /// Seeds and kept inputs, in order of name.
    ///
    /// # Errors
    /// The corpus cannot be read.
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
