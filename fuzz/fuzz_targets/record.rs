#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    warmcore_cli::hostile::record(bytes);
});
