#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hob::hf::fuzz_safetensors(data));
