//! The rotation of a folder's model: bases, width and scaling, in the keys of a GGUF file.
//!
//! Older files have `rope_theta` and `rope_scaling`, newer ones `rope_parameters`, which Gemma 3
//! has for each kind of layer. The objects are closed: a key that is not known here is refused,
//! as it would change the frequencies.

use serde_json::Value as Json;

use super::HfError;
use super::config::{Architecture, Reader};
use super::json::Object;

/// Where the sizes of rope_parameters of Gemma 3 stand.
const GLOBAL: &str = "full_attention";
const LOCAL: &str = "sliding_attention";

/// Base of Gemma 3's layers with a window.
const LOCAL_BASE: f32 = 10_000.0;

/// Keys of a rotation's object, for each kind of scaling, beside those of all.
const COMMON: [&str; 4] = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
const LINEAR: &[&str] = &["factor"];
const YARN: &[&str] = &[
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "finetuned",
];
const LLAMA3: &[&str] =
    &["factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"];
const LONGROPE: &[&str] = &[
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "short_factor",
    "long_factor",
];

impl Reader<'_> {
    /// Bases, width and scaling of the rotation.
    pub(super) fn rotation(&mut self) -> Result<(), HfError> {
        let object = self.object;
        let parameters = object.opt_object("rope_parameters")?;
        // An empty object is none, and an older file's goes first.
        let scaling = object.opt_object("rope_scaling")?.filter(|scaling| !scaling.is_empty());
        let (global, name) = if self.architecture == Architecture::Gemma3 {
            let local = parameters.as_ref().map(|all| self.local_rotation(all)).transpose()?;
            let base = match local.flatten() {
                Some(base) => base,
                None => object.opt_f32("rope_local_base_freq")?.unwrap_or(LOCAL_BASE),
            };
            self.add("rope.freq_base_swa", base);
            let global = match &parameters {
                Some(all) => all.opt_object(GLOBAL)?,
                None => None,
            };
            match (scaling, global) {
                (Some(scaling), None) => (Some(scaling), "rope_scaling".to_owned()),
                (None, global) => (global, format!("rope_parameters.{GLOBAL}")),
                (Some(_), Some(_)) => {
                    let wanted = "no such key beside rope_parameters";
                    return Err(object.refuse("rope_scaling", wanted, "both"));
                }
            }
        } else if scaling.is_some() {
            (scaling, "rope_scaling".to_owned())
        } else {
            (parameters, "rope_parameters".to_owned())
        };
        let none = Object::empty_beside(object);
        self.scaled(&global.unwrap_or(none), &name)
    }

    /// The base of Gemma 3's layers with a window, which no file scales.
    fn local_rotation(&self, all: &Object) -> Result<Option<f32>, HfError> {
        if let Some(key) = all.keys().find(|key| ![GLOBAL, LOCAL].contains(key)) {
            let wanted = format!("no such key: the objects {GLOBAL} and {LOCAL} alone");
            return Err(all.refuse(&format!("rope_parameters.{key}"), &wanted, "one"));
        }
        let Some(local) = all.opt_object(LOCAL)? else { return Ok(None) };
        let name = format!("rope_parameters.{LOCAL}");
        check_keys(&local, &name, &[])?;
        match kind_of(&local)? {
            None | Some("default") => local.opt_f32("rope_theta"),
            Some(found) => {
                let key = format!("{name}.rope_type");
                Err(local.refuse(&key, "default", format!("{found:?}")))
            }
        }
    }

    /// The rotation that an object called `name` describes.
    fn scaled(&mut self, scaling: &Object, name: &str) -> Result<(), HfError> {
        let object = self.object;
        let base = scaling.opt_f32("rope_theta")?.or(object.opt_f32("rope_theta")?);
        let base = base.unwrap_or(self.defaults.rope_theta);
        self.add("rope.freq_base", base);
        let rope_dim = self.rope_dim(scaling, name)?;
        self.add("rope.dimension_count", rope_dim);
        let kind = kind_of(scaling)?;
        let is_phi = self.architecture == Architecture::Phi3;
        let (kind, keys) = match kind {
            None | Some("default") => (Kind::Plain, &[][..]),
            // By which names older files of Phi 3 called it.
            Some("su" | "yarn" | "longrope") if is_phi => (Kind::Long, LONGROPE),
            Some("longrope") => (Kind::Long, LONGROPE),
            Some("linear") if !is_phi => (Kind::Linear, LINEAR),
            Some("yarn") => (Kind::Yarn, YARN),
            Some("llama3") if !is_phi => (Kind::Llama3, LLAMA3),
            Some(found) => {
                let wanted = match is_phi {
                    true => "default or longrope",
                    false => "default, linear, yarn, llama3 or longrope",
                };
                let key = format!("{name}.rope_type");
                return Err(object.refuse(&key, wanted, format!("{found:?}")));
            }
        };
        check_keys(scaling, name, keys)?;
        match kind {
            Kind::Plain => Ok(()),
            Kind::Linear => {
                self.add("rope.scaling.type", "linear");
                self.add("rope.scaling.factor", scaling.positive("factor")?);
                Ok(())
            }
            Kind::Yarn => self.yarn(scaling, name),
            Kind::Llama3 => self.llama3(scaling, base, rope_dim),
            Kind::Long => self.longrope(scaling, rope_dim),
        }
    }

    /// Dimensions that are rotated: a share of them in Phi alone.
    fn rope_dim(&self, scaling: &Object, name: &str) -> Result<u32, HfError> {
        let key = "partial_rotary_factor";
        let share = match scaling.opt_f32(key)? {
            Some(share) => Some((format!("{name}.{key}"), share)),
            None => self.object.opt_f32(key)?.map(|share| (key.to_owned(), share)),
        };
        let Some((key, share)) = share else { return Ok(self.head_dim) };
        if share == 1.0 || self.architecture == Architecture::Phi3 && (0.0..1.0).contains(&share) {
            return Ok((self.head_dim as f32 * share) as u32);
        }
        let wanted = if self.architecture == Architecture::Phi3 { "0 to 1" } else { "1" };
        Err(self.object.refuse(&key, wanted, share))
    }

    /// Positions that the frequencies were made for.
    fn original_context(&self, scaling: &Object) -> Result<u32, HfError> {
        let key = "original_max_position_embeddings";
        // What stands beside the object goes first.
        let original =
            match self.object.opt_u32(key)?.or(self.defaults.original_max_position_embeddings) {
                None => scaling.opt_u32(key)?,
                found => found,
            };
        match original.unwrap_or(self.context) {
            0 => Err(self.object.refuse(key, "at least 1", 0)),
            found => Ok(found),
        }
    }

    /// YaRN, with the size of cosines and sines as it is given, or follows from others.
    fn yarn(&mut self, scaling: &Object, name: &str) -> Result<(), HfError> {
        let original = self.original_context(scaling)?;
        let factor = match scaling.opt_positive("factor")? {
            Some(factor) => factor,
            None => self.context as f32 / original as f32,
        };
        if scaling.opt_bool("truncate")? == Some(false) {
            return Err(scaling.refuse(&format!("{name}.truncate"), "true", false));
        }
        self.add("rope.scaling.type", "yarn");
        self.add("rope.scaling.factor", factor);
        self.add("rope.scaling.original_context_length", original);
        for (key, from) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
            // 0 stands for the usual number, as none does.
            let turns = scaling.opt_f32(from)?.filter(|turns| *turns != 0.0);
            if let Some(turns) = turns {
                self.add(&format!("rope.scaling.{key}"), turns);
            }
        }
        let size = |multiplier: f64| match factor > 1.0 {
            true => 0.1 * multiplier * f64::from(factor).ln() + 1.0,
            false => 1.0,
        };
        let scale = |key: &str| -> Result<Option<f64>, HfError> {
            Ok(scaling.opt_f32(key)?.map(f64::from).filter(|scale| *scale != 0.0))
        };
        let own = match scaling.opt_positive("attention_factor")? {
            Some(own) => Some(f64::from(own)),
            None => match (scale("mscale")?, scale("mscale_all_dim")?) {
                (Some(one), Some(other)) => Some(size(one) / size(other)),
                _ => None,
            },
        };
        // Readers multiply by the usual size themselves.
        if let Some(own) = own {
            self.add("rope.scaling.attn_factor", (own / size(1.0)) as f32);
        }
        Ok(())
    }

    /// Llama 3's scaling: a divisor for each frequency, by its wavelength.
    fn llama3(&mut self, scaling: &Object, base: f32, rope_dim: u32) -> Result<(), HfError> {
        let factor = f64::from(scaling.positive("factor")?);
        let low = f64::from(scaling.positive("low_freq_factor")?);
        let high = f64::from(scaling.positive("high_freq_factor")?);
        let original = f64::from(self.original_context(scaling)?);
        let divisors = (0..rope_dim / 2).map(|pair| {
            let exponent = f64::from(pair) * 2.0 / f64::from(rope_dim);
            let wavelength = std::f64::consts::TAU * f64::from(base).powf(exponent);
            if wavelength < original / high {
                return 1.0;
            }
            if wavelength > original / low {
                return factor as f32;
            }
            let smooth = (original / wavelength - low) / (high - low);
            (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
        });
        self.made.push(("rope_freqs.weight", divisors.collect()));
        Ok(())
    }

    /// Phi 3's: divisors for short and for long contexts.
    fn longrope(&mut self, scaling: &Object, rope_dim: u32) -> Result<(), HfError> {
        let pairs = rope_dim as usize / 2;
        self.made.push(("rope_factors_long.weight", scaling.numbers("long_factor", pairs)?));
        self.made.push(("rope_factors_short.weight", scaling.numbers("short_factor", pairs)?));
        let original = self.original_context(scaling)?;
        self.add("rope.scaling.original_context_length", original);
        if self.architecture != Architecture::Phi3 {
            self.add("rope.scaling.type", "longrope");
        }
        let growth = match scaling.opt_positive("factor")? {
            Some(factor) => f64::from(factor),
            None => f64::from(self.context) / f64::from(original),
        };
        let size = match scaling.opt_positive("attention_factor")? {
            Some(size) => size,
            None if growth <= 1.0 => 1.0,
            None => (1.0 + growth.ln() / f64::from(original.max(2)).ln()).sqrt() as f32,
        };
        self.add("rope.scaling.attn_factor", size);
        Ok(())
    }
}

enum Kind {
    Plain,
    Linear,
    Yarn,
    Llama3,
    Long,
}

fn kind_of(scaling: &Object) -> Result<Option<&str>, HfError> {
    match scaling.opt_str("rope_type")? {
        None => scaling.opt_str("type"),
        kind => Ok(kind),
    }
}

/// Refuses keys of a rotation that its kind does not have: they would be passed over.
fn check_keys(scaling: &Object, name: &str, own: &[&str]) -> Result<(), HfError> {
    let is_known = |key: &str| COMMON.contains(&key) || own.contains(&key);
    match scaling.keys().find(|key| !is_known(key) && scaling.get(key).is_some()) {
        None => Ok(()),
        Some(key) => {
            let found = scaling.get(key).map(Json::to_string).unwrap_or_default();
            Err(scaling.refuse(&format!("{name}.{key}"), "no such key", found))
        }
    }
}
