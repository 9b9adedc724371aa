//! `hob completions` and `hob man`: files made from the command line's own grammar.

use std::fs;

use clap::CommandFactory as _;
use clap_mangen::Man;

use super::args::{Arguments, CompletionsOptions, ManOptions};
use super::output::Output;
use super::{CliError, exit};
use crate::config::Flags;

pub(crate) fn completions(options: &CompletionsOptions) -> Result<u8, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Arguments::command(), "hob", &mut script);
    Output::stdout().text(&String::from_utf8_lossy(&script))?;
    Ok(exit::DONE)
}

pub(crate) fn man(options: &ManOptions) -> Result<u8, CliError> {
    let command = Arguments::command();
    let Some(folder) = &options.directory else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page).map_err(|source| CliError::Stdout { source })?;
        Output::stdout().text(&String::from_utf8_lossy(&page))?;
        return Ok(exit::DONE);
    };
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .and_then(|()| clap_mangen::generate_to(Flags::command(), folder))
        .map_err(|source| CliError::WriteFile { path: folder.clone(), source })?;
    Ok(exit::DONE)
}
