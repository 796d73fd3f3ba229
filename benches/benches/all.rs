//! `cargo bench -p benches`: runs the harness.

fn main() -> anyhow::Result<()> {
    benches::main()
}
