//! Pages in a real browser: what is drawn, found, followed and said, and that nothing of a run is ever executed.

mod browser;
mod drawn;
mod generated;
mod hostile;
mod large;
mod people;

use web::timeline::Timeline;

/// A run as the file that people open.
fn html(run: &Timeline) -> Vec<u8> {
    let mut html = Vec::new();
    web::page(run, &mut html).unwrap();
    html
}
