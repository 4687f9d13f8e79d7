//! percpu
