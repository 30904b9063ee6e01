//! What words of a command line ask for: a name or a part of it, a number, a sentence, a call and its errno.

use super::entry::{ExplainedWord, Kind};
use super::line::of_call;
use super::nearest::nearest;
use super::{WC_STATUS_SENTENCES, entries, errno};

/// The kind that a word asks for.
pub fn kind(word: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| kind.word().eq_ignore_ascii_case(word))
}

/// Words of a kind by number, by name, or by a part of it.
pub fn find_among(kind: Kind, asked: &str) -> Vec<ExplainedWord> {
    let wanted = asked.to_ascii_uppercase();
    // A status of the connection manager is negative where it is an errno.
    let digits = wanted.trim_start_matches('-');
    let number = match kind {
        Kind::Rule => digits.trim_start_matches("UV").trim_start_matches('-').parse().ok(),
        Kind::Errno => digits.parse().ok().or_else(|| errno::number(&wanted)),
        _ => digits.parse().ok(),
    };
    let entries = entries(kind);
    let exact: Vec<ExplainedWord> = entries
        .iter()
        .filter(|entry| match number {
            Some(number) => entry.number == Some(number),
            None => entry.name.eq_ignore_ascii_case(&wanted),
        })
        .cloned()
        .collect();
    if !exact.is_empty() || number.is_some() {
        return exact;
    }
    entries.into_iter().filter(|entry| entry.name.to_ascii_uppercase().contains(&wanted)).collect()
}

/// A word of any kind. A number is a status, or a rule.
pub fn find(asked: &str) -> Vec<ExplainedWord> {
    match asked.parse::<u32>() {
        Ok(0..100) => find_among(Kind::Status, asked),
        Ok(_) => find_among(Kind::Rule, asked),
        Err(_) => {
            let all: Vec<ExplainedWord> = Kind::ALL.into_iter().flat_map(|kind| find_among(kind, asked)).collect();
            let exact: Vec<ExplainedWord> =
                all.iter().filter(|entry| entry.name.eq_ignore_ascii_case(asked)).cloned().collect();
            if exact.is_empty() { all } else { exact }
        }
    }
}

/// The status that a program has printed in words.
pub fn find_sentence(words: &[&str]) -> Vec<ExplainedWord> {
    let asked = words.join(" ");
    let is_asked = |sentence: &&str| sentence.eq_ignore_ascii_case(&asked);
    let Some(code) = WC_STATUS_SENTENCES.iter().position(is_asked) else { return Vec::new() };
    entries(Kind::Status)
        .into_iter()
        .filter(|entry| entry.number.is_some_and(|number| number as usize == code))
        .collect()
}

/// A call and its errno, by name or number, in any order. Where nothing special is known, the errno in general.
pub fn find_errno(one: &str, other: &str) -> Vec<ExplainedWord> {
    let is_errno = |word: &str| {
        let digits = word.trim_start_matches('-');
        let number = digits.parse().ok().or_else(|| errno::number(digits));
        number.filter(|number| errno::name(*number).is_some())
    };
    let (call, number) = match (is_errno(one), is_errno(other)) {
        (_, Some(number)) => (one, number),
        (Some(number), None) => (other, number),
        (None, None) => return Vec::new(),
    };
    let is_known = entries(Kind::Errno).iter().any(|entry| entry.name.split(' ').next() == Some(call));
    let is_call = is_known || ["ibv_", "rdma_", "umad_"].iter().any(|beginning| call.starts_with(beginning));
    // A call that is nearly one of those that are known is a mistake.
    if !is_call || !is_known && !near(&[call]).is_empty() { Vec::new() } else { vec![of_call(call, number)] }
}

/// What may be meant by words that are not known: each is replaced by those that are nearest to it.
pub fn near(words: &[&str]) -> Vec<String> {
    let calls = || {
        let mut calls: Vec<String> =
            entries(Kind::Errno).iter().filter_map(|entry| entry.name.split(' ').next().map(str::to_owned)).collect();
        calls.dedup();
        calls
    };
    let errnos = || errno::ERRNO_MEANINGS.iter().map(|(name, ..)| (*name).to_owned());
    match words {
        [one] => {
            let bare = |entry: ExplainedWord| {
                let short = ["IBV_WC_", "IBV_EVENT_", "RDMA_CM_EVENT_"].iter().find_map(|b| entry.name.strip_prefix(b));
                let short = short.map(str::to_owned);
                [Some(entry.name), short].into_iter().flatten()
            };
            let named = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Message).flat_map(entries).flat_map(bare);
            nearest(one, named.chain(calls()).chain(errnos()).chain(Kind::ALL.map(|kind| kind.word().to_owned())))
        }
        [one, other] => {
            let number =
                |word: &str| word.trim_start_matches('-').parse().ok().and_then(errno::name).map(str::to_owned);
            let errno = |word: &str| number(word).map_or_else(|| nearest(word, errnos()), |name| vec![name]);
            let both = |call: &str, code: &str| -> Vec<String> {
                let codes = errno(code);
                let known = |call: &String| codes.first().map(|code| format!("{call} {code}"));
                nearest(call, calls()).iter().filter_map(known).collect()
            };
            let found = both(one, other);
            if found.is_empty() { both(other, one) } else { found }
        }
        words => nearest(&words.join(" "), WC_STATUS_SENTENCES.map(str::to_owned)),
    }
}
