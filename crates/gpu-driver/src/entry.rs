//! The parameters of an entry, read from PTX text: enough of the language to compare a signature with it.

/// Bytes of each parameter of the entry `name`; `None` where the text has a form that this does not read.
pub(crate) fn parameters(ptx: &str, name: &str) -> Option<Vec<usize>> {
    let text = without_comments(ptx);
    let list = text.split(".entry").skip(1).find_map(|rest| {
        let rest = rest.trim_start().strip_prefix(name)?.trim_start();
        // The list may be left out, and another name may begin with this one.
        if rest.starts_with(['{', '.', ';']) {
            return Some("");
        }
        rest.strip_prefix('(')?.split_once(')').map(|(list, _)| list)
    })?;
    list.split(',').filter(|parameter| !parameter.trim().is_empty()).map(bytes).collect()
}

/// Bytes of one declaration: `.param [.align n] .type [.ptr …] name[count]`.
fn bytes(parameter: &str) -> Option<usize> {
    let mut words = parameter.split_whitespace();
    if words.next() != Some(".param") {
        return None;
    }
    let size = words.find_map(|word| match word.strip_prefix('.')? {
        "b8" | "u8" | "s8" => Some(1),
        "b16" | "u16" | "s16" | "f16" | "bf16" => Some(2),
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => Some(4),
        "b64" | "u64" | "s64" | "f64" => Some(8),
        _ => None,
    })?;
    let Some((_, count)) = parameter.split_once('[') else { return Some(size) };
    let (count, _) = count.split_once(']')?;
    count.trim().parse().map_or(None, |count| size.checked_mul(count))
}

fn without_comments(ptx: &str) -> String {
    let mut text = String::with_capacity(ptx.len());
    let mut rest = ptx;
    loop {
        let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() else {
            text.push_str(rest);
            return text;
        };
        text.push_str(&rest[..at]);
        text.push(' ');
        let end = if rest[at..].starts_with("//") { "\n" } else { "*/" };
        rest = rest[at + 2..].split_once(end).map_or("", |(_, after)| after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_from_the_text() {
        let ptx = ".visible .entry first_of_two(.param .u64 a) { ret; }
            // .entry first(.param .u8 x)
            .visible .entry first( /* two */ .param .u64 .ptr .global .align 16 a,
                .param .f32 b, .param .align 8 .b8 c[24] ) .reqntid 32 { ret; }
            .entry none { ret; }
            .entry empty() { ret; }";
        assert_eq!(parameters(ptx, "first"), Some(vec![8, 4, 24]));
        assert_eq!(parameters(ptx, "first_of_two"), Some(vec![8]));
        assert_eq!(parameters(ptx, "none"), Some(vec![]));
        assert_eq!(parameters(ptx, "empty"), Some(vec![]));
        assert_eq!(parameters(ptx, "third"), None);
        assert_eq!(parameters(".entry odd(.param .texref t) {}", "odd"), None);
    }
}
