//! `hob top`: what the daemon does, once a second, until `q`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};
use tokio::signal::unix::{SignalKind, signal};

use super::args::{GlobalOptions, TopOptions};
use super::client::Client;
use super::output::{Output, bytes, count};
use super::{CliError, daemon, exit, status};
use crate::protocol::{Histogram, ModelCounts, NoParams, StatusResult, method};

/// Polling interval.
const PERIOD: Duration = Duration::from_secs(1);

/// Latency until a key or a signal is noticed.
const POLL: Duration = Duration::from_millis(100);

/// Seconds that the graph looks back: as wide as any terminal.
const HISTORY_MAX: usize = 512;

pub(crate) fn run(global: &GlobalOptions, options: &TopOptions) -> Result<u8, CliError> {
    let mut client = daemon::connect(global)?.client;
    let first: StatusResult = client.call(method::STATUS, &NoParams {})?;
    if options.once {
        let mut output = Output::stdout();
        for line in summary(&first) {
            output.line(&line)?;
        }
        for model in first.models.iter().skip(1) {
            output.line(&model_cells(model).join("  "))?;
        }
        for user in &first.users {
            output.line(&user_cells(user).join("  "))?;
        }
        return Ok(exit::DONE);
    }
    let ended = stop_on_signals()?;
    // It also gives the terminal back when the program panics.
    let mut terminal = ratatui::try_init().map_err(terminal_failed)?;
    let result = live(&mut terminal, &mut client, first, &ended);
    ratatui::restore();
    result.map(|()| exit::DONE)
}

fn terminal_failed(error: std::io::Error) -> CliError {
    CliError::Terminal { source: error.into() }
}

/// Raised by a signal that would otherwise leave the terminal as it is.
fn stop_on_signals() -> Result<Arc<AtomicBool>, CliError> {
    let failed = |source| CliError::Signals { source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let (mut terminate, mut hang_up) = {
        let _context = runtime.enter();
        (
            signal(SignalKind::terminate()).map_err(failed)?,
            signal(SignalKind::hangup()).map_err(failed)?,
        )
    };
    let ended = Arc::new(AtomicBool::new(false));
    let raise = Arc::clone(&ended);
    let wait = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = hang_up.recv() => {}
            }
        });
        raise.store(true, Ordering::Release);
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map_err(failed)?;
    Ok(ended)
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    client: &mut Client,
    first: StatusResult,
    ended: &AtomicBool,
) -> Result<(), CliError> {
    let (mut status, mut rates) = (first, VecDeque::new());
    let mut asked = Instant::now();
    note(&mut rates, &status);
    while !ended.load(Ordering::Acquire) {
        terminal.draw(|frame| draw(frame, &status, &rates)).map_err(terminal_failed)?;
        while event::poll(POLL).map_err(terminal_failed)? {
            match event::read().map_err(terminal_failed)? {
                Event::Key(key) if key.kind == KeyEventKind::Press && is_quit(key) => return Ok(()),
                Event::Resize(..) => break,
                _ => {}
            }
        }
        if asked.elapsed() >= PERIOD {
            asked = Instant::now();
            status = client.call(method::STATUS, &NoParams {})?;
            note(&mut rates, &status);
        }
    }
    Ok(())
}

fn is_quit(key: event::KeyEvent) -> bool {
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

fn note(rates: &mut VecDeque<u64>, status: &StatusResult) {
    if rates.len() == HISTORY_MAX {
        rates.pop_back();
    }
    // In tenths: a slow device gives less than one token a second.
    rates.push_front((status.decode_tokens_per_second * 10.0) as u64);
}

/// Newest first in `rates`, as the graph runs from the right.
fn draw(frame: &mut Frame<'_>, status: &StatusResult, rates: &VecDeque<u64>) {
    let lines = summary(status);
    // The table of models is there where there are several.
    let models = if status.models.len() > 1 { status.models.len() as u16 + 1 } else { 0 };
    let [text, kv, memory, graph, several, users] = Layout::vertical([
        Constraint::Length(lines.len() as u16 + 2),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Length(models),
        Constraint::Min(0),
    ])
    .areas(frame.area());
    let title = format!(" {} {} ", status.server.name, status.server.version);
    let block = Block::bordered().title(title.bold()).title_bottom(" q quits ");
    frame.render_widget(Paragraph::new(lines.join("\n")).block(block), text);
    let used =
        format!("KV {} of {} tokens", count(status.kv_tokens_used), count(status.kv_tokens_max));
    frame.render_widget(bar(status.kv_tokens_used, status.kv_tokens_max, used), kv);
    let used =
        format!("memory {} of {}", bytes(status.device_bytes), bytes(status.device_budget_bytes));
    frame.render_widget(bar(status.device_bytes, status.device_budget_bytes, used), memory);
    let history: Vec<u64> = rates.iter().take(graph.width as usize).rev().copied().collect();
    let sparkline = Sparkline::default()
        .block(Block::bordered().title(" generated tokens a second "))
        .style(Style::default().fg(Color::Green))
        .data(&history);
    frame.render_widget(sparkline, graph);
    let rows = status.models.iter().map(|model| Row::new(model_cells(model)));
    let table = Table::new(rows, [Constraint::Fill(1); 6]).header(
        Row::new(["MODEL", "SESSIONS", "RUNNING", "WAITING", "KV TOKENS", "A SECOND"]).bold(),
    );
    frame.render_widget(table, several);
    let rows = status.users.iter().map(|user| Row::new(user_cells(user)));
    let table = Table::new(rows, [Constraint::Fill(1); 5])
        .header(Row::new(["UID", "SESSIONS", "RUNNING", "WAITING", "KV CACHE"]).bold());
    frame.render_widget(table, users);
}

fn bar(used: u64, most: u64, label: String) -> Gauge<'static> {
    let ratio = (used as f64 / most.max(1) as f64).clamp(0.0, 1.0);
    Gauge::default().gauge_style(Style::default().fg(Color::Blue)).ratio(ratio).label(label)
}

