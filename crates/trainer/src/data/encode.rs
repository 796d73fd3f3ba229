//! Records become samples: text becomes tokens, once, and the supervised characters become labels.
//!
//! Conversations go through the model's chat template (`mask` says what of them is learnt), and so do prompt and
//! completion where the model has a template. Otherwise these stand one after the other, with the end token after
//! the completion; a text is learnt as a whole, whatever `data.loss_on` says, with the end token after it. The begin
//! token stands before them where the tokenizer's own way puts it there; in a conversation only the template puts
//! one.
//!
//! A text is cut where a supervised span begins or ends and the pieces are encoded by themselves, so that no token
//! lies across the border and the prompt has the tokens that it has when the model is asked. A tokenizer that puts a
//! space before a text would put one at each cut: there the text is encoded whole, and a token across a border
//! counts as prompt.
//!
//! A sample longer than `max_length` is cut at its end, the end token included, whatever its format; one that keeps
//! no supervised token is left out. Both are events with counts.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::error::{DataError, Place, TemplateError};
use super::mask::{LossOn, Mode, Refusal, Rendering, mask};
use super::read::{Content, Conversation, Record, Records};
use super::sample::{IGNORED, Sample};
use super::template::{Moment, Template, Variables};
use crate::event::{Event, EventSink};
use crate::tokenizer::Tokenizer;

/// What records become samples by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderOptions {
    /// What is supervised.
    pub loss_on: LossOn,
    /// Tokens at which a sample is cut.
    pub max_length: usize,
    /// Positions that the model has; a longer sample is refused.
    pub positions: usize,
    /// The date that templates see.
    pub now: Moment,
}

/// The samples of a data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSet {
    /// The samples, in the order of the file.
    pub samples: Vec<Sample>,
    /// The line that each is from.
    pub lines: Vec<usize>,
}

/// Turns text into tokens the way a model was taught to read it.
///
/// ```no_run
/// use trainer::data::{Encoder, EncoderOptions, Format, LossOn, Moment, read};
/// use trainer::{event::Collected, tokenizer::Tokenizer};
///
/// let mut events = Collected::default();
/// let tokenizer = Tokenizer::open("models/smollm2".as_ref(), &mut events)?;
/// let options = EncoderOptions {
///     loss_on: LossOn::Assistant,
///     max_length: 1024,
///     positions: 8192,
///     now: Moment::now(),
/// };
/// let records = read("data.jsonl".as_ref(), Format::Auto, &mut events)?;
/// let data = Encoder::new(&tokenizer, options).samples(&records, &mut events)?;
/// println!("{} samples", data.samples.len());
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Debug)]
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    /// A template that cannot be used matters only to records that need it.
    template: Option<Result<Template, TemplateError>>,
    options: EncoderOptions,
}

impl<'a> Encoder<'a> {
    /// With a model's tokenizer and its chat template.
    pub fn new(tokenizer: &'a Tokenizer, options: EncoderOptions) -> Self {
        let variables = Variables { tokens: tokenizer.roles().clone(), now: options.now };
        let template = tokenizer.chat_template().map(|source| Template::new(source, variables));
        Self { tokenizer, template, options }
    }

    /// The tokens of a question that the model is to answer: those which it was trained on.
    ///
    /// # Errors
    /// The template or the tokenizer fails.
    pub fn question(&self, prompt: &str) -> crate::Result<Vec<u32>> {
        match self.template()? {
            Some(template) => {
                let mut conversation = Conversation::from((prompt.to_string(), String::new()));
                conversation.messages.truncate(1);
                let text = template.render(&conversation, true).map_err(DataError::Template)?;
                self.tokenizer.encode(&text)
            }
            None => {
                let mut tokens = self.tokenizer.encode(prompt)?;
                if let Some(bos) = self.begin(&tokens) {
                    tokens.insert(0, bos);
                }
                Ok(tokens)
            }
        }
    }

    /// Makes samples of records. What had to be done to them (cut, left out, taken apart) is told in events.
    ///
    /// # Errors
    /// A record that the template refuses, that has nothing to learn or is longer than the model can place, each
    /// with its line; a data set of which nothing is left; a tokenizer that fails.
    pub fn samples(&self, records: &Records, events: &mut dyn EventSink) -> crate::Result<DataSet> {
        let mut made = Made::new(&records.path, self.options);
        for record in &records.records {
            self.record(record, &mut made)?;
        }
        Ok(made.finish(events)?)
    }

    fn template(&self) -> Result<Option<&Template>, DataError> {
        match &self.template {
            None => Ok(None),
            Some(Ok(template)) => Ok(Some(template)),
            Some(Err(error)) => Err(error.clone().into()),
        }
    }

