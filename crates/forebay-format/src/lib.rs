//! forebay-format