fn model_cells(model: &ModelCounts) -> [String; 6] {
    let place = if model.loaded { "" } else { " (off)" };
    [
        format!("{}{place}", model.name),
        model.sessions.to_string(),
        model.running.to_string(),
        model.queued.to_string(),
        format!("{} of {}", count(model.kv_tokens_used), count(model.kv_tokens_max)),
        format!("{:.1}", model.decode_tokens_per_second),
    ]
}

fn user_cells(user: &crate::protocol::UserCounts) -> [String; 5] {
    let crate::protocol::UserCounts { uid, sessions, running, queued, kv_bytes } = *user;
    [
        uid.to_string(),
        sessions.to_string(),
        running.to_string(),
        queued.to_string(),
        bytes(kv_bytes),
    ]
}

/// The lines for people; each fits 78 columns where names are short.
fn summary(status: &StatusResult) -> Vec<String> {
    let place = if status.loaded { "" } else { " (not on the device: nobody uses it)" };
    vec![
        format!("model     {}{place}", status.model.name),
        format!("device    {}", status.device),
        format!("up        {}", status::seconds(status.uptime_seconds)),
        format!(
            "now       {}, {}, {} running, {} waiting",
            status::counted(status.connections.into(), "connection"),
            status::counted(status.sessions, "session"),
            status.running,
            status.queued
        ),
        format!(
            "speed     {:.1} generated and {:.0} prompt tokens a second",
            status.decode_tokens_per_second, status.prefill_tokens_per_second
        ),
        format!(
            "steps     {}, {:.1} ms and {:.1} requests on average",
            count(status.steps),
            mean(&status.step_seconds) * 1e3,
            mean(&status.batch_requests)
        ),
        format!(
            "prompts   {} tokens evaluated, {} from caches",
            count(status.prefill_tokens),
            count(status.cached_tokens)
        ),
        format!(
            "ended     {} at a stop, {} at a limit, {} cancelled, {} failed",
            count(status.finished.stop),
            count(status.finished.length),
            count(status.finished.cancelled),
            count(status.finished.error)
        ),
        format!(
            "pages     {} leased, {} free, {} to be zeroed; {} evictions, {} recoveries",
            count(status.kv_pages.leased),
            count(status.kv_pages.free),
            count(status.kv_pages.soiled),
            count(status.evictions),
            count(status.recoveries)
        ),
    ]
}

fn mean(histogram: &Histogram) -> f64 {
    let values: u64 = histogram.counts.iter().sum();
    histogram.sum / values.max(1) as f64
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn status() -> StatusResult {
        serde_json::from_value(json!({
            "server": {"name": "hobd", "version": "0.1.0", "pid": 1},
            "model": {"name": "Tiny", "architecture": "llama", "parameters": 1,
                "weights_bytes": 1, "quantization": "F16", "context_tokens_trained": 1,
                "context_tokens": 1, "vocab_size": 1, "has_chat_template": false},
            "device": "llvmpipe", "driver": "Mesa", "kv_dtype": "f16", "connections": 1,
            "sessions": 2, "running": 1, "queued": 0, "kv_tokens_max": 8192,
            "kv_tokens_used": 4096, "device_bytes": 1048576, "device_budget_bytes": 4194304,
            "prefill_tokens": 5000, "cached_tokens": 40, "decode_tokens": 600, "steps": 4,
            "uptime_seconds": 90, "decode_tokens_per_second": 12.5, "loaded": true,
            "step_seconds": {"bounds": [1.0], "counts": [4, 0], "sum": 0.02},
            "users": [{"uid": 1000, "sessions": 2, "running": 1, "queued": 0, "kv_bytes": 1024}],
        }))
        .expect("a status")
    }

    fn screen(width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        let rates = VecDeque::from([125, 80, 0]);
        terminal.draw(|frame| draw(frame, &status(), &rates)).expect("drawn");
        terminal.backend().to_string()
    }

    #[test]
    fn everything_is_seen_on_80_columns_and_24_rows() {
        let screen = screen(80, 24);
        for text in [
            "hobd 0.1.0",
            "12.5 generated",
            "5.0 ms",
            "KV 4,096 of 8,192 tokens",
            "1.00 MiB of 4.00 MiB",
            "q quits",
            "WAITING",
            "1000",
        ] {
            assert!(screen.contains(text), "{text:?}\n{screen}");
        }
    }

    #[test]
    fn several_models_have_a_table() {
        let mut status = status();
        let model = |name: &str, loaded| ModelCounts {
            name: name.into(),
            loaded,
            kv_tokens_max: 8192,
            ..ModelCounts::default()
        };
        status.models = vec![model("Tiny", true), model("Other", false)];
        let mut terminal = Terminal::new(TestBackend::new(80, 28)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &status, &VecDeque::new())).expect("drawn");
        let screen = terminal.backend().to_string();
        for text in ["MODEL", "Other (off)", "0 of 8,192", "1000"] {
            assert!(screen.contains(text), "{text:?}\n{screen}");
        }
    }

    #[test]
    fn a_tiny_terminal_is_no_error() {
        for (width, height) in [(1, 1), (20, 3), (300, 100)] {
            screen(width, height);
        }
    }
}
