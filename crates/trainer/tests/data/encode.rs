//! Records become samples: tokens, labels, begin and end tokens, and what is cut.

use std::path::Path;

use serde_json::json;
use trainer::Event;
use trainer::data::{
    Batch, DataSet, Encoder, EncoderOptions, Format, IGNORED, LossOn, Moment, Sample, parse,
};
use trainer::event::Collected;
use trainer::tokenizer::Tokenizer;

use crate::toy::Toy;

const END: &[(&str, &str)] = &[("eos_token", "</s>")];
const BEGIN_AND_END: &[(&str, &str)] = &[("bos_token", "<s>"), ("eos_token", "</s>")];
const ROLES: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}</s>{% endif %}\
                     {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

fn options() -> EncoderOptions {
    EncoderOptions { loss_on: LossOn::Assistant, max_length: 1000, positions: 1000, now: Moment::default() }
}

fn encode(
    tokenizer: &Tokenizer,
    lines: &[serde_json::Value],
    options: EncoderOptions,
) -> (Result<DataSet, String>, Vec<Event>) {
    let mut events = Collected::default();
    let text: Vec<String> = lines.iter().map(ToString::to_string).collect();
    let records =
        parse(Path::new("d.jsonl"), text.join("\n").as_bytes(), Format::Auto, &mut events).expect("records");
    let data = Encoder::new(tokenizer, options).samples(&records, &mut events);
    (data.map_err(|error| error.to_string()), events.0)
}

fn one(tokenizer: &Tokenizer, line: serde_json::Value, options: EncoderOptions) -> Sample {
    let (data, _) = encode(tokenizer, &[line], options);
    let mut samples = data.expect("samples").samples;
    assert_eq!(samples.len(), 1);
    samples.remove(0)
}

/// The ids that are learnt.
fn learnt(sample: &Sample) -> Vec<u32> {
    sample.labels.iter().filter(|&&label| label != IGNORED).map(|&label| label as u32).collect()
}

fn text(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    tokenizer.decode(ids).expect("a text")
}

fn pair(prompt: &str, completion: &str) -> serde_json::Value {
    json!({"prompt": prompt, "completion": completion})
}

/// B73: no token lies across the seam of prompt and completion; the learnt ids are the completion and its end.
#[test]
fn no_token_lies_across_the_seam() {
    let tokenizer = Toy { roles: END, merges: &[(":", "y"), ("Ġ", "y")], ..Toy::default() }.byte_level();
    assert_eq!(tokenizer.encode("r:y").expect("ids").len(), 2, "the merge exists");
    for prompt in ["answer:", "answer: "] {
        let sample = one(&tokenizer, pair(prompt, "yes"), options());
        assert_eq!(text(&tokenizer, &learnt(&sample)), "yes</s>");
        assert_eq!(text(&tokenizer, &sample.ids), format!("{prompt}yes</s>"));
        assert_eq!(sample.ids[..prompt.len()], tokenizer.encode(prompt).expect("ids"));
    }
    // In a conversation the same holds at both ends of an answer.
    let template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}{% if add_generation_prompt %}a:{% endif %}";
    let tokenizer =
        Toy { roles: END, merges: &[(":", "y"), ("|", "u")], template: Some(template), ..Toy::default() }
            .byte_level();
    let turn = |role, content| json!({"role": role, "content": content});
    let line = json!({"messages": [turn("user", "q"), turn("assistant", "y"), turn("user", "r"), turn("assistant", "z")]});
    let sample = one(&tokenizer, line, options());
    assert_eq!(text(&tokenizer, &sample.ids), "u:q|a:y|u:r|a:z|");
    assert_eq!(text(&tokenizer, &learnt(&sample)), "y|z|");
}

/// B73, SentencePiece: the text is encoded whole, for a space would stand before every piece; a token across the
/// border counts as prompt, and that is told.
#[test]
fn sentence_piece_is_encoded_whole() {
    let tokenizer = Toy { roles: END, merges: &[(":", "y")], ..Toy::default() }.sentence_piece();
    let (data, events) =
        encode(&tokenizer, &[pair("a:", "yes"), pair("a:", " no"), pair("é", "ü")], options());
    let samples = data.expect("samples").samples;
    let tokens = |sample: &Sample| -> Vec<(String, bool)> {
        let token = |&id: &u32| tokenizer.token(id).expect("a token");
        sample.ids.iter().map(token).zip(sample.labels.iter().map(|&label| label != IGNORED)).collect()
    };
    let expected =
        |tokens: &[(&str, bool)]| tokens.iter().map(|&(t, l)| (t.to_string(), l)).collect::<Vec<_>>();
    assert_eq!(
        tokens(&samples[0]),
        expected(&[("▁", false), ("a", false), (":y", false), ("e", true), ("s", true), ("</s>", true)])
    );
    assert_eq!(
        tokens(&samples[1]),
        expected(&[
            ("▁", false),
            ("a", false),
            (":", false),
            ("▁", true),
            ("n", true),
            ("o", true),
            ("</s>", true)
        ])
    );
    assert_eq!(
        tokens(&samples[2]),
        expected(&[
            ("▁", false),
            ("<0xC3>", false),
            ("<0xA9>", false),
            ("<0xC3>", true),
            ("<0xBC>", true),
            ("</s>", true)
        ])
    );
    let what =
        "1 tokens lie across the border of an answer and count as prompt (first: d.jsonl:1)".to_string();
    assert_eq!(events, [Event::Assumed { what }]);
}

