//! Growing and shrinking a pool.
