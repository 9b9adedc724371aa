//! Twin of `shaders/matmul.comp`.

use std::thread;

use super::glu::{gelu, silu};
use super::{Memory, planes};
use crate::gpu::{BufferSlice, Dispatch};
use crate::kernels::matmul::{Epilogue, Operands, Params};
use crate::kernels::matmul_sliced;
use crate::tensor::Packing;

/// Below this many matmuls a second thread costs more than it saves.
const PRODUCTS_PER_THREAD: u64 = 1 << 20;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let Operands { quads, words, x, y, gain, bias } = Operands::of(dispatch);
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let packing = packing(dispatch, &params);
    let tokens = params.tokens as usize;
    let x = prepare(memory.floats(x), dispatch, &params, memory.floats(gain), 0..tokens);
    let matmuls = all_matmuls(memory, &packing, quads, words, &x, tokens);
    let bias = (dispatch.spec[6] == 1).then(|| memory.floats(bias).to_vec());
    memory.update(y, |_, y| {
        for token in 0..tokens {
            let value = |row: usize| {
                matmuls[row * tokens + token] + bias.as_ref().map_or(0.0, |bias| bias[row])
            };
            write_row(y, token, dispatch, &params, value);
        }
    });
}

/// Packing of the bound rows of W, or of one expert's rows.
pub(super) fn packing(dispatch: &Dispatch, params: &Params) -> Packing {
    let glu = is_glu(dispatch.spec[7]);
    let rows = if glu { params.groups * dispatch.spec[0] } else { params.rows };
    planes::packing(dispatch, "matmul", rows, params.units, params.blocks)
}

fn is_glu(epilogue: u32) -> bool {
    [Epilogue::SwiGlu, Epilogue::GeGlu].iter().any(|each| *each as u32 == epilogue)
}

/// Writes a row of y from its matmuls, `value(row of W)`, as the epilogue says.
pub(super) fn write_row(
    y: &mut [f32],
    y_row: usize,
    dispatch: &Dispatch,
    params: &Params,
    value: impl Fn(usize) -> f32,
) {
    let at = y_row * params.y_stride as usize + params.y_offset as usize;
    let (lanes, epilogue) = (dispatch.spec[0] as usize, dispatch.spec[7]);
    for (row, out) in y[at..][..params.rows as usize].iter_mut().enumerate() {
        *out = if is_glu(epilogue) {
            let gate_row = row / lanes * 2 * lanes + row % lanes;
            let (gate, up) = (value(gate_row), value(gate_row + lanes));
            let swish = epilogue == Epilogue::SwiGlu as u32;
            if swish { silu(gate) * up } else { gelu(gate) * up }
        } else {
            finish(epilogue, value(row), params.y_scale, *out)
        };
    }
}

/// A matmul that is no GLU's, as it is stored where `before` stands.
fn finish(epilogue: u32, sum: f32, scale: f32, before: f32) -> f32 {
    match epilogue {
        _ if epilogue == Epilogue::Residual as u32 => before + scale * sum,
        _ if epilogue == Epilogue::Gelu as u32 => gelu(sum),
        _ if epilogue == Epilogue::SoftCap as u32 => scale * (sum / scale).tanh(),
        _ => scale * sum,
    }
}

/// The given rows of x, RMS-normalised where the constants ask for it: `[rows, K]`. Where they were
/// added up before, `gain` holds sums, among them the factor of the norm.
pub(super) fn prepare(
    x: &[f32],
    dispatch: &Dispatch,
    params: &Params,
    gain: &[f32],
    rows: impl Iterator<Item = usize>,
) -> Vec<f32> {
    let width = params.blocks as usize * 32;
    let mut out = Vec::with_capacity(rows.size_hint().0 * width);
    for index in rows {
        let row = &x[index * params.x_stride as usize * 4..][..width];
        if matmul_sliced::is_summed(dispatch) {
            let factor = gain[index * params.blocks as usize * 4 + 3];
            out.extend(row.iter().map(|v| v * factor));
        } else if dispatch.spec[5] == 1 {
            let squares: f32 = row.iter().map(|v| v * v).sum();
            let factor = 1.0 / (squares / width as f32 + params.epsilon).sqrt();
            out.extend(row.iter().zip(&gain[..width]).map(|(v, g)| v * g * factor));
        } else {
            out.extend_from_slice(row);
        }
    }
    out
}

/// Every row of W times every token: `[rows, tokens]`.
pub(super) fn all_matmuls(
    memory: &Memory,
    packing: &Packing,
    quads: BufferSlice,
    words: BufferSlice,
    x: &[f32],
    tokens: usize,
) -> Vec<f32> {
    let layout = &packing.layout;
    let (quads, words) = (memory.bytes_of(quads), memory.bytes_of(words));
    let mut matmuls = vec![0.0; layout.rows as usize * tokens];
    let work = layout.rows * layout.row_len * tokens as u64;
    let threads = thread::available_parallelism().map_or(1, usize::from) as u64;
    let threads = threads.min(work / PRODUCTS_PER_THREAD + 1);
    let rows_each = (layout.rows.div_ceil(threads) as usize).max(1);
    thread::scope(|scope| {
        for (part, out) in matmuls.chunks_mut(rows_each * tokens).enumerate() {
            scope.spawn(move || {
                let mut weights = vec![0.0; layout.row_len as usize];
                for (i, out) in out.chunks_mut(tokens).enumerate() {
                    let row = (part * rows_each + i) as u64;
                    packing.unpack_row(quads, words, row, &mut weights);
                    for (out, x) in out.iter_mut().zip(x.chunks_exact(weights.len())) {
                        *out = dot(&weights, x);
                    }
                }
            });
        }
    });
    matmuls
}

/// Dot matmul in eight interleaved sums. Arrays, because tests are built with few optimisations:
/// iterators over slices take four times as long there.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, b) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    let mut sums = [0.0_f32; 8];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum()
}
