//! forebay-daemon
