#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::tensor::DType;

fn parse(bytes: Vec<u8>) -> Result<GgufFile, GgufError> {
    GgufFile::from_bytes(Path::new("test.gguf"), bytes)
}

/// The message `bytes` are refused with.
fn refusal(bytes: Vec<u8>) -> String {
    parse(bytes).unwrap_err().to_string()
}

#[track_caller]
fn refused_with(bytes: Vec<u8>, part: &str) {
    let message = refusal(bytes);
    assert!(message.starts_with("test.gguf: "), "{message}");
    assert!(message.contains(part), "wanted {part:?} in {message:?}");
}

fn strings(texts: &[&str]) -> Value {
    texts.iter().collect::<StrArray>().into()
}

fn every_value() -> Vec<(&'static str, Value)> {
    vec![
        ("u8", Value::U8(255)),
        ("i8", Value::I8(-128)),
        ("u16", Value::U16(65_535)),
        ("i16", Value::I16(-2)),
        ("u32", Value::U32(u32::MAX)),
        ("i32", Value::I32(-7)),
        ("u64", Value::U64(1 << 40)),
        ("i64", Value::I64(-1 << 40)),
        ("f32", Value::F32(0.25)),
        ("f64", Value::F64(1e-3)),
        ("bool", Value::Bool(true)),
        ("str", "grüße".into()),
        ("array.u8", Value::Array(Array::U8(vec![1, 2]))),
        ("array.i8", Value::Array(Array::I8(vec![-1]))),
        ("array.u16", Value::Array(Array::U16(vec![3]))),
        ("array.i16", Value::Array(Array::I16(vec![-3]))),
        ("array.u32", Value::Array(Array::U32(vec![4, 5]))),
        ("array.i32", vec![-5, 6].into()),
        ("array.u64", Value::Array(Array::U64(vec![u64::MAX]))),
        ("array.i64", Value::Array(Array::I64(vec![i64::MIN]))),
        ("array.f32", vec![0.5f32, -1.0].into()),
        ("array.f64", Value::Array(Array::F64(vec![0.125]))),
        ("array.bool", Value::Array(Array::Bool(vec![true, false]))),
        ("tokenizer.array.str", strings(&["", "a", "苹果"])),
        ("array.empty", strings(&[])),
    ]
}

fn small() -> GgufBuilder {
    let mut builder = GgufBuilder::new();
    for (key, value) in every_value() {
        builder = builder.metadata(key, value);
    }
    let q4: Vec<u8> = (0..72).collect();
    builder
        .tensor("a.weight", DType::Q4_0, &[64, 2], &q4)
        .tensor("b.weight", DType::F32, &[3], &[7; 12])
        .raw_tensor("c.weight", 15, &[256], &[9; 292])
}

#[test]
fn what_is_built_is_read() {
    for version in [2, 3] {
        let file = parse(small().version(version).alignment(64).build()).unwrap();
        assert_eq!((file.version(), file.alignment()), (version, 64));
        let mut wanted = every_value();
        wanted.push(("general.alignment", Value::U32(64)));
        let read: Vec<_> =
            file.metadata().iter().map(|(key, value)| (key, value.clone())).collect();
        assert_eq!(read, wanted);

        let a = file.tensor("a.weight").unwrap();
        assert_eq!((a.row_len(), a.rows(), a.bytes), (64, 2, 72));
        assert_eq!(a.supported_dtype().unwrap(), DType::Q4_0);
        let mut part = [0; 3];
        file.read_tensor(a, 36, &mut part).unwrap();
        assert_eq!(part, [36, 37, 38]);
        let b = file.tensor("b.weight").unwrap();
        assert_eq!(b.offset % 64, a.offset % 64);
        let mut part = [0; 12];
        file.read_tensor(b, 0, &mut part).unwrap();
        assert_eq!(part, [7; 12]);
        let error = file.read_tensor(b, 1, &mut part).unwrap_err().to_string();
        assert_eq!(error, "test.gguf: tensor b.weight has 12 bytes; wanted 12 from 1");
        assert!(file.read_tensor(b, u64::MAX, &mut part).is_err());
        assert!(file.tensor("d.weight").is_none());
    }
}