/// B74: an answer ends in the end token, exactly once, in every format; without one there is no learning where to
/// stop, so a tokenizer that names none is refused, and a template that puts none is told.
#[test]
fn answers_end_once() {
    let plain = Toy { roles: END, ..Toy::default() }.byte_level();
    let chat = Toy { roles: END, template: Some(ROLES), ..Toy::default() }.byte_level();
    let end = plain.eos_id().expect("an end token");
    for (tokenizer, line) in [
        (&plain, pair("a", "b")),
        (&plain, pair("a", "b</s>")),
        (&plain, json!({"text": "ab"})),
        (&plain, json!({"text": "ab</s>"})),
        (&chat, pair("a", "b")),
        (&chat, json!({"text": "ab"})),
        (
            &chat,
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
        ),
    ] {
        let sample = one(tokenizer, line.clone(), options());
        assert_eq!(sample.ids.iter().filter(|&&id| id == end).count(), 1, "{line}");
        assert_eq!(sample.ids.last(), Some(&end), "{line}");
        assert_eq!(sample.labels.last(), Some(&(end as i32)), "{line}");
    }
    let nameless = Toy::default().byte_level();
    let (refused, _) = encode(&nameless, &[pair("a", "b")], options());
    assert!(refused.expect_err("no end token").starts_with("the tokenizer names no end token (eos_token)"));
    let endless = Toy { template: Some(&ROLES.replace("</s>", ".")), ..Toy::default() }.byte_level();
    let (data, events) = encode(&endless, &[pair("a", "b"), pair("c", "d")], options());
    assert_eq!(data.expect("samples").samples.len(), 2);
    let what = "2 samples have an answer without a special token at its end: a model cannot learn from them where to \
                stop (first: d.jsonl:1)"
        .to_string();
    assert_eq!(events, [Event::Assumed { what }]);
}

/// B76: the begin token stands once, whether the template puts it or the tokenizer.
#[test]
fn texts_begin_once() {
    let template = format!("{{{{ bos_token }}}}{ROLES}");
    let chat = Toy { roles: BEGIN_AND_END, template: Some(&template), adds_bos: true, ..Toy::default() }
        .byte_level();
    let plain = Toy { roles: BEGIN_AND_END, adds_bos: true, ..Toy::default() }.byte_level();
    let without = Toy { roles: BEGIN_AND_END, ..Toy::default() }.byte_level();
    assert_eq!((chat.adds_bos(), without.adds_bos()), (Some(256), None));
    for (tokenizer, line, count) in [
        (&chat, pair("a", "b"), 1),
        (&chat, json!({"text": "ab"}), 1),
        (&plain, pair("a", "b"), 1),
        (&plain, pair("<s>a", "b"), 1),
        (&plain, json!({"text": "<s>ab"}), 1),
        (&without, pair("a", "b"), 0),
    ] {
        let sample = one(tokenizer, line.clone(), options());
        assert_eq!(sample.ids.iter().filter(|&&id| id == 256).count(), count, "{line}");
        assert_eq!(sample.ids[0] == 256, count == 1, "{line}");
        assert_eq!(sample.labels[0], IGNORED, "{line}");
    }
    let sample = one(&plain, json!({"text": "ab"}), options());
    assert_eq!(sample.labels, [IGNORED, 97, 98, 257], "a begin token lets the first token be learnt");
    let sample = one(&without, json!({"text": "ab"}), options());
    assert_eq!(sample.labels, [IGNORED, 98, 257]);
}

/// A question has the tokens that a sample's prompt has.
#[test]
fn questions_are_the_prompts_of_samples() {
    let template = format!("{{{{ bos_token }}}}{ROLES}");
    for tokenizer in [
        Toy { roles: BEGIN_AND_END, template: Some(&template), ..Toy::default() }.byte_level(),
        Toy { roles: BEGIN_AND_END, adds_bos: true, ..Toy::default() }.byte_level(),
    ] {
        let sample = one(&tokenizer, pair("why?", "so"), options());
        let question = Encoder::new(&tokenizer, options()).question("why?").expect("a question");
        let prompt = sample.labels.iter().take_while(|&&label| label == IGNORED).count();
        assert_eq!(question, sample.ids[..prompt]);
    }
}

