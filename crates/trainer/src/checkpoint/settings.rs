//! What a run is, for a comparison: the settings that decide its numbers, by name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The settings of a run that decide its numbers.
///
/// Those of `identity` must be equal for a run to go on: with others, the adapter and the moments of a checkpoint
/// would mean nothing. Those of `course` may change on purpose (a longer run, a lower rate); the result is then
/// no longer that of an uninterrupted run, which the user is told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// What must not change.
    pub identity: BTreeMap<String, String>,
    /// What may change.
    pub course: BTreeMap<String, String>,
}

impl Settings {
    /// What differs from `other`, in words: first what must not, then what may.
    pub fn differences(&self, other: &Self) -> (Vec<String>, Vec<String>) {
        (compare(&self.identity, &other.identity), compare(&self.course, &other.course))
    }
}

fn compare(checkpoint: &BTreeMap<String, String>, run: &BTreeMap<String, String>) -> Vec<String> {
    let names: std::collections::BTreeSet<_> = checkpoint.keys().chain(run.keys()).collect();
    let value =
        |of: &BTreeMap<String, String>, name: &str| of.get(name).map_or("nothing".into(), String::clone);
    let differing = names.into_iter().filter(|name| checkpoint.get(*name) != run.get(*name));
    differing
        .map(|name| {
            format!(
                "{name}: the checkpoint has {}, this run has {}",
                value(checkpoint, name),
                value(run, name)
            )
        })
        .collect()
}
