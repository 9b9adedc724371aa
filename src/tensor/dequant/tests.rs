#![allow(clippy::unwrap_used)]

use half::f16;
use proptest::prelude::*;

use super::*;

fn dequantized(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    dequantize_row(dtype, bytes, &mut out);
    out
}

fn f16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect()
}

#[test]
fn plain_types_are_widened() {
    assert_eq!(dequantized(DType::F32, &1.5f32.to_le_bytes()), [1.5]);
    assert_eq!(dequantized(DType::F16, &[0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00]), {
        [1.0, -2.0, 2f32.powi(-24)]
    });
    assert_eq!(dequantized(DType::BF16, &[0x80, 0x3f, 0x40, 0xc0]), [1.0, -3.0]);
}

#[test]
fn q8_0_by_hand() {
    let mut block = f16_bytes(&[0.5]);
    block.extend((0..32).map(|i| (i as i8 - 16) as u8));
    let expected: Vec<f32> = (0..32).map(|i| 0.5 * (i as f32 - 16.0)).collect();
    assert_eq!(dequantized(DType::Q8_0, &block), expected);
}

#[test]
fn four_bit_blocks_by_hand() {
    // Byte j holds j in its low nibble (element j) and 15 - j in its high one (element 16 + j).
    let nibbles: Vec<u8> = (0..16).map(|j| j | ((15 - j) << 4)).collect();
    let quants: Vec<f32> = (0..16).chain((0..16).rev()).map(|q| q as f32).collect();

    let block = [f16_bytes(&[0.25]), nibbles.clone()].concat();
    let expected: Vec<f32> = quants.iter().map(|q| 0.25 * (q - 8.0)).collect();
    assert_eq!(dequantized(DType::Q4_0, &block), expected);

    let block = [f16_bytes(&[0.25, -3.0]), nibbles].concat();
    let expected: Vec<f32> = quants.iter().map(|q| 0.25 * q - 3.0).collect();
    assert_eq!(dequantized(DType::Q4_1, &block), expected);
}

#[test]
fn five_bit_blocks_by_hand() {
    let nibbles: Vec<u8> = (0..16).map(|j| j | ((15 - j) << 4)).collect();
    // Fifth bits of elements 0, 15, 16 and 31.
    let high = 0x8001_8001u32.to_le_bytes().to_vec();
    let quants: Vec<f32> = (0..16)
        .chain((0..16).rev())
        .enumerate()
        .map(|(i, q)| (q + if [0, 15, 16, 31].contains(&i) { 16 } else { 0 }) as f32)
        .collect();

    let block = [f16_bytes(&[2.0]), high.clone(), nibbles.clone()].concat();
    let expected: Vec<f32> = quants.iter().map(|q| 2.0 * (q - 16.0)).collect();
    assert_eq!(dequantized(DType::Q5_0, &block), expected);

    let block = [f16_bytes(&[2.0, 0.5]), high, nibbles].concat();
    let expected: Vec<f32> = quants.iter().map(|q| 2.0 * q + 0.5).collect();
    assert_eq!(dequantized(DType::Q5_1, &block), expected);
}

/// Scales 1, 2, 3, 63, 4, 16, 32, 63 and minima 0, 1, 2, 3, 0, 48, 1, 2 of the eight groups.
fn packed_scales() -> Vec<u8> {
    let mut packed = vec![0u8; 12];
    packed[..4].copy_from_slice(&[1, 2 | (1 << 6), 3 | (2 << 6), 63 | (3 << 6)]);
    packed[4..8].copy_from_slice(&[0, 1 | (3 << 6), 2, 3]);
    packed[8..].copy_from_slice(&[4, 0, 1 << 4, 15 | (2 << 4)]);
    packed
}

const SCALES: [f32; 8] = [1.0, 2.0, 3.0, 63.0, 4.0, 16.0, 32.0, 63.0];
const MINIMA: [f32; 8] = [0.0, 1.0, 2.0, 3.0, 0.0, 48.0, 1.0, 2.0];

#[test]
fn q4_k_by_hand() {
    // All low nibbles 5, all high nibbles 10.
    let block = [f16_bytes(&[0.5, 0.125]), packed_scales(), vec![0xa5; 128]].concat();
    let out = dequantized(DType::Q4_K, &block);
    for (i, y) in out.iter().enumerate() {
        let q = if i / 32 % 2 == 0 { 5.0 } else { 10.0 };
        assert_eq!(*y, 0.5 * SCALES[i / 32] * q - 0.125 * MINIMA[i / 32], "element {i}");
    }
}

