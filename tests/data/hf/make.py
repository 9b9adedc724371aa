"""Makes tokenizers.json: small tokenizers of every kind of step that hob follows in a folder's
tokenizer.json, with the ids that the `tokenizers` package gives for some texts; and keys.json: the
keys of the configuration classes of transformers, with their defaults.

    pip install tokenizers && pip download transformers --no-deps
    unzip the wheel; python make.py the-unzipped-folder/transformers
"""

import ast
import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

HERE = pathlib.Path(__file__).parent
TEXTS = [
    "the river", " the river", "  the", "", "the<|a|>the", "the <|a|> the", "<|a|>  the",
    "the\n<|b|>\n the", "<s> the", "the</s>", "a\u0301", "\u00e1 \ufb01x", "\u1e9b\u0323", "the\u2581river", "\U0001f30a",
    "<|a|><|a|> <|b|>", "x<|b|>y",
]
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def added(lstrip=False, rstrip=False):
    plain = dict(normalized=False, special=True)
    return [
        AddedToken("<unk>", **plain),
        AddedToken("<s>", **plain),
        AddedToken("</s>", **plain),
        AddedToken("<|a|>", lstrip=lstrip, rstrip=rstrip, **plain),
        AddedToken("<|b|>", normalized=False, special=False, rstrip=rstrip),
    ]


def grow(vocab, merges, words):
    """Adds the tokens and merges that make each word, a character at a time."""
    for word in words:
        for end in range(2, len(word) + 1):
            pair = (word[: end - 1], word[end - 1])
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append(pair)


def escaped(normalizer, pre_tokenizer, **flags):
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for char in "▁aehiltrv xy\u00e1f":
        vocab[char] = len(vocab)
    merges = []
    grow(vocab, merges, ["▁the", "the", "▁river", "▁▁"])
    model = models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_tokens(added(**flags))
    return tokenizer


def of_bytes(normalizer, ignore_merges=False, post=None, **flags):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {char: at + 3 for at, char in enumerate(alphabet)}
    merges = []
    grow(vocab, merges, ["the", "Ġthe", "Ġriv"])
    vocab["Ġriver"] = len(vocab)  # no merge makes it
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(__import__("tokenizers").Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    if post:
        tokenizer.post_processor = post
    tokenizer.add_tokens(added(**flags))
    return tokenizer


def tokenizers():
    def replace():
        return normalizers.Replace(" ", "▁")

    def metaspace(scheme):
        return pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)

    both = [normalizers.Prepend("▁"), replace()]
    yield "prepend", escaped(normalizers.Sequence(both), None)
    yield "prepend, rstrip", escaped(normalizers.Sequence(both), None, rstrip=True)
    yield "replace", escaped(replace(), None)
    yield "replace, split", escaped(replace(), pre_tokenizers.Split(" ", "merged_with_previous"))
    yield "nfkc", escaped(normalizers.Sequence([normalizers.NFKC(), *both]), None)
    for scheme in ["first", "always", "never"]:
        yield f"metaspace {scheme}", escaped(None, metaspace(scheme))
    yield "bytes", of_bytes(None)
    yield "bytes, lstrip", of_bytes(None, lstrip=True)
    for form in [normalizers.NFC, normalizers.NFD, normalizers.NFKC, normalizers.NFKD]:
        yield f"bytes, {form.__name__}", of_bytes(form())
    yield "bytes, ignore_merges", of_bytes(None, ignore_merges=True)
    post = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 1), ("</s>", 2)])
    yield "bytes, template", of_bytes(None, post=post)


def main():
    cases = []
    for name, tokenizer in tokenizers():
        ids = {text: tokenizer.encode(text).ids for text in TEXTS}
        cases.append({"name": name, "tokenizer": json.loads(tokenizer.to_str()), "ids": ids})
    text = json.dumps(cases, ensure_ascii=False, separators=(",", ":"))
    (HERE / "tokenizers.json").write_text(text + "\n")
    if len(sys.argv) > 1:
        (HERE / "keys.json").write_text(json.dumps(keys(pathlib.Path(sys.argv[1])), indent=1) + "\n")


def keys(transformers):
    """Fields of each class, and those that its __post_init__ takes besides."""
    found = {}
    for name in ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"]:
        path = transformers / "models" / name / f"configuration_{name}.py"
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
                if node.name == "Gemma3Config":
                    continue
                fields = [f.target.id for f in node.body if isinstance(f, ast.AnnAssign)]
                found[name] = sorted(fields)
    return found


if __name__ == "__main__":
    main()
