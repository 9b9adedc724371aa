//! Every pipeline that models use, as dispatches over buffers that do not exist.

use crate::gpu::{BufferHandle, BufferSlice, Capabilities, Command, Recording};
use crate::kernels::attention::{self, Attention, Partials};
use crate::kernels::glu::{self, Glu};
use crate::kernels::layer_norm::{self, LayerNorm};
use crate::kernels::matmul::{self, Epilogue, Matmul, TileConfig};
use crate::kernels::matmul_experts::{self, MatmulExperts, PackedExperts, Routes};
use crate::kernels::moe_combine::{self, MoeCombine};
use crate::kernels::moe_route::{self, Router};
use crate::kernels::penalise::{self, Penalise};
use crate::kernels::qkv_post::{self, NormKind, Norms, QkvPost};
use crate::kernels::rms_norm::{self, RmsNorm};
use crate::kernels::{
    KvFormat, PackedMatrix, PageLayout, attention_tiled, embed, gather_rows, mask, matmul_tiled,
    maxima, moe_lists, sample,
};
use crate::tensor::DType;
use crate::tensor::layout::Layout;

/// All types that a file's matrices may have.
const DTYPES: [DType; 11] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

/// Columns, rows, whether x is normalised, and the epilogue of matmuls: those of a small model,
/// where several rows of lanes share K, and those of an 8B model, where none do.
const MATMULS: [(u64, u64, bool, Epilogue); 8] = [
    (512, 1024, true, Epilogue::Store),
    (512, 512, false, Epilogue::Residual),
    (512, 2048, true, Epilogue::SwiGlu),
    (512, 2048, true, Epilogue::GeGlu),
    (4096, 6144, true, Epilogue::Store),
    (4096, 4096, false, Epilogue::Residual),
    (4096, 28672, true, Epilogue::SwiGlu),
    (4096, 28672, true, Epilogue::GeGlu),
];

/// Tokens of a step: those that the shapes of matmuls tell apart.
const TOKENS: [u32; 4] = [1, 2, 4, 64];

/// Query heads, heads of keys and values, and dimensions of a head: SmolLM2, Gemma 3, Llama 3,
/// Qwen 2.5.
const HEADS: [(u32, u32, u32); 4] = [(9, 3, 64), (4, 1, 256), (32, 8, 128), (14, 2, 64)];

/// The device writes nothing: any buffer does, as long as planes differ.
fn slice(buffer: u32) -> BufferSlice {
    BufferSlice { buffer: BufferHandle(buffer), offset: 0, bytes: 1 << 20 }
}

/// All pipelines for a device, some of them more than once.
pub(super) fn record(caps: &Capabilities) -> Recording {
    let mut recording = Recording::new();
    for dtype in DTYPES {
        matmuls(&mut recording, caps, dtype);
        experts(&mut recording, caps, dtype);
        let layout = layout(caps, dtype, 512, 1024);
        let table = PackedMatrix {
            layout,
            sliced: false,
            quads: BufferHandle(0),
            words: Some(BufferHandle(1)),
        };
        embed::record(&mut recording, caps, &table, (slice(2), slice(4)), slice(3), 1, 1.0);
    }
    for heads in HEADS {
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8_0] {
            of_heads(&mut recording, caps, heads, format);
        }
    }
    gather_rows::record(&mut recording, caps, slice(0), slice(1), slice(2), 512, 1);
    sampling(&mut recording, caps);
    for gelu in [false, true] {
        glu::record(&mut recording, caps, &Glu::apart(slice(0), slice(1), 512, gelu), 1);
    }
    for residual in [false, true] {
        norms(&mut recording, caps, residual);
    }
    recording
}

fn layout(caps: &Capabilities, dtype: DType, columns: u64, rows: u64) -> Layout {
    Layout { dtype, rows, row_len: columns, lanes: u64::from(caps.lanes) }
}

fn matmuls(recording: &mut Recording, caps: &Capabilities, dtype: DType) {
    for (columns, rows, norm, epilogue) in MATMULS {
        let layout = layout(caps, dtype, columns, rows);
        let weights = PackedMatrix {
            layout,
            sliced: false,
            quads: BufferHandle(0),
            words: Some(BufferHandle(1)),
        };
        for tokens in TOKENS {
            let matmul = Matmul {
                weights: &weights,
                x: slice(2),
                x_stride: columns,
                y: slice(3),
                y_stride: rows,
                y_offset: 0,
                tokens,
                norm: norm.then(|| (slice(4), 1e-5)),
                bias: None,
                scale: 1.0,
                epilogue,
                workspace: Some(slice(6)),
            };
            matmul::record(recording, caps, &matmul);
            if epilogue == Epilogue::Store && tokens >= matmul_tiled::TOKENS_MIN {
                let mut plain = Recording::new();
                matmul::record(&mut plain, caps, &Matmul { workspace: None, ..matmul });
                for shape in tiles(caps, &plain) {
                    matmul::record_shaped(recording, caps, &matmul, shape);
                }
            }
        }
    }
}

