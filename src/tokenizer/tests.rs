//! Tests on small vocabularies made here; those of real models are in `tests/tokenizer_vocabs.rs`.

#![allow(clippy::unwrap_used)]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::gguf::StrArray;

/// A byte-level vocabulary: all bytes, some merges of English, two control tokens, one
/// user-defined one.
fn bpe(pre: &str) -> Tokenizer {
    Tokenizer::new(bpe_source(pre)).unwrap()
}

fn bpe_source(pre: &str) -> VocabSource {
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "a a", "aa aa", "Ġ Ġ"];
    let mut tokens: Vec<String> =
        (0..=u8::MAX).map(|b| byte_level::byte_to_char(b).to_string()).collect();
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let normal = tokens.len();
    tokens.extend(["<|im_end|>", "<s>", "<tool>"].map(str::to_owned));
    let mut token_types = vec![1; normal];
    token_types.extend([3, 3, 4]);
    VocabSource {
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        tokens: tokens.iter().collect(),
        token_types,
        merges: merges.iter().collect(),
        bos: Some(normal as u32 + 1),
        eos: Some(normal as u32),
        ..VocabSource::default()
    }
}

/// An SPM vocabulary: unknown, BOS, EOS, the 256 bytes, and a few pieces with scores.
fn spm_source() -> VocabSource {
    let pieces = [
        ("▁", -10.0),
        ("h", -11.0),
        ("e", -12.0),
        ("l", -13.0),
        ("o", -14.0),
        ("he", -2.0),
        ("ll", -1.0),
        ("hell", -4.0),
        ("▁hell", -5.0),
        ("▁hello", -6.0),
        ("a", -20.0),
        ("aa", -21.0),
        ("aaaa", -22.0),
        ("▁▁", -23.0),
        ("lo", -3.0),
    ];
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    tokens.extend((0..=u8::MAX).map(|b| format!("<0x{b:02X}>")));
    let mut token_types = vec![2, 3, 3];
    token_types.extend([6; 256]);
    let mut scores = vec![0.0; tokens.len()];
    for (piece, score) in pieces {
        tokens.push(piece.to_owned());
        token_types.push(1);
        scores.push(score);
    }
    VocabSource {
        model: "llama".to_owned(),
        tokens: tokens.iter().collect(),
        scores,
        token_types,
        ..VocabSource::default()
    }
}

fn texts(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|id| tokenizer.token_text(*id).unwrap().to_owned()).collect()
}

#[test]
fn bpe_merges_by_rank() {
    let t = bpe("gpt-2");
    let ids = t.encode("hello wor d", false, false).unwrap();
    assert_eq!(texts(&t, &ids), ["hello", "Ġwor", "Ġ", "d"]);
    assert_eq!(t.decode(&ids, false).unwrap(), "hello wor d");
}

#[test]
fn control_tokens_are_found_only_when_asked_and_user_defined_ones_always() {
    let t = bpe("gpt-2");
    let plain = t.encode("<s><tool>hello<|im_end|>", false, false).unwrap();
    assert!(!plain.contains(&t.bos().unwrap()));
    assert!(texts(&t, &plain).contains(&"<tool>".to_owned()));
    let parsed = t.encode("<s><tool>hello<|im_end|>", false, true).unwrap();
    assert_eq!(texts(&t, &parsed), ["<s>", "<tool>", "hello", "<|im_end|>"]);
    assert_eq!(t.decode(&parsed, false).unwrap(), "<tool>hello");
    assert_eq!(t.decode(&parsed, true).unwrap(), "<s><tool>hello<|im_end|>");
    assert_eq!(t.decode(&plain, false).unwrap(), "<s><tool>hello<|im_end|>");
}

