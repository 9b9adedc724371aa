#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hob::tokenizer::fuzz_tokenizer(data));
