//! costs
