//! Twin of `shaders/matmul.comp` with EXPERTS.

use super::Memory;
use super::matmul::{all_matmuls, packing, prepare, write_row};
use crate::gpu::{BufferSlice, Dispatch};
use crate::kernels::matmul::Operands;
use crate::kernels::matmul_experts::Params;
use crate::tensor::Packing;

/// One of the matrices that are bound, and the rows of y that are matmuls with it.
pub(super) struct Part {
    pub quads: BufferSlice,
    pub words: BufferSlice,
    pub rows: Vec<usize>,
}

/// The matrices that a matmul has: that of each expert with its routes, or the one that all rows
/// are matmuls with.
pub(super) fn parts(dispatch: &Dispatch, memory: &Memory, packing: &Packing) -> Vec<Part> {
    let params = Params::of(dispatch);
    let Operands { quads, words, bias: routes, .. } = Operands::of(dispatch);
    if !params.has_experts() {
        return vec![Part { quads, words, rows: (0..params.matmul.tokens as usize).collect() }];
    }
    let part = |slice: BufferSlice, group_bytes: u64, expert: u32| {
        let bytes = group_bytes * packing.groups();
        BufferSlice { offset: slice.offset + u64::from(expert) * bytes, bytes, ..slice }
    };
    let of_expert = |expert| Part {
        quads: part(quads, packing.group_quad_bytes(), expert),
        words: part(words, packing.group_word_bytes(), expert),
        rows: routes_of(&params, memory.words(routes), expert),
    };
    (0..params.expert_count).map(of_expert).filter(|part| !part.rows.is_empty()).collect()
}

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params = Params::of(dispatch);
    let Operands { x, y, gain, .. } = Operands::of(dispatch);
    let packing = packing(dispatch, &params.matmul);
    for Part { quads, words, rows } in parts(dispatch, memory, &packing) {
        let of_x = rows.iter().map(|row| row / params.used as usize);
        let (x, gain) = (memory.floats(x), memory.floats(gain));
        let x = prepare(x, dispatch, &params.matmul, gain, of_x);
        let matmuls = all_matmuls(memory, &packing, quads, words, &x, rows.len());
        memory.update(y, |_, y| {
            for (column, row) in rows.iter().enumerate() {
                let value = |of_w: usize| matmuls[of_w * rows.len() + column];
                write_row(y, *row, dispatch, &params.matmul, value);
            }
        });
    }
}

/// The routes that go to an expert of the bound planes.
fn routes_of(params: &Params, routes: &[u32], expert: u32) -> Vec<usize> {
    let expert = params.expert_first + expert;
    if params.is_listed() {
        let list = &routes[expert as usize * (1 + params.list_max as usize)..];
        return list[1..].iter().take(list[0] as usize).map(|route| *route as usize).collect();
    }
    let chosen = routes.iter().take(params.matmul.tokens as usize).enumerate();
    chosen.filter(|(_, chosen)| **chosen == expert).map(|(route, _)| route).collect()
}
