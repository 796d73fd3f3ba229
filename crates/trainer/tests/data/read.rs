//! Reading records: what is accepted, and the exact words of each refusal.

use std::path::Path;

use serde_json::json;
use trainer::data::{Content, Conversation, DataError, Format, Record, parse, read};
use trainer::event::Collected;

use crate::fixture;

fn records(bytes: &[u8], format: Format) -> Result<Vec<Record>, DataError> {
    parse(Path::new("d.jsonl"), bytes, format, &mut Collected::default()).map(|read| read.records)
}

/// Content and line of each record.
fn auto(bytes: &[u8]) -> Vec<(usize, Content)> {
    let records = records(bytes, Format::Auto).expect("records");
    records.into_iter().map(|record| (record.line, record.content)).collect()
}

fn refusal(bytes: &[u8]) -> String {
    records(bytes, Format::Auto).expect_err("a refusal").to_string()
}

fn pair(prompt: &str, completion: &str) -> Content {
    Content::Pair { prompt: prompt.into(), completion: completion.into() }
}

fn conversation(messages: serde_json::Value) -> Content {
    let messages = messages.as_array().expect("a list").clone();
    Content::Conversation(Conversation { messages, tools: serde_json::Value::Null })
}

#[test]
fn the_instructions_are_read_whole() {
    let read =
        read(&fixture("data/instructions.jsonl"), Format::Auto, &mut Collected::default()).expect("read");
    assert_eq!(read.format, Format::PromptCompletion);
    assert_eq!(read.records.len(), 64);
    assert_eq!(read.records[63].line, 64);
}

/// B70: a byte order mark, Windows line ends, blank lines and a missing last newline change nothing.
#[test]
fn byte_order_mark_and_line_ends() {
    let clean = b"{\"text\":\"a\"}\n{\"text\":\"b\"}\n";
    let expected = vec![(1, Content::Text("a".into())), (2, Content::Text("b".into()))];
    assert_eq!(auto(clean), expected);
    assert_eq!(auto(b"\xEF\xBB\xBF{\"text\":\"a\"}\n{\"text\":\"b\"}\n"), expected);
    let odd = b"\xEF\xBB\xBF{\"text\":\"a\"}\r\n\r\n{\"text\":\"b\"}";
    assert_eq!(auto(odd), [(1, Content::Text("a".into())), (3, Content::Text("b".into()))]);
    // Elsewhere the mark is data: within a string it stays, before a record it is no JSON.
    assert_eq!(auto("{\"text\":\"\u{FEFF}a\"}".as_bytes()), [(1, Content::Text("\u{FEFF}a".into()))]);
    assert!(
        refusal("{\"text\":\"a\"}\n\u{FEFF}{\"text\":\"b\"}".as_bytes())
            .starts_with("d.jsonl:2:1: not valid JSON")
    );
}

