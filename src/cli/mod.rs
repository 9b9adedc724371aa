//! The `hob` command line: reads arguments, talks to the daemon or to a model in this process, and
//! writes for people (text, tables) or for programs (`--json`).
//!
//! It owns the terminal: what is written to stdout and stderr, Ctrl-C, and the exit status. It
//! knows the daemon only through the protocol ([`client`]) and a model in this process only
//! through [`local::LocalModel`].

pub mod args;
mod bench;
mod chat;
pub mod client;
mod daemon;
mod devices;
mod embed;
mod error;
mod generate;
mod generated_files;
mod inspect;
mod interrupt;
pub mod local;
mod lora;
mod lost_daemon;
mod metrics;
mod models;
mod output;
mod paths;
mod peer;
mod perplexity;
mod pull;
mod quantize;
mod run;
mod sessions;
mod shader_stats;
mod status;
mod stop;
mod table;
mod tokenize;
mod top;
mod tune;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Arguments, Command};
pub use error::{CliError, exit};

/// Runs the `hob` command with this process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let ended = match daemon::program_to_detach(std::env::args_os()) {
        Some(program) => Err(daemon::become_detached(&program)),
        None => dispatch(&Arguments::parse()),
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) if error.is_closed_pipe() => ExitCode::from(exit::DONE),
        Err(error) => {
            output::error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Runs one command; the exit status of one that ended as it should.
fn dispatch(arguments: &Arguments) -> Result<u8, CliError> {
    let global = &arguments.global;
    match &arguments.command {
        Command::Run(options) => run::run(global, options),
        Command::Chat(options) => chat::run(global, options),
        Command::Embed(options) => embed::run(global, options),
        Command::Status(options) => status::run(global, options),
        Command::Metrics => metrics::run(global),
        Command::Top(options) => top::run(global, options),
        Command::Devices(options) => devices::run(options),
        Command::Sessions(options) => sessions::run(global, options),
        Command::Lora(options) => lora::run(global, options),
        Command::Pull(options) => pull::run(options),
        Command::Models(options) => models::list(global, options),
        Command::Rm(options) => models::remove(global, options),
        Command::Stop => stop::run(global),
        Command::Tokenize(options) => tokenize::tokenize(global, options),
        Command::Detokenize(options) => tokenize::detokenize(global, options),
        Command::Inspect(options) => inspect::run(options),
        Command::Quantize(options) => quantize::run(options),
        Command::Perplexity(options) => perplexity::run(options),
        Command::Bench(options) => bench::run(options),
        Command::Tune(options) => tune::run(options),
        Command::ShaderStats(options) => shader_stats::run(options),
        Command::Completions(options) => generated_files::completions(options),
        Command::Man(options) => generated_files::man(options),
    }
}
