//! The files beside a tokenizer.json: special tokens by role, and chat templates. Both have moved over the years;
//! the newer place has the last word, as in transformers.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::{Extras, problem_with};
use crate::model::read_json;
use crate::{Error, Result};

/// Reads what is there: chat_template.jinja, additional_chat_templates/, chat_template.json, tokenizer_config.json,
/// special_tokens_map.json.
///
/// # Errors
/// A file that is there is not valid.
pub(super) fn extras(directory: &Path) -> Result<Extras> {
    let mut extras = Extras::default();
    for name in ["special_tokens_map.json", "tokenizer_config.json"] {
        let path = directory.join(name);
        if path.is_file() {
            let config = read_json(&path)?;
            read_roles(&config, &mut extras.roles);
            read_templates(&path, &config, &mut extras.chat_templates)?;
        }
    }
    let path = directory.join("chat_template.json");
    if path.is_file() {
        read_templates(&path, &read_json(&path)?, &mut extras.chat_templates)?;
    }
    let more = directory.join("additional_chat_templates");
    if more.is_dir() {
        for entry in std::fs::read_dir(&more).map_err(Error::io("read", &more))? {
            let path = entry.map_err(Error::io("read", &more))?.path();
            if let (Some(name), Some("jinja")) =
                (path.file_stem(), path.extension().and_then(|end| end.to_str()))
            {
                extras.chat_templates.insert(name.to_string_lossy().into_owned(), read_text(&path)?);
            }
        }
    }
    let path = directory.join("chat_template.jinja");
    if path.is_file() {
        extras.chat_templates.insert("default".into(), read_text(&path)?);
    }
    Ok(extras)
}

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(Error::io("read", path))
}

/// Every `<role>_token`: a string, or an object whose `content` is one. A null takes an older file's word back.
fn read_roles(config: &Value, roles: &mut BTreeMap<String, String>) {
    for role in ["bos", "eos", "unk", "sep", "pad", "cls", "mask"] {
        let key = format!("{role}_token");
        let Some(value) = config.get(&key) else { continue };
        match value.as_str().or_else(|| value["content"].as_str()) {
            Some(token) => roles.insert(key, token.to_owned()),
            None => roles.remove(&key),
        };
    }
}

/// `chat_template`: one template, or a list of named ones.
fn read_templates(path: &Path, config: &Value, templates: &mut BTreeMap<String, String>) -> Result<()> {
    match config.get("chat_template") {
        None | Some(Value::Null) => {}
        Some(Value::String(template)) => {
            templates.insert("default".into(), template.clone());
        }
        Some(Value::Array(named)) => {
            for (number, entry) in named.iter().enumerate() {
                let (Some(name), Some(template)) = (entry["name"].as_str(), entry["template"].as_str())
                else {
                    let problem = format!("chat_template[{number}] has no name and template");
                    return Err(problem_with(path, &problem));
                };
                templates.insert(name.to_owned(), template.to_owned());
            }
        }
        Some(_) => {
            return Err(problem_with(path, "chat_template is neither a template nor a list of named ones"));
        }
    }
    Ok(())
}
