//! Errors of the system by their names, numbers and sentences.

pub use checks::errno::ERRNO_MEANINGS;

/// What an error means in general.
pub fn meaning(number: u32) -> Option<&'static str> {
    ERRNO_MEANINGS.iter().find(|(_, known, _)| *known as u32 == number).map(|(.., meaning)| *meaning)
}

/// The error whose sentence (`strerror`) is in a text of small letters; the longest, if there are several.
pub fn in_words(lower: &str) -> Option<u32> {
    let said = |code: i32| {
        let text = std::io::Error::from_raw_os_error(code).to_string().to_ascii_lowercase();
        text.split(" (os error").next().map(str::to_owned)
    };
    let found = ERRNO_MEANINGS.iter().filter_map(|(_, code, _)| said(*code).map(|text| (text, *code)));
    found.filter(|(text, _)| lower.contains(text)).max_by_key(|(text, _)| text.len()).map(|(_, code)| code as u32)
}

/// The number of an error by its name.
pub fn number(name: &str) -> Option<u32> {
    ERRNO_MEANINGS.iter().find(|(known, _, _)| known.eq_ignore_ascii_case(name)).map(|(_, number, _)| *number as u32)
}

/// The name of an error by its number.
pub fn name(number: u32) -> Option<&'static str> {
    checks::errno::name(number as i32)
}
