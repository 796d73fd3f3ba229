//! The instructions through SmolLM2's tokenizer and chat template: the tokens and prompts that the reference trained
//! on. The model comes from `cargo xtask fetch smollm2`; without it this test fails when it is asked for
//! (`cargo test -p whole-system-tests --test smollm2_data -- --ignored`).

use std::path::Path;

use trainer::data::{Encoder, EncoderOptions, Format, IGNORED, LossOn, Moment, read};
use trainer::event::Collected;
use trainer::tokenizer::Tokenizer;
use whole_system_tests::{fixture, json};

#[test]
#[ignore = "needs the model of cargo xtask fetch smollm2"]
fn tokens_and_masks_are_those_of_the_reference() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/smollm2-135m-instruct");
    assert!(model.is_dir(), "{} is not there: run cargo xtask fetch smollm2", model.display());
    let mut events = Collected::default();
    let tokenizer = Tokenizer::open(&model, &mut events).expect("the tokenizer");
    let options = EncoderOptions {
        loss_on: LossOn::Assistant,
        max_length: 1024,
        positions: 8192,
        now: Moment::default(),
    };
    let records =
        read(&fixture("data/instructions.jsonl"), Format::Auto, &mut events).expect("the instructions");
    let encoder = Encoder::new(&tokenizer, options);
    let data = encoder.samples(&records, &mut events).expect("samples");
    assert!(events.0.is_empty(), "{:?}", events.0);
    assert_eq!(data.lines, (1..=64).collect::<Vec<_>>());

    let reference = json("reference_losses.json");
    let steps = reference["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), 20);
    for step in steps {
        let number = |field: &str| step[field].as_u64().expect(field) as usize;
        let sample = &data.samples[number("example")];
        let ids: Vec<u64> = sample.ids.iter().map(|&id| id.into()).collect();
        assert_eq!(serde_json::json!(ids), step["input_ids"], "step {}", step["step"]);
        let prompt = number("prompt_tokens");
        let expected: Vec<i32> = (0..)
            .zip(&sample.ids)
            .map(|(at, &id): (usize, _)| if at < prompt { IGNORED } else { id as i32 })
            .collect();
        assert_eq!(sample.labels, expected, "step {}", step["step"]);
        assert_eq!(sample.supervised(), number("loss_tokens"), "step {}", step["step"]);
    }
    // Every sample, those beyond the reference's steps too: the answer as it stands in the file, the end of the turn
    // and the newline after it; and a question has the tokens of its prompt.
    for (sample, record) in data.samples.iter().zip(&records.records) {
        let trainer::data::Content::Pair { prompt, completion } = &record.content else {
            panic!("{record:?}")
        };
        let learnt: Vec<u32> =
            sample.labels.iter().filter(|&&label| label != IGNORED).map(|&l| l as u32).collect();
        let text = tokenizer.decode(&learnt).expect("a text");
        assert_eq!(text, format!("{completion}<|im_end|>\n"), "line {}", record.line);
        let question = encoder.question(prompt).expect("a question");
        assert_eq!(question, sample.ids[..sample.ids.len() - learnt.len()], "line {}", record.line);
    }
}
