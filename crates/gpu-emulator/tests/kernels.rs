//! Every kernel of the workspace decodes: nothing that they use is refused.

use gpu_emulator::ptx::{decode, parser};

#[test]
fn every_kernel_of_the_workspace_decodes() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels-ptx/ptx");
    let mut decoded = 0;
    let mut refused = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|e| e != "ptx") {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let result = parser::parse(&source).and_then(|module| {
            let somewhere: decode::Addresses = module.variables.iter().map(|v| (v.name.clone(), 0)).collect();
            module.entries.iter().try_for_each(|e| decode::decode(&module, e, &somewhere).map(|_| ()))
        });
        match result {
            Ok(()) => decoded += 1,
            Err(error) => refused.push(format!("{}: {error}", path.display())),
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
    assert!(decoded > 0, "no kernel in {folder}");
}
