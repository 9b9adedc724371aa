//! The tiny models: each architecture in every shape that it comes in.

use super::{CONTEXT, Maker, Tiny};

const GPT_PARTS: &str = "attn_norm.weight attn_norm.bias attn_qkv.weight attn_qkv.bias \
    attn_output.weight attn_output.bias ffn_norm.weight ffn_norm.bias ffn_up.weight ffn_up.bias \
    ffn_down.weight ffn_down.bias";
const LAYER_NORM_ENDS: &str = "output_norm.weight output_norm.bias output.weight";
const TIED: &str = "output_norm.weight";
const NORMS_AROUND: &str = "attn_norm.weight attn_q.weight attn_k.weight attn_v.weight \
    attn_output.weight post_attention_norm.weight ffn_norm.weight ffn_gate.weight ffn_up.weight \
    ffn_down.weight post_ffw_norm.weight";

/// LayerNorm and a context like llama's.
const LAYER_NORM: Tiny =
    Tiny { epsilon: "layer_norm_epsilon", ends: LAYER_NORM_ENDS, ..Tiny::LLAMA };

const fn like_llama(name: &'static str, metadata: fn(&mut Maker)) -> Tiny {
    Tiny { name, metadata, ..Tiny::LLAMA }
}

fn longrope(maker: &mut Maker) {
    maker.key("rope.scaling.type", "longrope");
    maker.key("rope.scaling.original_context_length", 128_u32);
    maker.key("rope.scaling.attn_factor", 1.2_f32);
}

const LONGROPE_ENDS: &str =
    "output_norm.weight output.weight rope_factors_long.weight rope_factors_short.weight";

