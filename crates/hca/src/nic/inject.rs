//! Failures that another process of the same user injects into this one while it runs: how they are sent, and how they
//! are received. Who sends them the kernel says, not the message.

use super::Nic;
use ::host::inquiry::{self, Injection};
use failures::MAX_SCRIPT_BYTES;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use ::host::inquiry::InjectError;

/// How long a process may take to say whether it takes a script.
const INJECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest name of a script, and the longest message: the name, the end of its line, and the script.
const MAX_NAME_BYTES: usize = 4096;
const MAX_MESSAGE_BYTES: usize = MAX_NAME_BYTES + 1 + MAX_SCRIPT_BYTES;

/// A script for a process that runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Injected {
    /// What its strikes are told to come from: a file, or `inject`.
    pub name: String,
    /// Its text.
    pub text: String,
}

impl Injected {
    /// One line with the name, and the text.
    fn message(&self) -> String {
        let name: String =
            self.name.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_NAME_BYTES / 4).collect();
        format!("{name}\n{}", self.text)
    }

    fn of_message(message: &str) -> Option<Injected> {
        let (name, text) = message.split_once('\n')?;
        Some(Injected { name: trace::printable(name).to_string(), text: text.to_owned() })
    }
}

/// Has the failures of a script happen to a process of the same user, from now on.
///
/// # Errors
/// There is no such process, it is another user's, or it does not take the script.
pub fn inject(pid: i32, injected: &Injected) -> Result<(), InjectError> {
    inquiry::inject(pid, &injected.message(), INJECT_TIMEOUT)
}

impl Nic {
    /// Takes the scripts of other processes. They are read by a thread of its own: reading one may take long.
    pub(crate) fn take_injections(self: &Arc<Nic>) {
        let weak = Arc::downgrade(self);
        self.background.injections.does(move |injections| {
            for injection in injections {
                take(&weak, &injection);
            }
        });
    }
}

fn take(nic: &Weak<Nic>, injection: &Injection) {
    let Some(nic) = nic.upgrade() else { return };
    let message = injection.text(MAX_MESSAGE_BYTES as u64);
    let answer = match message.as_deref().and_then(Injected::of_message) {
        None => Err(format!("there is no script of {MAX_SCRIPT_BYTES} bytes or less in the message")),
        Some(injected) => start(&nic, &injected),
    };
    // A process that asked and has gone does not miss the answer.
    let _ = injection.answer(answer.as_ref().err().map_or("", String::as_str));
}

#[cfg(feature = "scripts")]
fn start(nic: &Arc<Nic>, Injected { name, text }: &Injected) -> Result<(), String> {
    let script = failures::Script::parse(text).map_err(|error| format!("{name}: {error}"))?;
    nic.start_script(&script, None, name);
    Ok(())
}

#[cfg(not(feature = "scripts"))]
fn start(_: &Arc<Nic>, _: &Injected) -> Result<(), String> {
    Err("the program was built without the feature `scripts` of the crate ubiverbs".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_name_and_a_script_and_the_name_is_one_line() {
        let injected = Injected { name: "a\nb\u{1b}[2J".into(), text: "[[failure]]\ndo = 'port-down'\n".into() };
        let came = Injected::of_message(&injected.message()).unwrap();
        assert_eq!(came.text, injected.text);
        assert_eq!(came.name, "a b [2J");
        assert_eq!(Injected::of_message("no line"), None);
    }
}
