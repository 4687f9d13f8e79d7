//! What loom proves of the list of the living. Run by `cargo xtask test`.
