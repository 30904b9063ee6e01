//! Inputs: those of a corpus, and random ones.

use std::path::PathBuf;

/// The inputs of a target's corpus, with their names.
pub fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let listed = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = listed.map(|entry| entry.expect("a folder can be listed").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let read = |file: PathBuf| (file.display().to_string(), std::fs::read(&file).expect("a file can be read"));
    files.into_iter().map(read).collect()
}

/// Random bytes, the same for a seed.
pub fn random(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(next).collect()
}

/// Plays the corpus, and then inputs of it with bytes changed and bytes that are random altogether, alternately.
pub fn play(target: &str, more: u64, body: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    let one = |name: &str, bytes: &[u8]| {
        if let Err(panic) = std::panic::catch_unwind(|| body(bytes)) {
            eprintln!("the input was {name}: {bytes:02x?}");
            std::panic::resume_unwind(panic);
        }
    };
    let corpus = inputs(target);
    for (name, bytes) in &corpus {
        one(name, bytes);
    }
    for seed in 0..more {
        let noise = random(seed, 260);
        let (name, bytes) = &corpus[seed as usize % corpus.len()];
        let mut changed = bytes.clone();
        for pair in noise.chunks_exact(3).take(usize::from(noise[0] % 8)) {
            let at = usize::from(u16::from_le_bytes([pair[0], pair[1]])) % changed.len().max(1);
            if let Some(byte) = changed.get_mut(at) {
                *byte = pair[2];
            }
        }
        one(&format!("{name}, changed by seed {seed}"), &changed);
        one(&format!("seed {seed}"), &noise[..usize::from(noise[1])]);
    }
}
