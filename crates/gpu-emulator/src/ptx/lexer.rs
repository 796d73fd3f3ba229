//! Splits PTX text into tokens, each with its line.
//!
//! Words keep their dots: `ld.global.v4.f32` and `%tid.x` are one token, which is what the parser
//! wants (an opcode with its modifiers, a special register with its component). Comments vanish.

use super::PtxError;

/// One token of PTX.
#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// An identifier, directive, opcode with modifiers or special register, dots included.
    Word(String),
    /// An integer literal, as its 64 bits; `true` when it was written with a `U` suffix.
    Int(u64),
    /// A binary32 literal `0fXXXXXXXX`.
    F32(u32),
    /// A binary64 literal: `0dXXXXXXXXXXXXXXXX` or decimal.
    F64(u64),
    /// A string in quotes.
    Text(String),
    /// Punctuation.
    Punct(char),
}

/// The tokens of `source` with their lines (from 1).
///
/// # Errors
/// A character that PTX does not have, or a comment or literal that does not end.
pub fn tokens(source: &str) -> Result<Vec<(Token, u32)>, PtxError> {
    let bytes = source.as_bytes();
    let mut out = Vec::new();
    let mut line = 1u32;
    let mut at = 0;
    while at < bytes.len() {
        let c = bytes[at];
        match c {
            b'\n' => {
                line += 1;
                at += 1;
            }
            b' ' | b'\t' | b'\r' | 0 => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let start = line;
                at += 2;
                loop {
                    match bytes.get(at) {
                        None => return Err(PtxError::at(start, "a comment that does not end")),
                        Some(b'*') if bytes.get(at + 1) == Some(&b'/') => break,
                        Some(b'\n') => line += 1,
                        Some(_) => {}
                    }
                    at += 1;
                }
                at += 2;
            }
            b'"' => {
                let start = at + 1;
                at = start;
                while at < bytes.len() && bytes[at] != b'"' {
                    if bytes[at] == b'\n' {
                        return Err(PtxError::at(line, "a string that does not end"));
                    }
                    at += 1;
                }
                if at == bytes.len() {
                    return Err(PtxError::at(line, "a string that does not end"));
                }
                out.push((Token::Text(String::from_utf8_lossy(&bytes[start..at]).into_owned()), line));
                at += 1;
            }
            b'0'..=b'9' => {
                let start = at;
                let hexadecimal_float =
                    c == b'0' && matches!(bytes.get(at + 1), Some(b'f' | b'F' | b'd' | b'D'));
                while at < bytes.len()
                    && (bytes[at].is_ascii_alphanumeric()
                        || bytes[at] == b'.'
                        || (matches!(bytes[at], b'+' | b'-')
                            && !hexadecimal_float
                            && matches!(bytes[at - 1], b'e' | b'E')
                            && !source[start..at].starts_with("0x")))
                {
                    at += 1;
                }
                out.push((number(&source[start..at], line)?, line));
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' | b'%' | b'.' => {
                let start = at;
                at += 1;
                while at < bytes.len()
                    && (bytes[at].is_ascii_alphanumeric() || matches!(bytes[at], b'_' | b'$' | b'.' | b'%'))
                {
                    at += 1;
                }
                // `::` belongs to modifiers such as `.shared::cta` and `.L2::128B`.
                while bytes.get(at) == Some(&b':')
                    && bytes.get(at + 1) == Some(&b':')
                    && source[start..at].contains('.')
                {
                    at += 2;
                    while at < bytes.len()
                        && (bytes[at].is_ascii_alphanumeric() || matches!(bytes[at], b'_' | b'.'))
                    {
                        at += 1;
                    }
                }
                out.push((Token::Word(source[start..at].to_string()), line));
            }
            b',' | b';' | b':' | b'{' | b'}' | b'(' | b')' | b'[' | b']' | b'<' | b'>' | b'@' | b'!'
            | b'+' | b'-' | b'|' | b'=' | b'*' | b'&' | b'~' | b'^' => {
                out.push((Token::Punct(c as char), line));
                at += 1;
            }
            _ => {
                let c = source[at..].chars().next().unwrap_or('?');
                return Err(PtxError::at(line, format!("the character {c:?}, which PTX does not have")));
            }
        }
    }
    Ok(out)
}

fn number(text: &str, line: u32) -> Result<Token, PtxError> {
    let bad = || PtxError::at(line, format!("`{text}` is not a number"));
    let lower = text.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0f") {
        if hex.len() != 8 {
            return Err(PtxError::at(line, format!("`{text}` needs 8 hexadecimal digits after 0f")));
        }
        return u32::from_str_radix(hex, 16).map(Token::F32).map_err(|_| bad());
    }
    if let Some(hex) = lower.strip_prefix("0d") {
        if hex.len() != 16 {
            return Err(PtxError::at(line, format!("`{text}` needs 16 hexadecimal digits after 0d")));
        }
        return u64::from_str_radix(hex, 16).map(Token::F64).map_err(|_| bad());
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    if let Some(hex) = digits.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).map(Token::Int).map_err(|_| bad());
    }
    if let Some(binary) = digits.strip_prefix("0b") {
        return u64::from_str_radix(binary, 2).map(Token::Int).map_err(|_| bad());
    }
    if digits.contains(['.', 'e']) {
        return digits.parse::<f64>().map(|v| Token::F64(v.to_bits())).map_err(|_| bad());
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return u64::from_str_radix(digits, 8).map(Token::Int).map_err(|_| bad());
    }
    digits.parse::<u64>().map(Token::Int).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(source: &str) -> Vec<Token> {
        tokens(source).unwrap().into_iter().map(|(t, _)| t).collect()
    }

    #[test]
    fn words_keep_their_dots_and_numbers_their_bits() {
        let word = |s: &str| Token::Word(s.into());
        assert_eq!(kinds("ld.global.f32 %f1"), [word("ld.global.f32"), word("%f1")]);
        assert_eq!(
            kinds("0f3F800000 0x1F 017 9U 0b11"),
            [Token::F32(0x3f80_0000), Token::Int(31), Token::Int(15), Token::Int(9), Token::Int(3)]
        );
        assert_eq!(
            kinds("1.5 0d3FF0000000000000"),
            [Token::F64(1.5f64.to_bits()), Token::F64(1f64.to_bits())]
        );
        assert_eq!(kinds("cp.async.cg.shared.global.L2::128B"), [word("cp.async.cg.shared.global.L2::128B")]);
        assert_eq!(kinds("L1: ret"), [word("L1"), Token::Punct(':'), word("ret")]);
    }

    #[test]
    fn lines_count_through_comments() {
        let all = tokens("a\n/* x\n y */ b // c\nd").unwrap();
        assert_eq!(all.iter().map(|t| t.1).collect::<Vec<_>>(), [1, 3, 4]);
        assert!(tokens("/* no end").unwrap_err().to_string().contains("line 1"));
        assert!(tokens("a ` b").is_err());
    }
}