/// B78: a prompt that leaves no room for its completion is dropped with a count and the remedy; what is left of a
/// completion is kept; a data set of which nothing is left is an error.
#[test]
fn long_prompts() {
    let tokenizer = Toy { roles: END, ..Toy::default() }.byte_level();
    let short = EncoderOptions { max_length: 16, ..options() };
    let too_long = pair(&"p".repeat(20), "abcd");
    let partly = pair(&"p".repeat(14), "abcdef");
    let (data, events) = encode(&tokenizer, &[too_long.clone(), partly], short);
    let data = data.expect("samples");
    assert_eq!(data.lines, [2]);
    assert_eq!(text(&tokenizer, &learnt(&data.samples[0])), "ab");
    assert_eq!(data.samples[0].ids.len(), 16);
    let reason = "no supervised token lies within data.max_length = 16; raise it to 21 to keep all of them, or shorten \
                  their prompts";
    assert_eq!(
        events,
        [
            Event::SamplesTruncated { samples: 1, max_length: 16, tokens_lost: 5 },
            Event::SamplesDropped { samples: 1, reason: reason.into() },
        ]
    );
    let (nothing, _) = encode(&tokenizer, &[too_long.clone(), pair(&"p".repeat(17), "a")], short);
    assert_eq!(
        nothing.expect_err("nothing is left"),
        "d.jsonl: nothing is left to train on: all 2 samples lose every supervised token at data.max_length = 16; \
         raise it to 18 or more, or shorten the prompts"
    );
    // No other limit is hidden anywhere.
    let long = one(
        &tokenizer,
        pair(&"p".repeat(5000), "abcd"),
        EncoderOptions { max_length: 6000, positions: 6000, ..short },
    );
    assert_eq!((long.ids.len(), long.supervised()), (5005, 5));
}

/// B79: a sample that is one token too long loses its end token, in every format alike, and is counted.
#[test]
fn the_end_token_may_be_cut_off() {
    let plain = Toy { roles: END, ..Toy::default() }.byte_level();
    let template =
        "{% for m in messages %}{{ m.content }}{% endfor %}</s>{% if add_generation_prompt %}{% endif %}";
    let template = template.replace("</s>{%", "{% if not add_generation_prompt %}</s>{% endif %}{%");
    let chat = Toy { roles: END, template: Some(&template), ..Toy::default() }.byte_level();
    let short = EncoderOptions { max_length: 4, ..options() };
    for (tokenizer, line) in
        [(&plain, pair("ab", "cd")), (&plain, json!({"text": "abcd"})), (&chat, pair("ab", "cd"))]
    {
        let (data, events) = encode(tokenizer, &[line], short);
        assert_eq!(text(tokenizer, &data.expect("samples").samples[0].ids), "abcd");
        assert_eq!(events, [Event::SamplesTruncated { samples: 1, max_length: 4, tokens_lost: 1 }]);
    }
}

/// B89: an empty completion is its end token alone.
#[test]
fn an_empty_completion_is_its_end() {
    let plain = Toy { roles: END, ..Toy::default() }.byte_level();
    let chat = Toy { roles: END, template: Some(ROLES), ..Toy::default() }.byte_level();
    for tokenizer in [&plain, &chat] {
        let sample = one(tokenizer, pair("a", ""), options());
        assert_eq!(learnt(&sample), [256]);
        assert_eq!(sample.ids.last(), Some(&256));
    }
}

/// B90: rows 2, 3, 4 predict a completion of three tokens after a prompt of three.
#[test]
fn the_first_answer_token_is_learnt() {
    let tokenizer = Toy { roles: END, ..Toy::default() }.byte_level();
    let sample = one(&tokenizer, pair("abc", "xy"), options());
    let batch = Batch::new([&sample]);
    assert_eq!((batch.rows, batch.targets), (vec![2, 3, 4], vec![120, 121, 256]));
}

