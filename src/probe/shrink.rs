//! Small versions of the dispatches that have large operands.

use bytemuck::bytes_of;

use crate::gpu::Dispatch;
use crate::kernels::matmul::{self, Epilogue};
use crate::kernels::{embed, matmul_experts};

/// Tiles of rows that stay of a product.
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
    if name.starts_with("matmul_") && name.contains("_experts") {
        experts(&mut small, &mut pieces);
    } else if name.starts_with("matmul_") {
        product(&mut small, &mut pieces);
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

/// Cuts the rows of a product's weights; returns the part of the planes that stays.
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

fn product(small: &mut Dispatch, pieces: &mut [Vec<Piece>]) {
    let mut params: matmul::Params = bytemuck::pod_read_unaligned(&small.push);
    let operands = matmul::Operands::of(small);
    let (kept, all) = cut_rows(small, &mut params);
    let tokens = u64::from(params.tokens);
    let x_bytes = tokens * u64::from(params.x_stride) * 16;
    let y_bytes = tokens * u64::from(params.y_stride) * 4;
    for (slice, pieces) in small.bindings.iter().zip(pieces) {
        let bytes = &mut pieces[0].bytes;
        if *slice == operands.quads || *slice == operands.words {
            *bytes = slice.bytes / all * kept;
        } else if *slice == operands.x {
            *bytes = x_bytes.min(slice.bytes);
        } else if *slice == operands.y {
            *bytes = y_bytes.min(slice.bytes);
        }
    }
    small.push = bytes_of(&params).to_vec();
}

fn experts(small: &mut Dispatch, pieces: &mut [Vec<Piece>]) {
    let mut params: matmul_experts::Params = bytemuck::pod_read_unaligned(&small.push);
    let (kept, all) = cut_rows(small, &mut params.matmul);
    let experts = u64::from(params.expert_count);
    for (slice, pieces) in small.bindings.iter().zip(&mut *pieces).take(2) {
        let each = slice.bytes / experts;
        let piece = |expert| Piece { offset: expert * each, bytes: each / all * kept };
        *pieces = (0..experts).map(piece).collect();
    }
    let routes = u64::from(params.matmul.tokens);
    let y_bytes = routes * u64::from(params.matmul.y_stride) * 4;
    pieces[3][0].bytes = y_bytes.min(small.bindings[3].bytes);
    small.push = bytes_of(&params).to_vec();
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
