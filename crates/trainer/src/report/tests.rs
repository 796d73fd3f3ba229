//! What observers write, and what becomes of one that fails.

use std::cell::RefCell;
use std::fs;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::*;

fn record(step: u64) -> StepRecord {
    StepRecord {
        step,
        epoch: step as f64 / 4.0,
        loss: 2.5,
        grad_norm: 0.125,
        learning_rate: 2e-4,
        tokens: 12,
        tokens_per_second: 150.4,
        peak_rss_bytes: Some(512 << 20),
        eval_loss: None,
        skipped: None,
    }
}

fn run(done: u64, steps: u64) -> Run {
    Run { done, steps, facts: vec![("model", "tiny".into())] }
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn metrics_have_one_object_a_step_with_its_fields() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = JsonFiles::open(dir.path(), 0).unwrap();
    files.step(&record(1)).unwrap();
    let skipped =
        StepRecord { loss: f64::NAN, skipped: Some("why".into()), eval_loss: Some(1.5), ..record(2) };
    files.step(&skipped).unwrap();
    files.event(1, &Event::StepSkipped { step: 2, reason: "why".into() }).unwrap();
    let steps = lines(&dir.path().join("metrics.jsonl"));
    let fields: Vec<_> = steps[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        [
            "step",
            "epoch",
            "loss",
            "grad_norm",
            "learning_rate",
            "tokens",
            "tokens_per_second",
            "peak_rss_bytes"
        ]
    );
    assert_eq!((&steps[1]["loss"], &steps[1]["eval_loss"]), (&Value::Null, &json!(1.5)));
    assert_eq!(steps[1]["skipped"], json!("why"));
    let expected = json!({"after_step": 1, "event": "step_skipped", "step": 2, "reason": "why"});
    assert_eq!(lines(&dir.path().join("events.jsonl")), [expected]);
}

#[test]
fn a_resumed_run_takes_out_the_lines_of_steps_that_it_will_do_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = JsonFiles::open(dir.path(), 0).unwrap();
    let event = Event::Assumed { what: "x".into() };
    for step in 1..=5 {
        files.event(step - 1, &event).unwrap();
        files.step(&record(step)).unwrap();
    }
    drop(files);
    // A kill may cut the last line.
    let path = dir.path().join("metrics.jsonl");
    fs::write(&path, [fs::read(&path).unwrap(), b"{\"step\":6,\"lo".to_vec()].concat()).unwrap();
    let mut files = JsonFiles::open(dir.path(), 3).unwrap();
    files.step(&record(4)).unwrap();
    let steps: Vec<_> = lines(&path).iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3, 4]);
    // The event after step 2 happened during step 3, which is done.
    let events: Vec<_> = lines(&dir.path().join("events.jsonl"))
        .iter()
        .map(|line| line["after_step"].as_u64().unwrap())
        .collect();
    assert_eq!(events, [0, 1, 2]);
}

#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).unwrap()
    }
}

#[test]
fn plain_lines_come_every_so_many_steps_and_at_both_ends() {
    let out = Shared::default();
    let mut observers = Observers::new(vec![Box::new(Lines::new(out.clone(), 3))]);
    observers.started(&run(0, 7)).unwrap();
    for step in 1..=7 {
        observers.step(&record(step)).unwrap();
    }
    observers.emit(Event::Assumed { what: "something".into() });
    observers.saved(Path::new("out/checkpoints/step-000007")).unwrap();
    let text = out.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "model      tiny");
    let expected =
        "step 1/7  epoch 0.25  loss 2.5000  grad_norm 0.1250  rate 2.000e-4  150 tokens/s  512 MiB";
    assert_eq!(lines[1], expected);
    let steps: Vec<_> = lines.iter().filter(|line| line.starts_with("step")).map(|line| &line[..8]).collect();
    assert_eq!(steps, ["step 1/7", "step 3/7", "step 6/7", "step 7/7"]);
    assert_eq!(lines[5..], ["note: something", "saved out/checkpoints/step-000007"]);
}

/// Keeps all that is ever drawn, each piece on a line, without interpreting it.
#[derive(Debug, Clone)]
struct Recording(Arc<Mutex<String>>, u16);

impl Recording {
    fn of_width(width: u16) -> Self {
        Self(Arc::default(), width)
    }
}

impl indicatif::TermLike for Recording {
    fn width(&self) -> u16 {
        self.1
    }
    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }
    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.lock().unwrap().push_str(&format!("{text}\n"));
        Ok(())
    }
    fn clear_line(&self) -> io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_bar_shows_loss_speed_and_memory() {
    let term = Recording::of_width(80);
    let lines = Shared::default();
    let mut bar = Bar::on(indicatif::ProgressDrawTarget::term_like(Box::new(term.clone())), lines.clone());
    bar.event(0, &Event::Assumed { what: "early".into() }).unwrap();
    bar.started(&run(0, 4)).unwrap();
    bar.step(&StepRecord { eval_loss: Some(1.25), ..record(2) }).unwrap();
    bar.event(2, &Event::Assumed { what: "something".into() }).unwrap();
    bar.finished();
    let screen = term.0.lock().unwrap().clone();
    for part in ["step 2/4  eval_loss 1.2500", "note: something", "██████▌░░░░░ step 2/4  loss 2.5000  "]
    {
        assert!(screen.contains(part), "{part} is not in\n{screen}");
    }
    assert!(screen.contains(" left  150 tokens/s  512 MiB"), "{screen}");
    // What comes before the first step is not mixed with a bar of no steps.
    assert_eq!(lines.text(), "note: early\nmodel      tiny\n");
    assert!(!screen.contains("0/0"), "{screen}");
}

// A line that is longer than the terminal would leave a copy of itself at each step.
#[test]
fn the_bar_keeps_to_one_line_of_any_terminal() {
    for width in [20, 40, 80, 200] {
        let term = Recording::of_width(width);
        let mut bar =
            Bar::on(indicatif::ProgressDrawTarget::term_like(Box::new(term.clone())), Shared::default());
        bar.started(&run(0, 100_000)).unwrap();
        bar.step(&StepRecord { tokens_per_second: 123_456.0, ..record(50_000) }).unwrap();
        bar.handle().println("stopping");
        bar.step(&record(100_000)).unwrap();
        bar.finished();
        let screen = term.0.lock().unwrap().clone();
        assert!(screen.contains("stopping"), "{screen}");
        let drawn: Vec<&str> = screen.lines().filter(|line| line.contains('█')).collect();
        assert!(drawn.len() >= 2, "{screen}");
        for line in drawn {
            let columns = line.chars().count();
            assert!(columns <= usize::from(width), "{columns} columns of {width}: {line:?}");
        }
        assert_eq!(
            screen.contains("step 100000/100000  loss 2.5000  took 0s  150 tokens/s"),
            width >= 80,
            "{screen}"
        );
    }
}

struct Failing;

impl Observer for Failing {
    fn event(&mut self, _: u64, _: &Event) -> Result<()> {
        Err(crate::Error::io("write", "x")(io::Error::other("full")))
    }
}

#[test]
fn an_observer_that_fails_at_an_event_stops_the_run_at_the_next_step() {
    let mut observers = Observers::new(vec![Box::new(Failing)]);
    observers.emit(Event::Assumed { what: "x".into() });
    assert_eq!(observers.step(&record(1)).unwrap_err().to_string(), "cannot write x: full");
    observers.step(&record(2)).unwrap();
}
