//! `shaders/matmul.comp`: matmuls with packed weights, for one token or many.

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use super::{
    PackedMatrix, RowSlice, by_format_and_device, matmul_sliced, or_unused, spirv, tuned, u32_of,
};
#[allow(unused_imports, reason = "documentation names it")]
use super::{block_sums, quantize_x};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};
use crate::tensor::layout::Layout;

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    /// Addresses of quads, words and x; the executor fills them in where pointers are used.
    pub addresses: [[u32; 2]; 3],
    pub units: u32,
    pub rows: u32,
    pub groups: u32,
    pub tokens: u32,
    pub x_stride: u32,
    pub y_stride: u32,
    pub y_offset: u32,
    pub blocks: u32,
    pub epsilon: f32,
    pub y_scale: f32,
}

const _: () = assert!(spirv::MATMUL_F32_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::MATMUL_F32_BINDINGS == 6 && spirv::MATMUL_F32_SPECS == 8);

/// Operation fused behind a matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// y = scale * v
    Store = 0,
    /// y += scale * v
    Residual = 1,
    /// Groups alternate gate and up: y = silu(gate) * up
    SwiGlu = 2,
    /// The same with GELU's tanh form.
    GeGlu = 3,
    /// y = gelu(v), by the tanh form.
    Gelu = 4,
    /// y = scale * tanh(v / scale)
    SoftCap = 5,
}

impl Epilogue {
    /// True if two rows of W yield one row of y.
    #[must_use]
    pub fn is_glu(self) -> bool {
        matches!(self, Self::SwiGlu | Self::GeGlu)
    }
}

/// Bindings of a matmul, with interleaved or sliced weights.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Plane of quads.
    pub quads: BufferSlice,
    /// Plane of words; the quads again where there are none.
    pub words: BufferSlice,
    /// Activations, `[tokens, x_stride]`.
    pub x: BufferSlice,
    /// Result.
    pub y: BufferSlice,
    /// Gain of the norm, where there is one.
    pub gain: BufferSlice,
    /// Bias, where there is one; with experts, their routes or lists.
    pub bias: BufferSlice,
}

impl Operands {
    /// Those of a dispatch of `matmul`, with experts or without, or of `matmul_sliced`.
    ///
    /// # Panics
    /// If it has other bindings: a bug of the caller.
    #[must_use]
    pub fn of(dispatch: &Dispatch) -> Self {
        match dispatch.bindings[..] {
            [quads, words, x, y, gain, bias] => Self { quads, words, x, y, gain, bias },
            [quads, x, gain, y, bias] => Self { quads, words: quads, x, y, gain, bias },
            _ => panic!("{} has the bindings of a matmul", dispatch.kernel.name),
        }
    }
}

/// How the work is cut: a lane takes `rows` rows and `tokens` columns; `split` rows of lanes share
/// K.
///
/// `split` must not depend on the number of tokens, so that a token's result does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TileConfig {
    /// Rows of a lane; even.
    pub rows: u32,
    /// Tokens of a tile.
    pub tokens: u32,
    /// Rows of lanes in a workgroup.
    pub split: u32,
    /// By which numbers.
    pub tier: Tier,
}

/// Kinds of numbers that matmuls are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// f32, by this file's shader or by `matmul_sliced`.
    #[default]
    Scalar,
    /// f16, by matrix units with f32 sums (`matmul_tiled`).
    Matrix,
    /// f16, with f32 sums of short f16 ones (`matmul_tiled`).
    Half,
    /// Bytes, with f32 sums of blocks (`matmul_bytes`).
    Bytes,
    /// f32, where x is added up by a dispatch of its own (`matmul_sliced`): the same bits.
    Summed,
}

impl Tier {
    /// All of them; their order is that of their numbers.
    pub const ALL: [Self; 5] = [Self::Scalar, Self::Matrix, Self::Half, Self::Bytes, Self::Summed];

    /// Name of the tier within kernel names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Matrix => "matrix",
            Self::Half => "half",
            Self::Bytes => "bytes",
            Self::Summed => "summed",
        }
    }
}

impl TileConfig {
    /// A shape of matmuls in f32.
    #[must_use]
    pub const fn scalar(rows: u32, tokens: u32, split: u32) -> Self {
        Self { rows, tokens, split, tier: Tier::Scalar }
    }

    /// The shape for a matrix and a number of tokens, in f32.
    ///
    /// Software drivers: few fat workgroups of one subgroup (4 rows and up
    /// to 8 tokens a lane, measured on lavapipe 26.1).
    /// GPUs: enough workgroups to fill the device even for one token, by sharing K.
    #[must_use]
    pub fn choose(caps: &Capabilities, layout: &Layout, tokens: u32) -> Self {
        let column = match tokens {
            1 => 1,
            2 => 2,
            3 | 4 => 4,
            _ => 8,
        };
        if caps.is_cpu() {
            return Self::scalar(4, column, 1);
        }
        let rows = 2;
        // About 1024 rows of lanes keep a large GPU busy; shared memory and invocations bound the
        // rest.
        let wanted = 1024_u64.div_ceil(layout.groups().div_ceil(u64::from(rows)));
        let units = layout.units();
        let invocations = u64::from(caps.workgroup_invocations_max.min(256) / caps.lanes).max(1);
        let split = wanted.min(units).min(invocations).min(8);
        let split = if split.is_power_of_two() { split } else { split.next_power_of_two() / 2 };
        Self::scalar(rows, column, split as u32)
    }
}

