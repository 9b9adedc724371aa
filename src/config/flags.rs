//! The command line of `hobd`: which configuration to read, and what overrides it.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use super::{Config, ConfigError, KvDtype, LogLevel, Lora, Places, Quantize, SelfCheck, load};

const ABOUT: &str = "Serve a language model on a Vulkan device over a Unix socket";

const AFTER_HELP: &str = "\
Without --config, the first of ~/.config/hob/hobd.toml and /etc/hob/hobd.toml is read; flags
override it. The first SIGTERM, SIGINT or SIGHUP ends hobd in order: requests have
shutdown_timeout_ms (4 s) to end, then sessions are saved for at most save_timeout_ms (30 s; under
systemd for as long as it gets on). A second SIGTERM or SIGINT ends it at once. SIGHUP stays ignored
under nohup.

Exit status:
  0    stopped by a signal, or the configuration is in order (--check-config)
  2    the command line is wrong
  69   no Vulkan loader, no device, or the device failed before it served anything
  71   the operating system refused something else
  73   the socket cannot be served, or the saved sessions not used: another hobd does, or the
       folder is not safe
  74   stopped, but sessions could not be saved: the log names them
  75   the device was lost three times in ten minutes; starting again may help
  78   the configuration or the model is wrong, or the model does not fit the device";

/// Flags of `hobd`.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "hobd", version, about = ABOUT, after_help = AFTER_HELP)]
pub struct Flags {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Model to load: a name of `hob models`, a GGUF file, or a Hugging Face folder of safetensors
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Quantise the matrices of a folder as they are loaded
    #[arg(long, value_name = "TYPE")]
    pub quantize: Option<Quantize>,
    /// LoRA adapter of the model, which requests may use by its name; may be repeated
    #[arg(long, value_name = "NAME=PATH")]
    pub lora: Vec<Lora>,
    /// Chat template: a name, such as chatml or llama3, or a file
    #[arg(long, value_name = "NAME")]
    pub chat_template: Option<String>,
    /// Cut text by the default rule where the model's pre-tokenizer is not known
    #[arg(long)]
    pub tokenizer_fallback: bool,
    /// Unix socket to serve
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Vulkan device: an index of `hob devices`, a name or a part of one, or a UUID
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Number format of the KV cache
    #[arg(long, value_name = "TYPE")]
    pub kv_dtype: Option<KvDtype>,
    /// Default and most context of a session, in tokens
    #[arg(long, value_name = "N")]
    pub context_tokens: Option<u32>,
    /// Run under the Vulkan validation layer
    #[arg(long)]
    pub validation: bool,
    /// When to check the device's kernels against the reference: auto checks what is new
    #[arg(long, value_name = "WHEN")]
    pub self_check: Option<SelfCheck>,
    /// How much the log tells
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,
    /// Check the configuration and exit
    #[arg(long)]
    pub check_config: bool,
}

impl Flags {
    /// The configuration file with these flags on top of it.
    ///
    /// # Errors
    /// As [`load()`], or a flag's value is out of range.
    pub fn configuration(&self, places: &Places) -> Result<Config, ConfigError> {
        let mut config = load(self.config.as_deref(), places)?;
        self.apply(&mut config);
        config.check()?;
        Ok(config)
    }

    fn apply(&self, config: &mut Config) {
        fn set<T: Clone>(to: &mut T, from: &Option<T>) {
            if let Some(value) = from {
                *to = value.clone();
            }
        }
        set(&mut config.model, &self.model);
        set(&mut config.socket, &self.socket);
        set(&mut config.device, &self.device);
        set(&mut config.kv_dtype, &self.kv_dtype);
        set(&mut config.context_tokens, &self.context_tokens);
        set(&mut config.log_level, &self.log_level);
        set(&mut config.quantize, &self.quantize);
        set(&mut config.self_check, &self.self_check);
        set(&mut config.chat_template, &self.chat_template);
        if !self.lora.is_empty() {
            config.lora.clone_from(&self.lora);
        }
        config.validation |= self.validation;
        config.tokenizer_fallback |= self.tokenizer_fallback;
    }
}

impl ValueEnum for KvDtype {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Auto, Self::F32, Self::F16, Self::Q8_0]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(match self {
            Self::Auto => "auto".into(),
            Self::F32 => "f32".into(),
            Self::F16 => "f16".into(),
            Self::Q8_0 => "q8_0".into(),
        })
    }
}

impl ValueEnum for SelfCheck {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Auto, Self::Always, Self::Never]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(match self {
            Self::Auto => "auto".into(),
            Self::Always => "always".into(),
            Self::Never => "never".into(),
        })
    }
}

impl ValueEnum for Quantize {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::None, Self::Q8_0, Self::Q6_K, Self::Q5_K, Self::Q4_K, Self::Q4_0]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(match self {
            Self::None => "none".into(),
            Self::Q8_0 => "q8_0".into(),
            Self::Q6_K => "q6_k".into(),
            Self::Q5_K => "q5_k".into(),
            Self::Q4_K => "q4_k".into(),
            Self::Q4_0 => "q4_0".into(),
        })
    }
}

impl ValueEnum for LogLevel {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(match self {
            Self::Error => "error".into(),
            Self::Warn => "warn".into(),
            Self::Info => "info".into(),
            Self::Debug => "debug".into(),
            Self::Trace => "trace".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_file_and_are_checked_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("hobd.toml");
        std::fs::write(&file, "model = \"a\"\nsocket = \"s\"\nvalidation = true").expect("written");
        let file = file.to_str().expect("a text");
        let read = |more: &[&str]| {
            let arguments = [&["hobd", "--config", file], more].concat();
            Flags::try_parse_from(arguments).expect("valid flags").configuration(&Places::default())
        };
        let config = read(&["--model", "b", "--kv-dtype", "f16", "--log-level", "trace"]);
        let expected = Config {
            model: "b".into(),
            socket: "s".into(),
            validation: true,
            kv_dtype: KvDtype::F16,
            log_level: LogLevel::Trace,
            ..Config::default()
        };
        assert_eq!(config.expect("valid"), expected);
        let error = read(&["--context-tokens", "4000000"]).expect_err("out of range").to_string();
        assert_eq!(error, "context_tokens: wanted an integer from 0 to 1048576, found 4000000");
    }
}