/// B72: half a surrogate pair is an error with its line, a whole one decodes.
#[test]
fn lone_surrogates() {
    let file = |third: &str| format!("{{\"text\":\"1\"}}\n{{\"text\":\"2\"}}\n{third}\n{{\"text\":\"4\"}}\n");
    assert_eq!(auto(file(r#"{"text":"\ud83d\ude00"}"#).as_bytes())[2], (3, Content::Text("😀".into())));
    assert_eq!(auto(file(r#"{"text":"\\ud83d"}"#).as_bytes())[2], (3, Content::Text("\\ud83d".into())));
    for (third, column, escape) in [
        (r#"{"text":"\ud83d"}"#, 10, r"\ud83d"),
        (r#"{"text":"x\ud83dy"}"#, 11, r"\ud83d"),
        (r#"{"text":"\ude00\ud83d"}"#, 10, r"\ude00"),
        (r#"{"text":"\ud83d\ude00\uD83D"}"#, 22, r"\uD83D"),
        (r#"{"text":"\ud83d\u0041"}"#, 10, r"\ud83d"),
    ] {
        assert_eq!(
            refusal(file(third).as_bytes()),
            format!(
                "d.jsonl:3:{column}: the escape {escape} is half of a surrogate pair: the text was cut inside a \
                 character; write the whole pair, or take the half out"
            )
        );
    }
}

/// B89: an empty completion is an answer of the end token alone; every other emptiness is refused by field.
#[test]
fn empty_completions() {
    assert_eq!(auto(br#"{"prompt":"a","completion":""}"#), [(1, pair("a", ""))]);
    let cases = [
        (
            r#"{"prompt":"a","completion":" "}"#,
            "field `completion` is nothing but white space; write \"\" for an answer that is its end token alone",
        ),
        (
            r#"{"prompt":"a"}"#,
            "field `completion` is missing; every record of the format prompt_completion has it",
        ),
        (
            r#"{"completion":"a"}"#,
            "field `prompt` is missing; every record of the format prompt_completion has it",
        ),
        (
            r#"{"prompt":"a","completion":null}"#,
            "field `completion` is null; write a string, \"\" where it is empty",
        ),
        (r#"{"prompt":"a","completion":7}"#, "field `completion` is a number; write a string"),
        (
            r#"{"prompt":"","completion":"b"}"#,
            "field `prompt` is empty; to learn a text without a prompt use `text`",
        ),
        (r#"{"text":""}"#, "field `text` is empty; take the record out"),
        (
            r#"{"messages":[{"role":"user","content":null}]}"#,
            "field `messages[0].content` is null; write a string, \"\" where it is empty",
        ),
        (
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text"}]}]}"#,
            "field `messages[1].content` is a list; lists of parts are not supported, write one string",
        ),
        (
            r#"{"messages":[{"role":"user"}]}"#,
            "field `messages[0].content` is missing; every record of the format messages has it",
        ),
        (
            r#"{"messages":[{"role":1,"content":"a"}]}"#,
            "field `messages[0].role` is a number; write a string",
        ),
        (r#"{"messages":[3]}"#, "field `messages[0]` is a number; a message is an object"),
        (r#"{"messages":[]}"#, "field `messages` is empty; a conversation has at least one assistant turn"),
        (r#"{"messages":"a"}"#, "field `messages` is a string; write a list of messages"),
        (
            r#"{"messages":[{"role":"assistant","content":"a","weight":0}]}"#,
            "field `messages[0].weight` is not supported; choose what is learnt with data.loss_on",
        ),
        (
            r#"{"messages":[{"role":"user","content":"a"}],"tools":{}}"#,
            "field `tools` is an object; write a list of tools",
        ),
        (
            r#"{"conversations":[{"from":"bing","value":"a"}]}"#,
            "field `conversations[0].from` is \"bing\"; expected human, user, gpt, assistant, system or tool",
        ),
        (r#"{"instruction":"a","input":3,"output":"b"}"#, "field `input` is a number; write a string"),
    ];
    for (line, message) in cases {
        assert_eq!(refusal(format!("\n{line}\n").as_bytes()), format!("d.jsonl:2: {message}"), "{line}");
    }
}

#[test]
fn lines_that_are_no_records() {
    assert_eq!(
        refusal(b"{\"text\":\"a\"}\n{\"text\": b}\n"),
        "d.jsonl:2:10: not valid JSON: expected value; a data set holds one JSON object a line"
    );
    assert_eq!(
        refusal(b"{\n  \"text\": \"a\"\n}\n"),
        "d.jsonl:1:1: not valid JSON: EOF while parsing an object; a data set holds one JSON object a line"
    );
    assert!(
        refusal(b"{\"text\":\"a\"} {\"text\":\"b\"}")
            .starts_with("d.jsonl:1:14: not valid JSON: trailing characters")
    );
    assert_eq!(
        refusal(b"[{\"text\":\"a\"}]"),
        "d.jsonl:1: a record is a JSON object, found a list; write one object a line (JSONL), not one array"
    );
    assert_eq!(
        refusal(b"{\"text\":\"a\"}\n{\"text\":\"\xFF\"}"),
        "d.jsonl:2: not UTF-8 from byte 10 of the line on; save the file as UTF-8"
    );
    for empty in [&b""[..], b"\n\r\n  \n", b"\xEF\xBB\xBF"] {
        assert_eq!(refusal(empty), "d.jsonl: the data set is empty: no line holds a record");
    }
}

#[test]
fn formats() {
    let turns = conversation(json!([{"role":"user","content":"a"},{"role":"assistant","content":"b"}]));
    assert_eq!(
        auto(br#"{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]}"#),
        [(1, turns.clone())]
    );
    assert_eq!(auto(br#"{"instruction":"a","input":"","output":"b"}"#), [(1, turns)]);
    let with_system = conversation(json!([
        {"role":"system","content":"s"},{"role":"user","content":"a\n\ni"},{"role":"assistant","content":"b"}
    ]));
    assert_eq!(auto(br#"{"system":"s","instruction":"a","input":"i","output":"b"}"#), [(1, with_system)]);
    // What a message holds besides goes to the template as it stands, in its order.
    let more = json!([{"content":"a","role":"assistant","tool_calls":[{"b":1,"a":2}]}]);
    let line = format!("{}", json!({"messages": more, "tools": [{"name":"f"}]}));
    let expected = Conversation { messages: more.as_array().unwrap().clone(), tools: json!([{"name":"f"}]) };
    assert_eq!(auto(line.as_bytes()), [(1, Content::Conversation(expected))]);
    // The first record decides; a later one of another format is not skipped.
    assert_eq!(
        refusal(b"{\"text\":\"a\"}\n{\"prompt\":\"a\",\"completion\":\"b\"}"),
        "d.jsonl:2: field `text` is missing; every record of the format text has it"
    );
    for (line, keys) in
        [(r#"{"text":"a","prompt":"b"}"#, "`text`, `prompt`"), ("{}", "no fields"), (r#"{"a":1}"#, "`a`")]
    {
        let message = refusal(line.as_bytes());
        assert!(
            message
                .starts_with(&format!("d.jsonl:1: cannot tell the format: the record has {keys}; expected")),
            "{message}"
        );
    }
    let chosen = records(br#"{"text":"a","prompt":"b"}"#, Format::Text).expect("a given format decides");
    assert_eq!(chosen[0].content, Content::Text("a".into()));
}

#[test]
fn format_names() {
    for name in ["auto", "messages", "prompt_completion", "text", "sharegpt", "alpaca"] {
        let format: Format = name.parse().expect(name);
        assert_eq!(serde_json::to_value(format).expect("a name"), name);
    }
    assert_eq!(
        "csv".parse::<Format>().expect_err("unknown").to_string(),
        "data.format = \"csv\" is unknown; expected one of auto, messages, prompt_completion, text, sharegpt, alpaca"
    );
}

#[test]
fn fields_without_effect_are_named() {
    let mut events = Collected::default();
    let file = b"{\"text\":\"a\",\"id\":1}\n{\"text\":\"b\"}\n{\"text\":\"c\",\"id\":2,\"x\":0}";
    parse(Path::new("d.jsonl"), file, Format::Auto, &mut events).expect("records");
    let told: Vec<String> = events.0.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "d.jsonl: field `id` of 2 records is not part of the format text and has no effect",
            "d.jsonl: field `x` of 1 records is not part of the format text and has no effect",
        ]
    );
}

#[test]
fn a_missing_file_is_named() {
    let error =
        read(Path::new("nowhere/d.jsonl"), Format::Auto, &mut Collected::default()).expect_err("no file");
    assert!(error.to_string().starts_with("cannot read nowhere/d.jsonl: "), "{error}");
}
