//! Loom models of accounts.
