//! The entry point for fuzzers: everything a foreign file goes through in this module.

use std::path::Path;

use super::GgufFile;

/// Bytes read of each tensor.
const READ_BYTES: usize = 4096;

/// Reads `data` as a file in memory and touches all that came out: must return, whatever the data.
pub fn fuzz_gguf(data: &[u8]) {
    let Ok(mut file) = GgufFile::from_bytes(Path::new("fuzz.gguf"), data.to_vec()) else {
        return;
    };
    for (key, value) in file.metadata().iter() {
        let metadata = file.metadata();
        let _ = value.describe();
        let _ = (metadata.u32(key), metadata.f32(key), metadata.opt_u32_each(key, 2));
        let _ = (metadata.str(key), metadata.str_array(key), metadata.i32_array(key));
    }
    let mut part = [0; READ_BYTES];
    for tensor in file.tensors() {
        let _ = tensor.supported_dtype();
        assert!(tensor.rows().checked_mul(tensor.row_len()).is_some());
        let first = &mut part[..tensor.bytes.min(READ_BYTES as u64) as usize];
        file.read_tensor(tensor, 0, first).expect("data were found within the file");
        let last = tensor.bytes - 1;
        file.read_tensor(tensor, last, &mut [0]).expect("data were found within the file");
        file.read_tensor(tensor, last, &mut [0; 2]).expect_err("beyond the tensor");
    }
    file.metadata_mut().drop_tokenizer_arrays();
}
