//! `hob metrics`: the daemon's counters for Prometheus.

use super::args::GlobalOptions;
use super::output::Output;
use super::{CliError, daemon, exit};
use crate::protocol::{MetricsResult, NoParams, method};

pub(crate) fn run(global: &GlobalOptions) -> Result<u8, CliError> {
    let mut client = daemon::connect(global)?.client;
    let metrics: MetricsResult = client.call(method::METRICS, &NoParams {})?;
    Output::stdout().text(&metrics.text)?;
    Ok(exit::DONE)
}
