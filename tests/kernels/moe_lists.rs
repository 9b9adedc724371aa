//! `shaders/moe_lists.comp`.

use hob::kernels::moe_lists;

use super::{Case, Kind, on_both_variants};

#[test]
fn each_expert_lists_its_routes_in_order() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 51);
        for (experts, routes) in [(4_u32, 1_usize), (4, 10), (7, 64), (130, 200)] {
            let all: Vec<u32> =
                (0..routes).map(|_| (case.random.next() % u64::from(experts)) as u32).collect();
            let list_max = routes as u32;
            let chosen = case.slice(&all);
            let lists = case.garbage((experts * (1 + list_max)) as usize);
            let sizes = (routes as u32, experts, list_max);
            moe_lists::record(&mut case.recording, &case.caps, chosen, lists, sizes);
            // A length for every expert, and every route once; the rest stays as it was.
            let written = experts as usize + routes;
            case.expect(format!("{routes} routes to {experts}"), lists, Kind::F32, written, 0.0);
        }
        case.check(executor);
    });
}
