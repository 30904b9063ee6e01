//! The `ubiverbs` program: reads its arguments, runs one command, and turns how it ended into an exit code. What the
//! commands do is in modules of their own.
#![deny(unsafe_code)]

mod acts;
mod bench;
mod candidates;
mod cards;
mod cluster;
mod completions;
mod control;
mod demo;
mod devices;
mod doctor;
mod exit;
mod explain;
mod greeting;
mod inject;
mod litmus;
mod manual;
mod matrix;
mod measure;
mod meeting;
mod metrics;
mod nics;
mod peer;
mod ps;
mod races;
mod report;
mod run;
mod second_side;
mod simulate;
mod snapshot;
mod station;
mod style;
mod top;
mod torture;
mod view;
mod why;

use clap::error::ErrorKind;
use clap::{ColorChoice, CommandFactory, Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

use exit::{Exit, Failure};

/// An RDMA NIC in user space: see it work, measure it, run RDMA programs on it, and learn what went wrong
#[derive(Parser)]
#[command(name = "ubiverbs", version, after_help = EXIT_CODES, styles = style::HELP_STYLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// When to use colours; NO_COLOR and CLICOLOR_FORCE are obeyed too
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true,
        display_order = 900
    )]
    color: ColorChoice,
}

const EXIT_CODES: &str = "\
Begin with: ubiverbs demo

Exit codes: 0 it worked; 1 the job failed or could not be done; 2 the command line was wrong. `run` ends as its \
program does. Results go to standard output, errors to standard error.";

#[derive(Subcommand)]
enum Command {
    Demo(demo::Options),
    Bench(bench::Options),
    Run(run::Options),
    Inject(inject::Options),
    Devices(devices::Options),
    Doctor(doctor::Options),
    Ps(ps::Options),
    Top(top::Options),
    Metrics(metrics::Options),
    Cluster(cluster::Options),
    Simulate(simulate::Options),
    Torture(torture::Options),
    Matrix(matrix::Options),
    Litmus(litmus::Options),
    Explain(explain::Options),
    Why(why::Options),
    View(view::Options),
    Completions(completions::Options),
    #[command(hide = true)]
    ClusterMember(cluster::MemberOptions),
    #[command(hide = true)]
    Manual(manual::Options),
    #[command(hide = true)]
    Peer(second_side::Options),
    #[command(hide = true)]
    Tidy(run::files::Options),
}

fn main() -> ExitCode {
    completions::answer(Arguments::command);
    style::choose(style::said(std::env::args_os()));
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // If even this cannot be printed there is nobody to tell.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Ok,
                _ => Exit::Usage,
            }
            .into();
        }
    };
    style::choose(arguments.color);
    let out = &mut anstream::stdout().lock();
    let ended = match arguments.command {
        Command::Demo(options) => demo::run(&options, out),
        Command::Bench(options) => bench::run(&options, out),
        Command::Run(options) => run::run(&options),
        Command::Inject(options) => inject::run(&options, out),
        Command::Devices(options) => devices::run(&options, out),
        Command::Doctor(options) => doctor::run(&options, out),
        Command::Ps(options) => ps::run(&options, out),
        Command::Top(options) => top::run(&options),
        Command::Metrics(options) => metrics::run(&options, out),
        Command::Cluster(options) => cluster::run(&options, out),
        Command::ClusterMember(options) => cluster::run_member(&options),
        Command::Simulate(options) => simulate::run(&options, out),
        Command::Torture(options) => torture::run(&options, out),
        Command::Matrix(options) => matrix::run(&options, out),
        Command::Litmus(options) => litmus::run(&options, out),
        Command::Manual(options) => manual::run(&options, Arguments::command()),
        Command::Explain(options) => explain::run(&options, out),
        Command::Why(options) => why::run(&options, out),
        Command::View(options) => view::run(&options, out),
        Command::Completions(options) => completions::run(&options, out),
        Command::Peer(options) => second_side::run(&options),
        Command::Tidy(options) => run::files::tidy(&options),
    };
    let ended = ended.and_then(|exit| {
        out.flush().map_err(Failure::Output)?;
        Ok(exit)
    });
    match ended {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if !failure.is_closed_pipe() {
                let bad = style::BAD_STYLE;
                anstream::eprintln!("{bad}ubiverbs:{bad:#} {}", failure.told());
            }
            failure.exit().into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
    }
}
