//! Rows of f32 to blocks, as weights are quantised on the way.

use half::f16;

use crate::tensor::DType;

/// Quantises a row of whole blocks into `out`.
///
/// # Panics
/// For a type that is not quantised to here.
pub(super) fn quantize_row(dtype: DType, values: &[f32], out: &mut [u8]) {
    assert_eq!(dtype, DType::Q8_0, "no other type is chosen");
    let blocks = values.chunks_exact(dtype.block_len());
    for (values, block) in blocks.zip(out.chunks_exact_mut(dtype.block_bytes())) {
        let most = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let scale = most / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let (head, quants) = block.split_at_mut(2);
        head.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        for (quant, value) in quants.iter_mut().zip(values) {
            *quant = ((value * inverse).round() as i8).cast_unsigned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::dequantize_row;

    #[test]
    fn a_row_comes_back_within_half_a_step() {
        let values: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin() * i as f32).collect();
        let mut out = vec![0; 68];
        quantize_row(DType::Q8_0, &values, &mut out);
        let mut back = vec![0.0; 64];
        dequantize_row(DType::Q8_0, &out, &mut back);
        for (block, back) in values.chunks(32).zip(back.chunks(32)) {
            let most = block.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            for (value, back) in block.iter().zip(back) {
                assert!(
                    (value - back).abs() <= most / 127.0 * 0.51 + most * 5e-4,
                    "{value} {back}"
                );
            }
        }
        quantize_row(DType::Q8_0, &[0.0; 32], &mut out[..34]);
        assert_eq!(&out[..34], &[0; 34]);
    }
}
