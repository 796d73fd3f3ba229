//! Which characters of a rendered conversation are learnt.
//!
//! T is the whole conversation rendered. For an assistant turn i, P is the turns before it with the generation
//! prompt, E the turns up to it. By the first of these that holds for every turn that is to be learnt:
//! 1. prefix: P begins E and E begins T: what E has after P, which is the answer, the end of the turn and what the
//!    template puts after it (in ChatML a newline);
//! 2. marks: the template has `{% generation %}` marks: their spans;
//! 3. one by one: P begins E (the template rewrites earlier turns once later ones come): one sample for each turn,
//!    E with what it has after P;
//! 4. refused, with the turn and the first difference.
//!
//! An assistant turn with nothing before it has no P, for templates may fail on no turns at all: it is not learnt.

use std::ops::Range;

use super::error::TemplateError;
use super::read::Conversation;
use super::template::Template;

/// Which tokens of a sample are supervised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LossOn {
    /// Every assistant turn.
    #[default]
    Assistant,
    /// The last assistant turn.
    Completion,
    /// All tokens.
    All,
}

/// How the supervised spans of a conversation were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everything is supervised.
    All,
    /// Each turn's generation prompt begins the finished turn, which begins the whole.
    Prefix,
    /// The template's own marks.
    Marks,
    /// The template rewrites earlier turns: a text for each.
    PerTurn,
}

/// A text and the bytes of it that are learnt, in order, not overlapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendering {
    /// The text.
    pub text: String,
    /// What is learnt.
    pub spans: Vec<Range<usize>>,
}

/// What a conversation becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masked {
    /// One text, or one for each turn.
    pub renderings: Vec<Rendering>,
    /// How the spans were found.
    pub mode: Mode,
    /// Whether the conversation begins with an assistant turn that is not learnt.
    pub skips_first: bool,
}

/// Why a conversation cannot be masked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The template fails on it.
    Template(TemplateError),
    /// There is no assistant turn to learn.
    NoAnswer,
    /// The generation prompt does not begin the finished turn.
    Differs {
        /// The turn.
        turn: usize,
        /// Byte of the first difference.
        at: usize,
        /// What the turns before it with the generation prompt have there.
        prompt: String,
        /// What the turns up to it have there.
        finished: String,
    },
}

impl From<TemplateError> for Refusal {
    fn from(error: TemplateError) -> Self {
        Self::Template(error)
    }
}

/// Renders a conversation and finds what of it is learnt.
///
/// # Errors
/// See [`Refusal`].
pub fn mask(template: &Template, conversation: &Conversation, loss_on: LossOn) -> Result<Masked, Refusal> {
    let whole = template.render(conversation, false)?;
    if loss_on == LossOn::All {
        let spans = std::iter::once(0..whole.len()).collect();
        let renderings = vec![Rendering { text: whole, spans }];
        return Ok(Masked { renderings, mode: Mode::All, skips_first: false });
    }
    let answers: Vec<usize> =
        (0..conversation.messages.len()).filter(|&turn| conversation.role(turn) == "assistant").collect();
    let learnt = match loss_on {
        LossOn::Completion => answers.last().copied().into_iter().filter(|&turn| turn > 0).collect(),
        _ => answers.iter().copied().filter(|&turn| turn > 0).collect::<Vec<_>>(),
    };
    if learnt.is_empty() {
        return Err(Refusal::NoAnswer);
    }
    let skips_first = loss_on == LossOn::Assistant && answers[0] == 0;

    let last = conversation.messages.len() - 1;
    let turns: Result<Vec<Turn>, TemplateError> = learnt
        .iter()
        .map(|&turn| {
            let prompt = template.render(&conversation.first(turn), true)?;
            let finished = match turn {
                turn if turn == last => whole.clone(),
                _ => template.render(&conversation.first(turn + 1), false)?,
            };
            Ok(Turn { turn, prompt, finished })
        })
        .collect();
    if let Ok(turns) = &turns
        && turns.iter().all(|turn| turn.goes_on() && whole.starts_with(&turn.finished))
    {
        let spans = join(turns.iter().map(Turn::span));
        let renderings = vec![Rendering { text: whole, spans }];
        return Ok(Masked { renderings, mode: Mode::Prefix, skips_first });
    }

    let (text, mut marks) = template.render_marked(conversation)?;
    marks.retain(|mark| !mark.is_empty());
    // Where there is a mark for each answer, it is known which one is the first turn's.
    if answers[0] == 0 && marks.len() == answers.len() {
        marks.remove(0);
    }
    if loss_on == LossOn::Completion {
        marks.drain(..marks.len().saturating_sub(1));
    }
    if !marks.is_empty() {
        let renderings = vec![Rendering { text, spans: join(marks) }];
        return Ok(Masked { renderings, mode: Mode::Marks, skips_first });
    }

    let turns = turns?;
    if let Some(turn) = turns.iter().find(|turn| !turn.goes_on()) {
        return Err(turn.difference());
    }
    let rendering = |turn: Turn| {
        let spans = join([turn.span()]);
        Rendering { text: turn.finished, spans }
    };
    Ok(Masked { renderings: turns.into_iter().map(rendering).collect(), mode: Mode::PerTurn, skips_first })
}

/// An assistant turn with P and E.
struct Turn {
    turn: usize,
    prompt: String,
    finished: String,
}

impl Turn {
    fn goes_on(&self) -> bool {
        self.finished.starts_with(&self.prompt)
    }

    fn span(&self) -> Range<usize> {
        self.prompt.len()..self.finished.len()
    }

    fn difference(&self) -> Refusal {
        const SHOWN: usize = 30;
        let same = self.prompt.chars().zip(self.finished.chars()).take_while(|(a, b)| a == b);
        let at = same.map(|(a, _)| a.len_utf8()).sum();
        let from = |text: &str| text[at..].chars().take(SHOWN).collect();
        Refusal::Differs { turn: self.turn, at, prompt: from(&self.prompt), finished: from(&self.finished) }
    }
}

/// Spans in order, those that overlap as one, empty ones left out.
fn join(spans: impl IntoIterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut spans: Vec<Range<usize>> = spans.into_iter().filter(|span| !span.is_empty()).collect();
    spans.sort_by_key(|span| span.start);
    let mut joined: Vec<Range<usize>> = Vec::with_capacity(spans.len());
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.start < last.end => last.end = last.end.max(span.end),
            _ => joined.push(span),
        }
    }
    joined
}
