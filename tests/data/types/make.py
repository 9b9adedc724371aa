"""Makes golden.json: what small llama models with random blocks of every tensor type must say.

    pip install gguf numpy && python tests/data/types/make.py > tests/data/types/golden.json

`tests/common/typed_model.rs` makes the same models: both draw from SplitMix64 in one order. Weights
are dequantised by gguf-py, and the forward pass here is numpy in float64, written apart from hob.
"""

import json

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 256, 4, 2, 64, 96
PROMPT, STEPS, TOP = [1, 17, 42, 5, 80, 33], 3, 5
# In the order of DType::ALL.
TYPES = ("F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K Q2_K Q3_K IQ4_NL IQ4_XS MXFP4 TQ1_0 "
         "TQ2_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S").split()
NEW = TYPES[11:]
MATRICES = [
    ("token_embd", VOCAB, WIDTH), ("blk.0.attn_q", 256, WIDTH), ("blk.0.attn_k", 128, WIDTH),
    ("blk.0.attn_v", 128, WIDTH), ("blk.0.attn_output", WIDTH, 256), ("blk.0.ffn_gate", 256, WIDTH),
    ("blk.0.ffn_up", 256, WIDTH), ("blk.0.ffn_down", WIDTH, 256), ("output", VOCAB, WIDTH),
]
# f16 scales of a block, as offset, lowest and highest value: tests/common/blocks.rs.
SCALES = {
    "Q8_0": [(0, -0.008, 0.008)], "Q4_0": [(0, -0.12, 0.12)], "Q5_0": [(0, -0.06, 0.06)],
    "Q4_1": [(0, 0.0, 0.12), (2, -1.0, 0.0)], "Q5_1": [(0, 0.0, 0.06), (2, -1.0, 0.0)],
    "Q4_K": [(0, 0.0, 0.002), (2, 0.0, 0.02)], "Q5_K": [(0, 0.0, 0.001), (2, 0.0, 0.02)],
    "Q6_K": [(208, -0.0005, 0.0005)], "Q2_K": [(80, 0.0, 0.04), (82, 0.0, 0.06)],
    "Q3_K": [(108, -0.015, 0.015)], "IQ4_NL": [(0, -0.015, 0.015)], "IQ4_XS": [(0, -0.0005, 0.0005)],
    "MXFP4": [], "TQ1_0": [(52, -1.0, 1.0)], "TQ2_0": [(64, -1.0, 1.0)], "IQ1_S": [(0, -0.1, 0.1)],
    "IQ1_M": [], "IQ2_XXS": [(0, -0.01, 0.01)], "IQ2_XS": [(0, -0.01, 0.01)],
    "IQ2_S": [(0, -0.01, 0.01)], "IQ3_XXS": [(0, -0.004, 0.004)], "IQ3_S": [(0, -0.004, 0.004)],
}


class Random:
    """SplitMix64, many numbers at a time."""

    def __init__(self, seed):
        self.state = seed

    def next(self, count):
        gamma = np.uint64(0x9E3779B97F4A7C15)
        z = np.uint64(self.state) + gamma * np.arange(1, count + 1, dtype=np.uint64)
        self.state = int(z[-1])
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    def between(self, low, high, count):
        part = (self.next(count) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
        low, high = np.float32(low), np.float32(high)
        return low + (high - low) * part


def matrix(random, name, rows, row_len):
    dtype = GGMLQuantizationType[name]
    block_len, block_bytes = GGML_QUANT_SIZES[dtype]
    blocks = rows * row_len // block_len
    data = (random.next(blocks * block_bytes) & np.uint64(255)).astype(np.uint8).reshape(blocks, -1)
    if name in ("F32", "F16", "BF16"):
        values = random.between(-1, 1, blocks)
        if name == "BF16":  # to the nearest, ties to even
            bits = values.view(np.uint32)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
            values = bits.view(np.float32)
        elif name == "F16":
            values = values.astype(np.float16)
        return values.astype(np.float64).reshape(rows, row_len)
    scales = SCALES[name]
    lows = np.array([low for _, low, _ in scales], dtype=np.float32)
    spans = np.array([high for _, _, high in scales], dtype=np.float32) - lows
    if scales:
        part = random.between(0, 1, blocks * len(scales)).reshape(blocks, -1)
        halves = (lows + spans * part).astype(np.float16)
        for i, (at, _, _) in enumerate(scales):
            data[:, at : at + 2] = halves[:, i : i + 1].copy().view(np.uint8)
    if name == "MXFP4":
        data[:, 0] = 118 + (data[:, 0] & 7)
    if name == "IQ1_M":
        data[:, 53] = data[:, 53] & 0x3F | 0x80
        data[:, 55] = data[:, 55] & 0x0F | 0x20
    return dequantize(data.reshape(rows, -1), dtype).astype(np.float64)


def model(index, types):
    random = Random(100 + index)
    w = {}
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        w[name] = random.between(0.05, 0.15, WIDTH).astype(np.float64)
    for at, (name, rows, row_len) in enumerate(MATRICES):
        w[name] = matrix(random, types[at % len(types)], rows, row_len)
    return w


def norm(x, gain):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain


def rope(x):
    """Turns neighbouring pairs of [tokens, heads, HEAD_DIM] by position."""
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = even * cos - odd * sin, even * sin + odd * cos
    return out


def forward(w, tokens):
    x = w["token_embd"][tokens]
    n, b = len(tokens), "blk.0."
    h = norm(x, w[b + "attn_norm"])
    q = rope((h @ w[b + "attn_q"].T).reshape(n, HEADS, HEAD_DIM))
    k = rope((h @ w[b + "attn_k"].T).reshape(n, KV_HEADS, HEAD_DIM)).repeat(HEADS // KV_HEADS, 1)
    v = (h @ w[b + "attn_v"].T).reshape(n, KV_HEADS, HEAD_DIM).repeat(HEADS // KV_HEADS, 1)
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(HEAD_DIM)
    scores = np.where(np.tril(np.ones((n, n), dtype=bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    x = x + np.einsum("hij,jhd->ihd", p, v).reshape(n, -1) @ w[b + "attn_output"].T
    h = norm(x, w[b + "ffn_norm"])
    gate, up = h @ w[b + "ffn_gate"].T, h @ w[b + "ffn_up"].T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ w[b + "ffn_down"].T
    logits = norm(x, w["output_norm"])[-1] @ w["output"].T
    logits = logits - logits.max()
    return logits - np.log(np.exp(logits).sum())


def golden(index, name, types):
    w, tokens, steps = model(index, types), list(PROMPT), []
    for _ in range(STEPS):
        row = forward(w, tokens)
        best = np.argsort(-row)[:TOP]
        steps.append({"id": int(best[0]), "top": [[int(i), round(float(row[i]), 4)] for i in best]})
        tokens.append(int(best[0]))
    return {"name": name, "tokens": PROMPT, "steps": steps}


np.seterr(over="ignore")
models = [(name, [name]) for name in TYPES] + [("mixed-0", NEW), ("mixed-1", NEW[9:] + NEW[:9])]
rows = [golden(index, name, types) for index, (name, types) in enumerate(models)]
print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")
