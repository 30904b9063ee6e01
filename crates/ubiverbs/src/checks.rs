//! What a program does wrong, and why its work fails, told while it runs. Needs the feature `checks`.
//!
//! With the feature, the environment asks for it as it does of C programs: `UBIVERBS_WHY=1` explains what fails on
//! standard error, `UBIVERBS_CHECK=1` checks the program against the rules of verbs; `ubiverbs run --why --check` sets
//! both. A program, or its tests, may also ask in code and get [`Finding`]s as values:
//!
//! ```
//! use ubiverbs::checks::{self, Settings};
//! use ubiverbs::{Access, Reliable};
//!
//! let findings = checks::findings(Settings::all())?;
//! let context = ubiverbs::device("ubi_lo")?.open()?;
//! # let pd = context.alloc_pd()?;
//! # let cq = context.completion_queue(16).create()?;
//! let [a, b] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
//! // … what the program does; here a WRITE into memory that peers may only read.
//! let table = pd.share(64, Access::REMOTE_READ)?;
//! assert!(a.write(pd.register(vec![1; 64])?, table.remote_slice())?.wait().is_err());
//!
//! for finding in findings.try_iter() {
//!     println!("{finding}");
//! }
//! # drop(b);
//! # Ok::<(), ubiverbs::Error>(())
//! ```
//!
//! A finding has the [number](Number) of its rule, which never changes its meaning, a [`Severity`], one sentence with
//! the program's own values, the cause, the evidence, and what to do. Findings of one rule about one object are told
//! once.
//! `ubiverbs explain UV-0201` has the page of a rule, and so has [`Rule::page`].
//!
//! Off, it costs nothing; on, a small message takes up to three times as long.

pub use ::checks::{Family, Finding, Number, Rule, Settings, Severity, Subject};

use hca::Nic;
use seam::Error;
use std::sync::mpsc::{Receiver, channel};

/// Checks this process from now on: findings come out of the receiver, in the order in which they are made. Call it
/// before anything else of this crate, for what is not seen to be made cannot be judged.
///
/// If the environment has asked for a checker already, its settings count, and findings go both ways. Dropping the
/// receiver leaves the checker on.
///
/// # Errors
/// [`Error::Create`] if there is no NIC.
pub fn findings(settings: Settings) -> Result<Receiver<Finding>, Error> {
    let nic = Nic::of_process().map_err(|error| Error::Create { what: "the NIC", source: Box::new(error) })?;
    let (sender, receiver) = channel();
    nic.listen_to_findings(settings, sender);
    Ok(receiver)
}

/// Checks this process from now on and hands each finding to `tell`, in a thread of its own: it may call whatever it
/// likes, and the program does not wait for it.
///
/// ```no_run
/// use ubiverbs::checks::{self, Settings, Severity};
///
/// checks::on_finding(Settings::check(), |finding| {
///     if finding.severity == Severity::Error {
///         eprintln!("{finding}");
///         std::process::exit(1);
///     }
/// })?;
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// # Errors
/// [`Error::Create`] if there is no NIC, or no thread.
pub fn on_finding(settings: Settings, mut tell: impl FnMut(Finding) + Send + 'static) -> Result<(), Error> {
    let findings = findings(settings)?;
    hca::spawn("ubiverbs-checks", move || findings.into_iter().for_each(&mut tell))
        .map_err(|error| Error::Create { what: "the thread of findings", source: Box::new(error) })
}
