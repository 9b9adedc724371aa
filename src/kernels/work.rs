//! What a dispatch has to move and to compute, for rooflines: the least bytes any implementation of
//! the kernel would read and write, and its multiplications and additions.
//!
//! Weights count once however many tiles of tokens read them, and so do keys and values.

use super::{
    KvFormat, PageLayout, attention, fma_peak, gather_rows, glu, layer_norm, matmul,
    matmul_experts, maxima,
};
use super::{moe_combine, moe_lists, qkv_post, quantize_x, read_stream, rms_norm};
use crate::gpu::{Command, Dispatch};

/// Bytes moved and operations done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Multiplications and additions, one each.
    pub flops: u64,
}

impl Work {
    /// Bytes in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.read_bytes + self.written_bytes
    }
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.flops += other.flops;
    }
}

/// Neighbouring positions of one session that a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// First index.
    pub first: u64,
    /// Number of items.
    pub count: u64,
}

impl Positions {
    /// Positions that the tokens see, summed over tokens: each sees itself and all before it, or
    /// the last `window` of these.
    fn seen(self, window: u64) -> u64 {
        (self.first..self.first + self.count).map(|position| (position + 1).min(window)).sum()
    }

    /// Positions that at least one of the tokens sees.
    fn spanned(self, window: u64) -> u64 {
        self.first + self.count - (self.first + 1).saturating_sub(window)
    }
}

/// The work of one command in a step over `positions`; `None` for a kernel that is not known here.
#[must_use]
pub fn of(command: &Command, positions: &[Positions]) -> Option<Work> {
    let work = match command {
        Command::Copy { from, to } => {
            Work { read_bytes: from.bytes, written_bytes: to.bytes, flops: 0 }
        }
        Command::Zero(slice) => Work { written_bytes: slice.bytes, ..Work::default() },
        Command::Dispatch(dispatch) => {
            let name = dispatch.kernel.name;
            let is = |stem: &str| {
                name.strip_prefix(stem).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
            };
            match () {
                () if is("matmul") => of_matmul(dispatch),
                () if is("quantize_x") => of_quantize_x(dispatch),
                () if is("block_sums") => of_block_sums(dispatch),
                () if is("moe_route") => of_moe_route(dispatch),
                () if is("moe_lists") => of_moe_lists(dispatch),
                () if is("moe_combine") => of_moe_combine(dispatch),
                () if is("attention") => of_attention(dispatch, positions),
                () if is("embed") => of_embed(dispatch),
                () if is("qkv_post") => of_qkv_post(dispatch),
                () if is("rms_norm") => of_rms_norm(dispatch),
                () if is("layer_norm") => of_layer_norm(dispatch),
                () if is("gather_rows") => of_gather_rows(dispatch),
                () if is("glu") => of_glu(dispatch),
                () if is("read_stream") => of_read_stream(dispatch),
                () if is("fma_peak") => of_fma_peak(dispatch),
                () if is("maxima") => of_rows_of_logits(dispatch, dispatch.groups[1]),
                () if is("sample") || is("penalise") || is("mask") => Work::default(), // a few words of them
                () => return None,
            }
        }
    };
    Some(work)
}

/// Label of a dispatch in tables, e.g. `matmul_q4_1 1536x576 t8`.
#[must_use]
pub fn label(command: &Command) -> String {
    match command {
        Command::Copy { .. } => "copy".into(),
        Command::Zero(_) => "zero".into(),
        Command::Dispatch(dispatch) if dispatch.kernel.name.starts_with("matmul_") => {
            let params = matmul_experts::Params::of(dispatch).matmul;
            let rows = matmul_rows(dispatch, &params);
            let (columns, tokens) = (32 * params.blocks, params.tokens);
            format!("{} {rows}x{columns} t{tokens}", dispatch.kernel.name)
        }
        Command::Dispatch(dispatch) => dispatch.kernel.name.into(),
    }
}

fn is_glu(dispatch: &Dispatch) -> bool {
    let epilogue = dispatch.spec[7];
    epilogue == matmul::Epilogue::SwiGlu as u32 || epilogue == matmul::Epilogue::GeGlu as u32
}

