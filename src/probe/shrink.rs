//! Small versions of the dispatches that have large operands.

use bytemuck::bytes_of;

use crate::gpu::Dispatch;
use crate::kernels::embed;
use crate::kernels::matmul::{self, Epilogue};
use crate::kernels::matmul_experts::Params;

/// Tiles of rows that stay of a matmul.
const ROW_TILES: u32 = 2;

/// Rows of a table that tokens may name; a multiple of every group's rows.
pub const TABLE_ROWS: u32 = 256;

/// Bytes of a binding that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub offset: u64,
    pub bytes: u64,
}

/// The dispatch with fewer rows, and which pieces of each of its bindings it then reads or writes.
pub(super) fn shrink(dispatch: &Dispatch) -> (Dispatch, Vec<Vec<Piece>>) {
    let mut small = dispatch.clone();
    let mut pieces: Vec<Vec<Piece>> = dispatch
        .bindings
        .iter()
        .map(|slice| vec![Piece { offset: 0, bytes: slice.bytes }])
        .collect();
    let name = dispatch.kernel.name;
    if name.starts_with("matmul_") {
        matmul(&mut small, &mut pieces);
    } else if name.starts_with("embed_") {
        table(&mut small, &mut pieces);
    }
    // What is bound in place of something unused has the pieces of what it is.
    for at in 1..pieces.len() {
        let same = (0..at).find(|other| dispatch.bindings[*other] == dispatch.bindings[at]);
        if let Some(other) = same {
            pieces[at] = pieces[other].clone();
        }
    }
    (small, pieces)
}

/// Cuts the rows of a matmul's weights; returns the part of the planes that stays.
fn cut_rows(small: &mut Dispatch, params: &mut matmul::Params) -> (u64, u64) {
    let (lanes, rows_a_lane, epilogue) = (small.spec[0], small.spec[3], small.spec[7]);
    let all = u64::from(params.groups);
    if small.groups[1] > ROW_TILES {
        small.groups[1] = ROW_TILES;
        params.groups = ROW_TILES * rows_a_lane;
        let glu = [Epilogue::SwiGlu as u32, Epilogue::GeGlu as u32].contains(&epilogue);
        params.rows = params.groups * lanes / if glu { 2 } else { 1 };
    }
    (u64::from(params.groups), all)
}

fn matmul(small: &mut Dispatch, pieces: &mut [Vec<Piece>]) {
    let mut params = Params::of(small);
    let operands = matmul::Operands::of(small);
    let (kept, all) = cut_rows(small, &mut params.matmul);
    let matrices = u64::from(params.expert_count.max(1));
    let x_bytes = u64::from(params.x_rows()) * u64::from(params.matmul.x_stride) * 16;
    let y_bytes = u64::from(params.matmul.tokens) * u64::from(params.matmul.y_stride) * 4;
    for (slice, pieces) in small.bindings.iter().zip(pieces) {
        if *slice == operands.quads || *slice == operands.words {
            let each = slice.bytes / matrices;
            let piece = |matrix| Piece { offset: matrix * each, bytes: each / all * kept };
            *pieces = (0..matrices).map(piece).collect();
        } else if *slice == operands.x {
            pieces[0].bytes = x_bytes.min(slice.bytes);
        } else if *slice == operands.y {
            pieces[0].bytes = y_bytes.min(slice.bytes);
        }
    }
    params.put(small);
}

fn table(small: &mut Dispatch, pieces: &mut [Vec<Piece>]) {
    let mut params: embed::Params = bytemuck::pod_read_unaligned(&small.push);
    // The first rows of a table; a later slice of it has none that tokens name.
    if params.row_count <= TABLE_ROWS {
        return;
    }
    // At least the groups of these rows: those of a row are neighbours in every plane.
    let parts = u64::from(params.row_count / TABLE_ROWS);
    for (slice, pieces) in small.bindings.iter().zip(pieces).take(2) {
        let bytes = slice.bytes.div_ceil(parts);
        pieces[0].bytes = bytes.next_multiple_of(16).min(slice.bytes);
    }
    params.row_count = TABLE_ROWS;
    small.push = bytes_of(&params).to_vec();
}