#[test]
fn a_file_on_disk_reads_as_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.gguf");
    std::fs::write(&path, small().build()).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.tensors().len(), 3);
    assert_eq!(file.path(), path);
    assert_eq!(file.file_bytes(), small().build().len() as u64);

    let mut data = vec![0; 72];
    let a = file.tensor("a.weight").unwrap();
    file.read_tensor(a, 0, &mut data).unwrap();
    assert_eq!(data, (0..72).collect::<Vec<u8>>());

    // The file shrinks under the reader.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    let error = file.read_tensor(a, 0, &mut data).unwrap_err().to_string();
    assert!(error.contains("tensor a.weight: cannot read 72 bytes"), "{error}");
}

#[test]
fn only_regular_files_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let error = GgufFile::open(folder.path()).unwrap_err().to_string();
    assert!(error.ends_with("cannot open: not a regular file"), "{error}");
    let error = GgufFile::open(&folder.path().join("absent")).unwrap_err().to_string();
    assert!(error.contains("absent: cannot open: No such file"), "{error}");
}

#[test]
fn an_unsupported_type_is_listed_and_named() {
    let file = parse(small().build()).unwrap();
    let c = file.tensor("c.weight").unwrap();
    assert_eq!((c.dtype.name(), c.bytes), ("Q8_K", 292));
    assert_eq!(
        c.supported_dtype().unwrap_err().to_string(),
        "test.gguf: tensor c.weight has type Q8_K, which this version does not support; \
         supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, Q2_K, \
         Q3_K, IQ4_NL, IQ4_XS, MXFP4, TQ1_0, TQ2_0, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S"
    );
    let bytes = GgufBuilder::new().raw_tensor("t", 99, &[1], &[0; 4]).build();
    refused_with(bytes, "tensor t has the unknown type 99; supported: F32");
}

#[test]
fn integers_of_any_width_fit_or_are_refused() {
    let file = parse(small().build()).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.u32("u8").unwrap(), 255);
    assert_eq!(metadata.i32("u16").unwrap(), 65_535);
    assert_eq!(metadata.u64("u64").unwrap(), 1 << 40);
    assert_eq!(metadata.f32("f64").unwrap(), 0.001);
    assert_eq!(metadata.opt_u32("absent").unwrap(), None);
    assert_eq!(metadata.i32_array("array.u8").unwrap()[..], [1, 2]);
    assert_eq!(metadata.u32_array("array.u32").unwrap()[..], [4, 5]);
    assert_eq!(metadata.opt_u32_each("u8", 3).unwrap(), Some(vec![255; 3]));
    assert_eq!(metadata.opt_u32_each("array.u32", 2).unwrap(), Some(vec![4, 5]));
    assert_eq!(metadata.bool_array("array.bool").unwrap(), [true, false]);
    assert_eq!(metadata.str_array("tokenizer.array.str").unwrap().get(2), Some("苹果"));

    let message = |error: GgufError| error.to_string();
    assert_eq!(
        message(metadata.u32("u64").unwrap_err()),
        "test.gguf: metadata key u64: wanted a u32, found u64 1099511627776"
    );
    assert_eq!(
        message(metadata.opt_u32("i32").unwrap_err()),
        "test.gguf: metadata key i32: wanted a u32, found i32 -7"
    );
    assert_eq!(
        message(metadata.str("absent").unwrap_err()),
        "test.gguf: metadata key absent is missing; wanted a string"
    );
    assert_eq!(
        message(metadata.str("array.f32").unwrap_err()),
        "test.gguf: metadata key array.f32: wanted a string, found array of f32 of length 2"
    );
    assert_eq!(
        message(metadata.opt_u32_each("array.u32", 3).unwrap_err()),
        "test.gguf: metadata key array.u32: wanted a u32, or an array of 3, \
         found array of u32 of length 2"
    );
    assert!(metadata.u32_array("array.i32").is_err());
    assert!(metadata.bool("u8").is_err());
}

#[test]
fn tokenizer_arrays_can_be_dropped() {
    let mut file = parse(small().build()).unwrap();
    let before = file.metadata().len();
    file.metadata_mut().drop_tokenizer_arrays();
    assert_eq!(file.metadata().len(), before - 1);
    assert!(file.metadata().get("tokenizer.array.str").is_none());
    assert_eq!(file.metadata().opt_str_array("array.empty").unwrap().unwrap().len(), 0);
    assert_eq!(file.metadata_mut().take("u8"), Some(Value::U8(255)));
    assert_eq!(file.metadata_mut().take("u8"), None);
    assert_eq!(file.metadata().str("str").unwrap(), "grüße");
}

