//! The harness: measures a definition in rounds, alternating with its peers, and prints rates beside the
//! machine's own ceilings, measured in the same run.
//!
//! A round is a block of runs of ours, then one of each peer, with a pause after a peer (its threads spin for a
//! while after a call). What is compared is the median within a round, so that a slow phase of the machine meets
//! both sides; what is reported is the median of the rounds' ratios.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use cpu_ops::{Threads, ceiling};

use crate::definitions;
use crate::peer::{Peer, Process};

/// How the work of a run is counted and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Floating-point operations: GFLOP/s, beside the rate of multiply-adds.
    GigaFlops,
    /// Bytes read and written: GB/s, beside the rate of reading memory.
    GigaBytes,
    /// Non-padding tokens: tokens/s.
    Tokens,
}

/// An operation whose operands are in place.
pub trait Bench {
    /// Does it once.
    ///
    /// # Errors
    /// Whatever the operation returns.
    fn run(&mut self, threads: &Threads) -> Result<()>;
    /// Work of one run, in the unit of its definition (operations, bytes, tokens).
    fn work(&self) -> f64;
    /// Bytes that one run must at least read and write; 0 if that says nothing.
    fn bytes(&self) -> f64;
    /// Whether the last run's result is right.
    ///
    /// # Errors
    /// It is not; the message says where.
    fn check(&self) -> Result<()>;
}

/// Makes the operands, small ones for a test.
pub type Prepare = Box<dyn Fn(&Threads, bool) -> Result<Box<dyn Bench>>>;

/// One benchmark.
pub struct Definition {
    /// Name, with its parts separated by `/`.
    pub name: String,
    /// How its work is counted.
    pub unit: Unit,
    /// What it can be compared with.
    pub peers: Vec<Peer>,
    /// Makes its operands.
    pub prepare: Prepare,
}

/// Runs the benchmarks.
#[derive(Debug, Parser)]
struct Arguments {
    /// Runs only benchmarks whose name contains one of these
    filters: Vec<String>,
    /// Runs each once with small operands and checks the result, as a test
    #[arg(long)]
    test: bool,
    /// Lists the names
    #[arg(long)]
    list: bool,
    /// Threads, ours and the peers' [default: all]
    #[arg(long)]
    threads: Option<usize>,
    /// Rounds of each benchmark
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Milliseconds that a block of one side lasts at least
    #[arg(long, default_value_t = 30)]
    block: u64,
    /// A Python with torch and numpy: also measures the peers
    #[arg(long, value_name = "PYTHON")]
    peers: Option<PathBuf>,
    /// `cargo bench` passes it
    #[arg(long, hide = true)]
    bench: bool,
}

/// The time after which threads of torch (200 ms) and OpenBLAS no longer spin.
const PAUSE: Duration = Duration::from_millis(250);

/// Entry of the benchmark binary.
///
/// # Errors
/// A result is wrong, an operation failed, a peer failed, or no benchmark matched.
pub fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let threads = match arguments.threads {
        Some(count) => Threads::new(count)?,
        None => Threads::available()?,
    };
    let matches =
        |name: &str| arguments.filters.is_empty() || arguments.filters.iter().any(|f| name.contains(f));
    let chosen: Vec<Definition> = definitions::all().into_iter().filter(|d| matches(&d.name)).collect();
    ensure!(!chosen.is_empty(), "no benchmark's name contains {:?}", arguments.filters);
    if arguments.list {
        chosen.iter().for_each(|definition| println!("{}", definition.name));
        return Ok(());
    }
    if arguments.test {
        for definition in &chosen {
            let mut bench = (definition.prepare)(&threads, true)?;
            bench.run(&threads).and_then(|()| bench.check()).with_context(|| definition.name.clone())?;
            println!("test {} ... ok", definition.name);
        }
        println!("{} benchmarks ran once", chosen.len());
        return Ok(());
    }
    let ceilings = Ceilings::measure(&threads);
    println!(
        "{} threads; ceilings: {:.0} GFLOP/s of multiply-adds, {:.1} GB/s reading memory",
        threads.count(),
        ceilings.flops / 1e9,
        ceilings.read / 1e9
    );
    for definition in &chosen {
        measure(definition, &arguments, &threads, &ceilings).with_context(|| definition.name.clone())?;
    }
    Ok(())
}

