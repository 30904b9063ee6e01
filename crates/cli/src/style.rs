//! Colours. Text is written with them always; the streams of `anstream` take them out where no terminal reads, and obey
//! `--color`, `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE`.

use clap::builder::styling::{AnsiColor, Style, Styles};
use clap::{ColorChoice, ValueEnum};
use std::env;
use std::ffi::OsString;

pub const GOOD_STYLE: Style = AnsiColor::Green.on_default().bold();
pub const WARNING_STYLE: Style = AnsiColor::Yellow.on_default().bold();
pub const BAD_STYLE: Style = AnsiColor::Red.on_default().bold();
pub const TITLE_STYLE: Style = Style::new().bold();
pub const ALICE_STYLE: Style = AnsiColor::Cyan.on_default();
pub const BOB_STYLE: Style = AnsiColor::Magenta.on_default();
/// A command to type.
pub const COMMAND_STYLE: Style = AnsiColor::Cyan.on_default();

/// Of help and of errors in command lines.
pub const HELP_STYLES: Styles = Styles::styled()
    .header(TITLE_STYLE)
    .usage(TITLE_STYLE)
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default())
    .valid(GOOD_STYLE)
    .invalid(WARNING_STYLE)
    .error(BAD_STYLE);

/// From now on, all output is so.
pub fn choose(choice: ColorChoice) {
    let choice = match choice {
        // A CI job counts as a terminal with colours there, whatever its terminal is.
        ColorChoice::Auto if is_dumb() => anstream::ColorChoice::Never,
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// Whether the terminal says that it has no colours, and the user does not insist.
fn is_dumb() -> bool {
    let forced = env::var_os("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    !forced && env::var_os("TERM").is_some_and(|terminal| terminal == "dumb")
}

/// What these arguments say of colours, for the help and the errors of a command line that was not understood.
pub fn said(arguments: impl Iterator<Item = OsString>) -> ColorChoice {
    let mut said = None;
    let mut next_is_it = false;
    for argument in arguments.take_while(|argument| argument != "--") {
        let text = argument.to_string_lossy();
        let value = if next_is_it { Some(&*text) } else { text.strip_prefix("--color=") };
        said = value.and_then(|value| ColorChoice::from_str(value, false).ok()).or(said);
        next_is_it = text == "--color";
    }
    said.unwrap_or(ColorChoice::Auto)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_found_before_the_command_line_is_understood() {
        let said = |words: &str| said(words.split(' ').map(OsString::from));
        assert_eq!(said("ubiverbs demo --help"), ColorChoice::Auto);
        assert_eq!(said("ubiverbs --color never demo --wrong"), ColorChoice::Never);
        assert_eq!(said("ubiverbs demo --color=always"), ColorChoice::Always);
        assert_eq!(said("ubiverbs run -- ls --color never"), ColorChoice::Auto);
        assert_eq!(said("ubiverbs --color pink"), ColorChoice::Auto);
    }
}
