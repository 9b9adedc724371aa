//! `hob status`: what the daemon is and does.

use std::time::Duration;

use super::args::{GlobalOptions, StatusOptions};
use super::output::{self, Output, bytes, count};
use super::table::Facts;
use super::{CliError, daemon, exit};
use crate::protocol::{ModelCounts, NoParams, StatusResult, method};

pub(crate) fn run(global: &GlobalOptions, options: &StatusOptions) -> Result<u8, CliError> {
    let mut connection = daemon::connect(global)?;
    let status: StatusResult = connection.client.call(method::STATUS, &NoParams {})?;
    let mut output = Output::stdout();
    if options.json {
        output.json(&status)?;
    } else {
        let (server, socket) = (&status.server, &connection.socket);
        output.styled_line(
            output::BOLD,
            &format!(
                "{} {} (process {}) on {}",
                server.name,
                server.version,
                server.pid,
                socket.display()
            ),
        )?;
        facts(&status).write(&mut output)?;
    }
    Ok(exit::DONE)
}

fn facts(status: &StatusResult) -> Facts {
    let model = &status.model;
    let mut facts = Facts::default();
    let of_file = format!(
        "{}, {}, {} parameters, {}, {}",
        model.name,
        model.architecture,
        count(model.parameters),
        model.quantization,
        bytes(model.weights_bytes)
    );
    let name = status.models.first().map_or("", |model| &model.name);
    facts.add("model", if name.is_empty() { of_file } else { format!("{name} ({of_file})") });
    if !status.loaded {
        facts.add("", "not on the device: nobody uses it; the next request loads it");
    }
    facts.add(
        "context",
        format!("{} tokens (trained for {})", model.context_tokens, model.context_tokens_trained),
    );
    facts.add("device", format!("{} ({})", status.device, status.driver));
    facts.add(
        "memory",
        format!("{} of {}", bytes(status.device_bytes), bytes(status.device_budget_bytes)),
    );
    facts.add(
        "KV cache",
        format!(
            "{} of {} tokens, {}",
            count(status.kv_tokens_used),
            count(status.kv_tokens_max),
            status.kv_dtype
        ),
    );
    facts.add(
        "now",
        format!(
            "{}, {}, {} running, {} waiting",
            counted(status.connections.into(), "connection"),
            counted(status.sessions, "session"),
            counted(status.running, "request"),
            status.queued
        ),
    );
    facts.add(
        "since start",
        format!(
            "{} evaluated, {} taken from the cache, {} generated, {}",
            counted(status.prefill_tokens, "prompt token"),
            count(status.cached_tokens),
            count(status.decode_tokens),
            counted(status.steps, "step")
        ),
    );
    let (prefill, decode) = (status.prefill_tokens_per_second, status.decode_tokens_per_second);
    facts.add("lately", format!("{prefill:.0} prompt tokens and {decode:.1} generated a second"));
    for model in status.models.iter().skip(1) {
        facts.add("also", other_model(model));
    }
    if status.recoveries > 0 {
        facts.add("recoveries", format!("{}: the device was lost", count(status.recoveries)));
    }
    add_faults(&mut facts, status);
    facts.add("up", seconds(status.uptime_seconds));
    facts
}

/// A model beside the default.
fn other_model(model: &ModelCounts) -> String {
    let ModelCounts { name, loaded, sessions, running, queued, .. } = model;
    if !loaded {
        return format!("{name}: not on the device, {}", counted(*sessions, "session"));
    }
    format!(
        "{name}: {}, {}, {} running, {queued} waiting, {:.1} generated a second",
        bytes(model.weights_bytes),
        counted(*sessions, "session"),
        counted(*running, "request"),
        model.decode_tokens_per_second
    )
}

/// Kernels that the device does not run, and why.
fn add_faults(facts: &mut Facts, status: &StatusResult) {
    for fault in &status.kernel_faults {
        facts.add("faulty", format!("{} is not used: {}", fault.kernel, fault.difference));
    }
}

/// A number of things.
pub(super) fn counted(number: u64, thing: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {thing}{ending}", count(number))
}

/// A duration for people.
pub(crate) fn seconds(count: u64) -> String {
    indicatif::HumanDuration(Duration::from_secs(count)).to_string()
}
