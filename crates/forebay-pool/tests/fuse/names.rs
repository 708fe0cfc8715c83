//! Environment variables that configure `examples/fuse-memory.rs`: shared by it and by the tests
//! that start it.

/// Where to mount.
pub(crate) const PATH: &str = "FOREBAY_TEST_FUSE_PATH";
pub(crate) const SIZE: &str = "FOREBAY_TEST_FUSE_SIZE";
pub(crate) const DELAY_US: &str = "FOREBAY_TEST_FUSE_DELAY_US";
pub(crate) const ENGINE: &str = "FOREBAY_TEST_FUSE_ENGINE";
pub(crate) const METHOD: &str = "FOREBAY_TEST_FUSE_METHOD";
pub(crate) const POOL: &str = "FOREBAY_TEST_FUSE_POOL";
/// Bytes for the ring, if requests have to arrive over io_uring.
pub(crate) const RING: &str = "FOREBAY_TEST_FUSE_RING";
