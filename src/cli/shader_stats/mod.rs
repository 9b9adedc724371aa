//! `hob shader-stats`: what a driver's compiler makes of every pipeline. For those who write
//! shaders; `make shader-stats` runs it on compilers of GPUs that are not there.

mod catalogue;

use serde::Serialize;

use super::args::ShaderStatsOptions;
use super::output::{self, Output};
use super::table::{Align, Table};
use super::{CliError, exit};
use crate::vulkan::{self, PipelineStatistics, VulkanConfig};

/// A column of the table: its heading, and the names that drivers have for the figure.
const COLUMNS: [(&str, &[&str]); 7] = [
    ("VGPRS", &["VGPRs"]),
    ("SGPRS", &["SGPRs"]),
    ("SGPRS SPILLED", &[SPILL_TO_REGISTERS]),
    ("SHARED", &["LDS size"]),
    ("SCRATCH", &["Scratch size"]),
    ("CODE", &["Code size"]),
    ("WAVES", &["Subgroups per SIMD"]),
];

/// Marks of register-spill statistics in drivers' reports; they are 0 without spills.
const SPILL: &str = "spill";

/// AMD's scalar registers are spilled to lanes of vector registers, which costs an instruction and
/// no memory.
const SPILL_TO_REGISTERS: &str = "Spilled SGPRs";

/// One pipeline, as `--json` has it.
#[derive(Debug, Serialize)]
struct Entry {
    kernel: &'static str,
    spec: Vec<u32>,
    subgroup_size: u32,
    spills: f64,
    figures: serde_json::Map<String, serde_json::Value>,
}

/// All pipelines on a device.
#[derive(Debug, Serialize)]
struct Report {
    device: String,
    driver: String,
    pipelines: Vec<Entry>,
}

pub(crate) fn run(options: &ShaderStatsOptions) -> Result<u8, CliError> {
    let config = VulkanConfig { device: options.device.clone(), ..VulkanConfig::default() };
    let (caps, found) = vulkan::pipeline_statistics(&config, catalogue::record)?;
    let spilling = found.iter().filter(|pipeline| spills(pipeline) > 0.0).count();
    let pipelines = found.len();
    let mut output = Output::stdout();
    if options.json {
        let (device, driver) = (caps.device_name, caps.driver);
        let pipelines = found.into_iter().map(entry).collect();
        output.json(&Report { device, driver, pipelines })?;
    } else {
        let head = format!("{}, {}: {pipelines} pipelines", caps.device_name, caps.driver);
        output.styled_line(output::BOLD, &head)?;
        table(&found).write(&mut output)?;
    }
    if spilling > 0 {
        return Err(CliError::Spills { spilling, pipelines });
    }
    Ok(exit::DONE)
}

fn entry(pipeline: PipelineStatistics) -> Entry {
    Entry {
        kernel: pipeline.kernel,
        spills: spills(&pipeline),
        spec: pipeline.spec,
        subgroup_size: pipeline.subgroup_size,
        figures: pipeline.figures.into_iter().map(|(name, value)| (name, value.into())).collect(),
    }
}

/// Registers that went to memory, of all kinds.
fn spills(pipeline: &PipelineStatistics) -> f64 {
    let spilled = |(name, _): &&(String, f64)| {
        name.to_lowercase().contains(SPILL) && name != SPILL_TO_REGISTERS
    };
    pipeline.figures.iter().filter(spilled).map(|(_, value)| value).sum()
}

fn table(pipelines: &[PipelineStatistics]) -> Table {
    let mut columns = vec![
        ("KERNEL", Align::Left),
        ("CONSTANTS", Align::Left),
        ("WAVE", Align::Right),
        ("SPILLS", Align::Right),
    ];
    columns.extend(COLUMNS.map(|(heading, _)| (heading, Align::Right)));
    let mut table = Table::new(&columns);
    for pipeline in pipelines {
        let constants: Vec<String> = pipeline.spec.iter().map(u32::to_string).collect();
        let mut cells = vec![
            pipeline.kernel.to_owned(),
            constants.join(" "),
            pipeline.subgroup_size.to_string(),
            spills(pipeline).to_string(),
        ];
        cells.extend(COLUMNS.map(|(_, names)| {
            let known = |(name, _): &&(String, f64)| names.contains(&name.as_str());
            let figure = pipeline.figures.iter().find(known);
            figure.map_or("-".to_owned(), |(_, value)| value.to_string())
        }));
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spills_to_memory_count() {
        let figure = |name: &str, value| (name.to_owned(), value);
        let pipeline = PipelineStatistics {
            kernel: "k",
            spec: vec![32, 1],
            subgroup_size: 32,
            figures: vec![
                figure("VGPRs", 96.0),
                figure("Spilled SGPRs", 1.0),
                figure("Spilled VGPRs", 4.0),
            ],
        };
        assert_eq!(spills(&pipeline), 4.0);
        assert_eq!(entry(pipeline).figures["VGPRs"], 96.0);
    }
}
