//! `metrics`: the engines' counts in the text format that Prometheus reads.

use std::fmt::{self, Error};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::engine::{Activity, EngineStatus, Histogram};

/// The label that says which model a value is of.
const MODEL: &str = "model";

/// The text of the states of all models' engines, in a daemon with so many connections.
pub(super) fn text(models: Vec<(String, EngineStatus)>, connections: u32) -> String {
    let mut registry = Registry::with_prefix("hob");
    registry.register_collector(Box::new(Snapshot { models, connections }));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a String takes any text");
    text
}

#[derive(Debug)]
struct Snapshot {
    models: Vec<(String, EngineStatus)>,
    connections: u32,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let connections = ConstGauge::new(u64::from(self.connections));
        let help = "Connections now.";
        let gauge = encoder.encode_descriptor("connections", help, None, MetricType::Gauge)?;
        connections.encode(gauge)?;
        let mut out = Out { encoder, models: &self.models };
        out.requests()?;
        out.cache()?;
        out.device()
    }
}

/// Writes metrics one by one, each for all models.
struct Out<'e, 'm> {
    encoder: DescriptorEncoder<'e>,
    models: &'m [(String, EngineStatus)],
}

/// Values of one metric, by the value of its label.
type ByLabel<const N: usize> = [(&'static str, u64); N];

impl Out<'_, '_> {
    fn requests(&mut self) -> fmt::Result {
        self.gauge("sessions", "Sessions of all users.", |status| status.sessions as u64)?;
        self.gauge("requests_running", "Requests in the batch.", |status| status.running as u64)?;
        self.gauge("requests_queued", "Requests that wait.", |status| status.queued as u64)?;
        self.counters("requests", "Requests that ended, by how.", "finish_reason", |status| {
            let finished = status.activity.finished;
            [
                ("stop", finished.stop),
                ("length", finished.length),
                ("cancelled", finished.cancelled),
                ("deadline", finished.deadline),
                ("error", finished.error),
            ]
        })?;
        let help = "Prompt tokens, by where their keys and values came from.";
        self.counters("prompt_tokens", help, "source", |status| {
            [("computed", status.prefill_tokens), ("cached", status.cached_tokens)]
        })?;
        self.counter("generated_tokens", "Tokens generated.", |status| status.decode_tokens)?;
        self.gauge("prefill_tokens_per_second", "Prompt tokens computed lately.", |status| {
            status.activity.tokens_per_second()[0]
        })?;
        self.gauge("decode_tokens_per_second", "Tokens generated lately.", |status| {
            status.activity.tokens_per_second()[1]
        })
    }

    fn cache(&mut self) -> fmt::Result {
        self.gauges("kv_pages", "Pages of the KV cache, by state.", "state", |status| {
            let pages = status.kv_pages;
            [("leased", pages.leased), ("free", pages.free), ("soiled", pages.soiled)]
        })?;
        let help = "Caches that left the device for others.";
        self.counter("evictions", help, |status| status.activity.evictions)?;
        let help = "Requests that had to wait again.";
        self.counter("preemptions", help, |status| status.preemptions)?;
        let help = "Caches in the host's memory.";
        self.gauge("host_cache_bytes", help, |status| status.host_cache_bytes)?;
        self.gauge("disk_cache_bytes", "Caches in files.", |status| status.disk_cache_bytes)
    }

    fn device(&mut self) -> fmt::Result {
        let help = "Whether the model is on the device.";
        self.gauge("loaded", help, |status| u64::from(status.loaded))?;
        self.gauge("device_used_bytes", "Device memory in use.", |status| status.device_bytes)?;
        let help = "Device memory to be had.";
        self.gauge("device_budget_bytes", help, |status| status.device_budget_bytes)?;
        let help = "Of these, left to other programs.";
        self.gauge("device_reserve_bytes", help, |status| status.device_reserve_bytes)?;
        let help = "Times that a lost device was opened again.";
        self.counter("recoveries", help, |status| status.recoveries)?;
        self.histogram("step_seconds", "Time of a step.", |activity| &activity.step_seconds)?;
        let help = "Requests in a step.";
        self.histogram("batch_requests", help, |activity| &activity.batch_requests)?;
        self.histogram("batch_tokens", "Tokens in a step.", |activity| &activity.batch_tokens)?;
        self.gauge("uptime_seconds", "Seconds since the start.", |status| status.uptime_seconds)
    }

    fn gauge<N: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        value: impl Fn(&EngineStatus) -> N,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        self.models.iter().try_for_each(|(model, status)| {
            ConstGauge::new(value(status)).encode(family.encode_family(&[(MODEL, model.as_str())])?)
        })
    }

    fn counter(
        &mut self,
        name: &str,
        help: &str,
        value: impl Fn(&EngineStatus) -> u64,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        self.models.iter().try_for_each(|(model, status)| {
            let labels = [(MODEL, model.as_str())];
            ConstCounter::new(value(status)).encode(family.encode_family(&labels)?)
        })
    }

    fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl Fn(&EngineStatus) -> ByLabel<N>,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (model, status) in self.models {
            for (value, count) in values(status) {
                let labels = [(MODEL, model.as_str()), (label, value)];
                ConstGauge::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl Fn(&EngineStatus) -> ByLabel<N>,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (model, status) in self.models {
            for (value, count) in values(status) {
                let labels = [(MODEL, model.as_str()), (label, value)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        histogram: impl Fn(&Activity) -> &Histogram,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (model, status) in self.models {
            let Histogram { bounds, counts, sum } = histogram(&status.activity);
            let bounds = bounds.iter().copied().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
            let labels = [(MODEL, model.as_str())];
            let mut encoder = family.encode_family(&labels)?;
            encoder.encode_histogram::<NoLabelSet>(*sum, counts.iter().sum(), &buckets, None)?;
        }
        Ok(())
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
        let other = EngineStatus { running: 1, ..EngineStatus::default() };
        let models = vec![(r#"a "model""#.to_owned(), status), ("b".to_owned(), other)];
        let text = text(models, 5);
        let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        has("hob_connections 5");
        has("# TYPE hob_requests_running gauge");
        has(r#"hob_requests_running{model="a \"model\""} 3"#);
        has(r#"hob_requests_running{model="b"} 1"#);
        has(r#"hob_prompt_tokens_total{model="a \"model\"",source="cached"} 7"#);
        has(r#"hob_kv_pages{model="a \"model\"",state="soiled"} 2"#);
        has(r#"hob_step_seconds_bucket{le="0.001",model="a \"model\""} 4"#);
        has(r#"hob_step_seconds_bucket{le="0.005",model="a \"model\""} 5"#);
        has(r#"hob_step_seconds_bucket{le="+Inf",model="a \"model\""} 5"#);
        has(r#"hob_step_seconds_count{model="a \"model\""} 5"#);
        let described = text.lines().filter(|line| line.starts_with("# TYPE hob_step_seconds"));
        assert_eq!(described.count(), 1, "all models' values stand under one description");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
