//! The two types that data is made of: a tokenised [`Sample`] and a [`Batch`] ready for a step.

/// Label of a token that is not supervised.
pub const IGNORED: i32 = -100;

/// One tokenised record: `labels[i]` is `ids[i]` where token i is supervised and [`IGNORED`] elsewhere.
/// Labels are aligned with ids, not shifted; only [`Batch`] shifts, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Labels, of the same length.
    pub labels: Vec<i32>,
}

impl Sample {
    /// Tokens that have a loss: supervised ones other than the first, which nothing predicts.
    pub fn supervised(&self) -> usize {
        self.labels.iter().skip(1).filter(|&&label| label != IGNORED).count()
    }
}

/// What one micro-batch runs on: the tokens of its samples one after another, without padding. A sample sees
/// only itself: `starts` names the first token that each token may attend to, and positions begin again at 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token ids of all samples, concatenated.
    pub ids: Vec<u32>,
    /// Position of each token within its sample.
    pub positions: Vec<u32>,
    /// Index of the first token of each token's sample.
    pub starts: Vec<u32>,
    /// Rows that have a target, ascending: row r predicts token r + 1 of the same sample.
    pub rows: Vec<u32>,
    /// The target of each of `rows`.
    pub targets: Vec<u32>,
}

impl Batch {
    /// Puts samples one after another. Labels shift by one here and nowhere else; the last token of a sample
    /// predicts nothing, so no target crosses from one sample to the next.
    pub fn new<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Self {
        let mut batch = Self::default();
        for sample in samples {
            let start = batch.ids.len() as u32;
            batch.ids.extend_from_slice(&sample.ids);
            batch.positions.extend(0..sample.ids.len() as u32);
            batch.starts.extend(std::iter::repeat_n(start, sample.ids.len()));
            for (at, &label) in sample.labels.iter().enumerate().skip(1) {
                if label != IGNORED {
                    batch.rows.push(start + at as u32 - 1);
                    batch.targets.push(label as u32);
                }
            }
        }
        batch
    }

    /// Number of tokens, all of them real.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }
}
