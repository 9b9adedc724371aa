//! Twin of `shaders/moe_lists.comp`.

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::moe_lists::Params;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [experts, lists] = dispatch.bindings[..] else { panic!("moe_lists has two bindings") };
    let count = dispatch.groups[0] as usize;
    memory.update_words(lists, |memory, lists| {
        let experts = &memory.words(experts)[..params.routes as usize];
        let each = lists.chunks_exact_mut(1 + params.list_max as usize).take(count);
        for (expert, list) in (0_u32..).zip(each) {
            let routes = (0_u32..).zip(experts).filter(|(_, chosen)| **chosen == expert);
            let mut found = 0;
            for (route, _) in routes {
                found += 1;
                list[found] = route;
            }
            list[0] = found as u32;
        }
    });
}
