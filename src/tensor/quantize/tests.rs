//! Round trips: what comes back is near, by how much a type's steps allow.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::tensor::dequantize_row;

fn round_trip(dtype: DType, values: &[f32]) -> Vec<f32> {
    let mut bytes = Vec::new();
    quantize_row(dtype, values, &mut bytes);
    assert_eq!(Some(bytes.len() as u64), dtype.row_bytes(values.len() as u64));
    let mut back = vec![f32::NAN; values.len()];
    dequantize_row(dtype, &bytes, &mut back);
    back
}

/// Sums of four uniform numbers: near the bell shape of weights.
fn weights(count: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (0..4).map(|_| uniform()).sum::<f32>() * 0.05).collect()
}

/// Root of the mean squared error over that of the values.
fn relative_rmse(values: &[f32], back: &[f32]) -> f32 {
    let squares = |of: &dyn Fn(usize) -> f32| (0..values.len()).map(|i| of(i).powi(2)).sum::<f32>();
    (squares(&|i| values[i] - back[i]) / squares(&|i| values[i])).sqrt()
}

/// As good as ggml's own quantisers on such weights, to a few percent.
#[test]
fn errors_of_weights_are_as_small_as_the_types_allow() {
    let values = weights(256 * 64);
    let bounds = [
        (DType::Q8_0, 0.006),
        (DType::Q4_0, 0.09),
        (DType::Q4_K, 0.085),
        (DType::Q5_K, 0.042),
        (DType::Q6_K, 0.019),
    ];
    for (dtype, bound) in bounds {
        let off = relative_rmse(&values, &round_trip(dtype, &values));
        assert!(off < bound, "{dtype}: {off} of at most {bound}");
        assert!(off > bound / 2.0, "{dtype}: {off} is too good to be true");
    }
}

#[test]
fn zeros_and_single_values_come_back() {
    for dtype in QUANTIZABLE {
        assert_eq!(round_trip(dtype, &[0.0; 256]), [0.0; 256], "{dtype}");
        let mut one = [0.0; 256];
        one[77] = -3.0;
        let back = round_trip(dtype, &one);
        assert!((back[77] + 3.0).abs() < 0.05, "{dtype}: {}", back[77]);
        assert!(back.iter().enumerate().all(|(i, v)| i == 77 || v.abs() < 0.05), "{dtype}");
        let same = round_trip(dtype, &[0.7; 256]);
        assert!(same.iter().all(|v| (v - 0.7).abs() < 0.05), "{dtype}: {same:?}");
    }
}

#[test]
fn values_of_a_type_come_back_as_they_are() {
    let mut bytes = Vec::new();
    quantize_row(DType::Q8_0, &weights(256), &mut bytes);
    let mut values = vec![0.0; 256];
    dequantize_row(DType::Q8_0, &bytes, &mut values);
    assert!(relative_rmse(&values, &round_trip(DType::Q8_0, &values)) < 1e-6);
}

proptest! {
    #[test]
    fn no_value_is_further_off_than_a_step(
        dtype in proptest::sample::select(QUANTIZABLE.to_vec()),
        values in proptest::collection::vec(-50.0f32..50.0, 256),
    ) {
        // Of a range of 100; scales of scales, and those chosen for the sum of squares, cost more.
        let levels = match dtype {
            DType::Q8_0 => 254.0,
            DType::Q6_K => 63.0,
            DType::Q5_K => 31.0,
            _ => 15.0,
        };
        for (v, back) in values.iter().zip(round_trip(dtype, &values)) {
            prop_assert!((v - back).abs() <= 2.0 * 100.0 / levels, "{dtype}: {v} {back}");
        }
    }
}
