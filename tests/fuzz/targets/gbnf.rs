#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hob::grammar::fuzz_gbnf(data));
