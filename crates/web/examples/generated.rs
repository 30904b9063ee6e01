//! Writes a page of a generated run: `cargo run -p ubiverbs-web --example generated -- lossy run.html`.

#[path = "../tests/suite/generated.rs"]
#[allow(dead_code, unreachable_pub)]
mod generated;

use std::fs::File;
use std::io::BufWriter;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(which), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("usage: generated writes|lossy|failing|ranks|large|hostile|empty FILE".into());
    };
    let begin = Instant::now();
    let run = match which.as_str() {
        "writes" => generated::writes("ib_write_bw 10.0.0.2", 400, 0),
        "lossy" => generated::writes("ib_write_bw -a 10.0.0.2", 400, 12),
        "failing" => generated::failing(),
        "ranks" => generated::ranks(60),
        "large" => generated::writes("ib_write_bw -a -n 60000 10.0.0.2", 62_000, 2),
        "hostile" => generated::hostile(),
        "empty" => web::timeline::Timeline::new("true", 0),
        _ => return Err("no such run".into()),
    };
    let made = begin.elapsed();
    web::page(&run, &mut BufWriter::new(File::create(path)?))?;
    let count = run.events().len();
    println!("{count} events made in {made:?}, page written in {:?}", begin.elapsed() - made);
    Ok(())
}
