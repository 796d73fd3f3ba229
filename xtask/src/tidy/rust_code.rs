//! Just enough lexing of Rust for the other checks: comments and the insides of literals become spaces, so that
//! a word that is found is code. Lengths and line breaks stay, and with them every position.

/// `text` with comments, strings and character literals blanked out.
pub fn without_comments_and_literals(text: &str) -> String {
    let mut out = text.as_bytes().to_vec();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at + 1),
            b'r' | b'b' | b'c' if !follows_word(bytes, at) => prefixed_literal_end(bytes, at).unwrap_or(at),
            b'\'' => character_end(bytes, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            at += 1;
            continue;
        }
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    // Whole literals and comments were replaced, and those begin and end at character borders.
    String::from_utf8(out).expect("blanking keeps UTF-8 whole")
}

/// The positions at which `word` stands in `code` as a whole word.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let after = code.as_bytes().get(at + word.len());
        !follows_word(code.as_bytes(), *at) && !after.is_some_and(|byte| is_word(*byte))
    })
}

/// The whole words of `text` that are `letter` and digits, as positions and their digits.
pub fn numbered_words(text: &str, letter: char) -> impl Iterator<Item = (usize, &str)> + '_ {
    text.match_indices(letter).filter(|(at, _)| !follows_word(text.as_bytes(), *at)).filter_map(
        move |(at, _)| {
            let rest = &text[at + letter.len_utf8()..];
            let word = &rest[..rest.bytes().take_while(|byte| is_word(*byte)).count()];
            (!word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())).then_some((at, word))
        },
    )
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && is_word(bytes[at - 1])
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| from + length)
}

fn block_comment_end(bytes: &[u8], from: usize) -> usize {
    let mut depth = 0;
    let mut at = from;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// The end of a string whose first byte after the quotation mark is at `from`.
fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"…"`, `r#"…"#`, `b"…"`, `br"…"`, `c"…"` or `b'…'` at `from`, if there is one.
fn prefixed_literal_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from + 1;
    if bytes[from] != b'r' && bytes.get(at) == Some(&b'r') {
        at += 1;
    }
    let raw = bytes[at - 1] == b'r';
    let hashes = if raw { bytes[at..].iter().take_while(|byte| **byte == b'#').count() } else { 0 };
    match bytes.get(at + hashes)? {
        b'"' if !raw => Some(string_end(bytes, at + 1)),
        b'"' => {
            let closing = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
            let body = at + hashes + 1;
            let length = bytes[body..].windows(closing.len()).position(|window| window == closing);
            Some(length.map_or(bytes.len(), |length| body + length + closing.len()))
        }
        b'\'' if bytes[from] == b'b' && !raw => character_end(bytes, at),
        _ => None,
    }
}

/// The end of the character literal at `from`; none when it is a lifetime.
fn character_end(bytes: &[u8], from: usize) -> Option<usize> {
    if bytes.get(from + 1) == Some(&b'\\') {
        let length = bytes[from + 3..].iter().position(|byte| *byte == b'\'')?;
        return Some(from + 3 + length + 1);
    }
    let text = std::str::from_utf8(&bytes[from + 1..]).expect("a quotation mark ends a character");
    let length = text.chars().next()?.len_utf8();
    (bytes.get(from + 1 + length) == Some(&b'\'')).then_some(from + length + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_vanish_and_code_stays() {
        let text = r####"let a = "unsafe \" unsafe"; // unsafe
/* unsafe /* nested */ unsafe */ fn f<'unsafe_>(c: char) -> bool { c == '"' || c == '\'' || c == 'u' }
let raw = r#"unsafe " quote"#; let bytes = b"unsafe"; let byte = b'u'; let é = "ü"; unsafe { g() }"####;
        let code = without_comments_and_literals(text);
        assert_eq!(code.len(), text.len());
        assert_eq!(code.lines().count(), text.lines().count());
        let found: Vec<_> = words(&code, "unsafe").collect();
        assert_eq!(found, [text.rfind("unsafe").unwrap()], "{code}");
        assert!(code.contains("fn f<'unsafe_>(c: char) -> bool"));
    }

    #[test]
    fn numbered_words_are_whole() {
        let found: Vec<_> = numbered_words("B01, B123 (B9) AB12 B12x B é B7", 'B').collect();
        assert_eq!(found, [(0, "01"), (5, "123"), (11, "9"), (30, "7")]);
    }

    #[test]
    fn a_part_of_a_word_is_no_word() {
        assert_eq!(words("unsafe_code not_unsafe unsafe", "unsafe").collect::<Vec<_>>(), [23]);
    }
}
