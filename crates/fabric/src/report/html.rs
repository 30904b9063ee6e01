//! A report as one page that needs nothing else: tables, and plots as SVG.

use super::Report;
use crate::statistics::Sample;
use crate::units::{show_bytes, show_rate, show_span};
use std::fmt::Write;

const PAGE_STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto;background:#fafafa;border:1px solid #ddd}\
pre{background:#f5f5f5;padding:.7em;overflow:auto}h2{margin-top:1.6em}\
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}svg{background:#222;border-color:#444}\
pre{background:#222}td,th{border-color:#444}}";

const PLOT_WIDTH: f64 = 900.0;
const PLOT_HEIGHT: f64 = 220.0;
const LEFT_MARGIN: f64 = 90.0;
const BOTTOM_MARGIN: f64 = 30.0;

impl Report {
    /// The page.
    pub fn html(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_html(&mut page);
        page
    }

    fn write_html(&self, out: &mut String) -> std::fmt::Result {
        let title = format!("{} on {}", self.workload, self.network);
        write!(
            out,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <style>{PAGE_STYLE}</style></head><body>\n<h1>{}</h1>\n<p>{}</p>\n",
            escape(self.workload),
            escape(&self.network),
        )?;
        let counts = &self.counts;
        rows(
            out,
            &[
                ("finished", show_span(self.finished_at)),
                ("messages", format!("{} of {} arrived", counts.messages_received, counts.messages)),
                ("goodput", show_rate(self.goodput)),
                ("queue pairs", self.queue_pairs.to_string()),
                ("congestion control", self.congestion.to_owned()),
                ("seed", self.seed.to_string()),
            ],
        )?;
        let completion = &self.completion;
        write!(
            out,
            "<h2>Completion times</h2>\n<table><tr><th>least<th>p50<th>p90<th>p99<th>p99.9<th>most</tr>\n<tr>"
        )?;
        for time in [completion.least, completion.p50, completion.p90, completion.p99, completion.p999, completion.most]
        {
            write!(out, "<td>{}", show_span(time))?;
        }
        write!(out, "</tr></table>\n<h2>Course of the run</h2>\n")?;
        let rates: Vec<(u64, f64)> = (self.samples.windows(2))
            .map(|pair| {
                (pair[1].at, (pair[1].delivered - pair[0].delivered) as f64 * 8e9 / (pair[1].at - pair[0].at) as f64)
            })
            .collect();
        plot(out, "payload that arrives", &rates, show_rate)?;
        let series = |of: fn(&Sample) -> u64| -> Vec<(u64, f64)> {
            self.samples.iter().map(|sample| (sample.at, of(sample) as f64)).collect()
        };
        plot(out, "longest queue", &series(|sample| sample.longest_queue), |bytes| show_bytes(bytes as u64))?;
        plot(out, "bytes in all queues", &series(|sample| sample.queued), |bytes| show_bytes(bytes as u64))?;
        plot(out, "ports paused", &series(|sample| sample.paused), |count| format!("{count:.0}"))?;
        plot(out, "packets dropped so far", &series(|sample| sample.dropped), |count| format!("{count:.0}"))?;
        plot(out, "messages arrived so far", &series(|sample| sample.messages), |count| format!("{count:.0}"))?;
        write!(out, "<h2>Links</h2>\n<table><tr><th>kind<th>count<th>mean<th>most<th>busiest</tr>\n")?;
        for links in &self.links {
            writeln!(
                out,
                "<tr><td>{}<td>{}<td>{:.1} %<td>{:.1} %<td>{}</tr>",
                links.class.name(),
                links.count,
                100.0 * links.mean_utilisation,
                100.0 * links.most_utilisation,
                escape(&links.busiest),
            )?;
        }
        write!(out, "</table>\n<h2>All figures</h2>\n<pre>{}</pre>\n</body></html>\n", escape(&self.to_string()))
    }
}

fn rows(out: &mut String, rows: &[(&str, String)]) -> std::fmt::Result {
    out.push_str("<table>\n");
    for (name, value) in rows {
        writeln!(out, "<tr><td>{name}<td>{}</tr>", escape(value))?;
    }
    out.push_str("</table>\n");
    Ok(())
}

/// One curve over time.
fn plot(out: &mut String, title: &str, points: &[(u64, f64)], show: impl Fn(f64) -> String) -> std::fmt::Result {
    let highest = points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let last = points.last().map_or(0, |(at, _)| *at);
    if points.len() < 2 || highest <= 0.0 {
        return writeln!(out, "<p>{title}: none</p>");
    }
    let x = |at: u64| LEFT_MARGIN + (PLOT_WIDTH - LEFT_MARGIN - 10.0) * at as f64 / last as f64;
    let y = |value: f64| PLOT_HEIGHT - BOTTOM_MARGIN - (PLOT_HEIGHT - BOTTOM_MARGIN - 25.0) * value / highest;
    write!(
        out,
        "<svg viewBox=\"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}\" font-size=\"12\" fill=\"currentColor\">\
         <text x=\"{LEFT_MARGIN}\" y=\"16\">{title}</text><text x=\"4\" y=\"{:.0}\">{}</text>\
         <text x=\"4\" y=\"{:.0}\">0</text>",
        y(highest) + 4.0,
        escape(&show(highest)),
        y(0.0) + 4.0,
    )?;
    for quarter in 0..=4 {
        let at = last / 4 * quarter;
        write!(
            out,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"{}\">{}</text>",
            x(at),
            PLOT_HEIGHT - 10.0,
            if quarter == 4 { "end" } else { "middle" },
            show_span(at),
        )?;
    }
    write!(
        out,
        "<path d=\"M{LEFT_MARGIN} {0:.1}H{1:.1}M{LEFT_MARGIN} {2:.1}H{1:.1}\" stroke=\"#999\" stroke-width=\".5\"/>\
         <polyline fill=\"none\" stroke=\"#2b6cb0\" stroke-width=\"1.5\" points=\"",
        y(0.0),
        PLOT_WIDTH - 10.0,
        y(highest),
    )?;
    for (at, value) in points {
        write!(out, "{:.1},{:.1} ", x(*at), y(*value))?;
    }
    writeln!(out, "\"/></svg>")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
