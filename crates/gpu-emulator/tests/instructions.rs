//! Runs the table `instructions.txt`: one instruction and its result a line.

use gpu_emulator::exec::lanes::Lanes;
use gpu_emulator::exec::{Counts, Launch, Options, run};
use gpu_emulator::memory::DeviceMemory;
use gpu_emulator::ptx::decode::{Addresses, decode};
use gpu_emulator::ptx::parser::parse;

const TABLE: &str = include_str!("instructions.txt");
const NAMES: [&str; 4] = ["a", "b", "c", "e"];
/// What even lanes hold before a guarded instruction, and must hold after it.
const BEFORE: u64 = 0x5a5a_5a5a_5a5a_5a5a;

struct Row {
    line: usize,
    result: String,
    operands: Vec<String>,
    instruction: String,
    values: Vec<u64>,
    expected: u64,
}

fn bits(text: &str) -> u64 {
    let float = |t: &str| t.parse::<f64>().unwrap_or_else(|_| panic!("{t}"));
    let nan = |t: &str| t == "nan";
    match text.split_once(':') {
        None => u64::from_str_radix(text, 16).unwrap_or_else(|_| panic!("{text}")),
        Some(("i", t)) => t.parse::<i64>().unwrap() as u64,
        Some(("f", t)) if nan(t) => 0x7fff_ffff,
        Some(("d", t)) if nan(t) => 0x7fff_ffff_ffff_ffff,
        Some(("f", t)) => u64::from((float(t) as f32).to_bits()),
        Some(("d", t)) => float(t).to_bits(),
        Some(("h", t)) => u64::from(half::f16::from_f64(float(t)).to_bits()),
        Some(("g", t)) => u64::from(half::bf16::from_f64(float(t)).to_bits()),
        Some(other) => panic!("{other:?}"),
    }
}

fn rows() -> Vec<Row> {
    TABLE
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#'))
        .map(|(n, line)| {
            let mut parts = line.split(" | ");
            let types = parts.next().unwrap();
            let instruction = parts.next().unwrap_or_else(|| panic!("line {}", n + 1)).trim().to_string();
            let (values, expected) = parts.next().unwrap().split_once("->").unwrap();
            let (result, operands) = types.split_once("<-").unwrap();
            Row {
                line: n + 1,
                result: result.trim().into(),
                operands: operands.split_whitespace().map(Into::into).collect(),
                instruction,
                values: values.split_whitespace().map(bits).collect(),
                expected: bits(expected.trim()),
            }
        })
        .collect()
}

fn register(ty: &str) -> &str {
    if ty == "p" { "pred" } else { ty }
}

fn width(ty: &str) -> u64 {
    match ty {
        "b64" | "f64" => u64::MAX,
        "b16" => 0xffff,
        "p" => 1,
        _ => 0xffff_ffff,
    }
}

/// Moves 64 bits from `%wide` into a register of type `ty`, or back.
fn into_register(ty: &str, name: &str, wide: &str) -> String {
    match ty {
        "p" => format!("setp.ne.u64 {name}, {wide}, 0;"),
        "b16" => format!("cvt.u16.u64 {name}, {wide};"),
        "b64" | "f64" => format!("mov.b64 {name}, {wide};"),
        _ => format!("mov.b64 {{{name}, _}}, {wide};"),
    }
}

fn from_register(ty: &str, name: &str, wide: &str) -> String {
    match ty {
        "p" => format!("selp.u64 {wide}, 1, 0, {name};"),
        "b16" => format!("cvt.u64.u16 {wide}, {name};"),
        "b64" | "f64" => format!("mov.b64 {wide}, {name};"),
        _ => format!("mov.b64 {wide}, {{{name}, 0}};"),
    }
}

fn kernel(row: &Row) -> String {
    let mut body = format!(".reg .{} %d, %g;\n.reg .pred %q, %odd;\n", register(&row.result));
    body += ".reg .b64 %in, %out, %w, %lane;\n.reg .b32 %t, %bit;\n";
    for (ty, name) in row.operands.iter().zip(NAMES) {
        body += &format!(".reg .{} %{name};\n", register(ty));
    }
    body += "ld.param.u64 %in, [in];\nld.param.u64 %out, [out];\nmov.u32 %t, %tid.x;\n";
    body += "and.b32 %bit, %t, 1;\nsetp.ne.u32 %odd, %bit, 0;\nmul.wide.u32 %lane, %t, 16;\nadd.u64 %out, %out, %lane;\n";
    for (i, (ty, name)) in row.operands.iter().zip(NAMES).enumerate() {
        body += &format!(
            "ld.global.u64 %w, [%in+{}];\n{}\n",
            8 * i,
            into_register(ty, &format!("%{name}"), "%w")
        );
    }
    body += &format!("{}\n", row.instruction);
    body += &format!("{}\nst.global.u64 [%out], %w;\n", from_register(&row.result, "%d", "%w"));
    body += &format!("mov.u64 %w, {BEFORE};\n{}\n", into_register(&row.result, "%g", "%w"));
    body += &format!("@%odd {}\n", row.instruction.replace("%d", "%g"));
    body += &format!("{}\nst.global.u64 [%out+8], %w;\nret;\n", from_register(&row.result, "%g", "%w"));
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {{\n{body}}}\n"
    )
}

