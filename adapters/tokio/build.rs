//! Sets `tokio_1_NN` for each minor version from 1.52 to that of this package, which is the version of the tokio below:
//! what a later version added to tokio is compiled only with that version.

fn main() {
    let minor: u32 =
        std::env::var("CARGO_PKG_VERSION_MINOR").ok().and_then(|minor| minor.parse().ok()).unwrap_or(0);
    for version in 52..=54 {
        println!("cargo::rustc-check-cfg=cfg(tokio_1_{version})");
        if version <= minor {
            println!("cargo::rustc-cfg=tokio_1_{version}");
        }
    }
    println!("cargo::rustc-check-cfg=cfg(tokio_unstable)");
    println!("cargo::rerun-if-changed=build.rs");
}
