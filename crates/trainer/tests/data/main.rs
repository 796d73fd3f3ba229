//! Data from the file to the batch: what is read, rendered, masked and ordered, against the reference's files and
//! the faults that users of similar programs met.

mod batches;
mod encode;
mod mask;
mod read;
mod template;
mod toy;

/// Path of a file in `tests/fixtures` of the repository.
fn fixture(name: &str) -> std::path::PathBuf {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures")).join(name)
}

/// A fixture that is JSON.
fn json(name: &str) -> serde_json::Value {
    let path = fixture(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