struct Ceilings {
    flops: f64,
    read: f64,
}

impl Ceilings {
    fn measure(threads: &Threads) -> Self {
        Self { flops: ceiling::multiply_add_rate(threads), read: ceiling::read_rate(threads) }
    }
}

fn measure(
    definition: &Definition,
    arguments: &Arguments,
    threads: &Threads,
    ceilings: &Ceilings,
) -> Result<()> {
    let mut bench = (definition.prepare)(threads, false)?;
    let mut peers = Vec::new();
    if let Some(python) = &arguments.peers {
        for peer in &definition.peers {
            peers.push(Process::start(python, threads.count(), peer.clone())?);
        }
    }
    bench.run(threads)?;
    bench.check()?;
    let block = Duration::from_millis(arguments.block);
    let mut ours = Vec::new();
    let mut theirs: Vec<Vec<f64>> = vec![Vec::new(); peers.len()];
    for _ in 0..arguments.rounds {
        let mut times = Vec::new();
        // After a pause the first runs meet a slower clock and cold caches: both sides run untimed first.
        let start = Instant::now();
        while start.elapsed() < block {
            bench.run(threads)?;
        }
        let start = Instant::now();
        while times.len() < 3 || start.elapsed() < block {
            let start = Instant::now();
            bench.run(threads)?;
            times.push(start.elapsed().as_secs_f64());
        }
        let runs = times.len();
        ours.push(median(&mut times));
        for (peer, times) in peers.iter_mut().zip(&mut theirs) {
            peer.measure(runs)?;
            times.push(median(&mut peer.measure(runs)?));
            std::thread::sleep(PAUSE);
        }
    }
    bench.check()?;

    let seconds = median(&mut ours.clone());
    let mut line =
        format!("{:<62} {:>9.3} ms  {}", definition.name, seconds * 1e3, rate(definition, &*bench, seconds));
    match definition.unit {
        Unit::GigaFlops => {
            line += &format!(" ({:.0} % of the ceiling)", 100.0 * bench.work() / seconds / ceilings.flops)
        }
        Unit::GigaBytes => {
            line += &format!(" ({:.0} % of reading)", 100.0 * bench.work() / seconds / ceilings.read)
        }
        Unit::Tokens => {}
    }
    if definition.unit == Unit::GigaFlops && bench.bytes() > 0.0 {
        line += &format!("  {:.1} GB/s", bench.bytes() / seconds / 1e9);
    }
    println!("{line}");
    for (peer, times) in peers.iter().zip(&mut theirs) {
        let mut ratios: Vec<f64> = times.iter().zip(&ours).map(|(peer, ours)| peer / ours).collect();
        let theirs = median(times);
        let ratio = median(&mut ratios);
        println!(
            "    {:<58} {:>9.3} ms  {}  ours is {ratio:.2} times as fast (rounds: {:.2} to {:.2})",
            peer.library(),
            theirs * 1e3,
            rate(definition, &*bench, theirs),
            ratios[0],
            ratios[ratios.len() - 1],
        );
    }
    Ok(())
}

fn rate(definition: &Definition, bench: &dyn Bench, seconds: f64) -> String {
    let rate = bench.work() / seconds;
    match definition.unit {
        Unit::GigaFlops => format!("{:>7.1} GFLOP/s", rate / 1e9),
        Unit::GigaBytes => format!("{:>7.2} GB/s", rate / 1e9),
        Unit::Tokens => format!("{rate:>7.1} tokens/s"),
    }
}

/// Sorts and takes the middle one (the lower of two).
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.0);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<String> = definitions::all().into_iter().map(|d| d.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
