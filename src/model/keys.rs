//! Metadata of one architecture, read by key without its name in front.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::ModelLoadError;
use crate::gguf::{GgufFile, Metadata, Value};

/// True for a value that leaves results as they are without the key.
fn changes_nothing(key: &str, value: &Value) -> bool {
    let is_factor = key.ends_with("_scale") || key.ends_with(".scale") || key.ends_with("_factor");
    // One group of experts is no groups; the first way of weighing them is the softmax.
    let is_first = key.starts_with("expert_group_") || key == "expert_gating_func";
    let is_neutral = |value: f64| value == 0.0 || (is_factor || is_first) && value == 1.0;
    match value {
        Value::Bool(value) => !value || key == "attention.causal",
        Value::F32(value) => is_neutral(f64::from(*value)),
        Value::F64(value) => is_neutral(*value),
        Value::U32(value) => is_neutral(f64::from(*value)),
        Value::I32(value) => is_neutral(f64::from(*value)),
        _ => false,
    }
}

/// Widest activation accepted: far above any model, small enough that no product overflows.
pub(super) const WIDTH_MAX: u32 = 1 << 20;

/// Reads keys of one architecture, with its name in front.
pub(super) struct Keys<'a> {
    file: &'a GgufFile,
    architecture: &'a str,
    /// Names of the keys that were asked for.
    read: RefCell<BTreeSet<String>>,
}

/// Keys that change results wherever llama.cpp reads them. A file of an architecture that does not
/// read one of these, here, is refused, unless its value says that nothing is changed: 0, false,
/// or a factor of 1. `attention.scale` is none of them: llama.cpp passes it over where hob does, as
/// a golden of llama holds. All other keys that nothing reads tell people about the model, or how
/// it was made, or are of architectures that hob does not run.
const CHANGING: [&str; 39] = [
    "attention.block_count",
    "attention.causal",
    "attention.chunk_size",
    "attention.clamp_kqv",
    "attention.key_length_mla",
    "attention.key_length_swa",
    "attention.kv_lora_rank",
    "attention.max_alibi_bias",
    "attention.output_scale",
    "attention.q_lora_rank",
    "attention.shared_kv_layers",
    "attention.sliding_window_pattern",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_length_mla",
    "attention.value_length_swa",
    "attn_logit_softcapping",
    "embedding_scale",
    "expert_count",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_scale",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "final_logit_softcapping",
    "interleave_moe_layer_step",
    "leading_dense_block_count",
    "logit_scale",
    "moe_every_n_layers",
    "residual_scale",
    "rope.dimension_count_swa",
    "rope.dimension_sections",
    "rope.freq_base_swa",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "router_logit_softcapping",
];

impl<'a> Keys<'a> {
    pub(super) fn new(file: &'a GgufFile, architecture: &'a str) -> Self {
        Self { file, architecture, read: RefCell::default() }
    }

