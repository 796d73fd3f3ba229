//! A device that fails: whatever operation of a step it is, the step ends with that failure, what was trained so far
//! is as it was, and the same step done again gives the bytes of one that never failed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use trainer::Result;
use trainer::backend::{
    AdamW, AttentionInputs, Backend, CpuBackend, Direction, DropoutKey, Parameter, Side, Storage,
};
use trainer::data::{Batch, Sample};
use trainer::engine::{Engine, Update};
use trainer::event::Collected;
use trainer::model::{Rope, Table};
use whole_system_tests::Setup;

/// What the test and the device share.
#[derive(Debug, Default)]
struct Switch {
    /// The operations since the last [`start`](Self::start), by name.
    done: RefCell<Vec<&'static str>>,
    /// Which of them fails, counted from 0.
    fails: Cell<Option<usize>>,
}

impl Switch {
    fn start(&self, fails: Option<usize>) {
        self.done.borrow_mut().clear();
        self.fails.set(fails);
    }

    fn operation(&self, name: &'static str) -> Result<()> {
        self.done.borrow_mut().push(name);
        if self.fails.get() == Some(self.done.borrow().len() - 1) {
            let (parameter, value, supported) = ("device", "broken".to_owned(), "another");
            return Err(cpu_ops::Error::Unsupported { operation: name, parameter, value, supported }.into());
        }
        Ok(())
    }
}

/// The CPU, as long as the switch says so.
#[derive(Debug)]
struct Failing {
    cpu: CpuBackend,
    switch: Rc<Switch>,
}

type Matrix = <CpuBackend as Backend>::Tensor;
type Numbers = <CpuBackend as Backend>::Index;
type Weight = <CpuBackend as Backend>::Weight;
type Vocabulary = <CpuBackend as Backend>::Table;
type Angles = <CpuBackend as Backend>::Rope;

/// Each operation asks the switch and then the CPU.
macro_rules! operations {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        fn $name(&mut self, $($argument: $kind),*) -> Result<$result> {
            self.switch.operation(stringify!($name))?;
            self.cpu.$name($($argument),*)
        }
    )*};
}

impl Backend for Failing {
    type Tensor = Matrix;
    type Index = Numbers;
    type Weight = Weight;
    type Table = Vocabulary;
    type Rope = Angles;