/// `bytes` with `part` in place of what is at `at`.
fn patched(mut bytes: Vec<u8>, at: usize, part: &[u8]) -> Vec<u8> {
    bytes[at..at + part.len()].copy_from_slice(part);
    bytes
}

/// Offset of the first entry's value, after its type, for a key of one byte.
const FIRST_VALUE: usize = 4 + 4 + 8 + 8 + (8 + 1) + 4;

fn one_entry(value: impl Into<Value>) -> Vec<u8> {
    GgufBuilder::new().metadata("k", value).build()
}

#[test]
fn headers_are_checked() {
    let good = small().build();
    refused_with(Vec::new(), "header: wanted 4 bytes at 0, found 0 to the end of the file");
    refused_with(b"GGUF".to_vec(), "header: wanted 4 bytes at 4, found 0");
    refused_with(
        patched(good.clone(), 0, b"ggml"),
        "wanted the first bytes \"GGUF\", found \"ggml\"",
    );
    for version in [0, 1, 4, 99u32] {
        let bytes = patched(good.clone(), 4, &version.to_le_bytes());
        refused_with(bytes, &format!("GGUF version {version}; wanted version 2 or 3"));
    }
    refused_with(patched(good.clone(), 4, &3u32.to_be_bytes()), "big-endian GGUF file (version 3)");
    for count in [1 << 40, 1 << 63, u64::MAX, 5000u64] {
        let tensors = patched(good.clone(), 8, &count.to_le_bytes());
        refused_with(tensors, &format!("the header claims {count} tensors; at most"));
        let keys = patched(good.clone(), 16, &count.to_le_bytes());
        refused_with(keys, &format!("the header claims {count} metadata entries; at most"));
    }
}

