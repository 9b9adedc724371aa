//! The pre-tokenizers by the name that files give them, with the split rules llama.cpp uses for it.
//!
//! The rules are the models' own; names and rules follow llama.cpp's `llama-vocab.cpp`. Its
//! trailing `\s+(?!\S)|\s+` is written `\s+` here, see [`super::pre`].

/// Pre-tokenisation and special-token rules of a BPE vocabulary.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PreRule {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Numbers are cut by this first.
    pub(super) digits: Option<Digits>,
    /// Applied one after the other, each to the pieces of the one before.
    pub(super) stages: &'static [&'static str],
    /// Encoding of token texts.
    pub(super) spelling: Spelling,
    /// A word that is a token as it stands is not merged.
    pub(super) ignore_merges: bool,
    /// A run of line ends that is a token as it stands is not merged.
    pub(super) keeps_line_ends_whole: bool,
    /// White space at the end of a rule is cut into runs of these lengths.
    pub(super) white_space_runs: &'static [usize],
    /// BOS is added where the file does not say.
    pub(super) add_bos: bool,
}

/// Encoding of token texts in a BPE vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each byte as one character of the byte-level alphabet.
    Bytes,
    /// As it is, a space as U+2581.
    Escaped,
    /// As it is; white space is dropped.
    Spaceless,
}

/// Splitting of digit runs into groups of three, counted from the right, which a regular expression
/// could only do by look-ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Digits {
    /// All numerals; the run stands alone.
    Numerals,
    /// ASCII digits that no letter, digit or underscore follows; the run stands alone.
    WholeWords,
    /// ASCII digits; cut only before threes.
    BeforeThrees,
}

impl PreRule {
    const fn new(names: &'static [&'static str], stages: &'static [&'static str]) -> Self {
        Self {
            names,
            digits: None,
            stages,
            spelling: Spelling::Bytes,
            ignore_merges: false,
            keeps_line_ends_whole: false,
            white_space_runs: &[],
            add_bos: false,
        }
    }

    /// The first of its names.
    pub(super) fn name(&self) -> &'static str {
        self.names[0]
    }

    const fn digits(mut self, digits: Digits) -> Self {
        self.digits = Some(digits);
        self
    }

    const fn spelling(mut self, spelling: Spelling) -> Self {
        self.spelling = spelling;
        self
    }

    const fn keeps_line_ends_whole(mut self) -> Self {
        self.keeps_line_ends_whole = true;
        self
    }

    const fn white_space_runs(mut self, runs: &'static [usize]) -> Self {
        self.white_space_runs = runs;
        self
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

/// GPT-4's rule behind the contractions, with the given rule for numbers.
macro_rules! gpt4_words {
    ($numbers:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?\p{L}+|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
        )
    };
}

/// GPT-4's rule, with the given rule for numbers.
macro_rules! gpt4 {
    ($numbers:literal) => {
        concat!(contractions!(), "|", gpt4_words!($numbers))
    };
}

/// Words of one case: upper-case letters and then lower-case ones. As in llama.cpp, a letter
/// outside ASCII counts as either.
macro_rules! cased_words {
    ($letters:literal, $suffix:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[",
            $letters,
            r"&&[^a-z]]*[",
            $letters,
            r"&&[^A-Z]]+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?[",
            $letters,
            r"&&[^a-z]]+[",
            $letters,
            r"&&[^A-Z]]*",
            $suffix
        )
    };
}

/// Words of letters and marks with a contraction behind them. The models' own rules tell the cases
/// apart; llama.cpp has one class for all letters.
macro_rules! marked_words {
    ($numbers:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
            contractions!(),
            "?|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
        )
    };
}

/// DeepSeek V3's last stage, with the given rule for line ends.
macro_rules! deepseek3 {
    ($line_ends:literal) => {
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
            r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+",
            $line_ends,
            r"|\s+"
        )
    };
}

/// Characters that Kimi's rule takes as Han.
macro_rules! han {
    () => {
        "\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{20000}-\u{2a6df}\u{2a700}-\u{2ebef}\u{f900}-\u{faff}\
         \u{2f800}-\u{2fa1f}"
    };
}

