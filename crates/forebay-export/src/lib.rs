//! forebay-export