/// One matmul: y\[t\] = epilogue(W norm(x\[t\])).
#[derive(Clone, Copy, Debug)]
pub struct Matmul<'a> {
    /// Packed weight matrix.
    pub weights: &'a PackedMatrix,
    /// f32 `[tokens, x_stride]`.
    pub x: BufferSlice,
    /// Floats between rows of x, a multiple of 4; of 32 where the weights are sliced.
    pub x_stride: u64,
    /// f32 `[tokens, y_stride]`.
    pub y: BufferSlice,
    /// Floats between rows of y.
    pub y_stride: u64,
    /// First column of y to write.
    pub y_offset: u64,
    /// Rows of x and y.
    pub tokens: u32,
    /// RMS norm of x: gain, f32 `[row_len]`, and epsilon.
    pub norm: Option<(BufferSlice, f32)>,
    /// f32 `[rows]`; not with a GLU.
    pub bias: Option<BufferSlice>,
    /// Factor of the matmul, bias included, or its soft cap; see [`Epilogue`].
    pub scale: f32,
    /// Operation fused behind the matmul.
    pub epilogue: Epilogue,
    /// Room for what a dispatch before makes of x: where the weights are sliced, sums
    /// ([`block_sums::bytes`] for all tokens); else narrower numbers ([`quantize_x::bytes`]), which
    /// without room are not wanted.
    pub workspace: Option<BufferSlice>,
}

impl Matmul<'_> {
    /// Parameters for the rows of a slice.
    pub(super) fn params(&self, slice: &RowSlice) -> Params {
        let packing = self.weights.packing();
        let per_y = if self.epilogue.is_glu() { 2 } else { 1 };
        Params {
            addresses: [[0; 2]; 3],
            units: u32_of(packing.units()),
            rows: u32_of(slice.row_count / per_y),
            groups: u32_of(slice.groups * (packing.group_rows() / packing.layout.lanes)),
            tokens: self.tokens,
            x_stride: u32_of(self.x_stride / 4),
            y_stride: u32_of(self.y_stride),
            y_offset: u32_of(self.y_offset + slice.row_first / per_y),
            blocks: u32_of(packing.layout.row_len / 32),
            epsilon: self.norm.map_or(0.0, |(_, epsilon)| epsilon),
            y_scale: self.scale,
        }
    }

    /// Gain of the norm.
    pub(super) fn gain(&self) -> Option<BufferSlice> {
        self.norm.map(|(gain, _)| gain)
    }

    /// The bias of a slice's rows.
    pub(super) fn bias_of(&self, slice: &RowSlice) -> Option<BufferSlice> {
        self.bias.map(|bias| BufferSlice {
            offset: bias.offset + slice.row_first * 4,
            bytes: bias.bytes - slice.row_first * 4,
            ..bias
        })
    }
}

/// Most groups a slice's row tiles are aligned to: the largest `TileConfig::rows` in use.
pub const GROUP_MULTIPLE: u64 = 8;

/// Appends the matmul, in the shape chosen for the device.
pub fn record(recording: &mut Recording, caps: &Capabilities, matmul: &Matmul<'_>) {
    let mut plain = Recording::new();
    if matmul.weights.sliced {
        matmul_sliced::record(&mut plain, caps, matmul);
    } else {
        let shape = TileConfig::choose(caps, &matmul.weights.layout, matmul.tokens);
        record_scalar(&mut plain, caps, matmul, shape);
    }
    let has_workspace = matmul.workspace.is_some();
    let best = |matmul: &Dispatch| tuned::best(caps, matmul, has_workspace);
    tuned::append(recording, caps, plain, matmul.workspace, best);
}

/// Appends the matmul in a shape of any tier.
///
/// # Panics
/// If the device cannot run it, or it needs room for a narrower x and has none: the caller asked.
pub fn record_shaped(
    recording: &mut Recording,
    caps: &Capabilities,
    matmul: &Matmul<'_>,
    shape: TileConfig,
) {
    let mut plain = Recording::new();
    if matmul.weights.sliced {
        matmul_sliced::record(&mut plain, caps, matmul);
    } else {
        let scalar = match shape.tier {
            Tier::Scalar => shape,
            _ => TileConfig::choose(caps, &matmul.weights.layout, matmul.tokens),
        };
        record_scalar(&mut plain, caps, matmul, scalar);
    }
    tuned::append_in(recording, caps, plain, matmul.workspace, shape);
}

/// Appends the matmul in f32: one dispatch for each slice of the weights that can be bound, and
/// for each part of its rows that a grid can count.
fn record_scalar(
    recording: &mut Recording,
    caps: &Capabilities,
    matmul: &Matmul<'_>,
    shape: TileConfig,
) {
    let layout = &matmul.weights.layout;
    let (kernel, pointers) = by_format_and_device("matmul", layout.dtype, "", caps);
    assert!(!(matmul.epilogue.is_glu() && matmul.bias.is_some()), "a GLU takes no bias");
    let gain = matmul.gain();
    for slice in matmul.weights.row_slices(caps, GROUP_MULTIPLE) {
        let row_tiles = slice.groups.div_ceil(u64::from(shape.rows));
        assert!(row_tiles <= u64::from(caps.workgroup_count_max[1]), "rows of a slice fit a grid");
        let bias = matmul.bias_of(&slice);
        let params = matmul.params(&slice);
        let spec = vec![
            caps.lanes,
            shape.split,
            1,
            shape.rows,
            shape.tokens,
            u32::from(gain.is_some()),
            u32::from(bias.is_some()),
            matmul.epilogue as u32,
        ];
        recording.dispatch(Dispatch {
            kernel,
            spec,
            bindings: vec![
                slice.quads,
                slice.words,
                matmul.x,
                matmul.y,
                or_unused(gain, matmul.x),
                or_unused(bias, matmul.x),
            ],
            push: bytemuck::bytes_of(&params).to_vec(),
            pointers,
            groups: [matmul.tokens.div_ceil(shape.tokens), u32_of(row_tiles), 1],
        });
    }
}
