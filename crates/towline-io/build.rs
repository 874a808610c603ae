//! Ends a build for a system that Towline does not run on with one message, before the errors of each use of its sockets.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_CFG_UNIX").is_none() {
        let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
        println!(
            "cargo::error=Towline runs on Linux, not on {system}: use WSL 2 or a container (docs/versions.md)"
        );
    }
}