    pub(super) fn architecture(&self) -> &'a str {
        self.architecture
    }

    pub(super) fn metadata(&self) -> &'a Metadata {
        self.file.metadata()
    }

    /// The whole name of a key that is read.
    pub(super) fn name(&self, key: &str) -> String {
        let name = format!("{}.{key}", self.architecture);
        self.read.borrow_mut().insert(name.clone());
        name
    }

    /// Counts keys as read that mean nothing in this file.
    pub(super) fn pass_over(&self, keys: &[&str]) {
        keys.iter().for_each(|key| drop(self.name(key)));
    }

    /// Refuses a file with a key that would change results and that nobody has asked for.
    pub(super) fn check_unread(&self) -> Result<(), ModelLoadError> {
        for key in CHANGING {
            let name = format!("{}.{key}", self.architecture);
            let Some(value) = self.metadata().get(&name) else { continue };
            if !self.read.borrow().contains(&name) && !changes_nothing(key, value) {
                let wanted =
                    format!("no such key: hob does not follow it in {}", self.architecture);
                return Err(self.refuse(key, &wanted, format!("{value:?}")));
            }
        }
        Ok(())
    }

    /// True if the file has the tensor: some architectures come in two shapes that no key tells
    /// apart.
    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    pub(super) fn refuse(&self, key: &str, wanted: &str, found: impl ToString) -> ModelLoadError {
        ModelLoadError::Value {
            path: self.file.path().to_owned(),
            key: self.name(key),
            wanted: wanted.to_owned(),
            found: found.to_string(),
        }
    }

    /// A count from 1 to `max`.
    pub(super) fn count(&self, key: &str, max: u32) -> Result<u32, ModelLoadError> {
        let found = self.metadata().u32(&self.name(key))?;
        self.within(key, found, max)
    }

    /// A count from 1 to `max` that files may give for each layer: all layers must have the same.
    pub(super) fn count_of_layers(&self, key: &str, max: u32) -> Result<u32, ModelLoadError> {
        match self.opt_count_of_layers(key, max)? {
            Some(count) => Ok(count),
            None => self.count(key, max), // which tells what is wrong
        }
    }

    /// The same, or nothing.
    pub(super) fn opt_count_of_layers(
        &self,
        key: &str,
        max: u32,
    ) -> Result<Option<u32>, ModelLoadError> {
        let Some(Value::Array(listed)) = self.metadata().get(&self.name(key)) else {
            return self.opt_count(key, max);
        };
        let wanted = "one number for all layers: hob has no layers of different shapes";
        let Some(counts) = listed.integers() else {
            return Err(self.refuse(key, wanted, "an array of another kind"));
        };
        match counts.split_first() {
            Some((first, rest)) if rest.iter().all(|count| count == first) => {
                let first = u32::try_from(*first).unwrap_or(u32::MAX);
                self.within(key, first, max).map(Some)
            }
            _ => Err(self.refuse(key, wanted, format!("{counts:?}"))),
        }
    }

    /// A count from 1 to `max`, or nothing.
    pub(super) fn opt_count(&self, key: &str, max: u32) -> Result<Option<u32>, ModelLoadError> {
        let found = self.metadata().opt_u32(&self.name(key))?;
        found.map(|found| self.within(key, found, max)).transpose()
    }

    /// Width of an activation.
    pub(super) fn width(&self, key: &str) -> Result<u64, ModelLoadError> {
        self.count(key, WIDTH_MAX).map(u64::from)
    }

    /// Width of an activation; nothing where the key is absent or 0.
    pub(super) fn opt_width(&self, key: &str) -> Result<Option<u64>, ModelLoadError> {
        match self.metadata().opt_u32(&self.name(key))? {
            None | Some(0) => Ok(None),
            Some(_) => self.width(key).map(Some),
        }
    }

    fn within(&self, key: &str, found: u32, max: u32) -> Result<u32, ModelLoadError> {
        if (1..=max).contains(&found) {
            Ok(found)
        } else {
            Err(self.refuse(key, &format!("1 to {max}"), found))
        }
    }

    /// Positions of `attention.sliding_window`; nothing where it is absent or 0.
    pub(super) fn opt_window(&self) -> Result<Option<u32>, ModelLoadError> {
        let found = self.metadata().opt_u32(&self.name("attention.sliding_window"))?;
        Ok(found.filter(|window| *window > 0))
    }

    /// A truth value.
    pub(super) fn bool(&self, key: &str) -> Result<bool, ModelLoadError> {
        Ok(self.metadata().bool(&self.name(key))?)
    }

    /// A truth value, or nothing.
    pub(super) fn opt_bool(&self, key: &str) -> Result<Option<bool>, ModelLoadError> {
        Ok(self.metadata().opt_bool(&self.name(key))?)
    }

    /// A finite number above 0.
    pub(super) fn positive(&self, key: &str) -> Result<f32, ModelLoadError> {
        self.opt_positive(key, false)?
            .ok_or_else(|| self.refuse(key, "a finite number above 0", "no such key"))
    }

    /// A finite number above 0 (or at 0, where `zero` says so), or nothing.
    pub(super) fn opt_positive(
        &self,
        key: &str,
        zero: bool,
    ) -> Result<Option<f32>, ModelLoadError> {
        let Some(found) = self.metadata().opt_f32(&self.name(key))? else { return Ok(None) };
        if found.is_finite() && (found > 0.0 || zero && found == 0.0) {
            return Ok(Some(found));
        }
        let wanted = if zero { "a finite number of at least 0" } else { "a finite number above 0" };
        Err(self.refuse(key, wanted, found))
    }
}
