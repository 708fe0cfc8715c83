//! forebay-core
