//! A timeline as HTML. The document is always the same; the run is in it as compressed bytes in base64, so that no text
//! of a run is ever read as HTML. The browser runs nothing but the one script whose hash the document names.

use std::io::{self, Write};

use sha2_const_stable::Sha256;

use crate::packed::pack;
use crate::timeline::Timeline;

/// The script, in the order in which its parts build on each other.
const SCRIPT_PARTS: [&str; 8] = [
    include_str!("../page/data.js"),
    include_str!("../page/model.js"),
    include_str!("../page/words.js"),
    include_str!("../page/layout.js"),
    include_str!("../page/draw.js"),
    include_str!("../page/panels.js"),
    include_str!("../page/search.js"),
    include_str!("../page/main.js"),
];
const STYLE_SHEET: &str = include_str!("../page/style.css");
const BODY_MARKUP: &str = include_str!("../page/body.html");

/// How hard the bytes of a run are compressed: 6 of 10 takes a third of the time of 9 for files that are 1 % larger.
const COMPRESSION_LEVEL: u8 = 6;

/// Writes a run as one HTML file, which opens without a network and without another file.
///
/// # Errors
/// What the writer says.
pub fn page(timeline: &Timeline, writer: &mut dyn Write) -> io::Result<()> {
    let script = format!("(() => {{\n'use strict';\n{}}})();\n", SCRIPT_PARTS.concat());
    let run = miniz_oxide::deflate::compress_to_vec(&pack(timeline), COMPRESSION_LEVEL);
    write!(
        writer,
        "<!doctype html>\n\
         <html lang=\"en\">\n\
         <head>\n\
         <meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-{}'; \
         style-src 'sha256-{}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>A run of RDMA</title>\n\
         <style>{STYLE_SHEET}</style>\n\
         </head>\n\
         <body>\n{BODY_MARKUP}<script type=\"application/octet-stream\" id=\"run\">",
        hash(&script),
        hash(STYLE_SHEET),
    )?;
    write_base64(&run, writer)?;
    write!(writer, "</script>\n<script>{script}</script>\n</body>\n</html>\n")
}

/// What a Content-Security-Policy calls a text by.
fn hash(text: &str) -> String {
    let mut base64 = Vec::new();
    let written = write_base64(&Sha256::new().update(text.as_bytes()).finalize(), &mut base64);
    debug_assert!(written.is_ok(), "a vector takes everything");
    String::from_utf8_lossy(&base64).into_owned()
}

fn write_base64(bytes: &[u8], writer: &mut dyn Write) -> io::Result<()> {
    /// Bytes that are encoded before the writer gets them.
    const CHUNK_BYTES: usize = 3 * 4096;
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for chunk in bytes.chunks(CHUNK_BYTES) {
        let mut text = Vec::with_capacity(CHUNK_BYTES / 3 * 4);
        for three in chunk.chunks(3) {
            let word = three.iter().fold(0_u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - three.len()));
            for digit in 0..4 {
                let of = DIGITS[(word >> (18 - 6 * digit)) as usize & 63];
                text.push(if digit > three.len() { b'=' } else { of });
            }
        }
        writer.write_all(&text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_what_others_write() {
        for (bytes, expected) in [("", ""), ("M", "TQ=="), ("Ma", "TWE="), ("Man", "TWFu"), ("Many", "TWFueQ==")] {
            let mut text = Vec::new();
            write_base64(bytes.as_bytes(), &mut text).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }

    #[test]
    fn the_hash_is_the_one_that_browsers_compute() {
        assert_eq!(hash("alert(1)"), "bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI=");
    }
}
