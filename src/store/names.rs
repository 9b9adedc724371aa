//! Names of models, and what file names tell: parts of a split model, quantisations.

use super::error::StoreError;

/// Longest name; a folder is called so.
const NAME_BYTES_MAX: usize = 96;

const ENDING: &str = ".gguf";

/// True if a text can be a model's name: it needs no quoting, and is no path.
pub(super) fn is_name(text: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.chars().all(good)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !text.to_ascii_lowercase().ends_with(ENDING)
        && text != super::PARTIAL
        && !text.starts_with("manifest.")
}

/// Checks a name that somebody chose.
pub(super) fn check(name: &str) -> Result<(), StoreError> {
    match is_name(name) {
        true => Ok(()),
        false => Err(StoreError::BadName { name: name.to_owned() }),
    }
}

/// The name of a model that has none yet: its file's, in lower case, without ending and part.
pub(super) fn of_file(file: &str) -> String {
    let file = file.rsplit('/').next().unwrap_or(file).to_ascii_lowercase();
    let stem = file.strip_suffix(ENDING).unwrap_or(&file);
    let stem = Part::of(&file).map_or(stem, |part| &stem[..part.stem_bytes]);
    let good = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = stem.chars().map(good).take(NAME_BYTES_MAX).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    if is_name(name) { name.to_owned() } else { "model".to_owned() }
}

/// True if a file can be (a part of) a model: not a projector of images, nor an importance matrix.
pub(super) fn is_model_file(file: &str) -> bool {
    let file = file.rsplit('/').next().unwrap_or(file).to_ascii_lowercase();
    file.ends_with(ENDING) && !file.starts_with("mmproj") && !file.contains("imatrix")
}

/// `-00002-of-00005.gguf`: which part of a model a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// From 1.
    pub(super) index: u32,
    pub(super) count: u32,
    /// Bytes of the name before it.
    stem_bytes: usize,
}

impl Part {
    /// Parts that there may be.
    const COUNT_MAX: u32 = 999;

    pub(super) fn of(file: &str) -> Option<Self> {
        let stem = file.strip_suffix(ENDING)?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (name, index) = rest.rsplit_once('-')?;
        let number = |text: &str| {
            let digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten()
        };
        let (index, count): (u32, u32) = (number(index)?, number(count)?);
        let valid = (1..=count).contains(&index) && count <= Self::COUNT_MAX;
        valid.then_some(Self { index, count, stem_bytes: name.len() })
    }

    /// The names of all parts of the model that `file` is one of; `file` alone if it is not split.
    pub(super) fn all(file: &str) -> Vec<String> {
        let Some(part) = Self::of(file) else { return vec![file.to_owned()] };
        let (stem, count) = (&file[..part.stem_bytes], part.count);
        (1..=count).map(|index| format!("{stem}-{index:05}-of-{count:05}{ENDING}")).collect()
    }
}

/// True if a file's name has this quantisation as a word of its own: `Q4_K` is not `Q4_K_M`.
pub(super) fn has_quant(file: &str, quant: &str) -> bool {
    let (file, quant) = (file.to_ascii_uppercase(), quant.to_ascii_uppercase());
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    file.match_indices(&quant).any(|(start, _)| {
        let (before, behind) = (&file[..start], &file[start + quant.len()..]);
        !before.chars().next_back().is_some_and(word) && !behind.chars().next().is_some_and(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_file_names() {
        assert_eq!(of_file("sub/SmolLM2-135M.Q4_1.gguf"), "smollm2-135m.q4_1");
        assert_eq!(of_file("Big-00001-of-00003.gguf"), "big");
        assert_eq!(of_file("..gguf"), "model");
        assert_eq!(of_file("a b(c).GGUF"), "a-b-c-");
        assert!(!is_name("a/b") && !is_name("x.gguf") && !is_name(".x") && !is_name(""));
        assert!(!is_name("partial") && is_name("qwen3-0.6b"));
    }

    #[test]
    fn a_part_knows_the_others() {
        let all = Part::all("m-00002-of-00003.gguf");
        assert_eq!(all[0], "m-00001-of-00003.gguf");
        assert_eq!((all.len(), all[2].as_str()), (3, "m-00003-of-00003.gguf"));
        for none in ["m-00004-of-00003.gguf", "m-1-of-3.gguf", "m-00001-of-00000.gguf", "m.gguf"] {
            assert_eq!(Part::all(none), [none]);
        }
    }

    #[test]
    fn a_quantisation_is_a_word() {
        assert!(has_quant("m-Q4_K_M.gguf", "q4_k_m") && has_quant("m.Q4_K.gguf", "Q4_K"));
        assert!(has_quant("m-q8_0-00001-of-00002.gguf", "Q8_0"));
        assert!(!has_quant("m-Q4_K_M.gguf", "Q4_K") && !has_quant("m-IQ4_XS.gguf", "Q4_XS"));
    }
}