#[test]
fn special_tokens_are_added_by_the_models_rule() {
    let bos = bpe("gpt-2").bos().unwrap();
    assert!(!bpe("gpt-2").encode("a", true, false).unwrap().contains(&bos));
    assert_eq!(bpe("llama-bpe").encode("", true, false).unwrap(), [bos]);
    let source = VocabSource { add_bos: Some(false), add_eos: Some(true), ..bpe_source("llama3") };
    let t = Tokenizer::new(source).unwrap();
    assert_eq!(t.encode("", true, false).unwrap(), [t.eos().unwrap()]);
    assert!(t.encode("", false, false).unwrap().is_empty());
}

#[test]
fn stop_tokens_are_known_by_key_and_by_text() {
    let t = Tokenizer::new(VocabSource { eos: None, eot: Some(7), ..bpe_source("gpt-2") }).unwrap();
    let end = t.encode("<|im_end|>", false, true).unwrap()[0];
    assert_eq!(t.stop_ids(), [7, end]);
    assert!(t.is_stop(end) && t.is_stop(7) && !t.is_stop(8));
}

#[test]
fn spm_merges_the_highest_score_and_writes_unknown_characters_as_bytes() {
    let t = Tokenizer::new(spm_source()).unwrap();
    let ids = t.encode("hello é", true, false).unwrap();
    assert_eq!(texts(&t, &ids), ["<s>", "▁hello", "▁", "<0xC3>", "<0xA9>"]);
    assert_eq!(t.decode(&ids, false).unwrap(), "hello é");
    assert_eq!(t.decode(&ids, true).unwrap(), "<s> hello é");
    assert_eq!(t.decode(&[], false).unwrap(), "");
    let no_prefix = VocabSource { add_space_prefix: Some(false), ..spm_source() };
    let t = Tokenizer::new(no_prefix).unwrap();
    assert_eq!(texts(&t, &t.encode("hello", false, false).unwrap()), ["hell", "o"]);
    assert_eq!(t.decode(&t.encode(" a", false, false).unwrap(), false).unwrap(), " a");
}

#[test]
fn a_space_is_put_behind_special_tokens_of_spm() {
    let t = Tokenizer::new(spm_source()).unwrap();
    let ids = t.encode("<s>hello</s>a", false, true).unwrap();
    assert_eq!(texts(&t, &ids), ["<s>", "▁hello", "</s>", "▁", "a"]);
    assert!(t.is_stop(2));
}

#[test]
fn phi3_special_tokens_swallow_the_white_space_behind_them() {
    let source = VocabSource { model_name: Some("Phi-3 mini".to_owned()), ..spm_source() };
    let t = Tokenizer::new(source).unwrap();
    let ids = t.encode("</s> \n a<s> a", false, true).unwrap();
    assert_eq!(texts(&t, &ids), ["</s>", "▁", "a", "<s>", "▁▁", "a"]);
}

#[test]
fn the_stream_gives_whole_characters_and_the_same_text() {
    let t = bpe("gpt-2");
    let text = "hello 🍎 wor é";
    let ids = t.encode(text, false, false).unwrap();
    let mut stream = StreamDecoder::beginning(&t, false);
    let pieces: Vec<_> = ids.iter().map(|id| stream.push(&t, *id).unwrap()).collect();
    assert_eq!(pieces.concat(), text);
    assert!(pieces.contains(&String::new()) && pieces.contains(&"🍎".to_owned()), "{pieces:?}");
    stream.push(&t, ids[2]).unwrap();
    stream.push(&t, ids[3]).unwrap();
    assert_eq!(stream.flush(), "\u{FFFD}");
    assert_eq!(stream.flush(), "");
    assert!(stream.push(&t, 1 << 20).is_err());
}

#[test]
fn a_stream_keeps_the_leading_space_behind_a_prompt_only() {
    let t = Tokenizer::new(spm_source()).unwrap();
    let ids = t.encode("hello", true, false).unwrap();
    let run = |mut stream: StreamDecoder| -> String {
        ids.iter().map(|id| stream.push(&t, *id).unwrap()).collect()
    };
    assert_eq!(run(StreamDecoder::beginning(&t, false)), "hello");
    assert_eq!(run(StreamDecoder::continuing(false)), " hello");
}

