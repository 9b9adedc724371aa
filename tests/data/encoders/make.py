#!/usr/bin/env python3
"""Makes the small encoders of this folder: random weights, one kind a file.

    pip install gguf
    ./make.py WORK        NAME.gguf here, and WORK/NAME.gguf with the same weights as F32
    ./reference.mjs WORK  NAME.golden.json here, from llama.cpp's CPU backend on those
"""

import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

HERE = Path(__file__).parent
WIDTH, HIDDEN, HEADS, LAYERS, CONTEXT = 64, 96, 4, 2, 128
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"\u2581w{i}" for i in range(40)] + [f"x{i}" for i in range(19)]
VOCAB = len(SPECIAL) + len(WORDS)


class Model:
    """One model, written twice: its matrices of a type, and all as F32."""

    def __init__(self, name, arch, pooling, work, kind, seed):
        self.random = np.random.default_rng(seed)
        self.kind = kind
        self.writers = [
            gguf.GGUFWriter(HERE / f"{name}.gguf", arch),
            gguf.GGUFWriter(work / f"{name}.gguf", arch),
        ]
        for writer in self.writers:
            writer.add_context_length(CONTEXT)
            writer.add_embedding_length(WIDTH)
            writer.add_block_count(LAYERS)
            writer.add_feed_forward_length(HIDDEN)
            writer.add_head_count(HEADS)
            writer.add_layer_norm_eps(1e-12)
            writer.add_causal_attention(False)
            writer.add_pooling_type(gguf.PoolingType(pooling))
            writer.add_tokenizer_model("bert")
            writer.add_token_list(SPECIAL + WORDS)
            writer.add_token_types([3] * len(SPECIAL) + [1] * len(WORDS))
            writer.add_token_type_count(2)
            writer.add_bos_token_id(2)
            writer.add_eos_token_id(3)
            writer.add_sep_token_id(3)
            writer.add_unk_token_id(1)
            writer.add_pad_token_id(0)
            writer.add_mask_token_id(4)
            if arch == "nomic-bert":
                writer.add_rope_freq_base(1000.0)

    def tensor(self, name, values, kind):
        packed = gguf.quants.quantize(values.astype(np.float32), kind)
        self.writers[0].add_tensor(name, packed, raw_dtype=kind)
        self.writers[1].add_tensor(name, gguf.quants.dequantize(packed, kind).astype(np.float32))

    def vector(self, name, length, mean=0.0):
        self.tensor(name, self.random.normal(mean, 0.3, length), Type.F32)

    def matrix(self, name, rows, columns):
        values = self.random.normal(0.0, 1.6 / np.sqrt(columns), (rows, columns))
        self.tensor(name, values, self.kind)

    def norm(self, name):
        self.vector(f"{name}.weight", WIDTH, mean=1.0)
        self.vector(f"{name}.bias", WIDTH)

    def ends(self):
        self.matrix("token_embd.weight", VOCAB, WIDTH)
        self.tensor("token_types.weight", self.random.normal(0.0, 0.3, (2, WIDTH)), Type.F32)
        self.norm("token_embd_norm")

    def close(self):
        for writer in self.writers:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()


def bert(name, pooling, work, kind, seed):
    model = Model(name, "bert", pooling, work, kind, seed)
    model.ends()
    model.matrix("position_embd.weight", CONTEXT, WIDTH)
    for layer in range(LAYERS):
        stem = f"blk.{layer}."
        for part, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", WIDTH, WIDTH),
            ("attn_v", WIDTH, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_up", HIDDEN, WIDTH),
            ("ffn_down", WIDTH, HIDDEN),
        ):
            model.matrix(f"{stem}{part}.weight", rows, columns)
            model.vector(f"{stem}{part}.bias", rows)
        model.norm(f"{stem}attn_output_norm")
        model.norm(f"{stem}layer_output_norm")
    model.close()


def nomic(name, pooling, work, kind, seed):
    model = Model(name, "nomic-bert", pooling, work, kind, seed)
    model.ends()
    for layer in range(LAYERS):
        stem = f"blk.{layer}."
        for part, rows, columns in (
            ("attn_qkv", 3 * WIDTH, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", HIDDEN, WIDTH),
            ("ffn_up", HIDDEN, WIDTH),
            ("ffn_down", WIDTH, HIDDEN),
        ):
            model.matrix(f"{stem}{part}.weight", rows, columns)
        model.norm(f"{stem}attn_output_norm")
        model.norm(f"{stem}layer_output_norm")
    model.close()


def main():
    work = Path(sys.argv[1])
    work.mkdir(exist_ok=True)
    bert("bert-cls", 2, work, Type.Q8_0, 21)
    bert("bert-mean", 1, work, Type.F16, 22)
    nomic("nomic-bert", 1, work, Type.Q8_0, 23)


main()
