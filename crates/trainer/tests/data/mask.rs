//! What of a conversation is learnt, in characters.

use serde_json::{Value, json};
use trainer::data::{Conversation, LossOn, Masked, Mode, Refusal, Rendering, Template, Variables, mask};

use crate::json;

fn conversation(messages: &Value) -> Conversation {
    Conversation { messages: messages.as_array().expect("messages").clone(), tools: Value::Null }
}

fn turns(turns: &[(&str, &str)]) -> Conversation {
    conversation(&turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect())
}

fn template(source: &str) -> Template {
    let token = |role: &str, token: &str| (role.to_string(), token.to_string());
    let tokens = [token("bos_token", "<s>"), token("eos_token", "</s>")].into();
    Template::new(source, Variables { tokens, ..Variables::default() }).expect(source)
}

fn learnt(masked: &Masked) -> Vec<Vec<&str>> {
    let of = |rendering: &Rendering| rendering.spans.clone();
    let texts = masked.renderings.iter().map(|rendering| rendering.text.as_str());
    let spans = masked.renderings.iter().map(of);
    texts.zip(spans).map(|(text, spans)| spans.into_iter().map(|span| &text[span]).collect()).collect()
}

fn assert_spans(masked: &Masked, at: usize, expected: &Value, what: &str) {
    let spans: Vec<[usize; 2]> =
        masked.renderings[at].spans.iter().map(|span| [span.start, span.end]).collect();
    assert_eq!(json!(spans), expected["byte_spans"], "{what}");
    assert_eq!(json!(learnt(masked)[at]), expected["supervised"], "{what}");
}

