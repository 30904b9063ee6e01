//! The file that says which rules are on. It is TOML: a key for each rule or family, at the top or under `[rules]`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use toml::de::{DeTable, DeValue};

use super::Settings;

/// No file is longer.
pub const MAX_RULES_FILE_BYTES: usize = 64 << 10;

/// The one table that a file may have.
const RULES_TABLE: &str = "rules";

impl Settings {
    /// Obeys a file, in the order of its lines. An error says which line it is about, and what was expected there.
    ///
    /// ```
    /// use checks::{Number, Settings};
    ///
    /// let mut settings = Settings::check();
    /// settings.obey_file("[rules]\nUV-0201 = \"off\" # our buffers are rings\n").unwrap();
    /// assert!(!settings.wants(Number(201)));
    /// let error = settings.obey_file("[rules]\nUV-0201 = 1\n").unwrap_err();
    /// assert!(error.starts_with("line 2: "));
    /// ```
    pub fn obey_file(&mut self, text: impl AsRef<[u8]>) -> Result<(), String> {
        let bytes = text.as_ref();
        if bytes.len() > MAX_RULES_FILE_BYTES {
            return Err(format!("the file is longer than {MAX_RULES_FILE_BYTES} bytes"));
        }
        let line_at = |offset: usize| {
            let before = bytes.get(..offset).unwrap_or(bytes);
            before.iter().filter(|byte| **byte == b'\n').count() + 1
        };
        let text = core::str::from_utf8(bytes)
            .map_err(|error| format!("line {}: the text is not UTF-8", line_at(error.valid_up_to())))?;
        let document = DeTable::parse(text).map_err(|error| {
            let line = line_at(error.span().map_or(bytes.len(), |span| span.start));
            format!("line {line}: {}; a line of the file is like UV-0201 = \"off\"", error.message())
        })?;
        let mut entries = Vec::new();
        for (key, value) in document.get_ref() {
            match value.get_ref() {
                DeValue::Table(rules) if key.get_ref() == RULES_TABLE => entries.extend(rules),
                _ => entries.push((key, value)),
            }
        }
        // The tables are sorted by name.
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let name = key.get_ref();
            let obeyed = match value.get_ref() {
                DeValue::String(value) => self.set(name.trim(), value.trim()),
                DeValue::Table(_) => Err(format!("there is no heading [{name}]; expected [{RULES_TABLE}]")),
                other => Err(format!("{name} is of the type {}; expected a text such as \"off\"", other.type_str())),
            };
            obeyed.map_err(|error| format!("line {}: {error}", line_at(key.span().start)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Number, Severity};

    const MEMORY: Number = Number(201);
    const WORK: Number = Number(101);

    #[test]
    fn a_file_is_obeyed_in_the_order_of_its_lines() {
        let mut settings = Settings::all();
        settings.obey_file("# ours\n[rules]\nUV-0201 = \"off\" # slow\n\n\"UV-0101\" = 'off'\n").unwrap();
        assert!(!settings.wants(MEMORY) && !settings.wants(WORK));
        for (text, wants) in [
            ("memory = 'off'\nUV-0201 = \"on\"", true),
            ("UV-0201 = \"on\"\nmemory = 'off'", false),
            ("memory = 'off'\n[rules]\nUV-0201 = \"\"\"note\"\"\"\n", true),
            ("rules.UV-0201 = 'off'\r\n", false),
            ("rules = { memory = 'off', UV-0201 = 'on' }", true),
            ("", true),
        ] {
            let mut settings = Settings::check();
            settings.obey_file(text).unwrap();
            assert_eq!(settings.wants(MEMORY), wants, "{text}");
        }
        settings.obey_file("[rules]\nwork = 'performance'").unwrap();
        assert_eq!(settings.severity(WORK), Severity::Performance);
    }

    #[test]
    fn what_is_no_toml_or_no_rule_is_named_with_its_line_and_what_was_expected() {
        for (text, said) in [
            ("[rules]\nUV-0201 = 'loud'\n", "line 2: \"loud\" is nothing that a rule can be; expected on, off"),
            ("[rules]\n\nUV-9999 = 'off'\n", "line 3: there is no rule UV-9999"),
            ("memori = 'off'", "line 1: \"memori\" is no rule; expected a number such as UV-0201, a family (work"),
            ("-UV-0201 = 'off'", "line 1: \"-UV-0201\" is no rule"),
            ("\n[rule]\nUV-0201 = 'off'", "line 2: there is no heading [rule]; expected [rules]"),
            ("[rules]\nUV-0201 = 1", "line 2: UV-0201 is of the type integer; expected a text such as \"off\""),
            ("[[rules]]\n", "line 1: rules is of the type array"),
        ] {
            let error = Settings::all().obey_file(text).unwrap_err();
            assert!(error.starts_with(said), "{error}");
        }
        // Words of command lines, and what a reader without quotes, tables and escapes would take for settings.
        for (text, line) in [
            ("[rules]\n-UV-0201\n", 2),
            ("[rules]\n\n+UV-0201", 3),
            ("UV-0201 = off", 1),
            ("\nUV-0201 = \"off", 2),
            ("UV-0201 = 'o\"f\"f", 1),
            ("[rules\nUV-0201 = 'off'", 1),
            ("[rules]\nUV-0201 = 'off'\nUV-0201 = 'on'", 3),
            ("[rules]\nUV-0201 = 'off' UV-0202 = 'off'", 2),
        ] {
            let error = Settings::all().obey_file(text).unwrap_err();
            assert!(error.starts_with(&format!("line {line}: ")) && error.contains("UV-0201 = \"off\""), "{error}");
        }
        assert_eq!(
            Settings::all().obey_file(b"[rules]\n-UV-0201 \xff\n").unwrap_err(),
            "line 2: the text is not UTF-8"
        );
    }

    #[test]
    fn a_file_has_a_longest_length_and_a_greatest_depth() {
        let mut long = "#".repeat(MAX_RULES_FILE_BYTES);
        Settings::all().obey_file(&long).unwrap();
        long.push('#');
        assert_eq!(Settings::all().obey_file(&long).unwrap_err(), "the file is longer than 65536 bytes");
        let deep = format!("rules = {}", "[".repeat(MAX_RULES_FILE_BYTES - 8));
        assert!(Settings::all().obey_file(&deep).unwrap_err().starts_with("line 1: "));
    }
}
