//! The pre-tokenizers by the name that files give them, with the split rules llama.cpp uses for it.
//!
//! The rules are the models' own; names and rules follow llama.cpp's `llama-vocab.cpp`. Its
//! trailing `\s+(?!\S)|\s+` is written `\s+` here, see [`super::pre`].

/// How a byte-level vocabulary wants its text cut and its specials set.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PreRule {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Applied one after the other, each to the pieces of the one before.
    pub(super) stages: &'static [&'static str],
    /// A word that is a token as it stands is not merged.
    pub(super) ignore_merges: bool,
    /// BOS is added where the file does not say.
    pub(super) add_bos: bool,
}

impl PreRule {
    const fn new(names: &'static [&'static str], stages: &'static [&'static str]) -> Self {
        Self { names, stages, ignore_merges: false, add_bos: false }
    }

    const fn ignore_merges(mut self) -> Self {
        self.ignore_merges = true;
        self
    }

    const fn add_bos(mut self) -> Self {
        self.add_bos = true;
        self
    }
}

/// The rule of that name.
pub(super) fn rule(name: &str) -> Option<&'static PreRule> {
    RULES.iter().find(|rule| rule.names.contains(&name))
}

/// All names, for messages.
pub(super) fn known_names() -> String {
    let names: Vec<_> = RULES.iter().flat_map(|rule| rule.names).copied().collect();
    names.join(", ")
}

/// English contractions, either case.
macro_rules! contractions {
    () => {
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}

/// GPT-2's rule.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

/// GPT-4's rule, with the given rule for numbers.
macro_rules! gpt4 {
    ($numbers:literal) => {
        concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
        )
    };
}

/// Words of one case: upper-case letters and then lower-case ones. As in llama.cpp, a letter
/// outside ASCII counts as either.
macro_rules! cased_words {
    ($suffix:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*",
            $suffix
        )
    };
}

/// DeepSeek V3's last stage, up to the line ends.
macro_rules! deepseek3 {
    () => {
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
            r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"
        )
    };
}

/// Letters of the alphabetic scripts that DeepSeek LLM's rule lists. Escaped, because editors and
/// tools normalise some of them (U+212A) to others.
const DEEPSEEK_LETTERS: &str = "\\s?[\
    A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\
    \u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\
    \u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\
    \u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\
    \u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\
    \u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\
    \u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\
    \u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\
    \u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\
    \u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\
    \u{2145}-\u{2149}\u{214e}\u{2183}-\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\
    \u{2ceb}-\u{2cee}\u{2cf2}-\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\
    \u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\
    \u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\
    \u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\
    \u{1e900}-\u{1e943}]+";

const RULES: &[PreRule] = &[
    PreRule::new(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    PreRule::new(
        &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        &[gpt4!(r"\p{N}{1,3}")],
    )
    .ignore_merges()
    .add_bos(),
    PreRule::new(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], &[gpt4!(r"\p{N}{1,3}")]),
    PreRule::new(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[gpt4!(r"\p{N}")],
    ),
    PreRule::new(
        &["qwen35"],
        &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
        )],
    ),
    PreRule::new(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        &[GPT2],
    ),
    PreRule::new(
        &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[r"\p{N}", GPT2],
    ),
    PreRule::new(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    PreRule::new(
        &["deepseek-llm"],
        &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+",
            r"\s+$",
            "[\u{800}-\u{9fa5}\u{ac00}-\u{d7ff}]+",
            r"\p{N}+",
        ],
    ),
    PreRule::new(
        &["deepseek-coder"],
        &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u{800}-\u{9fa5}\u{ac00}-\u{d7ff}]+", r"\p{N}"],
    ),
    PreRule::new(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[r"\p{N}{1,3}", "[\u{4e00}-\u{9fa5}\u{3040}-\u{30ff}]+", deepseek3!()],
    ),
    PreRule::new(
        &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        &[concat!(
            cased_words!(concat!(contractions!(), "?")),
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
        )],
    ),
    PreRule::new(
        &["tekken"],
        &[concat!(cased_words!(""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+")],
    )
    .ignore_merges()
    .add_bos(),
    PreRule::new(
        &["chameleon"],
        &[
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
    )
    .add_bos(),
    PreRule::new(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[concat!(
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+"
        )],
    ),
    PreRule::new(
        &["seed-coder"],
        &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+"
        )],
    ),
    PreRule::new(
        &["exaone-moe"],
        &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+"
        )],
    ),
    PreRule::new(&["poro-chat", "bloom", "gpt3-finnish"], &[r" ?[^(\s|.,!?…。，、।۔،)]+"]),
    PreRule::new(&["viking"], &[r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"]),
    PreRule::new(&["laguna"], &[r"[^\n]+|\n+", gpt4!(r"\p{N}")]),
    PreRule::new(&["minicpm5"], &[r"\p{N}{1,3}", gpt4!(r"\p{N}+")]).ignore_merges(),
];
