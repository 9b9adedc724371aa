#!/usr/bin/env python3
"""Makes the small mixtures of experts of this folder: random weights, one architecture a file.

    pip install gguf
    ./make.py WORK        NAME.gguf here, and WORK/NAME.gguf with the same weights as F32
    ./reference.mjs WORK  NAME.golden.json here, from llama.cpp's CPU backend on those

llama-split.gguf holds the experts of llama.gguf one by one, as files did at first; it has no golden
file of its own.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

HERE = Path(__file__).parent
WIDTH, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 4, 2, 16, 2
TOKENS = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + ["a"]
VOCAB = len(TOKENS)
EXPERTS, USED = 6, 3


class Model:
    """One model, written twice: its matrices of a type, and all as F32."""

    def __init__(self, name, arch, work, kind=Type.Q4_0, seed=1):
        self.random = np.random.default_rng(seed)
        self.kind = kind
        self.arch = arch
        self.writers = [
            gguf.GGUFWriter(HERE / f"{name}.gguf", arch),
            gguf.GGUFWriter(work / f"{name}.gguf", arch),
        ]

    def key(self, key, value):
        for writer in self.writers:
            full = key.replace("ARCH", self.arch)
            if isinstance(value, bool):
                writer.add_bool(full, value)
            elif isinstance(value, int):
                writer.add_uint32(full, value)
            elif isinstance(value, float):
                writer.add_float32(full, value)
            elif isinstance(value, str):
                writer.add_string(full, value)
            else:
                writer.add_array(full, value)

    def tensor(self, name, values, kind):
        values = values.astype(np.float32)
        packed = gguf.quants.quantize(values, kind)
        self.writers[0].add_tensor(name, packed, raw_dtype=kind)
        if len(self.writers) > 1:
            self.writers[1].add_tensor(name, gguf.quants.dequantize(packed, kind).astype(np.float32))

    def vector(self, name, length, mean=1.0):
        self.tensor(name, self.random.normal(mean, 0.3, length), Type.F32)

    def values(self, *dims):
        """Of a variance that keeps the size of what they are multiplied with."""
        return self.random.normal(0.0, 1.6 / np.sqrt(dims[-1]), dims)

    def matrix(self, name, *dims, kind=None):
        self.tensor(name, self.values(*dims), kind or self.kind)

    def close(self):
        for writer in self.writers:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()


def common(model, experts=EXPERTS, used=USED, feed_forward=32, rope_base=10000.0, kv_heads=KV_HEADS):
    keys = {
        "context_length": 256,
        "embedding_length": WIDTH,
        "block_count": LAYERS,
        "feed_forward_length": feed_forward,
        "attention.head_count": HEADS,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD_DIM,
        "rope.freq_base": rope_base,
        "expert_count": experts,
        "expert_used_count": used,
    }
    for key, value in keys.items():
        model.key(f"ARCH.{key}", value)
    model.key("tokenizer.ggml.model", "llama")
    model.key("tokenizer.ggml.tokens", TOKENS)
    model.key("tokenizer.ggml.scores", [0.0] * VOCAB)
    model.key("tokenizer.ggml.token_type", [2, 3, 3] + [6] * 256 + [1])
    model.key("tokenizer.ggml.bos_token_id", 1)
    model.key("tokenizer.ggml.eos_token_id", 2)
    model.matrix("token_embd.weight", VOCAB, WIDTH)
    model.vector("output_norm.weight", WIDTH)


def attention(model, layer, biases=False, norms=None, kv_heads=KV_HEADS):
    name = f"blk.{layer}.attn_"
    q, kv = HEADS * HEAD_DIM, kv_heads * HEAD_DIM
    model.vector(f"{name}norm.weight", WIDTH)
    for part, rows in (("q", q), ("k", kv), ("v", kv)):
        model.matrix(f"{name}{part}.weight", rows, WIDTH)
        if biases:
            model.vector(f"{name}{part}.bias", rows, mean=0.0)
    if norms:
        heads = (1, 1) if norms == "head" else (HEADS, kv_heads)
        model.vector(f"{name}q_norm.weight", heads[0] * HEAD_DIM)
        model.vector(f"{name}k_norm.weight", heads[1] * HEAD_DIM)
    model.matrix(f"{name}output.weight", WIDTH, q)
    model.vector(f"blk.{layer}.ffn_norm.weight", WIDTH)


def experts(model, layer, hidden=32, count=EXPERTS, split=False):
    name = f"blk.{layer}.ffn_"
    router = model.random.normal(0.0, 3.0 / np.sqrt(WIDTH), (count, WIDTH))
    model.tensor(f"{name}gate_inp.weight", router, Type.F32)
    for part, rows, columns in (
        ("gate", hidden, WIDTH),
        ("up", hidden, WIDTH),
        ("down", WIDTH, hidden),
    ):
        values = model.values(count, rows, columns)
        if split:
            for expert in range(count):
                model.tensor(f"{name}{part}.{expert}.weight", values[expert], model.kind)
        else:
            model.tensor(f"{name}{part}_exps.weight", values, model.kind)


def feed_forward(model, layer, suffix, hidden):
    name = f"blk.{layer}.ffn_"
    model.matrix(f"{name}gate{suffix}.weight", hidden, WIDTH)
    model.matrix(f"{name}up{suffix}.weight", hidden, WIDTH)
    model.matrix(f"{name}down{suffix}.weight", WIDTH, hidden)


def llama(work, split):
    model = Model("llama-split" if split else "llama", "llama", work, seed=11)
    if split:
        model.writers.pop()
    common(model)
    model.matrix("output.weight", VOCAB, WIDTH)
    for layer in range(LAYERS):
        attention(model, layer)
        experts(model, layer, split=split)
    model.close()


def qwen2moe(work):
    model = Model("qwen2moe", "qwen2moe", work, kind=Type.Q8_0, seed=12)
    # The width of the dense layers that there are none of.
    common(model, feed_forward=96, rope_base=1e6)
    model.key("ARCH.expert_feed_forward_length", 32)
    model.key("ARCH.expert_shared_feed_forward_length", 64)
    model.matrix("output.weight", VOCAB, WIDTH)
    for layer in range(LAYERS):
        attention(model, layer, biases=True)
        experts(model, layer)
        feed_forward(model, layer, "_shexp", 64)
        model.vector(f"blk.{layer}.ffn_gate_inp_shexp.weight", WIDTH, mean=0.0)
    model.close()


def qwen3moe(work):
    # An odd number of experts, and no matrix for the head.
    model = Model("qwen3moe", "qwen3moe", work, kind=Type.F16, seed=13)
    common(model, experts=5, used=2, feed_forward=96, rope_base=1e6)
    model.key("ARCH.expert_feed_forward_length", 32)
    model.key("ARCH.attention.key_length", HEAD_DIM)
    model.key("ARCH.attention.value_length", HEAD_DIM)
    for layer in range(LAYERS):
        attention(model, layer, norms="head")
        experts(model, layer, count=5)
    model.close()


def granitemoe(work, shared):
    name = "granitemoe-shared" if shared else "granitemoe"
    kind = Type.Q5_0 if shared else Type.Q4_0
    model = Model(name, "granitemoe", work, kind=kind, seed=14 + shared)
    common(model)
    model.key("ARCH.logit_scale", 0.7)
    model.key("ARCH.residual_scale", 0.6)
    model.key("ARCH.embedding_scale", 3.0)
    model.key("ARCH.attention.scale", 0.2)
    if shared:
        model.key("ARCH.expert_shared_feed_forward_length", 64)
    for layer in range(LAYERS):
        attention(model, layer)
        experts(model, layer)
        if shared:
            feed_forward(model, layer, "_shexp", 64)
    model.close()


def olmoe(work):
    model = Model("olmoe", "olmoe", work, kind=Type.Q4_1, seed=16)
    common(model, kv_heads=HEADS)
    model.matrix("output.weight", VOCAB, WIDTH)
    for layer in range(LAYERS):
        attention(model, layer, norms="whole", kv_heads=HEADS)
        experts(model, layer)
    model.close()


def deepseek(work):
    model = Model("deepseek", "deepseek", work, kind=Type.Q5_1, seed=17)
    common(model, feed_forward=96)
    model.key("ARCH.leading_dense_block_count", 1)
    model.key("ARCH.expert_feed_forward_length", 32)
    model.key("ARCH.expert_shared_count", 2)
    model.key("ARCH.expert_weights_scale", 1.7)
    model.matrix("output.weight", VOCAB, WIDTH)
    attention(model, 0)
    feed_forward(model, 0, "", 96)
    attention(model, 1)
    experts(model, 1)
    feed_forward(model, 1, "_shexp", 64)
    model.close()


def main():
    work = Path(sys.argv[1])
    work.mkdir(exist_ok=True)
    llama(work, False)
    llama(work, True)
    qwen2moe(work)
    qwen3moe(work)
    granitemoe(work, False)
    granitemoe(work, True)
    olmoe(work)
    deepseek(work)


main()
