//! One plot as SVG, written by hand: logarithmic axes, ticks with units, and each line's name at its end. Colours come
//! from variables that a style sheet sets for light and for dark.

use super::questions::{Across, LineStyle, Question};
use crate::measure::Size;
use std::fmt::Write;

/// The size of a plot.
pub const PLOT_WIDTH: f64 = 500.0;
pub const PLOT_HEIGHT: f64 = 330.0;
/// Around the area that is plotted in.
const LEFT_EDGE: f64 = 72.0;
const RIGHT_EDGE: f64 = PLOT_WIDTH - 150.0;
const TOP_EDGE: f64 = 62.0;
const BOTTOM_EDGE: f64 = PLOT_HEIGHT - 46.0;
/// Between names that stand above each other.
const LINE_HEIGHT: f64 = 16.0;

/// What the elements below look like. `--paper` and the others are defined for light, then for dark screens.
pub const PLOT_STYLE: &str = "\
:root{--paper:#fff;--ink:#1c2430;--faint:#5b6675;--grid:#dde2e8;--send:#c2410c;--write:#0b62b8;--read:#0f7b52;\
--atomic:#8e3fa8;--tcp:#1c2430;--unix:#7a6a1d;--limit:#8a94a0}\n\
@media screen and (prefers-color-scheme:dark){:root{--paper:#10151c;--ink:#e6ebf1;--faint:#9aa7b5;--grid:#2b3440;\
--send:#ff8f57;--write:#63b3ff;--read:#4fd69c;--atomic:#d69bea;--tcp:#f2f5f8;--unix:#dcc65c;--limit:#7d8996}}\n\
.plot{font:13px system-ui,sans-serif}.plot text{fill:var(--ink)}.plot .note,.plot .tick{fill:var(--faint)}\
.plot .asks{font-size:17px;font-weight:600}.grid{stroke:var(--grid)}.line{fill:none;stroke:currentColor;\
stroke-width:2.2;stroke-linejoin:round}.thin .line{stroke-width:1.3}.lead{stroke:currentColor;stroke-width:.8;\
opacity:.6}.dot{fill:currentColor}.plot .name{fill:currentColor;stroke:var(--paper);stroke-width:3.5;\
paint-order:stroke;font-weight:600}.plot .thin .name{font-weight:400}\n\
.send{color:var(--send)}.write{color:var(--write)}.read{color:var(--read)}.atomic{color:var(--atomic)}\
.tcp{color:var(--tcp)}.unix{color:var(--unix)}.limit{color:var(--limit)}";

impl LineStyle {
    /// Its classes, and its pattern of dashes.
    fn drawn(self) -> (&'static str, &'static str) {
        match self {
            LineStyle::Send => ("send", "none"),
            LineStyle::OtherSend => ("send", "2 3"),
            LineStyle::Write => ("write", "9 3"),
            LineStyle::OtherWrite => ("write", "9 3 2 3"),
            LineStyle::ThirdWrite => ("write", "2 3"),
            LineStyle::Read => ("read", "5 3"),
            LineStyle::Atomic => ("atomic", "none"),
            LineStyle::Tcp => ("tcp", "none"),
            LineStyle::Unix => ("unix", "6 2 2 2"),
            LineStyle::Ring => ("limit thin", "none"),
            LineStyle::ProcessVm => ("limit thin", "5 3"),
            LineStyle::Memcpy => ("limit thin", "2 2"),
        }
    }
}

