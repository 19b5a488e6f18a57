#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kiln_tests::hostile::task_adapters(data));
