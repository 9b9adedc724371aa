#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hob::gguf::fuzz_gguf(data));
