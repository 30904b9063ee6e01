//! Expressions of licences, as crates have them: `(MIT OR Apache-2.0) AND Unicode-3.0`.

/// The licences under which a crate may be used, all of which are allowed. None if there is no such choice, or the
/// expression is not understood.
pub fn chosen<'a>(expression: &'a str, allowed: &[String]) -> Option<Vec<&'a str>> {
    let mut rest = Expression { text: expression, allowed };
    let answer = rest.any()?;
    if rest.text.trim_start().is_empty() { answer } else { None }
}

/// What is left of an expression. Its methods answer `None` for what is not understood, and `Some(None)` for what is not
/// allowed.
struct Expression<'a, 'b> {
    text: &'a str,
    allowed: &'b [String],
}

impl<'a> Expression<'a, '_> {
    fn any(&mut self) -> Option<Option<Vec<&'a str>>> {
        let mut found = self.all()?;
        // Old crates write a slash.
        while self.takes("OR") || self.takes("/") {
            let other = self.all()?;
            found = found.or(other);
        }
        Some(found)
    }

    fn all(&mut self) -> Option<Option<Vec<&'a str>>> {
        let mut found = self.one()?;
        while self.takes("AND") {
            let other = self.one()?;
            found = found.zip(other).map(|(found, other)| [found, other].concat());
        }
        Some(found)
    }

    fn one(&mut self) -> Option<Option<Vec<&'a str>>> {
        if self.takes("(") {
            let inner = self.any()?;
            return self.takes(")").then_some(inner);
        }
        let start = self.text.trim_start();
        self.word()?;
        if self.takes("WITH") {
            self.word()?;
        }
        let licence = start.get(..start.len() - self.text.len())?;
        Some(self.allowed.iter().any(|allowed| allowed == licence).then(|| vec![licence]))
    }

    fn word(&mut self) -> Option<&'a str> {
        let text = self.text.trim_start();
        let end = text.find(|c: char| c.is_whitespace() || "()/".contains(c)).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.text = rest;
        (!word.is_empty()).then_some(word)
    }

    /// Whether a word or a sign comes next, which is then taken.
    fn takes(&mut self, next: &str) -> bool {
        let Some(rest) = self.text.trim_start().strip_prefix(next) else { return false };
        if next.starts_with(char::is_alphabetic) && !rest.starts_with(|c: char| c.is_whitespace() || c == '(') {
            return false;
        }
        self.text = rest;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::chosen;

    fn choice(expression: &str) -> Option<String> {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_string);
        chosen(expression, &allowed).map(|licences| licences.join(" "))
    }

    #[test]
    fn one_that_is_allowed_is_enough_of_several() {
        for expression in ["MIT", "MIT OR Secret", "Secret OR MIT", "Secret/MIT", "Unlicense OR (Secret OR MIT)"] {
            assert_eq!(choice(expression).as_deref(), Some("MIT"), "{expression}");
        }
        let exception = "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT";
        assert_eq!(choice(exception).as_deref(), Some("Apache-2.0"));
    }

    #[test]
    fn all_must_be_allowed_that_hold_together() {
        assert_eq!(choice("(MIT OR Apache-2.0) AND Unicode-3.0").as_deref(), Some("MIT Unicode-3.0"));
        assert_eq!(choice("MIT AND Secret OR Apache-2.0").as_deref(), Some("Apache-2.0"));
        for expression in ["Secret", "MIT AND Secret", "MIT AND (Secret OR Hidden)", "MIT WITH strings"] {
            assert_eq!(choice(expression), None, "{expression}");
        }
    }

    #[test]
    fn what_is_not_understood_is_not_allowed() {
        for expression in ["", "MIT OR", "(MIT", "MIT)", "MIT Apache-2.0", "ORMIT"] {
            assert_eq!(choice(expression), None, "{expression}");
        }
    }
}
