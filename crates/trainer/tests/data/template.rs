//! Chat templates rendered byte for byte as transformers renders them.

use serde_json::Value;
use trainer::data::{Conversation, Moment, Template, TemplateError, Variables};

use crate::json;

fn text(value: &Value) -> &str {
    value.as_str().expect("a string")
}

fn conversation(messages: &Value, tools: &Value) -> Conversation {
    Conversation { messages: messages.as_array().expect("messages").clone(), tools: tools.clone() }
}

fn variables(file: &Value) -> Variables {
    let token = |role: &str| Some((role.to_string(), file[role].as_str()?.to_string()));
    Variables {
        tokens: ["bos_token", "eos_token"].into_iter().filter_map(token).collect(),
        now: Moment::from_unix(file["now"].as_i64().unwrap_or(0)),
    }
}

/// What differs from the reference: nothing where both fail, or both give the same text.
fn difference(what: &str, ours: &Result<String, TemplateError>, reference: &Value) -> Option<String> {
    match (ours, reference["rendered"].as_str()) {
        (Ok(ours), Some(expected)) if ours == expected => None,
        (Err(_), None) => None,
        (ours, _) => Some(format!("{what}\n  ours: {ours:?}\n  reference: {reference}")),
    }
}

/// B85: single features of Jinja and Python, each as the reference renders it, or refused where it is refused.
#[test]
fn features_are_those_of_the_reference() {
    let file = json("template_features.json");
    let main = &file["conversations"]["tools"];
    let main = conversation(&main["messages"], &main["tools"]);
    let snippets = file["snippets"].as_array().expect("snippets");
    assert!(snippets.len() > 80, "only {} snippets", snippets.len());
    let differences: Vec<String> = snippets
        .iter()
        .filter_map(|snippet| {
            let source = text(&snippet["template"]);
            let ours =
                Template::new(source, variables(&file)).and_then(|template| template.render(&main, false));
            difference(source, &ours, snippet)
        })
        .collect();
    assert!(
        differences.is_empty(),
        "{} of {} differ:\n{}",
        differences.len(),
        snippets.len(),
        differences.join("\n")
    );
}

/// B85: whole templates in the manner of Llama 3.1, Qwen3, SmolLM3, Mistral and Granite 3, with and without tools.
#[test]
fn templates_of_the_families_render_as_in_the_reference() {
    let file = json("template_features.json");
    let mut cases = 0;
    for template in file["templates"].as_array().expect("templates") {
        let name = text(&template["name"]);
        let compiled = Template::new(text(&template["template"]), variables(&file)).expect(name);
        for case in template["cases"].as_array().expect("cases") {
            let of = &file["conversations"][text(&case["conversation"])];
            let prompt = case["generation_prompt"].as_bool().expect("a flag");
            let ours = compiled.render(&conversation(&of["messages"], &of["tools"]), prompt);
            let what = format!("{name} on {}", case["conversation"]);
            assert_eq!(difference(&what, &ours, case), None);
            cases += 1;
        }
    }
    assert_eq!(cases, 50);
}

/// Every template and conversation of the reference's own file, with and without the generation prompt, and what
/// the templates that fail say.
#[test]
fn the_files_templates_render_as_in_the_reference() {
    let file = json("templates.json");
    let mut cases = 0;
    for template in file["templates"].as_array().expect("templates") {
        let name = text(&template["name"]);
        let compiled = Template::new(text(&template["template"]), variables(&file["variables"])).expect(name);
        let empty = compiled.render(&Conversation::default(), true);
        assert_eq!(difference(name, &empty, &template["on_empty_list"]), None);
        for (which, case) in template["cases"].as_object().expect("cases") {
            let of = conversation(&file["conversations"][which], &Value::Null);
            let ours = compiled.render(&of, false);
            assert_eq!(difference(&format!("{name} on {which}"), &ours, case), None);
            match case["error"].as_str() {
                Some(message) => assert_eq!(ours, Err(TemplateError::Raised { message: message.into() })),
                None => assert_eq!(
                    compiled.render(&of, true).as_deref(),
                    Ok(text(&case["rendered_with_generation_prompt"])),
                    "{name} on {which}"
                ),
            }
            cases += 1;
        }
    }
    assert_eq!(cases, 99);
}

/// B85: what is missing is an error on loading that names it, not half a text later.
#[test]
fn missing_features_are_named_on_loading() {
    let refused = |source: &str| Template::new(source, Variables::default()).expect_err(source).to_string();
    assert_eq!(refused("a\n{{ m | wordwrap }}"), "line 2: filter `wordwrap` is not supported");
    assert_eq!(refused("{% trans %}a{% endtrans %}"), "line 1: tag `trans` is not supported");
    assert_eq!(refused("{{ m.encode() }}"), "line 1: method `.encode` is not supported");
    assert!(
        refused("a\n{% for m in %}").starts_with("line 2: syntax error: "),
        "{}",
        refused("a\n{% for m in %}")
    );
    assert!(refused("{{ a").starts_with("line 1: syntax error: "));
    assert!(refused("{% if a %}b").starts_with("line 1: syntax error: "));
    assert!(refused("{% generation %}b").starts_with("line 1: syntax error: "));
    let fails = Template::new("a\n{{ nothing.at.all }}", Variables::default()).expect("it parses");
    let error = fails.render(&Conversation::default(), false).expect_err("undefined");
    assert!(error.to_string().starts_with("line 2: undefined value"), "{error}");
}

#[test]
fn marks_are_byte_ranges() {
    let source = "{% for m in messages %}é{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}";
    let template = Template::new(source, Variables::default()).expect("a template");
    let of = Conversation::from(("ü".to_string(), "bc".to_string()));
    // The newline after a tag belongs to the tag.
    assert_eq!(template.render_marked(&of), Ok(("éüébc".to_string(), vec![2..4, 6..8])));
    let changed = "{% filter upper %}{% generation %}{{ messages | length }}{% endgeneration %}{% endfilter %}\
                   {% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x | length }}";
    let error = Template::new(changed, Variables::default()).expect("a template").render_marked(&of);
    assert_eq!(
        error.expect_err("the marks are counted").to_string(),
        "line 1: a generation block is changed after it is rendered"
    );
}
