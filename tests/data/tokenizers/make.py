#!/usr/bin/env python3
"""Makes unigram.json and wordpiece.json: small vocabularies, and what their own libraries make of texts.

    pip install sentencepiece tokenizers && python3 make.py TEXT

TEXT is any English text of some 30 KB (it was the GPL's third version). The vocabularies are written
as a GGUF file would have them.
"""
import base64
import io
import json
import pathlib
import sys

import sentencepiece
import sentencepiece.sentencepiece_model_pb2 as model_pb2
from tokenizers import BertWordPieceTokenizer

TEXTS = [
    "", " ", "  ", "\n", "\t\n", "hello", " hello", "hello ", "hello  world", "Hello, WORLD!", "free software",
    "The licenses for most software and other practical works", "a  b   c\td\ne", "copyright © 2007",
    "naïve café résumé", "Ünïcode ÀÉÎ ß", "苹果 and 東京 x苹y", "🍎🍊 apple", "e\u0301 o\u0308", "İstanbul ŁÓDŹ",
    "don't, you're; it's...", "x = a + b * (c - d) / e; $5 <b> `q` ~ ^ |", "1234567890 3.14", "ﬁne ① ㎏ Ａ１",
    "zero\u200bwidth soft\u00adhyphen", "no\u00a0break", "unverifiablequintessence zzzqqqxxx",
    "нещо на Български", "កាន់តែ", "\u0000nul", "a" * 60, "[MASK] <mask>", "one-two_three/four",
]
RULES = "9\t20\nD\t\nA\t20\nA0\t20\n200B\t\nAD\t\nFF21\t41\nFB01\t66 69\n2460\t31\n338F\t6B 67\n65 301\tE9\n"


def unigram(text):
    out = io.BytesIO()
    rules = pathlib.Path("/tmp/rules.tsv")
    rules.write_text(RULES)
    lines = [line for line in text.splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, vocab_size=400, model_type="unigram",
        normalization_rule_tsv=str(rules), character_coverage=1.0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    rules.unlink()
    processor = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    proto = model_pb2.ModelProto.FromString(out.getvalue())
    return {
        "model": "t5",
        "tokens": [piece.piece for piece in proto.pieces],
        "scores": [piece.score for piece in proto.pieces],
        "token_types": [piece.type for piece in proto.pieces],
        "add_space_prefix": proto.normalizer_spec.add_dummy_prefix,
        "remove_extra_whitespaces": proto.normalizer_spec.remove_extra_whitespaces,
        "charsmap": base64.b16encode(proto.normalizer_spec.precompiled_charsmap).decode(),
        "cases": [[text, processor.encode(text, add_eos=True)] for text in TEXTS],
    }


def wordpiece(text):
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(text.splitlines(), vocab_size=500, min_frequency=1, show_progress=False)
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    tokens = [name[2:] if name.startswith("##") else name if name[0] == "[" and name[-1] == "]" and len(name) > 2
              else "▁" + name for name, _ in vocab]
    # Longer words are unknown to this library; llama.cpp, and hob, cut words of any length.
    tokenizer = BertWordPieceTokenizer({name: id for name, id in vocab}, lowercase=True)
    return {
        "model": "bert",
        "tokens": tokens,
        "token_types": [3 if name[0] == "[" and len(name) > 2 else 1 for name, _ in vocab],
        "bos": tokenizer.token_to_id("[CLS]"),
        "sep": tokenizer.token_to_id("[SEP]"),
        "unk": tokenizer.token_to_id("[UNK]"),
        "cases": [[text, tokenizer.encode(text).ids] for text in TEXTS],
    }


def main():
    text = pathlib.Path(sys.argv[1]).read_text()
    here = pathlib.Path(__file__).parent
    for name, make in [("unigram", unigram), ("wordpiece", wordpiece)]:
        (here / f"{name}.json").write_text(json.dumps(make(text), ensure_ascii=False) + "\n")


main()
