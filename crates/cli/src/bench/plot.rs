//! The figures as pictures: three plots with logarithmic axes, written as SVG by hand, alone or in a page with the tables. Nothing is loaded
//! from anywhere.

use super::{Outcome, table};
use crate::measure::{Carrier, Kind, Measured, Point, Size, Waiting};
use std::fmt::Write;

const WIDTH: f64 = 700.0;
const HEIGHT: f64 = 400.0;
/// Around the area that is plotted in: left, right (the legend is there), top, bottom.
const MARGINS: [f64; 4] = [70.0, 180.0, 40.0, 50.0];

/// A carrier has the same colour in every plot.
fn colour(point: Point) -> &'static str {
    match (point.carrier, point.kind, point.waiting) {
        (Carrier::Send, ..) => "#d62728",
        (Carrier::Write, ..) => "#1f77b4",
        (Carrier::Read, ..) => "#2ca02c",
        (Carrier::Atomic, ..) => "#9467bd",
        (Carrier::Unix, ..) => "#ff7f0e",
        (Carrier::Tcp, Kind::RoundTrip, Waiting::Sleep) => "#999999",
        (Carrier::Tcp, ..) => "#222222",
        (Carrier::Ring, ..) => "#8c564b",
        (Carrier::ProcessVm, ..) => "#e377c2",
        (Carrier::Memcpy, ..) => "#17becf",
        (Carrier::Manager, ..) => "#bcbd22",
    }
}

/// What is like another but for the link or the waiting has its colour, and is dashed.
fn dashes(point: Point) -> &'static str {
    match (point.udp, point.waiting) {
        (true, _) => " stroke-dasharray=\"8 4\"",
        (false, Waiting::Sleep) if point.carrier.is_verb() => " stroke-dasharray=\"2 3\"",
        (false, Waiting::Epoll) => " stroke-dasharray=\"1 5\"",
        (false, Waiting::Memory) => " stroke-dasharray=\"6 2 1 2\"",
        _ => "",
    }
}

/// A page with plots and tables.
pub fn page(outcome: &Outcome) -> String {
    let title = "ubiverbs bench";
    let (device, link) = (escape(&outcome.device), outcome.link);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>{title}</title>\n\
         <style>body {{ font: 15px sans-serif; margin: 2em }} pre {{ font-size: 13px }} svg {{ max-width: 100% }}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n<p>Device {device}, link {link}. Absolute figures depend on the machine and on what else it does; \
         compare within this page.</p>\n{}\n<pre>\n{}</pre>\n</body>\n</html>\n",
        picture(outcome),
        escape(&table::render(outcome))
    )
}

/// The plots, one below the other, as one picture.
pub fn picture(outcome: &Outcome) -> String {
    let panels = [
        (
            "Round trip, median, microseconds",
            Kind::RoundTrip,
            (|row| row.summary.p50 as f64 / 1e3) as fn(&Measured) -> f64,
        ),
        ("Bandwidth, megabytes per second", Kind::Stream, |row| row.bytes_per_second() / 1e6),
        ("Message rate, thousands per second", Kind::Stream, |row| row.messages_per_second / 1e3),
        ("Message rate in batches, thousands per second", Kind::Batch, |row| row.messages_per_second / 1e3),
    ];
    let panels: Vec<Panel> = panels
        .into_iter()
        .map(|(title, kind, value)| Panel { title, lines: lines(outcome, kind, value) })
        .filter(|panel| !panel.lines.is_empty())
        .collect();
    let height = HEIGHT * panels.len().max(1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (index, panel) in panels.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = panel.draw(&mut svg, HEIGHT * index as f64);
    }
    svg.push_str("</svg>\n");
    svg
}

/// What belongs to one carrier: sizes and values.
struct Line {
    label: String,
    colour: &'static str,
    dashes: &'static str,
    points: Vec<(f64, f64)>,
}

struct Panel {
    title: &'static str,
    lines: Vec<Line>,
}

fn lines(outcome: &Outcome, kind: Kind, value: fn(&Measured) -> f64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in outcome.of(kind) {
        let label = Point::label(row.point);
        let point = (row.size() as f64, value(row).max(1e-3));
        match lines.iter_mut().find(|line| line.label == label) {
            Some(line) => line.points.push(point),
            None => {
                lines.push(Line { label, colour: colour(row.point), dashes: dashes(row.point), points: vec![point] })
            }
        }
    }
    lines
}

