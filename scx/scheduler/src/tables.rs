//! Names and limits of the BPF program, which `build.rs` takes from its headers.

/// A setting of the program; `settings.h` has them.
#[derive(Debug)]
pub struct Setting {
    /// The name on the command line and in the program's struct.
    pub name: &'static str,
    /// The value that the program starts with.
    pub default: u64,
    /// The smallest allowed value.
    pub least: u64,
    /// The largest allowed value.
    pub greatest: u64,
    /// The unit of the value.
    pub unit: &'static str,
    /// What it does.
    pub what: &'static str,
}

/// A count that the program keeps; `counts.h` has them.
#[derive(Debug)]
pub struct Count {
    /// The name in JSON and, with a prefix, in Prometheus.
    pub name: &'static str,
    /// What one of it is.
    pub what: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/tables.rs"));
