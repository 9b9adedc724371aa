//! `hob pull`: fetches a model into the store.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use super::args::PullOptions;
use super::output::{self, Output, bytes};
use super::{CliError, exit, paths};
use crate::config::Places;
use crate::store::{self, Hub, PullProgress, Source, StoreError};

pub(crate) fn run(options: &PullOptions) -> Result<u8, CliError> {
    let source = Source::parse(&options.source)?;
    if options.link && !matches!(source, Source::File(_)) {
        let (text, reason) = (options.source.clone(), "--link is for files of this machine");
        return Err(StoreError::BadSource { text, reason }.into());
    }
    let models = paths::store()?;
    let pull = store::PullOptions {
        name: options.name.clone(),
        aliases: options.alias.clone(),
        sha256: options.sha256.clone(),
        link: options.link,
        hub: Hub::of_environment(Places::of_this_process().home.as_deref()),
        ..store::PullOptions::default()
    };
    let mut shown = Shown::new();
    let pulled = store::pull(&models, &source, &pull, &mut |progress| shown.report(progress));
    shown.bar.finish_and_clear();
    let pulled = pulled?;
    let entry = &pulled.entry;
    let done = match (pulled.already, entry.is_linked()) {
        (true, _) => "is here already, as it is at its source",
        (false, true) => "is registered where it is",
        (false, false) => "is in the store",
    };
    output::note(&format_args!(
        "{} ({}, {}, {}) {done}; `hob run -m {} …` runs it",
        entry.name,
        entry.facts.architecture,
        entry.facts.quantization,
        bytes(entry.bytes()),
        entry.name,
    ));
    let mut output = Output::stdout();
    match options.json {
        true => output.json(&super::models::Listed::new(&models, entry))?,
        false => output.line(&entry.name)?,
    }
    Ok(exit::DONE)
}

/// A bar on a terminal; elsewhere, a line for each file and each trouble.
struct Shown {
    bar: ProgressBar,
    terminal: bool,
    file: String,
}

impl Shown {
    fn new() -> Self {
        let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} \
                        {binary_bytes_per_sec} {eta}";
        let style = ProgressStyle::with_template(template);
        // The draw target is hidden where stderr is not a terminal.
        let bar = ProgressBar::new(0)
            .with_style(style.expect("the template is constant and well formed"));
        Self { bar, terminal: std::io::stderr().is_terminal(), file: String::new() }
    }

    fn report(&mut self, progress: PullProgress<'_>) {
        match progress {
            PullProgress::File { name, index, count } => {
                let name = output::on_one_line(name);
                self.file = match count {
                    1 => name,
                    _ => format!("{name} ({index} of {count})"),
                };
                self.bar.reset();
                self.bar.set_message(self.file.clone());
                if !self.terminal {
                    output::note(&format_args!("fetching {}", self.file));
                }
            }
            PullProgress::Bytes { done, total } => {
                self.bar.set_length(total.unwrap_or(done));
                self.bar.set_position(done);
            }
            PullProgress::Waiting { reason, pause } => {
                let seconds = pause.as_secs_f32();
                let told = format!("{reason}; trying again in {seconds:.1} s");
                self.bar.suspend(|| output::note(&told));
            }
        }
    }
}