/// Rows of W.
fn matmul_rows(dispatch: &Dispatch, params: &matmul::Params) -> u64 {
    u64::from(params.rows) * if is_glu(dispatch) { 2 } else { 1 }
}

/// Which experts are asked for is known on the device alone: as many are counted as there can be,
/// up to one for each route, and all routes as if they went to this slice of the experts.
fn of_matmul(dispatch: &Dispatch) -> Work {
    let all = matmul_experts::Params::of(dispatch);
    let params = all.matmul;
    let matmul::Operands { quads, words, gain, bias, .. } = matmul::Operands::of(dispatch);
    let (tokens, columns) = (u64::from(params.tokens), 32 * u64::from(params.blocks));
    let x_rows = u64::from(all.x_rows());
    let rows = matmul_rows(dispatch, &params);
    let (norm, has_bias) = (dispatch.spec[5] == 1, dispatch.spec[6] == 1);
    let y_bytes = 4 * tokens * u64::from(params.rows);
    let residual = dispatch.spec[7] == matmul::Epilogue::Residual as u32;
    let planes = quads.bytes + if words == quads { 0 } else { words.bytes };
    let matrices = u64::from(all.expert_count.max(1));
    let name = dispatch.kernel.name;
    let is_tiled = name.starts_with("matmul_tiled") || name.starts_with("matmul_bytes");
    let x_bytes = match is_tiled {
        true => 4 * x_rows + 16 * x_rows * u64::from(params.x_stride),
        false => 4 * x_rows * columns,
    };
    let optional = [(norm && !is_tiled, gain.bytes), (has_bias, bias.bytes), (residual, y_bytes)];
    let optional: u64 = optional.iter().filter(|(there, _)| *there).map(|(_, bytes)| bytes).sum();
    Work {
        read_bytes: planes / matrices * tokens.min(matrices) + x_bytes + optional,
        written_bytes: y_bytes,
        flops: 2 * rows * columns * tokens,
    }
}

fn of_quantize_x(dispatch: &Dispatch) -> Work {
    let factors_bytes = 4 * u64::from(dispatch.groups[0]);
    of_rows_before(dispatch, dispatch.bindings[2].bytes + factors_bytes)
}

fn of_block_sums(dispatch: &Dispatch) -> Work {
    let [_, _, gained, sums] = dispatch.bindings[..] else {
        panic!("block_sums has four bindings")
    };
    let gained_bytes = if dispatch.spec[3] == 1 { gained.bytes } else { 0 };
    of_rows_before(dispatch, sums.bytes + gained_bytes)
}

/// Work of a matmul's activation pre-pass.
fn of_rows_before(dispatch: &Dispatch, written_bytes: u64) -> Work {
    let params: quantize_x::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let rows = u64::from(dispatch.groups[0]);
    let columns = 32 * u64::from(params.blocks);
    let norm = dispatch.spec[3] == 1;
    Work {
        read_bytes: 4 * rows * columns + if norm { 4 * columns } else { 0 },
        written_bytes,
        flops: rows * columns * if norm { 4 } else { 1 },
    }
}

fn of_moe_route(dispatch: &Dispatch) -> Work {
    let tokens = u64::from(dispatch.groups[0]);
    let (experts, used) = (u64::from(dispatch.spec[3]), u64::from(dispatch.spec[4]));
    Work { read_bytes: 4 * tokens * experts, written_bytes: 8 * tokens * used, flops: 0 }
}

fn of_moe_lists(dispatch: &Dispatch) -> Work {
    let params: moe_lists::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let routes = u64::from(params.routes);
    let experts = u64::from(dispatch.groups[0]);
    Work { read_bytes: 4 * routes, written_bytes: 4 * (routes + experts), flops: 0 }
}

fn of_moe_combine(dispatch: &Dispatch) -> Work {
    let params: moe_combine::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let values = u64::from(dispatch.groups[0]) * 4 * u64::from(params.dim);
    let (used, shared) = (u64::from(params.used), u64::from(dispatch.spec[3] > 0));
    let reads = used + shared + u64::from(dispatch.spec[4]);
    Work { read_bytes: 4 * reads * values, written_bytes: 4 * values, flops: 2 * used * values }
}

