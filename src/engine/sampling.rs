//! How a model wants its tokens to be chosen, by the metadata that converters make of a
//! `generation_config.json`.

use tracing::warn;

use crate::config::SamplingOverrides;
use crate::gguf::{GgufError, Metadata};
use crate::sampler::SamplingParams;

/// What requests to a model begin with: the operator's settings, else the file's, else built in.
///
/// # Errors
/// A value of the file that is no number. One that is out of its range is left out, with a warning.
pub(super) fn defaults(
    metadata: &Metadata,
    operators: SamplingOverrides,
) -> Result<SamplingParams, GgufError> {
    let number = |key: &str| metadata.opt_f32(&format!("general.sampling.{key}"));
    let of_file = [
        SamplingOverrides { temperature: number("temp")?, ..SamplingOverrides::default() },
        SamplingOverrides { top_k: top_k(metadata)?, ..SamplingOverrides::default() },
        SamplingOverrides { top_p: number("top_p")?, ..SamplingOverrides::default() },
        SamplingOverrides { min_p: number("min_p")?, ..SamplingOverrides::default() },
        SamplingOverrides {
            repeat_penalty: number("penalty_repeat")?,
            ..SamplingOverrides::default()
        },
    ];
    let mut params = SamplingParams::default();
    for setting in of_file {
        let with = params.with(setting);
        match with.check() {
            Ok(()) => params = with,
            Err(error) => warn!(%error, "the model's general.sampling metadata: left out"),
        }
    }
    Ok(params.with(operators))
}

/// A number below 1 keeps all.
fn top_k(metadata: &Metadata) -> Result<Option<u32>, GgufError> {
    let found = metadata.opt_i32("general.sampling.top_k")?;
    Ok(found.map(|count| u32::try_from(count).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{GgufBuilder, GgufFile, Value};

    fn file(build: impl FnOnce(GgufBuilder) -> GgufBuilder) -> GgufFile {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, build(GgufBuilder::new()).build()).expect("written");
        GgufFile::open(&path).expect("a GGUF file")
    }

    #[test]
    fn the_operator_comes_before_the_file_and_the_file_before_what_is_built_in() {
        let file = file(|gguf| {
            gguf.metadata("general.sampling.temp", 0.25_f32)
                .metadata("general.sampling.top_k", Value::I32(-1))
                .metadata("general.sampling.top_p", 0.5_f32)
                .metadata("general.sampling.penalty_repeat", 1.25_f32)
        });
        let operators = SamplingOverrides { top_p: Some(0.75), ..SamplingOverrides::default() };
        let found = defaults(file.metadata(), operators).expect("numbers");
        let built_in = SamplingParams::default();
        let wanted = SamplingParams {
            temperature: 0.25,
            top_k: 0,
            top_p: 0.75,
            repeat_penalty: 1.25,
            ..built_in
        };
        assert_eq!(found, wanted);
    }

    #[test]
    fn what_is_out_of_range_is_left_out_and_what_is_no_number_refused() {
        let operators = SamplingOverrides::default();
        let file_1 = file(|gguf| {
            gguf.metadata("general.sampling.temp", -1.0_f32)
                .metadata("general.sampling.min_p", 0.125_f32)
        });
        let found = defaults(file_1.metadata(), operators).expect("numbers");
        assert_eq!(found, SamplingParams { min_p: 0.125, ..SamplingParams::default() });
        let file_2 = file(|gguf| gguf.metadata("general.sampling.temp", "warm"));
        let error = defaults(file_2.metadata(), operators).expect_err("a text").to_string();
        assert!(error.contains("general.sampling.temp") && error.contains("f32"), "{error}");
    }
}
