//! forebay
fn main() {}
