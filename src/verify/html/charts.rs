//! Drawings in SVG. Colours are classes of the page's style, so that they follow light and dark.

use std::fmt::Write;

use super::escape;

/// Units of a drawing's height; its width follows the page.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
/// Room for the labels left of and below the plot.
const LEFT: f64 = 68.0;
const BELOW: f64 = 34.0;
const ABOVE: f64 = 20.0;

/// A bar of a chart.
pub(super) struct Bar {
    /// Below the bar.
    pub label: String,
    /// Its height.
    pub value: f64,
    /// Shown on hover.
    pub title: String,
}

/// Bars side by side from zero.
pub(super) fn bars(bars: &[Bar], what: &str) -> String {
    let finite = |value: f64| if value.is_finite() { value.max(0.0) } else { 0.0 };
    let top = nice(bars.iter().map(|bar| finite(bar.value)).fold(0.0, f64::max));
    let mut svg = open(what);
    grid(&mut svg, top);
    let step = (WIDTH - LEFT) / bars.len().max(1) as f64;
    for (i, bar) in bars.iter().enumerate() {
        let (x, w) = (LEFT + step * (i as f64 + 0.18), step * 0.64);
        let y = level(finite(bar.value), top);
        let h = HEIGHT - BELOW - y;
        let _ = write!(
            svg,
            "<g><title>{}</title><rect class=\"bar\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"2\"/>\
             <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text></g>",
            escape(&bar.title),
            x + w / 2.0,
            y - 4.0,
            figure(bar.value),
            x + w / 2.0,
            HEIGHT - BELOW + 16.0,
            escape(&bar.label),
        );
    }
    svg + "</svg>"
}

/// Two curves over the same places, the second above the first and drawn lighter.
pub(super) fn curves(main: &[f64], upper: &[f64], below: &str, what: &str) -> String {
    let finite = |values: &[f64]| values.iter().copied().filter(|v| v.is_finite()).fold(0.0, f64::max);
    let top = nice(finite(main).max(finite(upper)));
    let mut svg = open(what);
    grid(&mut svg, top);
    let across = |i: usize| LEFT + 14.0 + (WIDTH - LEFT - 28.0) * i as f64 / (main.len().max(2) - 1) as f64;
    for (values, class) in [(upper, "curve light"), (main, "curve")] {
        let point = |(i, v): (usize, &f64)| format!("{:.1},{:.1}", across(i), level(*v, top));
        let shown = || values.iter().enumerate().filter(|(_, value)| value.is_finite());
        let points: Vec<String> = shown().map(point).collect();
        let _ = write!(svg, "<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
        for (i, value) in shown() {
            let (x, y) = (across(i), level(*value, top));
            let _ = write!(
                svg,
                "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{below} {i}: {}</title></circle>",
                figure(*value)
            );
        }
    }
    let every = main.len().div_ceil(12).max(1);
    for i in (0..main.len()).step_by(every) {
        let (x, y) = (across(i), HEIGHT - BELOW + 16.0);
        let _ = write!(svg, "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{i}</text>");
    }
    svg + "</svg>"
}

fn open(what: &str) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escape(what))
}

/// Lines at the quarters of the scale, with their values.
fn grid(svg: &mut String, top: f64) {
    for quarter in 0..=4 {
        let value = top * f64::from(quarter) / 4.0;
        let y = level(value, top);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            tick(value, top)
        );
    }
}

/// A number beside a line of a scale that ends at `top`: all of them in one notation.
fn tick(value: f64, top: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if top < 1e-3 => format!("{v:.1e}"),
        v => {
            let decimals = (2.0 - top.log10().floor()).clamp(0.0, 6.0) as usize;
            if decimals > 0 { short(format!("{v:.decimals$}")) } else { format!("{v:.0}") }
        }
    }
}

/// Height of a value on the drawing.
fn level(value: f64, top: f64) -> f64 {
    let full = HEIGHT - BELOW - ABOVE;
    ABOVE + full * (1.0 - value.min(top) / top)
}

/// The next round number: 1, 2, 4 or 6 times a power of ten; 1 for nothing to show.
fn nice(largest: f64) -> f64 {
    if largest <= 0.0 || !largest.is_finite() {
        return 1.0;
    }
    let unit = 10f64.powf(largest.log10().floor());
    [1.0, 2.0, 4.0, 6.0, 10.0].into_iter().map(|factor| factor * unit).find(|top| *top >= largest).unwrap_or(largest)
}

/// A number for people: two to four digits, `68.1`, `0.034`, `3.4e-6`.
pub(super) fn figure(value: f64) -> String {
    let size = value.abs();
    match value {
        v if !v.is_finite() => v.to_string(),
        v if v == v.trunc() && size < 1e6 => format!("{v:.0}"),
        v if size >= 10.0 => short(format!("{v:.1}")),
        v if size >= 1.0 => short(format!("{v:.2}")),
        v if size >= 0.01 => short(format!("{v:.3}")),
        v if size >= 0.001 => short(format!("{v:.4}")),
        v => format!("{v:.1e}"),
    }
}

/// Without zeros at the end of its decimals.
fn short(number: String) -> String {
    number.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A share as a percentage.
pub(super) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", 100.0 * share) } else { share.to_string() }
}
