//! F32, F16, BF16: as they are in the file.

use super::planes::{UnitSink, UnitSource, f16, words_of};
use crate::tensor::DType;

pub(super) fn pack(bytes: &[u8], sink: &mut UnitSink<'_>) {
    for (i, quad) in bytes.chunks_exact(16).enumerate() {
        sink.quad(i, words_of(quad));
    }
}

pub(super) fn unpack(dtype: DType, unit: &UnitSource<'_>, out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        let half = || unit.quad(i / 8)[i % 8 / 2] >> (16 * (i % 2)) & 0xffff;
        *out = match dtype {
            DType::F32 => f32::from_bits(unit.quad(i / 4)[i % 4]),
            DType::F16 => f16(half()),
            _ => f32::from_bits(half() << 16),
        };
    }
}