/// Draws a plot, with its upper left corner at this place.
pub fn draw(question: &Question, svg: &mut String, left: f64, top: f64) -> std::fmt::Result {
    let all = || question.lines.iter().flat_map(|line| &line.points);
    let x = Axis::between(all().map(|point| point.0), 1.3, LEFT_EDGE + 8.0, RIGHT_EDGE - 8.0);
    let y = Axis::between(all().map(|point| point.1), 1.25, BOTTOM_EDGE, TOP_EDGE);
    writeln!(svg, "<g class=\"plot\" transform=\"translate({left} {top})\">")?;
    writeln!(svg, "<text class=\"asks\" x=\"14\" y=\"24\">{}</text>", escape(question.asks))?;
    writeln!(svg, "<text class=\"note\" x=\"14\" y=\"43\">{}</text>", escape(&question.note))?;
    for tick in y.round_values(5) {
        let at = y.at(tick);
        writeln!(svg, "<line class=\"grid\" x1=\"{LEFT_EDGE}\" x2=\"{RIGHT_EDGE}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>")?;
        let (x, y, text) = (LEFT_EDGE - 7.0, at + 4.0, question.unit.say(tick));
        writeln!(svg, "<text class=\"tick\" x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>")?;
    }
    let mut free = 0.0;
    for tick in measured(all().map(|point| point.0)) {
        let (at, text) = (x.at(tick), question.across.say(tick));
        writeln!(svg, "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP_EDGE}\" y2=\"{BOTTOM_EDGE}\"/>")?;
        let half = 3.6 * text.len() as f64 + 3.0;
        if at - half >= free {
            let y = BOTTOM_EDGE + 17.0;
            writeln!(svg, "<text class=\"tick\" x=\"{at:.1}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>")?;
            free = at + half;
        }
    }
    let (middle, below) = ((LEFT_EDGE + RIGHT_EDGE) / 2.0, BOTTOM_EDGE + 35.0);
    let title = question.across.title();
    writeln!(svg, "<text class=\"note\" x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">{title}</text>")?;
    lines(question, svg, &x, &y)?;
    writeln!(svg, "</g>")
}

/// The lines, and their names: at the right end one below the other, or beside the last point where that is elsewhere.
fn lines(question: &Question, svg: &mut String, x: &Axis, y: &Axis) -> std::fmt::Result {
    let ends: Vec<(f64, f64)> = question.lines.iter().map(|line| line.points[line.points.len() - 1]).collect();
    let furthest = ends.iter().map(|end| end.0).fold(0.0, f64::max);
    let at_end: Vec<usize> = (0..ends.len()).filter(|index| ends[*index].0 == furthest).collect();
    let places = spaced(&at_end.iter().map(|index| y.at(ends[*index].1)).collect::<Vec<f64>>());
    // What matters most is drawn last, above the others.
    for (index, line) in question.lines.iter().enumerate().rev() {
        let (classes, dashes) = line.look.drawn();
        let points: Vec<String> =
            line.points.iter().map(|(across, up)| format!("{:.1},{:.1}", x.at(*across), y.at(*up))).collect();
        writeln!(svg, "<g class=\"{classes}\">")?;
        writeln!(
            svg,
            "<polyline class=\"line\" stroke-dasharray=\"{dashes}\" points=\"{}\"><title>{}</title></polyline>",
            points.join(" "),
            escape(&line.label)
        )?;
        for (across, up) in &line.points {
            let said = format!("{}, {}: {}", line.label, said(question.across, *across), question.unit.say(*up));
            let (x, y) = (x.at(*across), y.at(*up));
            writeln!(
                svg,
                "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.7\"><title>{}</title></circle>",
                escape(&said)
            )?;
        }
        let (end_x, end_y) = (x.at(ends[index].0), y.at(ends[index].1));
        let (name_x, name_y) = match at_end.iter().position(|at| *at == index) {
            Some(place) => (RIGHT_EDGE + 14.0, places[place]),
            None => (end_x + 6.0, end_y - 11.0),
        };
        if name_x > RIGHT_EDGE {
            let (from, to) = (end_x + 3.0, name_x - 3.0);
            writeln!(
                svg,
                "<line class=\"lead\" x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{end_y:.1}\" y2=\"{name_y:.1}\"/>"
            )?;
        }
        let below = name_y + 4.0;
        writeln!(svg, "<text class=\"name\" x=\"{name_x:.1}\" y=\"{below:.1}\">{}</text></g>", escape(&line.label))?;
    }
    Ok(())
}

fn said(across: Across, value: f64) -> String {
    match across {
        Across::Bytes => Size(value as usize).to_string(),
        Across::QueuePairs => format!("{} queue pairs", across.say(value)),
        Across::Threads => format!("{} threads", across.say(value)),
    }
}

/// Places for names that want to be at these, as near as they can be without touching.
fn spaced(wanted: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    // Groups that touch become one, around the middle of what they want: their first place, and how many.
    let mut groups: Vec<(f64, Vec<usize>)> = Vec::new();
    for index in order {
        let mut group = (wanted[index], vec![index]);
        while let Some(above) = groups.pop_if(|above| above.0 + above.1.len() as f64 * LINE_HEIGHT > group.0) {
            group.1 = [above.1, group.1].concat();
            let offsets = group.1.iter().enumerate().map(|(row, index)| wanted[*index] - row as f64 * LINE_HEIGHT);
            let first = offsets.sum::<f64>() / group.1.len() as f64;
            group.0 = first.min(BOTTOM_EDGE - (group.1.len() - 1) as f64 * LINE_HEIGHT).max(TOP_EDGE);
        }
        groups.push(group);
    }
    let mut places = vec![0.0; wanted.len()];
    for (first, members) in groups {
        for (row, index) in members.into_iter().enumerate() {
            places[index] = first + row as f64 * LINE_HEIGHT;
        }
    }
    places
}

/// The different values, from the least.
fn measured(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

/// A logarithmic axis from `low` to `high`, on the paper from `from` to `to`.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Around these values, with a margin: a factor at either end.
    fn between(values: impl Iterator<Item = f64> + Clone, margin: f64, from: f64, to: f64) -> Axis {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(0.0, f64::max);
        // One value alone stands in the middle.
        let margin = if high > low * 1.01 { margin } else { 2.0 };
        Axis { low: low / margin, high: high * margin, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value / self.low).ln() / (self.high / self.low).ln() * (self.to - self.from)
    }

    /// About so many round values on it: powers of ten, and 2 and 5 times them where those are too few.
    fn round_values(&self, enough: usize) -> Vec<f64> {
        let decades =
            || (self.low.log10().floor() as i32..=self.high.log10().ceil() as i32).map(|power| 10f64.powi(power));
        let of = |steps: &[f64]| -> Vec<f64> {
            let values = decades().flat_map(|decade| steps.iter().map(move |step| step * decade));
            values.filter(|value| (self.low..=self.high).contains(value)).collect()
        };
        let mut values = of(&[1.0]);
        for steps in [&[1.0, 3.0][..], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]] {
            if values.len() < enough.min(4) {
                values = of(steps);
            }
        }
        values
    }
}

