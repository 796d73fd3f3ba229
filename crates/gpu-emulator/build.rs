//! Names the shared library `libcuda.so` for the dynamic linker, whatever its file is called: once it
//! is loaded, `dlopen("libcuda.so")` finds it, and no file of that name stands in a target folder.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
        // References to its own functions are settled inside, so that a copy that lacks one still loads.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    }
}