    fn record(&self, record: &Record, made: &mut Made) -> crate::Result<()> {
        let place = Place::new(&made.path, record.line);
        match &record.content {
            Content::Conversation(conversation) => match self.template()? {
                Some(template) => self.conversation(template, conversation, place, made),
                None => Err(DataError::NoTemplate { place }.into()),
            },
            Content::Pair { prompt, completion } => match self.template()? {
                Some(template) => {
                    let conversation = Conversation::from((prompt.clone(), completion.clone()));
                    self.conversation(template, &conversation, place, made)
                }
                None => {
                    let start = if self.options.loss_on == LossOn::All { 0 } else { prompt.len() };
                    self.plain(format!("{prompt}{completion}"), start, place, made)
                }
            },
            Content::Text(text) => self.plain(text.clone(), 0, place, made),
        }
    }

    fn conversation(
        &self,
        template: &Template,
        conversation: &Conversation,
        place: Place,
        made: &mut Made,
    ) -> crate::Result<()> {
        let masked = mask(template, conversation, self.options.loss_on).map_err(|refusal| match refusal {
            Refusal::Template(source) => DataError::Render { place: place.clone(), source },
            Refusal::NoAnswer => DataError::NothingSupervised {
                place: place.clone(),
                reason:
                    "it has no assistant turn with a turn before it; set data.loss_on = \"all\" to learn \
                         every token"
                        .to_string(),
            },
            Refusal::Differs { turn, at, prompt, finished } => {
                DataError::Unmaskable { place: place.clone(), turn, at, prompt, finished }
            }
        })?;
        made.first_turns.count(usize::from(masked.skips_first), place.line);
        if masked.mode == Mode::PerTurn {
            made.taken_apart.count(1, place.line);
        }
        for rendering in masked.renderings {
            let (mut sample, across) = self.encode(&rendering)?;
            if self.options.loss_on == LossOn::All {
                sample.labels.iter_mut().take(1).for_each(|label| *label = IGNORED);
            } else if !self.ends(&sample) {
                made.endless.count(1, place.line);
            }
            made.across.count(across, place.line);
            made.push(sample, place.clone())?;
        }
        Ok(())
    }

    /// Prompt and completion, or a text, without a template: learnt from byte `start` on, and the end token.
    fn plain(&self, text: String, start: usize, place: Place, made: &mut Made) -> crate::Result<()> {
        let end = self.tokenizer.eos_id().ok_or(DataError::NoEndToken)?;
        let spans =
            if start < text.len() { std::iter::once(start..text.len()).collect() } else { Vec::new() };
        let (mut sample, across) = self.encode(&Rendering { text, spans })?;
        made.across.count(across, place.line);
        if let Some(bos) = self.begin(&sample.ids) {
            sample.ids.insert(0, bos);
            sample.labels.insert(0, IGNORED);
        }
        if sample.labels.last() != Some(&(end as i32)) {
            sample.ids.push(end);
            sample.labels.push(end as i32);
        }
        // Nothing predicts a first token.
        sample.labels[0] = IGNORED;
        made.push(sample, place)
    }

    /// The begin token, if one has to be put before these tokens.
    fn begin(&self, tokens: &[u32]) -> Option<u32> {
        self.tokenizer.adds_bos().filter(|bos| tokens.first() != Some(bos))
    }

    /// Whether an answer tells where it ends.
    fn ends(&self, sample: &Sample) -> bool {
        let last = sample.labels.split(|&label| label == IGNORED).rfind(|answer| !answer.is_empty());
        last.is_none_or(|answer| answer.iter().any(|&label| self.tokenizer.is_special(label as u32)))
    }

    /// The tokens of a text with the labels of its spans, and how many tokens lie across a border.
    fn encode(&self, rendering: &Rendering) -> crate::Result<(Sample, usize)> {
        let mut sample = Sample { ids: Vec::new(), labels: Vec::new() };
        if self.tokenizer.prefixes_pieces() {
            let mut across = 0;
            for (id, bytes) in self.tokenizer.encode_with_offsets(&rendering.text)? {
                let learnt = match position(&bytes, &rendering.spans) {
                    Position::Inside => true,
                    Position::Outside => false,
                    Position::Across => {
                        across += 1;
                        false
                    }
                };
                push(&mut sample, id, learnt);
            }
            return Ok((sample, across));
        }
        let mut at = 0;
        for span in &rendering.spans {
            for (piece, learnt) in [(at..span.start, false), (span.clone(), true)] {
                self.piece(&rendering.text[piece], learnt, &mut sample)?;
            }
            at = span.end;
        }
        self.piece(&rendering.text[at..], false, &mut sample)?;
        Ok((sample, 0))
    }

    fn piece(&self, text: &str, learnt: bool, sample: &mut Sample) -> crate::Result<()> {
        if !text.is_empty() {
            self.tokenizer.encode(text)?.into_iter().for_each(|id| push(sample, id, learnt));
        }
        Ok(())
    }
}

