//! `cargo xtask parity`: every kernel over its cases against the CPU function that is its oracle, in one
//! table. It fails where a result differs by more than its bound (NaN included), where a kernel has no
//! case, and where nothing ran.

mod block;
#[cfg(test)]
mod broken;
pub mod case;
mod casts;
mod compare;
pub mod device;
mod elements;
mod exhaustive;
mod head;
mod nf4;
mod optimiser;
mod products;
mod values;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use kernels_ptx::KERNELS;

use case::Case;
use compare::Agreement;
use device::Device;

/// Options of `cargo xtask parity`.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Where the kernels run
    #[arg(long, value_enum, default_value_t = Backend::Emulator)]
    pub backend: Backend,
    /// Only cases whose kernel or label contains this
    #[arg(long)]
    pub case: Option<String>,
    /// Shuffles the emulator's blocks and warps
    #[arg(long)]
    pub seed: Option<u64>,
    /// Captures the launches of each case and launches the graph
    #[arg(long)]
    pub captured: bool,
    /// All 2^32 inputs of the casts from f32, instead of the cases
    #[arg(long)]
    pub exhaustive: bool,
}

/// Where kernels run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// gpu-emulator in place of the driver, on the CPU
    Emulator,
    /// The first GPU
    Gpu,
}

/// Runs the command.
///
/// # Errors
/// A result out of bounds, a kernel without a case, no case at all, or a device that cannot be opened.
pub fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { backend, seed, captured, .. } = *arguments;
    // Races do not depend on values: the cases look for them, and all values need not.
    let racecheck = !arguments.exhaustive;
    let mut device = device::open(backend, device::Way { seed, captured, racecheck })?;
    if arguments.exhaustive {
        return exhaustive::run(&mut *device);
    }
    let table = compare_all(&mut *device, all_cases()?, arguments.case.as_deref())?;
    print!("{}", table.text());
    ensure!(
        table.failures.is_empty(),
        "{} cases failed:\n{}",
        table.failures.len(),
        table.failures.join("\n")
    );
    Ok(())
}

/// Every case of every kernel.
///
/// # Errors
/// A fixture that does not read.
pub fn all_cases() -> Result<Vec<Case>> {
    let mut all = casts::cases();
    all.extend(nf4::cases()?);
    all.extend(elements::cases());
    all.extend(block::cases()?);
    all.extend(optimiser::cases()?);
    all.extend(products::cases());
    all.extend(head::cases());
    Ok(all)
}

/// What came of the cases of one kernel.
#[derive(Debug, serde::Serialize)]
pub struct Row {
    kernel: &'static str,
    cases: usize,
    elements: usize,
    /// Largest difference in units in the last place.
    worst_ulp: f64,
    /// Largest share of its bound that a difference has; none where all is exact.
    of_bound: Option<f64>,
    seconds: f64,
}

/// The result of all cases.
#[derive(Debug, serde::Serialize)]
pub struct Table {
    device: String,
    rows: Vec<Row>,
    /// Kernels that the device lacks the instructions of, and the capability that they need.
    skipped: BTreeMap<&'static str, u32>,
    /// What failed, a line each.
    pub failures: Vec<String>,
}

impl Table {
    fn text(&self) -> String {
        let mut text = format!(
            "{}\n{:28} {:>5} {:>9} {:>10} {:>9} {:>8}\n",
            self.device, "kernel", "cases", "elements", "worst ulp", "of bound", "seconds"
        );
        for Row { kernel, cases, elements, worst_ulp, of_bound, seconds } in &self.rows {
            let bound = of_bound.map_or("exact".to_string(), |share| format!("{share:.3}"));
            let row =
                format!("{kernel:28} {cases:5} {elements:9} {worst_ulp:10.3} {bound:>9} {seconds:8.2}\n");
            text.push_str(&row);
        }
        for (name, minimum) in &self.skipped {
            text.push_str(&format!("{name}: not run, needs sm_{minimum}\n"));
        }
        text
    }
}

