//! hmkeeper.
fn main() {}
