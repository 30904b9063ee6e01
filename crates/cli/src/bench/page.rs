//! The figures to look at: a page, complete in one file, and a picture. Both begin with the figure that matters and
//! have one plot per question.

use super::plot::{self, PLOT_HEIGHT, PLOT_STYLE, PLOT_WIDTH, escape};
use super::{Outcome, questions, table};
use crate::measure::machine;

const PAGE_STYLE: &str = "\
body{background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif;max-width:1180px;margin:0 auto;\
padding:28px 20px 48px}h1{font-size:30px;line-height:1.25;margin:0 0 6px}h2{font-size:20px;margin:34px 0 6px}\
.small{color:var(--faint);font-size:14px;margin:0}.figures{display:flex;flex-wrap:wrap;gap:12px;margin:20px 0 12px}\
.figure{border:1px solid var(--grid);border-radius:8px;padding:10px 16px;flex:1 1 170px}\
.figure b{display:block;font-size:26px;line-height:1.3}.figure span{color:var(--faint);font-size:14px;display:block}\
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:14px}\
.plots svg{box-sizing:border-box;width:100%;height:auto;border:1px solid var(--grid);border-radius:8px;\
break-inside:avoid}\
.warning{border-left:4px solid var(--send);padding-left:12px}\
pre{font-size:12px;line-height:1.4;overflow-x:auto;border:1px solid var(--grid);border-radius:8px;padding:14px}\n\
@media print{body{max-width:none;padding:0;font-size:12px}h1{font-size:22px}pre{font-size:6.5px;border:0;padding:0}\
.figure{padding:4px 10px;flex-basis:110px}.figure b{font-size:17px}.figure span,.small{font-size:10px}\
.plots{grid-template-columns:1fr 1fr}}";

/// A page.
pub fn page(outcome: &Outcome) -> String {
    let headline = escape(&questions::headline(outcome));
    let figure = |[what, value, beside]: &[String; 3]| {
        let [what, value, beside] = [what, value, beside].map(|text| escape(text));
        format!("<div class=\"figure\"><span>{what}</span><b>{value}</b><span>{beside}</span></div>\n")
    };
    let figures: String = questions::key_figures(outcome).iter().map(figure).collect();
    let plot = |question: &questions::Question| {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}\" \
             role=\"img\" aria-label=\"{}\">\n",
            escape(question.asks)
        );
        // Writing to a string cannot fail.
        let _ = plot::draw(question, &mut svg, 0.0, 0.0);
        svg + "</svg>\n"
    };
    let plots: String = questions::of(outcome).iter().map(plot).collect();
    let warning = machine::crowded().map(|why| format!("<p class=\"warning\">Note: {}</p>\n", escape(&why)));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width\"/>\n<title>ubiverbs bench: {headline}</title>\n\
         <style>\n{PLOT_STYLE}\n{PAGE_STYLE}\n</style>\n</head>\n<body>\n<h1>{headline}</h1>\n<p class=\"small\">{}</p>\n\
         {}<div class=\"figures\">\n{figures}</div>\n<div class=\"plots\">\n{plots}</div>\n\
         <p class=\"small\">SEND, WRITE and sockets carry a message there and another back; READ and ATOMIC bring one, \
         for one request. “WRITE, memory” is between programs that look at their memory and at no queue. \
         Grey lines are limits: what this machine does without any protocol. Absolute figures depend on \
         the machine and on what else it does; compare within this page.</p>\n\
         <h2>All figures</h2>\n<pre>\n{}</pre>\n</body>\n</html>\n",
        escape(
            &[place(outcome), outcome.machine.load.map(|load| format!("load {load} before")).into_iter().collect()]
                .concat()
                .join(" · ")
        ),
        warning.unwrap_or_default(),
        escape(&anstream::adapter::strip_str(&table::render(outcome)).to_string())
    )
}

/// A picture: headline, plots in two columns, where and when.
pub fn picture(outcome: &Outcome) -> String {
    let questions = questions::of(outcome);
    let columns = questions.len().clamp(1, 2);
    let (head, foot) = (46.0, 30.0);
    let width = PLOT_WIDTH * columns as f64;
    let height = head + PLOT_HEIGHT * questions.len().div_ceil(columns) as f64 + foot;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n\
         <style>\n{PLOT_STYLE}\n.head{{font:700 20px system-ui,sans-serif;fill:var(--ink)}}\
         .foot{{font:12px system-ui,sans-serif;fill:var(--faint)}}\
         .paper{{fill:var(--paper);stroke:var(--grid)}}\n</style>\n\
         <rect class=\"paper\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n\
         <text class=\"head\" x=\"14\" y=\"32\">{}</text>\n",
        width - 1.0,
        height - 1.0,
        escape(&questions::headline(outcome))
    );
    for (index, question) in questions.iter().enumerate() {
        let (column, row) = (index % columns, index / columns);
        let _ = plot::draw(question, &mut svg, PLOT_WIDTH * column as f64, head + PLOT_HEIGHT * row as f64);
    }
    let place = escape(&place(outcome).join(" · "));
    svg + &format!("<text class=\"foot\" x=\"14\" y=\"{}\">{place}</text>\n</svg>\n", height - 12.0)
}

/// Where, when and with what it was measured.
fn place(outcome: &Outcome) -> Vec<String> {
    let machine = &outcome.machine;
    let processors = if machine.processors == 1 { "processor" } else { "processors" };
    let model = machine.processor.as_deref().map(|name| format!("{name}, ")).unwrap_or_default();
    let link = if outcome.link == super::LINK_UDP { "UDP" } else { "shared memory" };
    let mut parts = vec![format!("{model}{} {processors}", machine.processors)];
    parts.extend(machine.kernel.as_deref().map(|kernel| format!("Linux {kernel}")));
    parts.push(format!("{}, {link}", outcome.device));
    parts.push(format!("ubiverbs {}", env!("CARGO_PKG_VERSION")));
    parts.push(machine.date());
    parts
}
