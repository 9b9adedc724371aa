//! Twin of `shaders/matmul.comp` with EXPERTS.

use super::Memory;
use super::matmul::{all_products, packing, prepare, write_row};
use crate::gpu::{BufferSlice, Dispatch};
use crate::kernels::matmul_experts::Params;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [quads, words, x, y, gain, routes] = dispatch.bindings[..] else {
        panic!("matmul has six bindings")
    };
    let packing = packing(dispatch, &params.matmul);
    let part = |slice: BufferSlice, group_bytes: u64, expert: u32| {
        let bytes = group_bytes * packing.groups();
        BufferSlice { offset: slice.offset + u64::from(expert) * bytes, bytes, ..slice }
    };
    for expert in 0..params.expert_count {
        let routes = routes_of(dispatch, &params, memory.words(routes), expert);
        if routes.is_empty() {
            continue;
        }
        let quads = part(quads, packing.group_quad_bytes(), expert);
        let words = part(words, packing.group_word_bytes(), expert);
        let rows = routes.iter().map(|route| route / params.used as usize);
        let (x, gain) = (memory.floats(x), memory.floats(gain));
        let x = prepare(x, dispatch, &params.matmul, gain, rows);
        let products = all_products(memory, &packing, quads, words, &x, routes.len());
        memory.update(y, |_, y| {
            for (column, route) in routes.iter().enumerate() {
                let value = |row: usize| products[row * routes.len() + column];
                write_row(y, *route, dispatch, &params.matmul, value);
            }
        });
    }
}

/// The routes that go to an expert of the bound planes.
fn routes_of(dispatch: &Dispatch, params: &Params, routes: &[u32], expert: u32) -> Vec<usize> {
    let expert = params.expert_first + expert;
    if dispatch.spec[8] == 1 {
        let list = &routes[expert as usize * (1 + params.list_max as usize)..];
        return list[1..].iter().take(list[0] as usize).map(|route| *route as usize).collect();
    }
    let chosen = routes.iter().take(params.matmul.tokens as usize).enumerate();
    chosen.filter(|(_, chosen)| **chosen == expert).map(|(route, _)| route).collect()
}
