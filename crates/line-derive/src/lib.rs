//! line-derive
