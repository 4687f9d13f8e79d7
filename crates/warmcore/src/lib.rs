//! warmcore
