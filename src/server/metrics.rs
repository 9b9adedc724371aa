//! `metrics`: the engine's counts in the text format that Prometheus reads.

use std::fmt::{self, Error};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::engine::{EngineStatus, Histogram};

/// The text of a state of an engine that serves `model` to so many connections.
pub(super) fn text(model: &str, status: EngineStatus, connections: u32) -> String {
    let labels = [("model".into(), model.to_owned().into())];
    let mut registry = Registry::with_prefix_and_labels("hob", labels.into_iter());
    registry.register_collector(Box::new(Snapshot { status, connections }));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a String takes any text");
    text
}

#[derive(Debug)]
struct Snapshot {
    status: EngineStatus,
    connections: u32,
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let (status, activity) = (&self.status, &self.status.activity);
        let mut out = Out { encoder };
        out.gauge("connections", "Connections now.", self.connections.into())?;
        out.gauge("sessions", "Sessions of all users.", status.sessions as u64)?;
        out.gauge("requests_running", "Requests in the batch.", status.running as u64)?;
        out.gauge("requests_queued", "Requests that wait.", status.queued as u64)?;
        let finished = activity.finished;
        out.counters(
            ("requests", "Requests that ended, by how."),
            "finish_reason",
            &[
                ("stop", finished.stop),
                ("length", finished.length),
                ("cancelled", finished.cancelled),
                ("deadline", finished.deadline),
                ("error", finished.error),
            ],
        )?;
        out.counters(
            ("prompt_tokens", "Prompt tokens, by where their keys and values came from."),
            "source",
            &[("computed", status.prefill_tokens), ("cached", status.cached_tokens)],
        )?;
        out.counter("generated_tokens", "Tokens generated.", status.decode_tokens)?;
        let [prefill, decode] = activity.tokens_per_second();
        out.rate("prefill_tokens_per_second", "Prompt tokens computed lately.", prefill)?;
        out.rate("decode_tokens_per_second", "Tokens generated lately.", decode)?;
        let pages = status.kv_pages;
        out.gauges(
            ("kv_pages", "Pages of the KV cache, by state."),
            "state",
            &[("leased", pages.leased), ("free", pages.free), ("soiled", pages.soiled)],
        )?;
        out.counter("evictions", "Caches that left the device for others.", activity.evictions)?;
        out.counter("preemptions", "Requests that had to wait again.", status.preemptions)?;
        let host_bytes = status.host_cache_bytes;
        out.gauge("host_cache_bytes", "Caches in the host's memory.", host_bytes)?;
        let disk_bytes = status.disk_cache_bytes;
        out.gauge("disk_cache_bytes", "Caches in files.", disk_bytes)?;
        out.gauge("device_used_bytes", "Device memory in use.", status.device_bytes)?;
        out.gauge("device_budget_bytes", "Device memory to be had.", status.device_budget_bytes)?;
        out.counter("recoveries", "Times that a lost device was opened again.", status.recoveries)?;
        out.histogram("step_seconds", "Time of a step.", &activity.step_seconds)?;
        out.histogram("batch_requests", "Requests in a step.", &activity.batch_requests)?;
        out.histogram("batch_tokens", "Tokens in a step.", &activity.batch_tokens)?;
        out.gauge("uptime_seconds", "Seconds since the start.", status.uptime_seconds)
    }
}

/// Writes metrics one by one.
struct Out<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Out<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn rate(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let counter = ConstCounter::new(value);
        counter.encode(self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    fn gauges(
        &mut self,
        (name, help): (&str, &str),
        label: &'static str,
        values: &[(&'static str, u64)],
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        values.iter().try_for_each(|(state, value)| {
            ConstGauge::new(*value).encode(family.encode_family(&[(label, *state)])?)
        })
    }

    fn counters(
        &mut self,
        (name, help): (&str, &str),
        label: &'static str,
        values: &[(&'static str, u64)],
    ) -> fmt::Result {
        let kind = MetricType::Counter;
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        values.iter().try_for_each(|(state, value)| {
            ConstCounter::new(*value).encode(family.encode_family(&[(label, *state)])?)
        })
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> fmt::Result {
        let bounds = histogram.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(histogram.counts.iter().copied()).collect();
        let count = histogram.counts.iter().sum();
        let kind = MetricType::Histogram;
        let mut encoder = self.encoder.encode_descriptor(name, help, None, kind)?;
        encoder.encode_histogram::<NoLabelSet>(histogram.sum, count, &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reads_as_prometheus_has_it() {
        let mut status = EngineStatus { running: 3, cached_tokens: 7, ..EngineStatus::default() };
        status.kv_pages.soiled = 2;
        let steps = &mut status.activity.step_seconds;
        (steps.counts[0], steps.counts[2], steps.sum) = (4, 1, 0.0075);
        let text = text("a \"model\"", status, 5);
        let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        has("# TYPE hob_requests_running gauge");
        has(r#"hob_requests_running{model="a \"model\""} 3"#);
        has(r#"hob_connections{model="a \"model\""} 5"#);
        has(r#"hob_prompt_tokens_total{model="a \"model\"",source="cached"} 7"#);
        has(r#"hob_kv_pages{model="a \"model\"",state="soiled"} 2"#);
        has(r#"hob_step_seconds_bucket{model="a \"model\"",le="0.001"} 4"#);
        has(r#"hob_step_seconds_bucket{model="a \"model\"",le="0.005"} 5"#);
        has(r#"hob_step_seconds_bucket{model="a \"model\"",le="+Inf"} 5"#);
        has(r#"hob_step_seconds_count{model="a \"model\""} 5"#);
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