fn check(row: &Row, lanes: Lanes) -> Result<(), String> {
    let source = kernel(row);
    let module = parse(&source).map_err(|e| format!("{e}\n{source}"))?;
    let code =
        decode(&module, &module.entries[0], &Addresses::new()).map_err(|e| format!("{e}\n{source}"))?;
    let mut memory = DeviceMemory::new(1 << 30, true);
    let input = memory.allocate(64, "input", true).unwrap();
    let output = memory.allocate(32 * 16, "output", true).unwrap();
    let mut bytes: Vec<u8> = row.values.iter().flat_map(|v| v.to_le_bytes()).collect();
    bytes.resize(64, 0);
    memory.write(input, &bytes).unwrap();
    let params: Vec<u8> = [input, output].iter().flat_map(|p| p.to_le_bytes()).collect();
    let launch =
        Launch { kernel: &code, grid: [1; 3], block: [32, 1, 1], params: &params, dynamic_shared: 0, id: 1 };
    let options = Options { lanes, ..Options::default() };
    run(&launch, &mut memory, options, &mut Counts::default()).map_err(|f| f.message)?;
    let mut out = vec![0; 32 * 16];
    memory.read(output, &mut out, true).unwrap();
    let mask = width(&row.result);
    let expected = row.expected & mask;
    let before = if row.result == "p" { 1 } else { BEFORE & mask };
    for (lane, pair) in out.chunks_exact(16).enumerate() {
        let plain = u64::from_le_bytes(pair[..8].try_into().unwrap());
        let guarded = u64::from_le_bytes(pair[8..].try_into().unwrap());
        let wanted = if lane % 2 == 1 { expected } else { before };
        if plain != expected || guarded != wanted {
            return Err(format!(
                "lane {lane}: {plain:#x}, expected {expected:#x}; guarded {guarded:#x}, expected {wanted:#x}"
            ));
        }
    }
    Ok(())
}

#[test]
fn every_line_of_the_table_holds_on_every_instruction_set() {
    let rows = rows();
    assert!(rows.len() > 250, "the table has {} lines", rows.len());
    let mut wrong = Vec::new();
    for lanes in [Lanes::baseline(), Lanes::detect()] {
        for row in &rows {
            if let Err(what) = check(row, lanes) {
                wrong.push(format!("line {} ({}): {}: {what}", row.line, lanes.name, row.instruction));
            }
        }
    }
    assert!(wrong.is_empty(), "{} lines fail:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_wrong_expectation_is_found() {
    let mut row = rows().into_iter().find(|r| r.instruction.starts_with("add.u32")).unwrap();
    row.expected += 1;
    assert!(check(&row, Lanes::detect()).unwrap_err().contains("lane 0"));
}

/// The files whose tests give an expected value for what moves data between lanes or memory, and for control flow.
const ELSEWHERE: [&str; 2] = [include_str!("cooperation.rs"), include_str!("memory_forms.rs")];

/// The instructions of a module's kernels, by opcode, modifiers and types.
fn instructions_of(source: &str) -> std::collections::BTreeSet<String> {
    let module = parse(source).unwrap();
    let mut all = std::collections::BTreeSet::new();
    let mut open: Vec<_> = module.entries.iter().flat_map(|e| &e.body).collect();
    while let Some(statement) = open.pop() {
        match statement {
            gpu_emulator::ptx::ast::Statement::Instruction(i) => drop(all.insert(i.full_name())),
            gpu_emulator::ptx::ast::Statement::Scope(inner) => open.extend(inner),
            _ => {}
        }
    }
    all
}

/// The instructions that have no test: neither a line of the table nor a use in the other files.
fn untested(instructions: &std::collections::BTreeSet<String>) -> Vec<String> {
    let mut known: std::collections::HashSet<String> =
        rows().iter().map(|r| r.instruction.split_whitespace().next().unwrap().to_string()).collect();
    for text in ELSEWHERE {
        let word = |c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '_' || c == ':');
        known.extend(text.split(word).map(str::to_string));
    }
    instructions.iter().filter(|i| !known.contains(*i)).cloned().collect()
}

#[test]
fn every_instruction_and_type_of_the_kernels_has_a_test() {
    let mut used = std::collections::BTreeSet::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels-ptx/ptx")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "ptx") {
            used.extend(instructions_of(&std::fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(used.len() > 100, "the kernels use {} instructions", used.len());
    let missing = untested(&used);
    assert!(missing.is_empty(), "no test for {missing:#?}");
}

#[test]
fn an_instruction_without_a_test_is_named() {
    let source = ".version 8.0\n.target sm_90\n.address_size 64\n.entry k() { .reg .b32 %r<3>; vadd.u32.u32.u32 %r0, %r1, %r2; mov.u32 %r0, 1; }";
    assert_eq!(untested(&instructions_of(source)), ["vadd.u32.u32.u32"]);
}