/// Every shape that tiles of a matmul in f32 may have.
fn tiles(caps: &Capabilities, plain: &Recording) -> Vec<TileConfig> {
    let Some(Command::Dispatch(matmul)) = plain.commands.first() else { return Vec::new() };
    let of_tier = |tier| matmul_tiled::shapes(caps, matmul, tier);
    matmul_tiled::REDUCED_TIERS.into_iter().flat_map(of_tier).collect()
}

/// A mixture's up and down matmuls, for one token and for many.
fn experts(recording: &mut Recording, caps: &Capabilities, dtype: DType) {
    for (columns, rows, norm, epilogue) in
        [(2048, 1536, true, Epilogue::SwiGlu), (768, 2048, false, Epilogue::Store)]
    {
        let weights = PackedExperts {
            layout: layout(caps, dtype, columns, rows),
            experts: 128,
            quads: BufferHandle(0),
            words: Some(BufferHandle(1)),
        };
        for (routes, route_count) in
            [(Routes::Each(slice(5)), 8), (Routes::Listed(slice(5), 512), 4096)]
        {
            let matmul = MatmulExperts {
                weights: &weights,
                routes,
                route_count,
                used: 8,
                x: slice(2),
                x_stride: columns,
                y: slice(3),
                y_stride: rows,
                y_offset: 0,
                norm: norm.then(|| (slice(4), 1e-5)),
                epilogue,
                workspace: Some(BufferSlice { bytes: 1 << 30, ..slice(6) }),
            };
            matmul_experts::record(recording, caps, &matmul);
            let mut plain = Recording::new();
            matmul_experts::record(&mut plain, caps, &MatmulExperts { workspace: None, ..matmul });
            if epilogue == Epilogue::Store {
                for shape in tiles(caps, &plain) {
                    matmul_experts::record_shaped(recording, caps, &matmul, shape);
                }
            }
        }
    }
}

fn of_heads(
    recording: &mut Recording,
    caps: &Capabilities,
    (heads, kv_heads, head_dim): (u32, u32, u32),
    format: KvFormat,
) {
    let layout = PageLayout::new(caps, kv_heads, head_dim, format);
    let gains = Norms { kind: NormKind::Head, q_gain: slice(4), k_gain: slice(5), epsilon: 1e-6 };
    for norms in [None, Some(gains)] {
        let post = QkvPost {
            heads,
            layout,
            neox: true,
            rope_dim: head_dim,
            rope_coarse: 64,
            table_stride: 128,
            qkv: slice(0),
            steps: slice(1),
            tables: slice(2),
            rope: Some(slice(3)),
            norms,
            q: slice(6),
            kv: slice(7),
        };
        qkv_post::record(recording, caps, &post, 1);
    }
    let group = heads / kv_heads;
    let of_lanes = [(false, 1), (true, 4)].map(|(one_token_each, splits)| {
        let shape = attention::AttentionTile::choose(caps, head_dim, group, one_token_each);
        attention::AttentionTile { splits, ..shape }
    });
    let of_units = attention_tiled::choose(caps, head_dim, group);
    for shape in of_lanes.into_iter().chain(of_units) {
        let attend = Attention {
            heads,
            layout,
            window: 0,
            causal: true,
            scale: 1.0,
            soft_cap: 0.0,
            table_stride: 128,
            q: slice(0),
            steps: slice(1),
            tiles: slice(2),
            tables: slice(3),
            kv: slice(4),
            y: slice(5),
            partials: Some(Partials { sums: slice(6), done: slice(7) }),
        };
        attention::record(recording, caps, &attend, shape, 1);
    }
}

fn sampling(recording: &mut Recording, caps: &Capabilities) {
    let (logits, wanted, maxima, chosen) = (slice(0), slice(1), slice(2), slice(3));
    let penalise = Penalise { logits, wanted, listed: slice(4), chosen };
    penalise::record(recording, caps, &penalise, (1, 512));
    mask::record(recording, caps, (logits, wanted, slice(5)), (1, 512));
    maxima::record(recording, caps, logits, wanted, maxima, (1, 512));
    sample::record(recording, caps, (logits, wanted, maxima), chosen, (1, 512));
}

fn norms(recording: &mut Recording, caps: &Capabilities, residual: bool) {
    let norm =
        RmsNorm { x: slice(0), gain: slice(1), y: slice(2), dim: 512, epsilon: 1e-6, residual };
    rms_norm::record(recording, caps, &norm, 1);
    let bias = residual.then(|| slice(3));
    let norm =
        LayerNorm { x: slice(0), gain: slice(1), bias, y: slice(2), dim: 512, epsilon: 1e-6 };
    layer_norm::record(recording, caps, &norm, 1);
    let combine = MoeCombine {
        x: slice(0),
        weights: slice(1),
        shared: None,
        y: slice(2),
        dim: 512,
        used: 8,
        factor: 1.0,
        residual,
    };
    moe_combine::record(recording, caps, &combine, 1);
    let router = Router { experts: 128, used: 8, sigmoid: residual, normalise: true, scale: 1.0 };
    moe_route::record(recording, caps, &router, slice(0), (slice(1), slice(2)), 1);
    moe_lists::record(recording, caps, slice(0), slice(1), (8, 128, 1));
}
