//! A LoRA adapter in the configuration: a name, and the file that it stands for.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An adapter: `NAME=PATH`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Lora {
    /// Name used in requests.
    pub name: String,
    /// Its GGUF file.
    pub path: PathBuf,
}

impl Lora {
    /// Expected form of a name.
    pub const NAME_WANTED: &str = "a name of 1 to 64 bytes, without spaces";

    /// True if an adapter can be called this.
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        let letters = !name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '=');
        (1..=64).contains(&name.len()) && letters
    }
}

impl FromStr for Lora {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = text.split_once('=');
        let found = found.filter(|(name, path)| Self::is_name(name) && !path.is_empty());
        let Some((name, path)) = found else {
            return Err(format!("wanted NAME=PATH with {}, found {text:?}", Self::NAME_WANTED));
        };
        Ok(Self { name: name.to_owned(), path: path.into() })
    }
}

impl TryFrom<String> for Lora {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Lora> for String {
    fn from(lora: Lora) -> Self {
        format!("{}={}", lora.name, lora.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_path_make_an_adapter() {
        let lora: Lora = "law=/models/a=b.gguf".parse().unwrap();
        assert_eq!((&lora.name[..], lora.path.to_str()), ("law", Some("/models/a=b.gguf")));
        assert_eq!(String::from(lora), "law=/models/a=b.gguf");
        for wrong in ["law", "=x", "law=", "a b=x"] {
            assert!(wrong.parse::<Lora>().unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