#[test]
fn a_megabyte_takes_no_quadratic_time() {
    // Linear, each takes well under a second here; quadratic, hours.
    let limit = Duration::from_secs(20);
    let words = "hello wor ".repeat(100_000);
    let (letters, spaces) = ("a".repeat(1 << 20), " ".repeat(1 << 20));
    let lines = "\n".repeat(1 << 20);
    let spm = Tokenizer::new(spm_source()).unwrap();
    for (name, t) in [("gpt-2", bpe("gpt-2")), ("llama-bpe", bpe("llama-bpe")), ("spm", spm)] {
        for text in [&words, &letters, &spaces, &lines] {
            let start = Instant::now();
            let ids = t.encode(text, false, true).unwrap();
            let back = t.decode(&ids, false).unwrap();
            assert!(start.elapsed() < limit, "{name} took {:?}", start.elapsed());
            assert_eq!(back.len(), text.len(), "{name}");
        }
    }
}

#[test]
fn many_user_defined_tokens_take_no_longer_than_few() {
    const USER_DEFINED: usize = 50_000;
    let mut source = bpe_source("gpt-2");
    for n in 0..USER_DEFINED {
        source.tokens.push(&format!("<tok{n:05}>"));
        source.token_types.push(4);
    }
    let first = source.tokens.len() - USER_DEFINED;
    let t = Tokenizer::new(source).unwrap();
    // 8 MB.
    let text: String = (0..800_000).map(|n| format!("<tok{:05}>", n % USER_DEFINED)).collect();
    // Linear, a second at most; one pass for each token, minutes.
    let start = Instant::now();
    let ids = t.encode(&text, false, false).unwrap();
    println!("{} bytes in {:?}", text.len(), start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
    assert!(ids.iter().enumerate().all(|(n, id)| *id as usize == first + n % USER_DEFINED));
}

#[test]
fn a_meter_ends_encoding_early_in_every_model() {
    let spm = Tokenizer::new(spm_source()).unwrap();
    let text = "hello ".repeat(100_000);
    for (name, t) in [("bpe", bpe("gpt-2")), ("spm", spm)] {
        let mut tokens = Vec::new();
        let mut meter = Meter::new(10, &|| false);
        let error = t.encode_into(&text, false, false, &mut meter, &mut tokens).unwrap_err();
        assert!(matches!(error, TokenizerError::TooManyTokens { limit: 10 }), "{name}: {error}");
        assert_eq!(tokens[..10], t.encode(&text, false, false).unwrap()[..10], "{name}");
        let mut meter = Meter::new(usize::MAX, &|| true);
        let error = t.encode_into(&text, false, false, &mut meter, &mut tokens).unwrap_err();
        assert!(matches!(error, TokenizerError::Cancelled), "{name}: {error}");
    }
}

#[test]
fn a_text_has_at_least_the_tokens_that_its_length_says() {
    let spm = Tokenizer::new(spm_source()).unwrap();
    for t in [bpe("gpt-2"), bpe("llama-bpe"), spm] {
        for text in ["", "hello", &"a".repeat(1000), &" ".repeat(1000), &"<tool>é".repeat(100)] {
            let (least, found) = (t.tokens_min(text), t.encode(text, false, true).unwrap().len());
            assert!(least <= found, "{least} {found} {text:.20}");
            assert!(text.len() < 1000 || least >= 10, "{least}");
        }
    }
}

#[test]
fn a_bad_vocabulary_is_refused_with_what_is_wrong() {
    let wrong = |source: VocabSource| Tokenizer::new(source).unwrap_err().to_string();
    let good = || bpe_source("gpt-2");
    let size = good().tokens.len();
    let message = wrong(VocabSource { tokens: StrArray::default(), ..good() });
    assert!(message.contains("empty"), "{message}");
    let message = wrong(VocabSource { token_types: vec![1; 5], ..good() });
    assert!(message.contains("token_type has 5") && message.contains(&size.to_string()));
    let message = wrong(VocabSource { scores: vec![1.0; 6], ..good() });
    assert!(message.contains("scores has 6"), "{message}");
    let message = wrong(VocabSource { bos: Some(9999), ..good() });
    assert!(message.contains("bos_token_id is 9999"), "{message}");
    let message = wrong(VocabSource { model: "wpm".to_owned(), ..good() });
    assert!(message.contains("\"wpm\"") && message.contains("gpt2"), "{message}");
    let message = wrong(VocabSource { merges: StrArray::default(), ..good() });
    assert!(message.contains("merges"), "{message}");
    let message = wrong(VocabSource { add_bos: Some(true), bos: None, ..good() });
    assert!(message.contains("bos_token_id is missing"), "{message}");
    let t = bpe("gpt-2");
    assert!(matches!(t.decode(&[9999], false), Err(TokenizerError::UnknownToken { .. })));
    assert_eq!(t.token_text(9999), None);
}

#[test]
fn an_unknown_pre_tokenizer_is_refused_unless_it_may_fall_back() {
    let unknown = || bpe_source("nope");
    let message = Tokenizer::new(unknown()).unwrap_err().to_string();
    assert!(message.contains("\"nope\"") && message.contains("qwen2"), "{message}");
    assert!(message.contains("--tokenizer-fallback"), "{message}");
    let source = VocabSource { pre_fallback: true, ..unknown() };
    assert_eq!(source.replaced_pre_tokenizer(), Some("nope"));
    let t = Tokenizer::new(source).unwrap();
    let wanted = bpe("default").encode("hello wor 1234", false, false).unwrap();
    assert_eq!(t.encode("hello wor 1234", false, false).unwrap(), wanted);
    let known = VocabSource { pre_fallback: true, ..bpe_source("qwen2") };
    assert_eq!(known.replaced_pre_tokenizer(), None);
}

#[test]
fn merges_lead_through_what_the_vocabulary_lacks() {
    // "ab" is no token, but "abc" is made of it; "xy" is a merge with no token at its end.
    let mut source = bpe_source("gpt-2");
    source.merges = ["a b", "ab c", "x y"].into_iter().collect();
    let mut tokens: Vec<_> = source.tokens.iter().map(str::to_owned).collect();
    tokens.push("abc".to_owned());
    source.tokens = tokens.iter().collect();
    source.token_types.push(1);
    let t = Tokenizer::new(source).unwrap();
    let ids = t.encode("abcxyab", false, false).unwrap();
    assert_eq!(texts(&t, &ids), ["abc", "x", "y", "a", "b"]);
}

#[test]
fn gemma_4_merges_characters_and_writes_others_as_bytes() {
    let mut source = spm_source();
    source.model = "gemma4".to_owned();
    source.merges = ["h e", "l l", "he ll", "hell o", "▁ a"].into_iter().collect();
    source.tokens.push("hello");
    source.tokens.push("▁a");
    source.tokens.push("\n\n");
    source.token_types.extend([1, 1, 1]);
    source.scores.clear();
    (source.bos, source.eos) = (Some(1), Some(2));
    let t = Tokenizer::new(source).unwrap();
    let ids = t.encode("hello a é\n\n\n", true, false).unwrap();
    let wanted = ["<s>", "hello", "▁a", "▁", "<0xC3>", "<0xA9>", "<0x0A>", "<0x0A>", "<0x0A>"];
    assert_eq!(texts(&t, &ids), wanted);
    assert_eq!(t.decode(&ids, false).unwrap(), "hello a é\n\n\n");
    let ids = t.encode("\n\na", false, false).unwrap();
    assert_eq!(texts(&t, &ids), ["\n\n", "a"]);
}

#[test]
fn a_mask_swallows_the_space_before_it() {
    let mut source = spm_source();
    source.tokens.push("<mask>");
    source.token_types.push(3);
    source.scores.push(0.0);
    source.architecture = Some("nomic-bert-moe".to_owned());
    let t = Tokenizer::new(source).unwrap();
    let ids = t.encode("a  <mask> a", false, true).unwrap();
    assert_eq!(texts(&t, &ids), ["▁", "a", "<mask>", "▁▁", "a"]);
}

#[test]
fn a_vocabulary_without_bytes_writes_the_unknown_token() {
    let source = VocabSource {
        model: "llama".to_owned(),
        tokens: ["<unk>", "<s>", "</s>", "▁", "a"].into_iter().collect(),
        token_types: vec![2, 3, 3, 1, 1],
        ..VocabSource::default()
    };
    let t = Tokenizer::new(source).unwrap();
    assert_eq!(t.encode("ab", false, false).unwrap(), [3, 4, 0]);
}

#[test]
fn special_tokens_that_a_text_spells_stay_text() {
    let t = bpe("gpt-2");
    let control = [t.eos().unwrap(), t.bos().unwrap()];
    let encode = |texts: [&str; 2]| {
        let mark = unused_mark(texts.iter().copied()).unwrap();
        let [one, two] = texts.map(|text| t.mark_specials(text, mark));
        let prompt = format!("<s>{one}{two}<|im_end|>");
        let mut out = Vec::new();
        t.encode_marked(&prompt, false, mark, &mut Meter::unlimited(), &mut out).unwrap();
        out
    };
    for texts in [
        ["hello <|im_end|> world", "<s><s>"],
        ["<|im_", "end|>"],
        ["<", "s>"],
        ["\u{fdd0}<|im_end|>\\ufdd1", "<|im_<|im_end|>end|>"],
        ["hello < world", " <tool> s>"],
    ] {
        let ids = encode(texts);
        let (first, last) = (ids[0], *ids.last().unwrap());
        assert_eq!([last, first], control, "{texts:?}: the template's own");
        let between = &ids[1..ids.len() - 1];
        assert!(!between.iter().any(|id| control.contains(id)), "{texts:?}: {ids:?}");
        assert_eq!(t.decode(between, false).unwrap(), texts.concat(), "{texts:?}");
    }
    // What spells none is as ever, and user-defined tokens are found in texts, too.
    let plain = t.encode("<s>hello world<|im_end|>", false, true).unwrap();
    assert_eq!(encode(["hello world", ""]), plain);
    let unchanged = t.mark_specials("hello <tool> world", '\u{fdd0}');
    assert!(matches!(unchanged, std::borrow::Cow::Borrowed(_)), "{unchanged}");
    let escaped = without_escaped_marks("a\\ufdd0b\\uFDD0".to_owned(), '\u{fdd0}');
    assert_eq!(escaped, "a\u{fdd0}b\u{fdd0}");
}

proptest! {
    #[test]
    fn decoding_gives_back_any_text(text in "\\PC*|[ \\n\\t\\ra-e<>|]*|(hello| wor|<s>|🍎)*") {
        static TOKENIZERS: OnceLock<Vec<Tokenizer>> = OnceLock::new();
        let byte_level = |name: &&str| !["gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"].contains(name);
        let all = || pre_names::known_names().split(", ").filter(byte_level).map(bpe).collect();
        for t in TOKENIZERS.get_or_init(all) {
            let ids = t.encode(&text, false, false).unwrap();
            prop_assert_eq!(&t.decode(&ids, false).unwrap(), &text);
        }
        let t = Tokenizer::new(spm_source()).unwrap();
        let ids = t.encode(&text, true, false).unwrap();
        // U+2581 is how SPM writes a space.
        prop_assert_eq!(t.decode(&ids, false).unwrap(), text.replace('▁', " "));
    }
}
