//! A LoRA adapter in the configuration: a name, and the file that it stands for.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An adapter: `NAME=PATH`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Lora {
    /// What requests call it.
    pub name: String,
    /// Its GGUF file.
    pub path: PathBuf,
}

/// Longest name.
const NAME_BYTES_MAX: usize = 64;

impl FromStr for Lora {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = text.split_once('=').filter(|(name, path)| {
            let letters = !name.contains(|c: char| c.is_whitespace() || c.is_control());
            (1..=NAME_BYTES_MAX).contains(&name.len()) && letters && !path.is_empty()
        });
        let Some((name, path)) = found else {
            let wanted = format!("NAME=PATH with a name of 1 to {NAME_BYTES_MAX} bytes");
            return Err(format!("wanted {wanted} and no spaces, found {text:?}"));
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