/// A logarithmic axis from `low` to `high`, on the paper from `from` to `to`.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Around these values, rounded outwards to powers of `base`.
    fn around(values: impl Iterator<Item = f64> + Clone, base: f64, from: f64, to: f64) -> Axis {
        let low = values.clone().fold(f64::INFINITY, f64::min).log(base).floor();
        let high = values.fold(0.0, f64::max).log(base).ceil();
        let high = if high > low { high } else { low + 1.0 };
        Axis { low: base.powf(low), high: base.powf(high), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value / self.low).ln() / (self.high / self.low).ln() * (self.to - self.from)
    }

    /// Powers of `base` on it.
    fn ticks(&self, base: f64) -> Vec<f64> {
        std::iter::successors(Some(self.low), |tick| Some(tick * base))
            .take_while(|tick| *tick <= self.high * 1.001)
            .collect()
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, top: f64) -> std::fmt::Result {
        let [left, right, above, below] = MARGINS;
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let x = Axis::around(all().map(|point| point.0), 2.0, left, WIDTH - right);
        let y = Axis::around(all().map(|point| point.1), 10.0, HEIGHT - below, above);
        writeln!(svg, "<g transform=\"translate(0 {top})\">")?;
        writeln!(svg, "<text x=\"{left}\" y=\"24\" font-size=\"15\">{}</text>", self.title)?;
        for tick in y.ticks(10.0) {
            let at = y.at(tick);
            writeln!(
                svg,
                "<line x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>",
                WIDTH - right
            )?;
            writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>", left - 6.0, at + 4.0)?;
        }
        let every = if x.high / x.low > 4096.0 { 8.0 } else { 2.0 };
        for tick in x.ticks(every) {
            let at = x.at(tick);
            writeln!(
                svg,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{above}\" y2=\"{}\" stroke=\"#eee\"/>",
                HEIGHT - below
            )?;
            let label = Size(tick as usize);
            writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", HEIGHT - below + 18.0)?;
        }
        for (index, line) in self.lines.iter().enumerate() {
            let colour = line.colour;
            line.draw(svg, &x, &y)?;
            let row = above + 16.0 + 16.0 * index as f64;
            writeln!(
                svg,
                "<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>",
                WIDTH - right + 16.0,
                row - 6.0
            )?;
            writeln!(svg, "<text x=\"{}\" y=\"{row}\">{}</text>", WIDTH - right + 38.0, escape(&line.label))?;
        }
        writeln!(svg, "</g>")
    }
}

impl Line {
    fn draw(&self, svg: &mut String, x: &Axis, y: &Axis) -> std::fmt::Result {
        let colour = self.colour;
        let places: Vec<String> =
            self.points.iter().map(|(size, value)| format!("{:.1},{:.1}", x.at(*size), y.at(*value))).collect();
        writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{}/>",
            places.join(" "),
            self.dashes
        )?;
        for (size, value) in &self.points {
            let label = format!("{}, {}: {value:.1}", escape(&self.label), Size(*size as usize));
            writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"><title>{label}</title></circle>",
                x.at(*size),
                y.at(*value)
            )?;
        }
        Ok(())
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_puts_its_ends_at_its_ends_and_equal_factors_at_equal_distances() {
        let axis = Axis::around([3.0, 700.0].into_iter(), 10.0, 100.0, 400.0);
        assert_eq!((axis.low, axis.high), (1.0, 1000.0));
        assert_eq!((axis.at(1.0), axis.at(1000.0).round(), axis.at(10.0).round()), (100.0, 400.0, 200.0));
        assert_eq!(axis.ticks(10.0), [1.0, 10.0, 100.0, 1000.0]);
        let one = Axis::around([8.0].into_iter(), 2.0, 0.0, 1.0);
        assert!(one.at(8.0).is_finite() && one.ticks(2.0).len() == 2);
    }

    #[test]
    fn text_from_outside_cannot_become_markup() {
        assert_eq!(escape("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