fn of_attention(dispatch: &Dispatch, positions: &[Positions]) -> Work {
    let params: attention::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let head_dim = u64::from(dispatch.spec[3]);
    let kv_token_bytes = kv_token_bytes(dispatch, params.kv_heads);
    let window = if params.window == 0 { u64::MAX } else { u64::from(params.window) };
    let heads_width = u64::from(params.heads) * head_dim;
    let tokens: u64 = positions.iter().map(|part| part.count).sum();
    let seen: u64 = positions.iter().map(|part| part.seen(window)).sum();
    let spanned: u64 = positions.iter().map(|part| part.spanned(window)).sum();
    Work {
        read_bytes: spanned * kv_token_bytes + 4 * tokens * heads_width,
        written_bytes: 4 * tokens * heads_width,
        // A multiply-add each for the score and for the value.
        flops: 4 * seen * heads_width,
    }
}

/// Bytes of a position's keys and values in the pages that a dispatch of attention reads, or one of
/// qkv_post writes.
fn kv_token_bytes(dispatch: &Dispatch, kv_heads: u32) -> u64 {
    let [_, _, _, head_dim, format, key_words, ..] = dispatch.spec[..] else {
        panic!("both name their pages first")
    };
    let format = KvFormat::of_code(format);
    PageLayout { kv_heads, head_dim, format, key_words }.token_bytes()
}

fn of_embed(dispatch: &Dispatch) -> Work {
    let params: super::embed::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [quads, words, ..] = dispatch.bindings[..] else { panic!("embed has five bindings") };
    let tokens = u64::from(dispatch.groups[0]);
    let words_bytes = if words == quads { 0 } else { words.bytes };
    let row_bytes = (quads.bytes + words_bytes) / u64::from(params.row_count).max(1);
    let y_bytes = 4 * tokens * 32 * u64::from(params.blocks);
    // Rows of positions are added to what is there.
    let added = if dispatch.spec[3] > 0 { y_bytes } else { 0 };
    Work { read_bytes: tokens * row_bytes + added, written_bytes: y_bytes, flops: 0 }
}

fn of_qkv_post(dispatch: &Dispatch) -> Work {
    let params: qkv_post::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let (tokens, head_dim) = (u64::from(dispatch.groups[0]), u64::from(dispatch.spec[3]));
    let (heads, kv_heads) = (u64::from(params.heads), u64::from(params.kv_heads));
    Work {
        read_bytes: 4 * tokens * u64::from(params.qkv_stride),
        written_bytes: tokens * (4 * head_dim * heads + kv_token_bytes(dispatch, params.kv_heads)),
        // A rotation of two values is four multiplications and two additions.
        flops: 3 * tokens * head_dim * (heads + kv_heads),
    }
}

fn of_rms_norm(dispatch: &Dispatch) -> Work {
    let params: rms_norm::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let values = u64::from(dispatch.groups[0]) * 4 * u64::from(params.dim);
    let reads = if dispatch.spec[3] == 1 { 2 } else { 1 };
    Work { read_bytes: 4 * reads * values, written_bytes: 4 * values, flops: 4 * values }
}

fn of_layer_norm(dispatch: &Dispatch) -> Work {
    let params: layer_norm::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let values = u64::from(dispatch.groups[0]) * 4 * u64::from(params.dim);
    Work { read_bytes: 4 * values, written_bytes: 4 * values, flops: 6 * values }
}

fn of_gather_rows(dispatch: &Dispatch) -> Work {
    let params: gather_rows::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let bytes = u64::from(dispatch.groups[0]) * 16 * u64::from(params.dim);
    Work { read_bytes: bytes, written_bytes: bytes, flops: 0 }
}

fn of_glu(dispatch: &Dispatch) -> Work {
    let params: glu::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let values = u64::from(dispatch.groups[0]) * u64::from(params.dim);
    Work { read_bytes: 8 * values, written_bytes: 4 * values, flops: 2 * values }
}