pub const MODELS: &[Tiny] = &[
    like_llama("llama-yarn", |maker| {
        maker.key("rope.scaling.type", "yarn");
        maker.key("rope.scaling.factor", 4.0_f32);
        maker.key("rope.scaling.original_context_length", 64_u32);
    }),
    like_llama("llama-yarn-attn-factor", |maker| {
        maker.key("rope.scaling.type", "yarn");
        maker.key("rope.scaling.factor", 8.0_f32);
        maker.key("rope.scaling.original_context_length", 128_u32);
        maker.key("rope.scaling.attn_factor", 0.7_f32);
        maker.key("rope.freq_base", 1000.0_f32);
    }),
    Tiny {
        architecture: "mistral3",
        context: 128,
        ..like_llama("mistral3", |maker| {
            maker.key("rope.scaling.type", "yarn");
            maker.key("rope.scaling.factor", 16.0_f32);
            maker.key("rope.scaling.original_context_length", 128_u32);
            maker.key("rope.scaling.yarn_beta_fast", 8.0_f32);
            maker.key("rope.scaling.yarn_beta_slow", 2.0_f32);
            maker.key("rope.scaling.yarn_log_multiplier", 1.0_f32);
            maker.key("attention.temperature_scale", 0.1_f32);
        })
    },
    Tiny {
        architecture: "mistral3",
        ..like_llama("mistral3-magnitude", |maker| {
            maker.key("rope.scaling.type", "yarn");
            maker.key("rope.scaling.factor", 16.0_f32);
            maker.key("rope.scaling.original_context_length", 128_u32);
            maker.key("rope.scaling.yarn_log_multiplier", 0.5_f32);
        })
    },
    like_llama("llama-none", |maker| {
        maker.key("rope.scaling.type", "none");
        maker.key("rope.scaling.factor", 4.0_f32);
    }),
    like_llama("llama-attention-scale", |maker| maker.key("attention.scale", 0.4_f32)),
    Tiny { ends: LONGROPE_ENDS, ..like_llama("llama-longrope", longrope) },
    Tiny {
        parts: "attn_norm.weight attn_qkv.weight attn_output.weight attn_output.bias \
                ffn_norm.weight ffn_gate.weight ffn_gate.bias ffn_up.weight ffn_up.bias \
                ffn_down.weight ffn_down.bias",
        ..like_llama("llama-joined-biases", |_| {})
    },
    Tiny {
        architecture: "qwen2",
        parts: "attn_norm.weight attn_qkv.weight attn_qkv.bias attn_output.weight ffn_norm.weight \
                ffn_gate.weight ffn_up.weight ffn_down.weight",
        ..like_llama("qwen2-joined", |_| {})
    },
    Tiny {
        name: "gemma",
        architecture: "gemma",
        kv_heads: 1,
        ends: TIED,
        metadata: |maker| {
            maker.key("attention.key_length", 16_u32);
            maker.key("attention.value_length", 16_u32);
        },
        ..Tiny::LLAMA
    },
    Tiny {
        name: "gemma2",
        architecture: "gemma2",
        layers: 3,
        ends: TIED,
        parts: NORMS_AROUND,
        metadata: |maker| {
            maker.key("attention.sliding_window", 11_u32);
            maker.key("attn_logit_softcapping", 2.0_f32);
            maker.key("final_logit_softcapping", 5.0_f32);
        },
        ..Tiny::LLAMA
    },
    Tiny {
        name: "gemma2-defaults",
        architecture: "gemma2",
        ends: TIED,
        parts: NORMS_AROUND,
        ..Tiny::LLAMA
    },
    Tiny {
        name: "phi2",
        architecture: "phi2",
        kv_heads: 4,
        ends: "output_norm.weight output_norm.bias output.weight output.bias",
        parts: "attn_norm.weight attn_norm.bias attn_qkv.weight attn_qkv.bias attn_output.weight \
                attn_output.bias ffn_up.weight ffn_up.bias ffn_down.weight ffn_down.bias",
        metadata: |maker| maker.key("rope.dimension_count", 8_u32),
        ..LAYER_NORM
    },
    Tiny {
        name: "phi3-factor",
        architecture: "phi3",
        context: CONTEXT,
        ends: LONGROPE_ENDS,
        parts: "attn_norm.weight attn_qkv.weight attn_output.weight ffn_norm.weight \
                ffn_up.weight ffn_down.weight",
        metadata: |maker| {
            longrope(maker);
            maker.join_gate_and_up();
            maker.key("attention.sliding_window", 11_u32);
        },
        ..Tiny::LLAMA
    },
    Tiny {
        name: "gpt2",
        architecture: "gpt2",
        kv_heads: 4,
        ends: "output_norm.weight output_norm.bias position_embd.weight",
        parts: GPT_PARTS,
        ..LAYER_NORM
    },
    Tiny {
        name: "gptneox",
        architecture: "gptneox",
        kv_heads: 4,
        parts: GPT_PARTS,
        metadata: |maker| {
            maker.key("use_parallel_residual", true);
            maker.key("rope.dimension_count", 4_u32);
        },
        ..LAYER_NORM
    },
    Tiny {
        name: "gptneox-sequential",
        architecture: "gptneox",
        kv_heads: 4,
        parts: GPT_PARTS,
        metadata: |maker| {
            maker.key("use_parallel_residual", false);
            maker.key("rope.dimension_count", 8_u32);
        },
        ..LAYER_NORM
    },
    Tiny {
        name: "falcon-7b",
        architecture: "falcon",
        kv_heads: 1,
        parts: "attn_norm.weight attn_norm.bias attn_qkv.weight attn_output.weight ffn_up.weight \
                ffn_down.weight",
        ..LAYER_NORM
    },
    Tiny {
        name: "falcon-40b",
        architecture: "falcon",
        ends: "output_norm.weight output_norm.bias",
        parts: "attn_norm.weight attn_norm.bias attn_norm_2.weight attn_norm_2.bias \
                attn_qkv.weight attn_output.weight ffn_up.weight ffn_down.weight",
        ..LAYER_NORM
    },
    Tiny {
        name: "stablelm",
        architecture: "stablelm",
        parts: "attn_norm.weight attn_norm.bias attn_q.weight attn_q.bias attn_k.weight \
                attn_k.bias attn_v.weight attn_v.bias attn_output.weight ffn_norm.weight \
                ffn_norm.bias ffn_gate.weight ffn_up.weight ffn_down.weight",
        metadata: |maker| {
            maker.key("use_parallel_residual", false);
            maker.key("rope.dimension_count", 4_u32);
        },
        ..LAYER_NORM
    },
    Tiny {
        name: "stablelm-12b",
        architecture: "stablelm",
        parts: "attn_norm.weight attn_norm.bias attn_q.weight attn_k.weight attn_v.weight \
                attn_q_norm.weight attn_k_norm.weight attn_output.weight ffn_gate.weight \
                ffn_up.weight ffn_down.weight",
        metadata: |maker| {
            maker.key("use_parallel_residual", true);
            maker.key("rope.dimension_count", 8_u32);
        },
        ..LAYER_NORM
    },
    Tiny {
        name: "olmo3",
        architecture: "olmo2",
        layers: 5,
        parts: "attn_q.weight attn_k.weight attn_v.weight attn_q_norm.weight attn_k_norm.weight \
                attn_output.weight post_attention_norm.weight ffn_gate.weight ffn_up.weight \
                ffn_down.weight post_ffw_norm.weight",
        metadata: |maker| {
            maker.key("attention.sliding_window", 11_u32);
            maker.key("rope.scaling.type", "yarn");
            maker.key("rope.scaling.factor", 8.0_f32);
            maker.key("rope.scaling.original_context_length", 64_u32);
            maker.key("rope.scaling.attn_factor", 1.2_f32);
        },
        ..Tiny::LLAMA
    },
    Tiny {
        architecture: "granite",
        ends: TIED,
        ..like_llama("granite", |maker| {
            maker.key("logit_scale", 3.0_f32);
            maker.key("residual_scale", 0.35_f32);
            maker.key("embedding_scale", 3.0_f32);
            maker.key("attention.scale", 0.1_f32);
        })
    },
    Tiny {
        architecture: "granite",
        ..like_llama("granite-unrotated", |maker| {
            maker.key("logit_scale", 2.0_f32);
            maker.key("rope.scaling.finetuned", false);
        })
    },
    Tiny {
        architecture: "minicpm",
        ..like_llama("minicpm", |maker| {
            maker.key("logit_scale", 4.0_f32);
            maker.key("residual_scale", 0.3_f32);
            maker.key("embedding_scale", 5.0_f32);
        })
    },
    Tiny { architecture: "minicpm", ..like_llama("minicpm-defaults", |_| {}) },
    Tiny {
        name: "command-r",
        architecture: "command-r",
        ends: TIED,
        parts: "attn_norm.weight attn_q.weight attn_k.weight attn_v.weight attn_output.weight \
                ffn_gate.weight ffn_up.weight ffn_down.weight",
        metadata: |maker| {
            maker.key("logit_scale", 0.5_f32);
            maker.key("rope.scaling.type", "none");
        },
        ..LAYER_NORM
    },
    Tiny {
        name: "command-r-plus",
        architecture: "command-r",
        layers: 64,
        ends: TIED,
        parts: "attn_norm.weight attn_q.weight attn_k.weight attn_v.weight attn_q_norm.weight \
                attn_k_norm.weight attn_output.weight ffn_gate.weight ffn_up.weight \
                ffn_down.weight",
        metadata: |maker| maker.key("logit_scale", 0.25_f32),
        ..LAYER_NORM
    },
    Tiny {
        name: "cohere2",
        architecture: "cohere2",
        layers: 5,
        ends: TIED,
        parts: "attn_norm.weight attn_q.weight attn_k.weight attn_v.weight attn_output.weight \
                ffn_gate.weight ffn_up.weight ffn_down.weight",
        metadata: |maker| {
            maker.key("logit_scale", 0.5_f32);
            maker.key("attention.sliding_window", 11_u32);
            maker.key("rope.freq_base", 50_000.0_f32);
        },
        ..LAYER_NORM
    },
    Tiny {
        architecture: "smollm3",
        layers: 5,
        ends: TIED,
        ..like_llama("smollm3", |maker| maker.key("rope.freq_base", 5_000_000.0_f32))
    },
    Tiny {
        architecture: "glm4",
        parts: "attn_norm.weight attn_q.weight attn_q.bias attn_k.weight attn_k.bias \
                attn_v.weight attn_v.bias attn_output.weight post_attention_norm.weight \
                ffn_norm.weight ffn_up.weight ffn_down.weight post_ffw_norm.weight",
        ..like_llama("glm4", |maker| {
            maker.join_gate_and_up();
            maker.key("rope.dimension_count", 8_u32);
        })
    },
    Tiny {
        architecture: "exaone",
        ends: "output_norm.weight output.weight rope_freqs.weight",
        ..like_llama("exaone", |_| {})
    },
    Tiny { architecture: "internlm2", ..like_llama("internlm2", |_| {}) },
    Tiny {
        architecture: "deepseek",
        ..like_llama("deepseek-dense", |maker| {
            maker.key("leading_dense_block_count", 2_u32);
            maker.key("expert_feed_forward_length", 32_u32);
            maker.key("expert_shared_count", 1_u32);
            maker.key("expert_weights_scale", 1.0_f32);
        })
    },
];
