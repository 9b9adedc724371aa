#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hob::model::fuzz_adapter(data));
