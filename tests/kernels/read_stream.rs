//! `shaders/read_stream.comp`.

use hob::kernels::read_stream;

use super::{Case, Kind, on_both_variants};

#[test]
fn every_quad_is_read_once() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 71);
        let lanes = caps.lanes as usize;
        for pointers in [false, true] {
            if pointers && !caps.buffer_pointers {
                continue;
            }
            for (workgroups, rounds) in [(1, 1), (3, 5)] {
                let bytes = rounds * read_stream::bytes_multiple(caps, workgroups);
                // Fractions alone: the exclusive or of any of them is a finite float.
                let values = case.random.floats(bytes as usize / 4, 0.0, 1.0);
                let words: Vec<u32> = values.iter().map(|v| v.to_bits() & 0x7f_ffff).collect();
                let mut x = case.slice(&words);
                x.bytes = bytes;
                let count = workgroups as usize * lanes;
                let y = case.garbage(count);
                read_stream::record(&mut case.recording, caps, x, y, workgroups, pointers);
                let name = format!("{workgroups} workgroups, {rounds} rounds, pointers {pointers}");
                case.expect(name, y, Kind::F32, count, 0.0);
            }
        }
        case.check(executor);
    });
}
