//! Empty on purpose: Cargo demands a build script of a package that declares `links`, which is here so that a program
//! can never hold two versions of the crate whose thread-locals everything else relies on.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