fn push(sample: &mut Sample, id: u32, learnt: bool) {
    sample.ids.push(id);
    sample.labels.push(if learnt { id as i32 } else { IGNORED });
}

enum Position {
    Inside,
    Outside,
    Across,
}

/// Where a token's bytes lie. A token without bytes of its own belongs to what follows it.
fn position(bytes: &Range<usize>, spans: &[Range<usize>]) -> Position {
    let end = bytes.end.max(bytes.start + 1);
    match spans.iter().find(|span| bytes.start < span.end && span.start < end) {
        Some(span) if span.start <= bytes.start && end <= span.end => Position::Inside,
        Some(_) => Position::Across,
        None => Position::Outside,
    }
}

/// How often something was done, and in which line first.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    count: usize,
    first: usize,
}

impl Tally {
    fn count(&mut self, count: usize, line: usize) {
        if self.count == 0 {
            self.first = line;
        }
        self.count += count;
    }
}

/// The samples made so far, and what had to be done to make them.
struct Made {
    path: PathBuf,
    options: EncoderOptions,
    data: DataSet,
    /// Conversations that begin with an answer.
    first_turns: Tally,
    /// Conversations that became several samples.
    taken_apart: Tally,
    /// Tokens across a border.
    across: Tally,
    /// Samples whose last answer has no special token.
    endless: Tally,
    cut: usize,
    tokens_lost: usize,
    dropped: usize,
    /// Smallest limits at which one, and at which each, of the dropped samples keeps a supervised token.
    needed: (usize, usize),
}

impl Made {
    fn new(path: &Path, options: EncoderOptions) -> Self {
        Self {
            path: path.to_path_buf(),
            options,
            data: DataSet { samples: Vec::new(), lines: Vec::new() },
            first_turns: Tally::default(),
            taken_apart: Tally::default(),
            across: Tally::default(),
            endless: Tally::default(),
            cut: 0,
            tokens_lost: 0,
            dropped: 0,
            needed: (usize::MAX, 0),
        }
    }

    fn push(&mut self, mut sample: Sample, place: Place) -> crate::Result<()> {
        let Some(first) = sample.labels.iter().skip(1).position(|&label| label != IGNORED) else {
            let reason = "the chat template makes no text of the answer, or every token of it lies across a \
                          border; take the record out"
                .to_string();
            return Err(DataError::NothingSupervised { place, reason }.into());
        };
        let needed = first + 2;
        let limit = self.options.max_length;
        if needed > limit {
            self.dropped += 1;
            self.needed = (self.needed.0.min(needed), self.needed.1.max(needed));
            return Ok(());
        }
        if sample.ids.len() > limit {
            self.cut += 1;
            self.tokens_lost += sample.ids.len() - limit;
            sample.ids.truncate(limit);
            sample.labels.truncate(limit);
        }
        if sample.ids.len() > self.options.positions {
            let (tokens, limit) = (sample.ids.len(), self.options.positions);
            return Err(DataError::TooLong { place, tokens, limit }.into());
        }
        self.data.lines.push(place.line);
        self.data.samples.push(sample);
        Ok(())
    }

    fn finish(self, events: &mut dyn EventSink) -> Result<DataSet, DataError> {
        let Self { path, options: EncoderOptions { max_length, .. }, data, .. } = self;
        if data.samples.is_empty() {
            let (samples, needed) = (self.dropped, self.needed.0);
            return Err(DataError::AllDropped { path, samples, max_length, needed });
        }
        let mut assumed = |tally: Tally, text: &str| {
            if tally.count > 0 {
                let place = Place::new(&path, tally.first);
                let what = format!("{} {text} (first: {place})", tally.count);
                events.emit(Event::Assumed { what });
            }
        };
        assumed(
            self.first_turns,
            "conversations begin with an assistant turn, which has nothing before it and is not learnt",
        );
        assumed(
            self.taken_apart,
            "conversations became one sample for each assistant turn: the chat template rewrites earlier turns once \
             later ones come",
        );
        assumed(self.across, "tokens lie across the border of an answer and count as prompt");
        assumed(
            self.endless,
            "samples have an answer without a special token at its end: a model cannot learn from them where to stop",
        );
        if self.cut > 0 {
            let (samples, tokens_lost) = (self.cut, self.tokens_lost);
            events.emit(Event::SamplesTruncated { samples, max_length, tokens_lost });
        }
        if self.dropped > 0 {
            let reason = format!(
                "no supervised token lies within data.max_length = {max_length}; raise it to {} to keep all of them, \
                 or shorten their prompts",
                self.needed.1
            );
            events.emit(Event::SamplesDropped { samples: self.dropped, reason });
        }
        Ok(data)
    }
}