#[test]
fn loss_on_decides_what_is_learnt() {
    let tokenizer = Toy { roles: END, template: Some(ROLES), ..Toy::default() }.byte_level();
    let turn = |role, content| json!({"role": role, "content": content});
    let line = json!({"messages": [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d")]});
    let learnt_on = |loss_on| {
        text(&tokenizer, &learnt(&one(&tokenizer, line.clone(), EncoderOptions { loss_on, ..options() })))
    };
    assert_eq!(learnt_on(LossOn::Assistant), "b</s>d</s>");
    assert_eq!(learnt_on(LossOn::Completion), "d</s>");
    assert_eq!(learnt_on(LossOn::All), "user>a<assistant>b</s><user>c<assistant>d</s>", "all but the first");
    let plain = Toy { roles: END, ..Toy::default() }.byte_level();
    let all = one(&plain, pair("ab", "c"), EncoderOptions { loss_on: LossOn::All, ..options() });
    assert_eq!(text(&plain, &learnt(&all)), "bc</s>");
}

#[test]
fn refusals_name_the_line() {
    let chat = Toy { roles: END, template: Some(ROLES), ..Toy::default() }.byte_level();
    let plain = Toy { roles: END, ..Toy::default() }.byte_level();
    let good = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    let refused = |tokenizer: &Tokenizer, line: serde_json::Value, options| {
        encode(tokenizer, &[good.clone(), line], options).0.expect_err("a refusal")
    };
    assert_eq!(
        refused(&chat, json!({"messages": [{"role": "user", "content": "a"}]}), options()),
        "d.jsonl:2: nothing in this record is supervised: it has no assistant turn with a turn before it; set \
         data.loss_on = \"all\" to learn every token"
    );
    assert!(refused(&plain, good.clone(), options()).starts_with(
        "d.jsonl:1: the record is a conversation and the model has no chat template; use a model that has one"
    ));
    let raising = format!(
        "{{% for m in messages %}}{{% if m.role == 'tool' %}}{{{{ raise_exception('no tools') }}}}{{% endif %}}{{% endfor %}}{ROLES}"
    );
    let raising = Toy { roles: END, template: Some(&raising), ..Toy::default() }.byte_level();
    let tool = json!({"messages": [{"role": "tool", "content": "a"}, {"role": "assistant", "content": "b"}]});
    assert_eq!(
        refused(&raising, tool, options()),
        "d.jsonl:2: the chat template fails on this conversation: no tools"
    );
    let unmaskable = ROLES.replace("<assistant>{% endif", "<assistant>[think]{% endif");
    let unmaskable = Toy { roles: END, template: Some(&unmaskable), ..Toy::default() }.byte_level();
    assert_eq!(
        refused(&unmaskable, good.clone(), options()),
        "d.jsonl:1: messages[1]: cannot tell what the chat template makes of this turn: with the generation prompt the \
         turns before it give \"[think]\" where the finished turn has \"b</s>\" (byte 18); give the template \
         {% generation %} marks around the answer, or set data.loss_on = \"all\""
    );
    let long = json!({"messages": [{"role": "user", "content": "a".repeat(90)}, {"role": "assistant", "content": "b"}]});
    assert_eq!(
        refused(&chat, long, EncoderOptions { positions: 60, ..options() }),
        "d.jsonl:2: 109 tokens are more than the 60 positions of the model; set data.max_length to 60 or less"
    );
    // A template that cannot be used is an error of the records that need it, not of a text.
    let broken = Toy { roles: END, template: Some("{{ a | wordwrap }}"), ..Toy::default() }.byte_level();
    assert_eq!(
        refused(&broken, good.clone(), options()),
        "the model's chat template: line 1: filter `wordwrap` is not supported"
    );
    assert_eq!(one(&broken, json!({"text": "a"}), options()).ids.len(), 2);
    let silent = Toy { roles: END, template: Some("x"), ..Toy::default() }.byte_level();
    assert_eq!(
        refused(&silent, good.clone(), options()),
        "d.jsonl:1: nothing in this record is supervised: the chat template makes no text of the answer, or every token \
         of it lies across a border; take the record out"
    );
}

#[test]
fn what_was_done_to_conversations_is_told_once() {
    let turn = |role, content| json!({"role": role, "content": content});
    let chat = Toy { roles: END, template: Some(ROLES), ..Toy::default() }.byte_level();
    let first = json!({"messages": [turn("assistant", "hi"), turn("user", "a"), turn("assistant", "b")]});
    let (data, events) = encode(&chat, &[first.clone(), first], options());
    assert_eq!(
        data.expect("samples").samples.iter().map(|s| text(&chat, &learnt(s))).collect::<Vec<_>>(),
        ["b</s>"; 2]
    );
    let what = "2 conversations begin with an assistant turn, which has nothing before it and is not learnt (first: \
                d.jsonl:1)";
    assert_eq!(events, [Event::Assumed { what: what.into() }]);

    let forgetful = ROLES.replace("{{ m.content }}", "{{ m.content if loop.last or m.role == 'user' }}");
    let chat = Toy { roles: END, template: Some(&forgetful), ..Toy::default() }.byte_level();
    let two = json!({"messages": [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d")]});
    let (data, events) = encode(&chat, &[pair_messages("x", "y"), two], options());
    assert_eq!(data.expect("samples").lines, [1, 2, 2]);
    let what = "1 conversations became one sample for each assistant turn: the chat template rewrites earlier turns \
                once later ones come (first: d.jsonl:2)";
    assert_eq!(events, [Event::Assumed { what: what.into() }]);
}

fn pair_messages(prompt: &str, answer: &str) -> serde_json::Value {
    json!({"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]})
}
