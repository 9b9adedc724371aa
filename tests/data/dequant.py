"""Makes dequant.json: seeded random blocks of every type and gguf-py's values of them, in hex.

    pip install gguf numpy && python tests/data/dequant.py > tests/data/dequant.json
"""

import json

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

# Where the f16 scales stand in a block; they are drawn as numbers so that no NaN arises.
SCALES = {
    "F32": None, "F16": None, "BF16": None, "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2],
    "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "TQ1_0": [52],
    "TQ2_0": [64], "IQ1_S": [0], "IQ1_M": [], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0],
    "IQ3_XXS": [0], "IQ3_S": [0],
}

rng = np.random.default_rng(20240607)
rows = []
for name, scales in SCALES.items():
    dtype = GGMLQuantizationType[name]
    block_len, block_bytes = GGML_QUANT_SIZES[dtype]
    if scales is None:
        values = rng.normal(0, 1, 16).astype(np.float32)
        if name == "BF16":
            data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            data = values.astype(np.float16 if name == "F16" else np.float32).view(np.uint8)
    else:
        blocks = 1 if block_len == 256 else 2
        data = rng.integers(0, 256, (blocks, block_bytes), dtype=np.uint8)
        for block in data:
            for at in scales:
                block[at : at + 2] = rng.normal(0, 0.02, 1).astype(np.float16).view(np.uint8)
            if name == "MXFP4":
                block[0] = rng.integers(0, 140)
            if name == "IQ1_M":  # nibbles of the f16 scale, in the high bytes of four words
                bits = rng.normal(0, 0.02, 1).astype(np.float16).view(np.uint16)[0]
                for i in range(4):
                    block[49 + 2 * i] = (block[49 + 2 * i] & 15) | (int(bits) >> (4 * i) & 15) << 4
    values = np.asarray(dequantize(data.reshape(-1), dtype), dtype=np.float32)
    assert np.isfinite(values).all()
    rows.append({"dtype": name, "bytes": data.tobytes().hex(), "values": values.tobytes().hex()})
print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")