/// The rule on every template and conversation of the reference's file: how the spans were found, and which.
#[test]
fn spans_are_those_of_the_reference() {
    let file = json("templates.json");
    let mut modes = std::collections::BTreeMap::<&str, usize>::new();
    for entry in file["templates"].as_array().expect("templates") {
        let template = template(entry["template"].as_str().expect("a template"));
        for (which, case) in entry["cases"].as_object().expect("cases") {
            let what = format!("{} on {which}", entry["name"]);
            let of = conversation(&file["conversations"][which]);
            let masked = mask(&template, &of, LossOn::Assistant);
            let mode = case["mode"].as_str().unwrap_or("fails");
            *modes.entry(mode).or_default() += 1;
            if let Ok(masked) = &masked {
                assert_eq!(masked.skips_first, case["unsupervised"] == json!([0]), "{what}");
            }
            match (mode, &masked) {
                ("prefix", Ok(masked @ Masked { mode: Mode::Prefix, .. }))
                | ("markers", Ok(masked @ Masked { mode: Mode::Marks, .. })) => {
                    assert_eq!(masked.renderings.len(), 1);
                    assert_eq!(masked.renderings[0].text, case["rendered"], "{what}");
                    assert_spans(masked, 0, case, &what);
                }
                ("per_turn", Ok(masked @ Masked { mode: Mode::PerTurn, .. })) => {
                    let samples = case["samples"].as_array().expect("samples");
                    assert_eq!(masked.renderings.len(), samples.len(), "{what}");
                    for (at, sample) in samples.iter().enumerate() {
                        assert_eq!(masked.renderings[at].text, sample["text"], "{what}");
                        assert_spans(masked, at, sample, &what);
                    }
                }
                ("refused", Err(Refusal::Differs { turn, at, prompt, finished })) => {
                    assert_eq!(json!(turn), case["turn"], "{what}");
                    let before = template.render(&of.first(*turn), true).expect("P");
                    assert_eq!(json!(before[..*at].chars().count()), case["first_difference"], "{what}");
                    assert!(prompt.starts_with("[think]") && !finished.starts_with("[think]"), "{what}");
                }
                ("fails", Err(Refusal::Template(error))) => {
                    assert_eq!(json!(error.to_string()), case["error"], "{what}");
                }
                (_, other) => panic!("{what}: expected {mode}, found {other:?}"),
            }
        }
    }
    assert_eq!(modes["prefix"], 82, "{modes:?}");
    assert_eq!(
        (modes["per_turn"], modes["markers"], modes["refused"], modes["fails"]),
        (7, 1, 8, 1),
        "{modes:?}"
    );
}

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                      {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const LLAMA3: &str = "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n\
                      {{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}\
                      <|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}";

/// B80: the answers and what ends them are learnt, no later turn of another role, no header.
#[test]
fn only_answers_are_learnt() {
    let of = turns(&[
        ("system", "s"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
        ("tool", "d"),
        ("assistant", "e"),
    ]);
    for (template, expected) in [
        (&template(CHATML), ["b<|im_end|>\n", "e<|im_end|>\n"]),
        (&template(LLAMA3), ["b<|eot_id|>", "e<|eot_id|>"]),
    ] {
        assert_eq!(learnt(&mask(template, &of, LossOn::Assistant).expect("masked")), [expected]);
        assert_eq!(learnt(&mask(template, &of, LossOn::Completion).expect("masked")), [[expected[1]]]);
        let all = mask(template, &of, LossOn::All).expect("masked");
        assert_eq!(learnt(&all), [[template.render(&of, false).expect("rendered")]]);
    }
}

const LAST_THINKS: &str = "{% for m in messages %}<{{ m.role }}>\
    {% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}\
    {% endif %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// B82: a template that keeps the thinking of the last answer only: each answer is learnt as the model will have to
/// give it, in a sample of its own; what the whole conversation shows of an earlier one is not.
#[test]
fn rewritten_turns_become_samples() {
    let two = [
        ("user", "1"),
        ("assistant", "<think>a</think>A"),
        ("user", "2"),
        ("assistant", "<think>b</think>B"),
    ];
    let masked = mask(&template(LAST_THINKS), &turns(&two), LossOn::Assistant).expect("masked");
    assert_eq!(masked.mode, Mode::PerTurn);
    assert_eq!(learnt(&masked), [["<think>a</think>A<end>"], ["<think>b</think>B<end>"]]);
    assert_eq!(masked.renderings[0].text, "<user>1<end><assistant><think>a</think>A<end>");
    assert_eq!(
        masked.renderings[1].text,
        "<user>1<end><assistant>A<end><user>2<end><assistant><think>b</think>B<end>"
    );
    let three = [&two[..], &[("user", "3"), ("assistant", "C")]].concat();
    let masked = mask(&template(LAST_THINKS), &turns(&three), LossOn::Assistant).expect("masked");
    assert_eq!(masked.renderings.len(), 3);
    // The last answer alone is the end of the whole conversation: there is nothing to take apart.
    let masked = mask(&template(LAST_THINKS), &turns(&three), LossOn::Completion).expect("masked");
    assert_eq!((masked.mode, learnt(&masked)), (Mode::Prefix, vec![vec!["C<end>"]]));
}

/// The generation prompt opens a block that finished turns do not have: only marks can say what is learnt.
fn opening(answer: &str) -> String {
    format!(
        "{{% for m in messages %}}<{{{{ m.role }}}}>{{% if m.role == 'assistant' %}}{answer}{{% else %}}\
         {{{{ m.content }}}}{{% endif %}}<end>{{% endfor %}}{{% if add_generation_prompt %}}<assistant><think>{{% endif %}}"
    )
}

/// B84: without marks another exact way or a refusal, never an empty mask.
#[test]
fn marks_are_used_where_prefixes_fail() {
    let of = turns(&[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]);
    let marked = template(&opening("{% generation %}{{ m.content }}{% endgeneration %}"));
    let masked = mask(&marked, &of, LossOn::Assistant).expect("masked");
    assert_eq!((masked.mode, learnt(&masked)), (Mode::Marks, vec![vec!["b", "d"]]));
    assert_eq!(learnt(&mask(&marked, &of, LossOn::Completion).expect("masked")), [["d"]]);
    assert_eq!(
        mask(&template(&opening("{{ m.content }}")), &of, LossOn::Assistant),
        Err(Refusal::Differs {
            turn: 1,
            at: "<user>a<end><assistant>".len(),
            prompt: "<think>".into(),
            finished: "b<end>".into()
        })
    );
    // The prefix rule goes first: it has the end of the turn, the marks may not.
    let both = CHATML.replace("{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}");
    assert_eq!(
        learnt(&mask(&template(&both), &of, LossOn::Completion).expect("masked")),
        [["d<|im_end|>\n"]]
    );
    // An answer before any question is not learnt, marked or not.
    let first = turns(&[("assistant", "a"), ("user", "b"), ("assistant", "c")]);
    let masked = mask(&marked, &first, LossOn::Assistant).expect("masked");
    assert_eq!((masked.skips_first, learnt(&masked)), (true, vec![vec!["c"]]));
}

#[test]
fn a_conversation_without_an_answer_is_refused() {
    for of in [turns(&[("user", "a")]), turns(&[("assistant", "a"), ("user", "b")])] {
        for loss_on in [LossOn::Assistant, LossOn::Completion] {
            assert_eq!(mask(&template(CHATML), &of, loss_on), Err(Refusal::NoAnswer));
        }
        assert_eq!(mask(&template(CHATML), &of, LossOn::All).expect("all").mode, Mode::All);
    }
}
