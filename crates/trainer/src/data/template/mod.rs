//! A model's chat template, rendered as transformers renders it: minijinja with Python's string methods and JSON,
//! `{% generation %}` marks, and the date of the run. What a template needs and this does not have is an error on
//! loading that names it, never half a text.
//!
//! `scan` looks through the source before minijinja sees it: it turns generation tags into a filter block, and
//! checks the names of tags, filters, tests, methods and functions. `python` holds what Python does otherwise than
//! minijinja, `json` is `json.dumps`, `date` is `strftime`.

mod date;
mod json;
mod python;
mod scan;

use std::collections::BTreeMap;
use std::ops::Range;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value, context};

use super::error::TemplateError;
use super::read::Conversation;
pub use date::Moment;

/// The template's name within its environment: without an extension, so that nothing is escaped.
const NAME: &str = "chat";
/// What encloses a generation block in the marked rendering: two code points that stand for no character.
const OPEN: char = '\u{FDD0}';
const CLOSE: char = '\u{FDD1}';

/// What a template is given besides the conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    /// Special tokens by their role (`bos_token` and so on); a role that is not there is undefined.
    pub tokens: BTreeMap<String, String>,
    /// What `strftime_now` shows: fixed for a run, so that a resumed one renders the same text.
    pub now: Moment,
}

/// A chat template, ready to render.
///
/// ```
/// use trainer::data::{Conversation, Template, Variables};
/// let source = "{% for m in messages %}{{ m.role }}: {{ m.content.strip() }}\n{% endfor %}";
/// let template = Template::new(source, Variables::default())?;
/// let conversation = Conversation::from(("Hello ".to_string(), "Hi".to_string()));
/// assert_eq!(template.render(&conversation, false)?, "user: Hello\nassistant: Hi\n");
/// # Ok::<(), trainer::data::TemplateError>(())
/// ```
#[derive(Debug)]
pub struct Template {
    plain: Environment<'static>,
    /// The same with generation blocks enclosed in [`OPEN`] and [`CLOSE`], where the template has any.
    marked: Option<Environment<'static>>,
    variables: Variables,
}

/// A template's own refusal, carried through minijinja's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl Template {
    /// Compiles a template.
    ///
    /// # Errors
    /// A template that does not parse, or that names a tag, filter, test, method, function or variable which is
    /// not there.
    pub fn new(source: &str, variables: Variables) -> Result<Self, TemplateError> {
        let scanned = scan::scan(source)?;
        let plain = environment(&scanned.source, variables.now, |text| text)?;
        let marked = match scanned.marks {
            false => None,
            true => Some(environment(&scanned.source, variables.now, |text| format!("{OPEN}{text}{CLOSE}"))?),
        };
        Ok(Self { plain, marked, variables })
    }

    /// Renders a conversation, with the header of an answer at its end where `generation_prompt` asks for it.
    ///
    /// # Errors
    /// The template's own refusal, or what failed.
    pub fn render(
        &self,
        conversation: &Conversation,
        generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        self.render_in(&self.plain, conversation, generation_prompt)
    }

    /// The rendered conversation and the byte ranges of its generation blocks, in order; none where the template
    /// has no marks.
    ///
    /// # Errors
    /// As [`Template::render`], and marks that the template itself takes apart.
    pub fn render_marked(
        &self,
        conversation: &Conversation,
    ) -> Result<(String, Vec<Range<usize>>), TemplateError> {
        let plain = self.render(conversation, false)?;
        let Some(marked) = &self.marked else { return Ok((plain, Vec::new())) };
        let (text, spans) = take_marks(&self.render_in(marked, conversation, false)?)?;
        // A filter around a marked block may have seen the marks and done something else because of them.
        if text != plain {
            let problem = "a generation block is changed after it is rendered".to_string();
            return Err(TemplateError::Failed { line: 1, problem });
        }
        Ok((text, spans))
    }

    fn render_in(
        &self,
        environment: &Environment<'static>,
        conversation: &Conversation,
        generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let context = context! {
            messages => Value::from(Serde(&conversation.messages)),
            tools => Value::from(Serde(&conversation.tools)),
            documents => (),
            add_generation_prompt => generation_prompt,
            ..Value::from_pairs(&self.variables.tokens)
        };
        environment
            .get_template(NAME)
            .and_then(|template| template.render(context))
            .map_err(|error| failure(&error))
    }
}

/// minijinja as transformers sets up Jinja.
fn environment(
    source: &str,
    now: Moment,
    generation: fn(String) -> String,
) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    let failed =
        |error: Error| TemplateError::Syntax { line: error.line().unwrap_or(1), problem: describe(&error) };
    environment
        .set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?);
    python::install(&mut environment);
    environment.add_filter(scan::GENERATION, generation);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
    });
    environment.add_function("strftime_now", move |format: &str| {
        now.format(format).map_err(|problem| Error::new(ErrorKind::InvalidOperation, problem))
    });
    environment.add_template_owned(NAME, source.to_string()).map_err(failed)?;
    Ok(environment)
}

fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn failure(error: &Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return TemplateError::Raised { message: message.clone() };
        }
        cause = error.source();
    }
    TemplateError::Failed { line: error.line().unwrap_or(1), problem: describe(error) }
}

/// Takes the marks out of a text. Blocks within blocks count as one.
fn take_marks(marked: &str) -> Result<(String, Vec<Range<usize>>), TemplateError> {
    let mut text = String::with_capacity(marked.len());
    let mut spans = Vec::new();
    let mut open = Vec::new();
    for character in marked.chars() {
        match character {
            OPEN => open.push(text.len()),
            CLOSE => match (open.pop(), open.is_empty()) {
                (Some(start), true) => spans.push(start..text.len()),
                (Some(_), false) => {}
                (None, _) => return Err(torn()),
            },
            other => text.push(other),
        }
    }
    if open.is_empty() { Ok((text, spans)) } else { Err(torn()) }
}

fn torn() -> TemplateError {
    let problem =
        "a generation block is cut after it is rendered, or the text holds U+FDD0 or U+FDD1".to_string();
    TemplateError::Failed { line: 1, problem }
}
