//! The entry point for fuzzers: vocabularies from anywhere, and texts.

use super::{StreamDecoder, Tokenizer, VocabSource, byte_level, pre_names};

/// Reads `data` as a vocabulary and a text, makes tokens of the text and a text of these: must
/// return, whatever the data; and with a vocabulary of all bytes, the text must come back.
///
/// The first line names the kind of vocabulary, or a pre-tokenizer. The lines up to an empty one
/// are tokens, a merge where there is a space inside, special where a `!` or `*` is first, with a
/// score by their place. The rest is the text.
pub fn fuzz_tokenizer(data: &[u8]) {
    let data = String::from_utf8_lossy(data);
    let (head, text) = data.split_once("\n\n").unwrap_or((&data, ""));
    let mut lines = head.split('\n');
    let kind = lines.next().unwrap_or_default();
    let is_byte_level = !matches!(kind, "llama" | "bert" | "t5" | "gemma4" | "whitespace");
    let source = source(kind, is_byte_level, lines);
    let Ok(tokenizer) = Tokenizer::new(source) else { return };
    for parse_special in [false, true] {
        let Ok(ids) = tokenizer.encode(text, true, parse_special) else { continue };
        let back = tokenizer.decode(&ids, true).expect("tokens of the vocabulary");
        let mut stream = StreamDecoder::beginning(&tokenizer, true);
        let mut streamed = String::new();
        for id in &ids {
            streamed += &stream.push(&tokenizer, *id).expect("tokens of the vocabulary");
        }
        streamed += &stream.flush();
        assert_eq!(streamed, back, "the stream gives the same text");
        if is_byte_level {
            let ids = tokenizer.encode(text, false, parse_special).expect("encoded before");
            let back = tokenizer.decode(&ids, true).expect("tokens of the vocabulary");
            assert_eq!(back, text, "every byte has a token");
        }
    }
}

fn source<'a>(
    kind: &str,
    is_byte_level: bool,
    lines: impl Iterator<Item = &'a str>,
) -> VocabSource {
    let pre = pre_names::rule(kind).map_or("default", |_| kind);
    let mut source = VocabSource {
        model: if is_byte_level { "gpt2" } else { kind }.to_owned(),
        pre: Some(pre.to_owned()),
        bos: Some(1),
        eos: Some(2),
        sep: Some(2),
        unk: Some(0),
        add_bos: Some(true),
        ..VocabSource::default()
    };
    let mut add = |text: &str, token_type: i32, score: f32| {
        source.tokens.push(text);
        source.token_types.push(token_type);
        source.scores.push(score);
    };
    for (text, kind) in [("<unk>", 2), ("<s>", 3), ("</s>", 3)] {
        add(text, kind, 0.0);
    }
    for byte in 0..=u8::MAX {
        if is_byte_level {
            add(&byte_level::byte_to_char(byte).to_string(), 1, 0.0);
        } else {
            add(&format!("<0x{byte:02X}>"), 6, 0.0);
        }
    }
    for (place, line) in lines.enumerate() {
        let score = -(place as f32);
        if let Some(special) = line.strip_prefix('!') {
            add(special, 3, score);
        } else if let Some(special) = line.strip_prefix('*') {
            add(special, 4, score);
        } else if line.contains(' ') {
            add(&line.replacen(' ', "", 1), 1, score);
            source.merges.push(line);
        } else {
            add(line, 1, score);
        }
    }
    // A vocabulary of bytes alone has no merges, and needs one.
    if source.merges.is_empty() {
        source.merges.push("a b");
    }
    source
}