/// The scripts without spaces that AFMoE cuts off.
const AFMOE_SCRIPTS: &str = "[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{f900}-\u{faff}\u{3040}-\u{309f}\
    \u{30a0}-\u{30ff}\u{ff65}-\u{ff9f}\u{2f00}-\u{2fdf}\u{e40}-\u{e7f}\u{ec0}-\u{eff}\
    \u{1780}-\u{17ff}\u{1000}-\u{109f}\u{aa60}-\u{aa7f}\u{a9e0}-\u{a9ff}\u{ac00}-\u{d7af}\
    \u{1100}-\u{11ff}]+";

/// The scripts that Youtu cuts off, one by one.
const YOUTU_SCRIPTS: &str = "[\u{ac00}-\u{d7a3}\u{3131}-\u{318e}]+|\
    [\u{ff01}\u{2026}\u{201c}\u{201d}\u{2018}\u{2019}\u{2014}\u{ff1a}\u{ff1b}\u{ff0c}\
    \u{3001}-\u{303f}\u{fe30}-\u{fe4f}]+|[\u{3105}-\u{312f}]+|\
    [\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";

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
        &[
            r"\p{N}{1,3}",
            "[\u{4e00}-\u{9fa5}\u{3040}-\u{30ff}]+",
            deepseek3!(r"[\r\n]*|\s*[\r\n]+"),
        ],
    ),
    PreRule::new(
        &["spark2_5"],
        &[r"\p{N}{1,3}", "[\u{4e00}-\u{9fa5}\u{3040}-\u{30ff}]+", deepseek3!(r"|[\r\n]"), r"\p{N}"],
    ),
    PreRule::new(&["afmoe"], &[AFMOE_SCRIPTS, deepseek3!(r"[\r\n]*|\s*[\r\n]+")])
        .digits(Digits::Numerals),
    PreRule::new(
        &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        &[concat!(
            cased_words!(r"\p{L}", concat!(contractions!(), "?")),
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
        )],
    ),
    PreRule::new(
        &["tekken"],
        &[concat!(cased_words!(r"\p{L}", ""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+")],
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
    PreRule::new(
        &["granite-embed-multi-97m"],
        &[concat!(
            cased_words!(r"[\p{L}\p{M}]", concat!(contractions!(), "?")),
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
        )],
    )
    .ignore_merges(),
    PreRule::new(&["tiny_aya", "cohere2moe"], &[marked_words!(r"\p{N}{1,3}")])
        .digits(Digits::WholeWords),
    PreRule::new(&["youtu"], &[YOUTU_SCRIPTS, marked_words!(r"\p{N}")]).ignore_merges(),
    PreRule::new(&["superbpe"], &[r"\p{N}+"]).digits(Digits::BeforeThrees),
    PreRule::new(
        &["kimi-k2"],
        &[concat!(
            "[",
            han!(),
            "]+|",
            r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^",
            han!(),
            "]]+",
            contractions!(),
            r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
        )],
    ),
    PreRule::new(&["ufakzeka"], &[gpt4_words!(r"\p{N}")]),
    PreRule::new(&["jais-2"], &[gpt4!(r"\p{N}{1,3}")])
        .white_space_runs(&[512, 256, 128, 64, 32, 16, 8, 4, 2, 1]),
    PreRule::new(&["gemma4", "granite-embed-multi-311m"], &[r"[^\n]+|\n+"])
        .spelling(Spelling::Escaped)
        .keeps_line_ends_whole()
        .add_bos(),
    PreRule::new(&["sarvam-moe"], &[r"[^\n]+|\n+"]).spelling(Spelling::Escaped),
    PreRule::new(&["whitespace"], &[r"\S+"]).spelling(Spelling::Spaceless),
    PreRule::new(&["laguna"], &[r"[^\n]+|\n+", gpt4!(r"\p{N}")]),
    PreRule::new(&["minicpm5"], &[r"\p{N}{1,3}", gpt4!(r"\p{N}+")]).ignore_merges(),
];