/// Text that cannot become markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_puts_equal_factors_at_equal_distances() {
        let axis = Axis::between([2.0, 500.0].into_iter(), 2.0, 100.0, 400.0);
        assert_eq!((axis.low, axis.high), (1.0, 1000.0));
        assert_eq!((axis.at(1.0), axis.at(1000.0).round(), axis.at(10.0).round()), (100.0, 400.0, 200.0));
        assert_eq!(axis.round_values(4), [1.0, 10.0, 100.0, 1000.0]);
        let narrow = Axis::between([4.0, 9.0].into_iter(), 1.0, 0.0, 1.0);
        assert_eq!(narrow.round_values(4), [4.0, 5.0, 6.0, 8.0]);
        let one = Axis::between([8.0].into_iter(), 1.3, 0.0, 1.0);
        assert_eq!(one.at(8.0), 0.5);
    }

    #[test]
    fn names_keep_their_distance_and_their_order() {
        assert_eq!(spaced(&[100.0, 200.0]), [100.0, 200.0]);
        let places = spaced(&[150.0, 151.0, 149.0, 160.0, 260.0]);
        let mut sorted = places.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] > LINE_HEIGHT - 0.01), "{places:?}");
        assert!(places[2] < places[0] && places[0] < places[1] && places[1] < places[3], "{places:?}");
        let low = spaced(&[BOTTOM_EDGE; 4]);
        assert!(low.iter().all(|place| *place <= BOTTOM_EDGE + 0.01), "{low:?}");
    }

    #[test]
    fn text_from_outside_cannot_become_markup() {
        assert_eq!(escape("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
