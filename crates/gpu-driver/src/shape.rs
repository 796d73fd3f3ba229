//! How many elements a parameter needs, from the shape in brackets that its note begins with.
//!
//! A shape is factors with commas between: names of sizes or of number parameters, and whole-number arithmetic with
//! them, as in `[rows, cols]` and `[(first + elements + 1) / 2]`. A shape with a name that the launch does not give
//! (`..` is one) says nothing, and is not checked. The last of several factors may be a distance between rows (its
//! name ends in `stride`); the last row then needs no gap after it, so only its first element is required.

/// Sizes by name: dimensions of a launch, and numbers among its arguments.
#[derive(Debug, Default)]
pub(crate) struct Sizes(Vec<(&'static str, u64)>);

impl Sizes {
    pub(crate) fn set(&mut self, name: &'static str, size: u64) {
        if self.get(name).is_none() {
            self.0.push((name, size));
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(known, _)| *known == name).map(|&(_, size)| size)
    }
}

/// The shape that the note begins with, and how many elements it has at these sizes.
pub(crate) fn elements(note: &'static str, sizes: &Sizes) -> Option<(&'static str, u64)> {
    let end = note.strip_prefix('[')?.find(']')? + 1;
    let shape = &note[..=end];
    let factors: Vec<&str> = note[1..end].split(',').map(str::trim).collect();
    let mut values = factors.iter().map(|factor| evaluate(factor, sizes)).collect::<Option<Vec<u64>>>()?;
    let stride = factors.len() > 1 && factors.last().is_some_and(|last| last.ends_with("stride"));
    if values.contains(&0) && !stride {
        return Some((shape, 0));
    }
    let last = if stride { values.pop()? } else { 1 };
    let rows = values.into_iter().try_fold(1u64, u64::checked_mul).unwrap_or(u64::MAX);
    if !stride {
        return Some((shape, rows));
    }
    let needed = rows.checked_sub(1).map_or(0, |before| before.saturating_mul(last).saturating_add(1));
    Some((shape, needed))
}

/// The value of a factor; `None` where it is not arithmetic on known sizes.
fn evaluate(text: &str, sizes: &Sizes) -> Option<u64> {
    let mut parser = Parser { rest: text, sizes };
    let value = parser.sum()?;
    parser.rest.trim().is_empty().then_some(value)
}

struct Parser<'a> {
    rest: &'a str,
    sizes: &'a Sizes,
}

impl Parser<'_> {
    /// sum = product { ("+" | "-") product }
    fn sum(&mut self) -> Option<u64> {
        let mut value = self.product()?;
        loop {
            if self.take('+') {
                value = value.checked_add(self.product()?)?;
            } else if self.take('-') {
                value = value.checked_sub(self.product()?)?;
            } else {
                return Some(value);
            }
        }
    }

    /// product = atom { ("*" | "/") atom }
    fn product(&mut self) -> Option<u64> {
        let mut value = self.atom()?;
        loop {
            if self.take('*') {
                value = value.checked_mul(self.atom()?)?;
            } else if self.take('/') {
                value = value.checked_div(self.atom()?)?;
            } else {
                return Some(value);
            }
        }
    }

    /// atom = number | name | "(" sum ")"
    fn atom(&mut self) -> Option<u64> {
        if self.take('(') {
            let value = self.sum()?;
            return self.take(')').then_some(value);
        }
        let text = self.rest.trim_start();
        let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
        let word = &text[..end];
        self.rest = &text[end..];
        match word.parse() {
            Ok(number) => Some(number),
            // A name that the launch does not give is no value.
            Err(_) => self.sizes.get(word),
        }
    }

    fn take(&mut self, sign: char) -> bool {
        match self.rest.trim_start().strip_prefix(sign) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> Sizes {
        let mut sizes = Sizes::default();
        for (name, size) in [("rows", 3), ("cols", 5), ("first", 1), ("row_stride", 8), ("none", 0)] {
            sizes.set(name, size);
        }
        sizes
    }

    #[test]
    fn shapes_are_evaluated() {
        for (note, needed) in [
            ("[rows, cols]", 15),
            ("[cols], the weights", 5),
            ("[(first + rows + 1) / 2], two codes a byte", 2),
            ("[rows + 1, 2]", 8),
            ("[1], one number", 1),
            ("[rows, row_stride], only the first cols of a row", 17),
            ("[none, row_stride]", 0),
            ("[none, cols]", 0),
        ] {
            assert_eq!(elements(note, &sizes()).map(|(_, needed)| needed), Some(needed), "{note}");
        }
        assert_eq!(elements("[rows, cols], more", &sizes()).unwrap().0, "[rows, cols]");
    }

    #[test]
    fn what_is_not_known_is_not_checked() {
        for note in
            ["", "how many", "[.., cols]", "[other]", "[rows / none]", "[first - rows]", "[rows, rounded up]"]
        {
            assert_eq!(elements(note, &sizes()), None, "{note}");
        }
    }

    #[test]
    fn products_that_overflow_need_more_than_any_buffer_has() {
        let mut sizes = Sizes::default();
        sizes.set("large", 1 << 40);
        assert_eq!(elements("[large, large]", &sizes), Some(("[large, large]", u64::MAX)));
    }
}
