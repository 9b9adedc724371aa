#!/usr/bin/env python3
"""Makes cuts.json: how each pre-tokenizer's rule cuts texts, by a backtracking matcher with look-ahead.

    pip install regex && python3 make_cuts.py

The rules are written as the models' own files and llama.cpp have them, stage by stage; src/tokenizer/pre.rs
matches them in linear time, without look-ahead. Characters are drawn from a fixed list, all of Unicode 15.1.
"""
import json
import pathlib
import random

import regex

CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + END
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + END
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
             r"| ?[\p{P}\p{S}]+[\r\n]*" + END)
CJK = "[一-龥぀-ゟ゠-ヿ]+"
HAN = r"\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002ebef\uf900-\ufaff\U0002f800-\U0002fa1f"


def cased(letters, suffix):
    upper, lower = f"(?:(?={letters})[^a-z])", f"(?:(?={letters})[^A-Z])"
    return (rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{suffix}"
            rf"|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{suffix}")


MARKED = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+" + CONTRACTIONS + "?|"
RULES = {
    "gpt-2": [GPT2],
    "llama-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "qwen35": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + END],
    "smollm": [r"\p{N}", GPT2],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", CJK, DEEPSEEK3],
    "spark2_5": [r"\p{N}{1,3}", CJK, DEEPSEEK3.replace(r"[\r\n]*" + END, r"|[\r\n]|\s+(?!\S)|\s+"), r"\p{N}"],
    "gpt-4o": [cased(r"\p{L}", CONTRACTIONS + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END],
    "granite-embed-multi-97m": [
        cased(r"[\p{L}\p{M}]", CONTRACTIONS + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END],
    "tekken": [cased(r"\p{L}", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END],
    "tiny_aya": [r"(?a:\d{1,3}(?=(?:\d{3})*\b))", MARKED + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END],
    "superbpe": [r"\p{N}+", r"(?a:(?=(\d{3})+(?!\d)))"],
    "jais-2": [LLAMA3.replace(r"\s+(?!\S)|\s+", "|".join(rf"\s{{{n}}}(?!\S)" for n in
               (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}")],
    "bailingmoe": [r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                   r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "seed-coder": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + END],
    "exaone-moe": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                   r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "ufakzeka": [QWEN2.removeprefix(CONTRACTIONS + "|")],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "minicpm5": [r"\p{N}{1,3}", LLAMA3.replace("{1,3}", "+")],
    "kimi-k2": [rf"[{HAN}]+|[^\r\n\p{{L}}\p{{N}}]?(?:(?![{HAN}])\p{{L}})+{CONTRACTIONS}?|\p{{N}}{{1,3}}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + END],
    "chameleon": ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
                  r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
    "viking": [r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"],
}
CHARACTERS = list("aabcxyzABXYZ") + list("01239") + list("     \t\n\n\r") + list(".,!?'()-_/$+<=>`|~#") + [
    "é", "Ä", "ß", "ǅ", "ж", "Ж", "你", "好", "龥", "豈", "あ", "カ", "한", "अ", "\u093f", "\u0301", "²", "½", "Ⅷ", "٣",
    "€", "…", "。", "，", "🍎", "\u3000", "\u00a0", "\u200b", "\u2028", "🏽"]
PIECES = ["'s", "'LL", "'re", "  ", "\n\n", "\r\n", "1234", " 567", "Hello", " world", " \n", "IMGIMGABZ"]


def split(stages, text):
    pieces = [text]
    for stage in stages:
        matcher, cut = regex.compile(stage), []
        for piece in pieces:
            at = 0
            for match in matcher.finditer(piece):
                cut += [piece[at:match.start()], match.group()]
                at = match.end()
            cut.append(piece[at:])
        pieces = [piece for piece in cut if piece]
    return pieces


def main():
    random.seed(20261129)
    texts = ["".join(random.choice(CHARACTERS + PIECES) for _ in range(random.randint(5, 60))) for _ in range(60)]
    texts += [" " * n + end for n in (1, 2, 3, 5, 9, 40) for end in ("", "x", "1", "\n", ".")]
    lengths = {name: [[len(piece) for piece in split(stages, text)] for text in texts]
               for name, stages in RULES.items()}
    out = {"texts": texts, "lengths": lengths}
    path = pathlib.Path(__file__).parent / "cuts.json"
    path.write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