fn of_read_stream(dispatch: &Dispatch) -> Work {
    let params: read_stream::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let lanes = u64::from(dispatch.groups[0]) * u64::from(dispatch.spec[0]);
    let read_bytes = 16 * u64::from(dispatch.groups[0]) * u64::from(params.part);
    Work { read_bytes, written_bytes: 4 * lanes, flops: 0 }
}

fn of_fma_peak(dispatch: &Dispatch) -> Work {
    let params: fma_peak::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let lanes = u64::from(dispatch.groups[0]) * u64::from(dispatch.spec[0]);
    let flops = 2 * lanes * u64::from(dispatch.spec[3]) * u64::from(params.rounds);
    Work { read_bytes: 0, written_bytes: 4 * lanes, flops }
}

fn of_rows_of_logits(dispatch: &Dispatch, rows: u32) -> Work {
    let params: maxima::Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let (rows, stride) = (u64::from(rows), u64::from(params.stride));
    let written_bytes = 8 * rows * u64::from(params.chunks);
    Work { read_bytes: 4 * rows * stride, written_bytes, flops: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{BufferHandle, BufferSlice, Capabilities, Executor as _, Recording};
    use crate::kernels::PackedMatrix;
    use crate::kernels::matmul::{Epilogue, Matmul};
    use crate::reference::ReferenceExecutor;
    use crate::tensor::DType;
    use crate::tensor::layout::Layout;

    fn caps() -> Capabilities {
        ReferenceExecutor::with_lanes(8).capabilities().clone()
    }

    fn slice(buffer: u32, bytes: u64) -> BufferSlice {
        BufferSlice { buffer: BufferHandle(buffer), offset: 0, bytes }
    }

    #[test]
    fn a_product_reads_its_weights_once_and_knows_its_rows() {
        let layout = Layout { dtype: DType::Q4_1, rows: 64, row_len: 96, lanes: 8 };
        let weights = PackedMatrix {
            layout,
            sliced: false,
            quads: BufferHandle(0),
            words: Some(BufferHandle(1)),
        };
        for (epilogue, rows_of_y, reads_y) in
            [(Epilogue::Store, 64, 0), (Epilogue::Residual, 64, 1), (Epilogue::SwiGlu, 32, 0)]
        {
            let matmul = Matmul {
                weights: &weights,
                x: slice(2, 1 << 20),
                x_stride: 96,
                y: slice(3, 1 << 20),
                y_stride: rows_of_y,
                y_offset: 0,
                tokens: 5,
                norm: None,
                bias: None,
                scale: 1.0,
                epilogue,
                workspace: None,
            };
            let mut recording = Recording::new();
            matmul::record(&mut recording, &caps(), &matmul);
            let [command] = &recording.commands[..] else { panic!("one dispatch") };
            let y_bytes = 5 * rows_of_y * 4;
            let wanted = Work {
                // 20 bytes for 32 weights; x of 5 tokens.
                read_bytes: 64 * 3 * 20 + 5 * 96 * 4 + reads_y * y_bytes,
                written_bytes: y_bytes,
                flops: 2 * 64 * 96 * 5,
            };
            assert_eq!(of(command, &[]), Some(wanted), "{epilogue:?}");
            assert_eq!(label(command), "matmul_q4_1 64x96 t5");
        }
    }

    #[test]
    fn attention_sees_itself_and_what_is_before_it_within_its_window() {
        let part = Positions { first: 10, count: 3 };
        assert_eq!(part.seen(u64::MAX), 11 + 12 + 13);
        assert_eq!(part.spanned(u64::MAX), 13);
        assert_eq!(part.seen(4), 12);
        assert_eq!(part.spanned(4), 4 + 2);
        assert_eq!(Positions { first: 0, count: 2 }.spanned(4), 2);
    }

    #[test]
    fn moving_memory_counts_both_ways() {
        let copy = Command::Copy { from: slice(0, 40), to: slice(1, 40) };
        let wanted = Work { read_bytes: 40, written_bytes: 40, flops: 0 };
        assert_eq!(of(&copy, &[]), Some(wanted));
        assert_eq!(of(&Command::Zero(slice(0, 8)), &[]).map(|work| work.bytes()), Some(8));
    }
}
