//! What the environment asks of the checker: variables, and a file that says which rules are on. What is asked for
//! wrongly is told on standard error and left out; the program runs all the same.

use super::{CHECK_CONFIG, CHECK_VARIABLE, CONFIG_NAME, FINDINGS_VARIABLE, WHY_VARIABLE, say, variable};
use crate::record::why::{Asked, Format};
use checks::Settings;
use std::io;
use std::path::{Path, PathBuf};

/// What the environment asks for, if it does.
pub(crate) fn asked() -> Option<Asked> {
    let text = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
    let (why, check) = (text(WHY_VARIABLE), text(CHECK_VARIABLE));
    let spool = variable(FINDINGS_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let (why, check) = (read(WHY_VARIABLE, why.as_deref()), read(CHECK_VARIABLE, check.as_deref()));
    let formats = [&why, &check].map(|it| it.as_ref().map(|(format, _)| *format));
    let format = formats.into_iter().flatten().reduce(|one, other| if one == Format::Text { other } else { one })?;
    let mut settings = Settings { explain: why.is_some(), validate: check.is_some(), ..Settings::default() };
    obey_file(&mut settings);
    for (name, words) in
        [(WHY_VARIABLE, why), (CHECK_VARIABLE, check)].into_iter().filter_map(|(name, it)| Some((name, it?.1)))
    {
        for word in words {
            let told = |error| say(format_args!("{name}: {error}"));
            let _ = settings.obey(&shortened(&word)).map_err(told);
        }
    }
    Some(Asked { settings, format, spool, listeners: Vec::new(), recorder: Default::default() })
}

/// Reads the text of a variable: whether it asks for something, how that looks, and words about rules.
fn read(name: &str, text: Option<&str>) -> Option<(Format, Vec<String>)> {
    let text = text?;
    let (mut format, mut words) = (Format::Text, Vec::new());
    for word in text.split([',', ' ', ';']).filter(|word| !word.is_empty()) {
        match word {
            "0" | "off" => return None,
            "1" | "on" | "text" => format = Format::Text,
            "json" => format = Format::Json,
            "silent" => format = Format::Silent,
            rule if rule.starts_with(['-', '+']) || rule.contains('=') => words.push(rule.to_owned()),
            other => {
                let expected =
                    "expected 1, on, text, json, silent, 0, off, or words about rules: -UV-0201, UV-0201=warning";
                say(format_args!("{name}: {:?} is not understood; {expected}", shortened(other)));
            }
        }
    }
    (!text.is_empty()).then_some((format, words))
}

/// The beginning of a word that may be very long.
fn shortened(word: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 60;
    let mut short: String = word.chars().take(MAX_SHOWN_CHARS).collect();
    if short.len() < word.len() {
        short.push('…');
    }
    short
}

/// Reads a file that says which rules are on, no further than it may be long. Nothing is waited for.
pub fn read_rules(path: &Path) -> io::Result<Vec<u8>> {
    super::read_bounded(path, checks::MAX_RULES_FILE_BYTES)
}

/// Obeys the file that the environment names, or the one that lies in the current directory.
fn obey_file(settings: &mut Settings) {
    let named = variable(CHECK_CONFIG).filter(|path| !path.is_empty()).map(PathBuf::from);
    let is_named = named.is_some();
    let path = named.unwrap_or_else(|| CONFIG_NAME.into());
    match read_rules(&path) {
        Ok(text) => {
            if let Err(error) = settings.obey_file(&text) {
                say(format_args!("{}: {error}", path.display()));
            }
        }
        Err(error) if is_named => say(format_args!("cannot read {}: {error}", path.display())),
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_a_format_and_words() {
        assert_eq!(read(WHY_VARIABLE, None), None);
        for off in ["", "0", "off"] {
            assert_eq!(read(WHY_VARIABLE, Some(off)), None);
        }
        for text in ["1", "on", "text"] {
            assert_eq!(read(WHY_VARIABLE, Some(text)), Some((Format::Text, vec![])));
        }
        let words = vec!["-UV-0201".to_owned(), "UV-0101=note".to_owned()];
        assert_eq!(read(CHECK_VARIABLE, Some("json,-UV-0201 UV-0101=note")), Some((Format::Json, words)));
        assert_eq!(shortened("UV-0201=off"), "UV-0201=off");
        assert_eq!(shortened(&"ä".repeat(1 << 20)), format!("{}…", "ä".repeat(60)));
    }
}
