//! Any text through cleaning, reading and chunking: no panic, no digit left, every chunk within the cap, nothing lost between chunks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rumik::speech::{Options, Prepared, prepare};

fuzz_target!(|text: &str| {
    let joined = |prepared: &Prepared| {
        prepared.chunks.iter().flat_map(|chunk| chunk.text.split_whitespace()).collect::<String>()
    };
    for normalize in [true, false] {
        let options = Options { normalize, ..Options::default() };
        let prepared = prepare(text, &options);
        assert!(prepared.chunks.iter().all(|chunk| chunk.seconds <= 25.1));
        assert!(!normalize || !joined(&prepared).bytes().any(|b| b.is_ascii_digit()));
        let short = prepare(text, &Options { chunk_seconds: 4.0, ..options });
        assert_eq!(joined(&prepared), joined(&short));
        let _ = prepared.to_string();
    }
});