#[test]
fn metadata_is_checked() {
    let huge = (1u64 << 63).to_le_bytes();
    refused_with(patched(one_entry(1u32), 24, &huge), "name of metadata key 0: wanted 92233720368");
    refused_with(
        patched(one_entry("text"), FIRST_VALUE, &huge),
        "metadata key k: wanted 922337203",
    );
    let bytes = patched(one_entry(1u32), FIRST_VALUE - 4, &[13]);
    refused_with(bytes, "metadata key k: value type 13; wanted 0 to 12");
    refused_with(patched(one_entry(true), FIRST_VALUE, &[7]), "wanted a bool, 0 or 1, found 7");
    let bytes = patched(one_entry("ab"), FIRST_VALUE + 8, b"\xff");
    refused_with(bytes, r#"metadata key k: wanted UTF-8, found "\xffb""#);

    let array = one_entry(strings(&["one", "two"]));
    let bytes = patched(array.clone(), FIRST_VALUE + 4 + 8 + 8 + 3 + 8, b"\xff");
    refused_with(bytes, r#"metadata key k, element 1: wanted UTF-8, found "\xffwo""#);
    refused_with(
        patched(array.clone(), FIRST_VALUE + 4, &huge),
        "metadata key k: wanted 73786976294838206464 b",
    );
    refused_with(patched(array.clone(), FIRST_VALUE, &[9]), "metadata key k: an array of arrays");
    refused_with(patched(array, FIRST_VALUE, &[99]), "array elements: value type 99");

    let twice = GgufBuilder::new().metadata("k", 1u32).metadata("k", 2u32).build();
    refused_with(twice, "metadata key k stands twice");
    let key = "k".repeat(65_536);
    let long = GgufBuilder::new().metadata(&key, 1u32).build();
    refused_with(long, "name of metadata key 0: a name of 65536 bytes; wanted at most 65535");
    let control = GgufBuilder::new().metadata("a\x1b[2J", 1u32).metadata("a\x1b[2J", 1u32).build();
    refused_with(control, r"metadata key a\u{1b}[2J stands twice");
}

#[test]
fn the_alignment_is_checked() {
    let with = |value: Value| GgufBuilder::new().metadata("general.alignment", value).build();
    for bad in [0, 3, 33, 1 << 21, 1 << 31] {
        refused_with(with(Value::U32(bad)), &format!("up to 1048576, found u32 {bad}"));
    }
    refused_with(with("32".into()), "general.alignment: wanted a u32");
    refused_with(with(Value::U64(32)), "found u64 32");
    for good in [1, 8, 4096] {
        assert_eq!(parse(with(Value::U32(good))).unwrap().alignment(), good);
    }
}

#[test]
fn tensors_are_checked() {
    let one = |type_id, dims: &[u64], data: &[u8]| {
        GgufBuilder::new().raw_tensor("t", type_id, dims, data).build()
    };
    assert_eq!(parse(one(0, &[], &[0; 4])).unwrap().tensors()[0].dims, [1]);
    refused_with(one(0, &[1; 5], &[0; 4]), "tensor t has 5 dimensions; wanted at most 4");
    refused_with(one(0, &[1, 0], &[0; 4]), "tensor t: dimension 1 is 0; wanted at least 1");
    refused_with(one(2, &[33], &[0; 36]), "rows of 33 elements; Q4_0 wants a multiple of 32");
    for dims in [[1 << 32, 1 << 32], [1 << 61, 1], [1 << 62, 4], [u64::MAX, 1]] {
        refused_with(one(0, &dims, &[0; 4]), "larger than can be counted");
    }
    refused_with(one(0, &[9], &[0; 32]), "wanted 36 bytes of data at offset 0 of the data");

    let bytes = one(0, &[4], &[0; 16]);
    let offset_at = 24 + 8 + 1 + 4 + 8 + 4;
    let moved = |offset: u64| patched(bytes.clone(), offset_at, &offset.to_le_bytes());
    refused_with(moved(8), "tensor t: data at offset 8; wanted a multiple of 32");
    refused_with(moved(32), "wanted 16 bytes of data at offset 32 of the data section, found 0");
    refused_with(moved(u64::MAX - 31), "found 0 (is the file cut short?)");
    refused_with(patched(bytes.clone(), offset_at - 12, &0u64.to_le_bytes()), "dimension 0 is 0");
    refused_with(patched(bytes.clone(), 28, &[0xff; 4]), "name of tensor 0: wanted");

    let pair = |first: &str, second: &str| {
        let builder = GgufBuilder::new().tensor(first, DType::F32, &[16], &[0; 64]);
        builder.tensor(second, DType::F32, &[16], &[0; 64]).build()
    };
    assert_eq!(parse(pair("a", "b")).unwrap().tensors()[1].name, "b");
    refused_with(pair("a", "a"), "tensor a stands twice");
    let second_offset = 24 + (8 + 1 + 4 + 8 + 4 + 8) * 2 - 8;
    for overlapping in [0u64, 32] {
        let bytes = patched(pair("a", "b"), second_offset, &overlapping.to_le_bytes());
        refused_with(bytes, "tensors a and b overlap in the file");
    }
    refused_with(pair(&"n".repeat(64), "b"), "a name of 64 bytes; wanted at most 63");
    parse(pair(&"n".repeat(63), "b")).unwrap();
}

#[test]
fn every_truncation_is_refused() {
    let bytes = small().build();
    let data_end = parse(bytes.clone()).unwrap().tensors().iter().map(|t| t.offset + t.bytes).max();
    for length in 0..bytes.len() {
        let opened = parse(bytes[..length].to_vec());
        assert_eq!(opened.is_ok(), length as u64 >= data_end.unwrap(), "cut to {length} bytes");
    }
}

#[test]
fn a_sparse_file_of_a_terabyte_is_refused_quickly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.gguf");
    let array = Value::Array(Array::U8(vec![0]));
    std::fs::write(&path, patched(one_entry(array), FIRST_VALUE + 4, &(1u64 << 39).to_le_bytes()))
        .unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    if file.set_len(1 << 40).is_err() {
        return; // a file system that cannot hold it cannot be attacked with it
    }
    let message = GgufFile::open(&path).unwrap_err().to_string();
    assert!(message.contains("metadata key k: the header passes 268435456 bytes"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_mutation_is_survived(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = small().build();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(length.index(bytes.len()));
        }
        fuzz_gguf(&bytes);
    }

    #[test]
    fn any_header_number_is_survived(
        at in any::<prop::sample::Index>(),
        number in prop_oneof![
            any::<u64>(),
            (0u32..64).prop_map(|shift| 1 << shift),
            (0u64..64).prop_map(|below| u64::MAX - below),
        ],
    ) {
        let header = small().header().len();
        fuzz_gguf(&patched(small().build(), at.index(header - 8), &number.to_le_bytes()));
    }

    #[test]
    fn any_bytes_are_survived(tail in proptest::collection::vec(any::<u8>(), 0..256)) {
        fuzz_gguf(&tail);
        fuzz_gguf(&[b"GGUF\x03\0\0\0".as_slice(), &tail].concat());
    }
}