#[test]
fn q5_k_by_hand() {
    // Groups 0, 1 and 7 have their fifth bits set.
    let block =
        [f16_bytes(&[0.5, 0.125]), packed_scales(), vec![0x83; 32], vec![0xa5; 128]].concat();
    let out = dequantized(DType::Q5_K, &block);
    for (i, y) in out.iter().enumerate() {
        let low = if i / 32 % 2 == 0 { 5.0 } else { 10.0 };
        let q = if [0, 1, 7].contains(&(i / 32)) { low + 16.0 } else { low };
        assert_eq!(*y, 0.5 * SCALES[i / 32] * q - 0.125 * MINIMA[i / 32], "element {i}");
    }
}

#[test]
fn q6_k_by_hand() {
    let mut block = [vec![0x21; 32], vec![0x43; 32]].concat().repeat(2);
    block.extend([0b11_10_01_00; 64]);
    block.extend((0..16).map(|i| (i as i8 - 8) as u8));
    block.extend(f16_bytes(&[0.5]));
    let out = dequantized(DType::Q6_K, &block);
    for (i, y) in out.iter().enumerate() {
        // Quarters of a half: low nibbles 1 and 3, high nibbles 2 and 4; high bits 0 to 3.
        let q = [1.0, 3.0 + 16.0, 2.0 + 32.0, 4.0 + 48.0][i / 32 % 4] - 32.0;
        assert_eq!(*y, 0.5 * ((i / 16) as f32 - 8.0) * q, "element {i}");
    }
}

#[test]
#[should_panic(expected = "Q4_0 row of 33 elements")]
fn a_row_that_is_not_whole_blocks_is_a_bug() {
    dequantize_row(DType::Q4_0, &[0; 18], &mut [0.0; 33]);
}

#[derive(serde::Deserialize)]
struct Golden {
    dtype: String,
    bytes: String,
    values: String,
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// `tests/data/dequant.json` is made by `tests/data/dequant.py` with gguf-py.
#[test]
fn values_are_bit_equal_to_gguf_py() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/dequant.json");
    let goldens: Vec<Golden> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut seen = 0;
    for golden in goldens {
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == golden.dtype).unwrap();
        let out = dequantized(dtype, &from_hex(&golden.bytes));
        let bits: Vec<u8> = out.iter().flat_map(|y| y.to_le_bytes()).collect();
        assert_eq!(bits, from_hex(&golden.values), "{dtype}");
        seen += 1;
    }
    assert_eq!(seen, DType::ALL.len());
}

proptest! {
    #[test]
    fn a_row_is_its_blocks_one_by_one(
        dtype in proptest::sample::select(DType::ALL.to_vec()),
        bytes in proptest::collection::vec(any::<u8>(), 210 * 3),
    ) {
        let blocks = 3;
        let bytes = &bytes[..dtype.block_bytes() * blocks];
        let row: Vec<u32> = dequantized(dtype, bytes).iter().map(|y| y.to_bits()).collect();
        let each: Vec<u32> = bytes
            .chunks_exact(dtype.block_bytes())
            .flat_map(|block| dequantized(dtype, block))
            .map(f32::to_bits)
            .collect();
        prop_assert_eq!(row, each);
    }

    #[test]
    fn finite_scales_give_finite_values_in_range(
        dtype in proptest::sample::select(vec![DType::Q8_0, DType::Q4_0, DType::Q5_0]),
        d in -100.0f32..100.0,
        quants in proptest::collection::vec(any::<u8>(), 32),
    ) {
        let bytes = [f16_bytes(&[d]), quants].concat();
        let d = f16::from_f32(d).to_f32();
        let reach = match dtype { DType::Q8_0 => 128.0, DType::Q4_0 => 8.0, _ => 16.0 };
        for y in dequantized(dtype, &bytes[..dtype.block_bytes()]) {
            prop_assert!(y.abs() <= d.abs() * reach);
            let q = if d == 0.0 { 0.0 } else { y / d };
            prop_assert!((q - q.round()).abs() < 1e-3);
        }
    }
}