    operations! {
        tensor(rows: usize, cols: usize) -> Matrix;
        index(len: usize) -> Numbers;
        weight(values: Table, out: usize, inputs: usize, storage: Storage) -> Weight;
        table(values: Table, vocab: usize, hidden: usize) -> Vocabulary;
        rope_table(rope: &Rope, positions: usize) -> Angles;
        upload(values: &[f32], to: &mut Matrix) -> ();
        upload_index(values: &[u32], to: &mut Numbers) -> ();
        download(from: &Matrix) -> Vec<f32>;
        linear(x: &Matrix, w: &Weight, y: &mut Matrix) -> ();
        linear_dx(dy: &Matrix, w: &Weight, beta: f32, dx: &mut Matrix) -> ();
        add_bias(bias: &Matrix, y: &mut Matrix) -> ();
        matmul(alpha: f32, a: Side<'_, Matrix>, b: Side<'_, Matrix>, beta: f32, c: &mut Matrix) -> ();
        rms_norm(x: &Matrix, weight: &Matrix, eps: f32, y: &mut Matrix) -> ();
        rms_norm_dx(x: &Matrix, weight: &Matrix, eps: f32, dy: &Matrix, beta: f32, dx: &mut Matrix) -> ();
        rope(rope: &Angles, positions: &Numbers, direction: Direction, x: &mut Matrix) -> ();
        attention(inputs: AttentionInputs<'_, Matrix, Numbers>, out: &mut Matrix, lse: &mut Matrix) -> ();
        attention_d(
            inputs: AttentionInputs<'_, Matrix, Numbers>,
            out: &Matrix,
            lse: &Matrix,
            d_out: &Matrix,
            d: [&mut Matrix; 3]
        ) -> ();
        swiglu(gate: &Matrix, up: &Matrix, y: &mut Matrix) -> ();
        swiglu_d(gate: &Matrix, up: &Matrix, dy: &Matrix, d: [&mut Matrix; 2]) -> ();
        add(x: &Matrix, y: &mut Matrix) -> ();
        copy(x: &Matrix, y: &mut Matrix) -> ();
        copy_rows(x: &Matrix, at: usize, y: &mut Matrix) -> ();
        zero(y: &mut Matrix) -> ();
        dropout(x: &Matrix, key: DropoutKey, beta: f32, y: &mut Matrix) -> ();
        gather_rows(x: &Matrix, rows: &Numbers, y: &mut Matrix) -> ();
        scatter_rows(x: &Matrix, rows: &Numbers, y: &mut Matrix) -> ();
        embed(table: &Vocabulary, ids: &Numbers, y: &mut Matrix) -> ();
        head_loss(
            hidden: &Matrix,
            table: &Vocabulary,
            targets: &Numbers,
            losses: &mut Matrix,
            gradient: Option<(f32, &mut Matrix)>
        ) -> ();
        head_logits(hidden: &Matrix, table: &Vocabulary, logits: &mut Matrix) -> ();
        sums_of_squares(tensors: &[&Matrix]) -> Vec<f64>;
        adamw(rule: &AdamW, update: u64, grad_scale: f32, parameter: Parameter<'_, Matrix>) -> ();
    }
}

fn window() -> [Batch; 2] {
    [8, 5].map(|tokens: u32| {
        let ids: Vec<u32> = (0..tokens).map(|i| 3 + (i * 61) % 500).collect();
        Batch::new([&Sample { labels: ids.iter().map(|&id| id as i32).collect(), ids }])
    })
}

fn step(engine: &mut Engine<Failing>, step: u64) -> Result<()> {
    let adamw = AdamW { lr: 1e-2, ..AdamW::default() };
    let update = Update { step, adamw, max_grad_norm: 1.0 };
    engine.step(&window(), &update, &mut Collected::default()).map(|_| ())
}

/// B119: a failure is neither hidden nor redone elsewhere, and what a failed step left half done never counts.
#[test]
fn a_step_that_fails_anywhere_changes_nothing_and_can_be_done_again() {
    let made = || {
        let setup = Setup::tiny("qwen3").storage(Storage::Nf4 { block_size: 64, double: true });
        // Dropout and activations computed again: all that a step can do.
        let setup = setup.dropout(0.1).activation_bytes(0);
        let switch = Rc::new(Switch::default());
        let mut engine = setup.engine_on(Failing { cpu: setup.backend(), switch: switch.clone() });
        step(&mut engine, 1).unwrap();
        (engine, switch)
    };
    let (mut never, switch) = made();
    switch.start(None);
    step(&mut never, 2).unwrap();
    let operations = switch.done.take();
    // Everything was reserved before.
    let reserving = ["tensor", "index", "weight", "table", "rope_table"];
    assert!(operations.iter().all(|name| !reserving.contains(name)), "{operations:?}");
    assert_eq!(operations.iter().filter(|name| **name == "adamw").count(), 28);
    assert!(operations.len() > 200, "{operations:?}");

    let (mut engine, switch) = made();
    let adapter = engine.adapter().unwrap();
    let optimizer = engine.optimizer_state().unwrap();
    for (at, name) in operations.iter().enumerate() {
        switch.start(Some(at));
        let message = step(&mut engine, 2).unwrap_err().to_string();
        switch.start(None);
        assert!(message.contains(name) && message.contains("broken"), "operation {at}, {name}: {message}");
        if *name == "adamw" {
            // The update had begun: the run is over, and goes on from what was saved before.
            engine.set_adapter(&adapter).unwrap();
            engine.set_optimizer_state(&optimizer).unwrap();
        } else {
            assert!(engine.adapter().unwrap() == adapter, "operation {at}, {name}");
            assert!(engine.optimizer_state().unwrap() == optimizer, "operation {at}, {name}");
        }
    }
    step(&mut engine, 2).unwrap();
    assert!(engine.adapter().unwrap() == never.adapter().unwrap());
    assert!(engine.optimizer_state().unwrap() == never.optimizer_state().unwrap());
}
