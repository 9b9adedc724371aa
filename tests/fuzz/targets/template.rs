#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hob::chat::fuzz_template(data));