/// Runs the cases whose kernel or label contains the filter.
///
/// # Errors
/// No case ran. What differs is in the table.
pub fn compare_all(device: &mut dyn Device, cases: Vec<Case>, filter: Option<&str>) -> Result<Table> {
    let capability = device.capability();
    let mut rows: BTreeMap<&'static str, (usize, Agreement, f64)> = BTreeMap::new();
    let mut failures = Vec::new();
    let mut skipped = BTreeMap::new();
    for case in cases {
        let wanted = filter.is_none_or(|text| case.kernel.name.contains(text) || case.label.contains(text));
        if !wanted {
            continue;
        }
        let minimum = case.steps.iter().map(|step| step.kernel.min_capability).max().unwrap_or(0);
        if minimum > capability {
            skipped.insert(case.kernel.name, minimum);
            continue;
        }
        let started = Instant::now();
        let outcome = run_case(device, &case);
        let row = rows.entry(case.kernel.name).or_default();
        row.0 += 1;
        row.2 += started.elapsed().as_secs_f64();
        match outcome {
            Ok(agreement) => {
                if let Some(first) = &agreement.first_failure {
                    failures.push(format!("{}, {}: {first}", case.kernel.name, case.label));
                }
                row.1.join(agreement);
            }
            Err(error) => failures.push(format!("{}, {}: {error:#}", case.kernel.name, case.label)),
        }
    }
    if filter.is_none() {
        for kernel in KERNELS {
            if !rows.contains_key(kernel.name) && !skipped.contains_key(kernel.name) {
                failures.push(format!("{} has no case", kernel.name));
            }
        }
    }
    ensure!(
        !rows.is_empty(),
        "no case ran{}",
        filter.map(|f| format!(": none contains {f:?}")).unwrap_or_default()
    );
    let rows = rows.into_iter().map(|(kernel, (cases, agreement, seconds))| Row {
        kernel,
        cases,
        elements: agreement.elements,
        worst_ulp: agreement.ulps,
        of_bound: agreement.bounded.then_some(agreement.of_bound),
        seconds,
    });
    Ok(Table { device: device.name(), rows: rows.collect(), skipped, failures })
}

/// Runs one case and compares all that it expects.
fn run_case(device: &mut dyn Device, case: &Case) -> Result<Agreement> {
    for step in &case.steps {
        let kernel = step.kernel;
        ensure!(
            step.arguments.len() == kernel.parameters.len(),
            "{}: wrong number of arguments",
            kernel.name
        );
        for (argument, parameter) in step.arguments.iter().zip(kernel.parameters) {
            ensure!(
                argument.fits(parameter.kind, &case.buffers),
                "{}: {argument:?} does not fit {parameter:?}",
                kernel.name
            );
        }
    }
    ensure!(!case.expected.is_empty(), "the case expects nothing");
    let mut buffers = case.buffers.clone();
    device.run(&mut buffers, &case.steps)?;
    let mut total = Agreement::default();
    for (index, want) in &case.expected {
        let got = buffers.get(*index).context("the case expects something of a buffer that is not there")?;
        total.join(compare::compare(got, want)?);
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::case::{Argument, Data, Step, u64};
    use super::*;

    /// A device that does nothing, or writes one value into one buffer.
    struct Fake(Option<(usize, f32)>);

    impl Device for Fake {
        fn name(&self) -> String {
            "fake".into()
        }
        fn capability(&self) -> u32 {
            75
        }
        fn run(&mut self, buffers: &mut [Data], _: &[Step]) -> Result<()> {
            if let (Some((index, value)), Some(Data::F32(buffer))) = (self.0, buffers.last_mut()) {
                buffer[index] = value;
            }
            Ok(())
        }
    }

    fn case() -> Case {
        let mut case = Case::new(&kernels_ptx::ZERO, "two elements");
        let x = case.buffer(Data::F32(vec![0.0; 2]));
        case.launch(&[2], &[x, u64(2)]);
        case.expect_exact(x, Data::F32(vec![0.0; 2]));
        case
    }

    #[test]
    fn a_wrong_value_fails_and_so_does_nan() {
        let failures = |fake| compare_all(&mut Fake(fake), vec![case()], Some("zero")).unwrap().failures;
        assert!(failures(None).is_empty());
        assert!(failures(Some((1, 1e-45)))[0].contains("element 1"));
        assert!(failures(Some((0, f32::NAN)))[0].contains("element 0"));
    }

    #[test]
    fn no_case_and_a_kernel_without_one_fail() {
        let error = compare_all(&mut Fake(None), vec![case()], Some("nothing like it")).err().unwrap();
        assert!(error.to_string().contains("no case ran"));
        let table = compare_all(&mut Fake(None), vec![case()], None).unwrap();
        assert!(table.failures.iter().any(|f| f == "add has no case"));
    }

    #[test]
    fn arguments_of_the_wrong_type_are_refused_before_the_launch() {
        let mut case = case();
        case.steps[0].arguments[1] = Argument::U32(2);
        let table = compare_all(&mut Fake(None), vec![case], Some("zero")).unwrap();
        assert!(table.failures[0].contains("does not fit"));
    }

    #[test]
    fn every_kernel_has_a_case_with_arguments_that_fit() {
        let cases = all_cases().unwrap();
        for kernel in KERNELS {
            assert!(
                cases.iter().any(|case| std::ptr::eq(case.kernel, *kernel)),
                "{} has no case",
                kernel.name
            );
        }
        for case in cases {
            for step in &case.steps {
                for (argument, parameter) in step.arguments.iter().zip(step.kernel.parameters) {
                    assert!(argument.fits(parameter.kind, &case.buffers), "{}: {parameter:?}", case.label);
                }
            }
        }
    }
}
