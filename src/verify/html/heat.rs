//! The map of the matrices' errors.

use std::fmt::Write;

use super::charts::percent;
use super::escape;
use super::parts::section;
use crate::verify::record::MatrixFigure;

/// Error of each quantized matrix: layers across, projections down.
pub(super) fn matrices(matrices: &[MatrixFigure]) -> String {
    let cells: Vec<(usize, &str, f64)> = matrices.iter().filter_map(place).collect();
    let mut kinds: Vec<&str> = Vec::new();
    cells.iter().for_each(|(_, kind, _)| {
        if !kinds.contains(kind) {
            kinds.push(kind)
        }
    });
    let layers = cells.iter().map(|(layer, ..)| layer + 1).max().unwrap_or(0);
    if layers == 0 {
        return section("matrices", "Error of every matrix", "The export carries no report of its matrices.", "");
    }
    let errors = || cells.iter().map(|(.., error)| *error).filter(|error| error.is_finite());
    let (least, most) = (errors().fold(f64::INFINITY, f64::min), errors().fold(0.0, f64::max));
    let (left, side, height) = (52.0, 588.0 / layers as f64, 26.0);
    let full = height * kinds.len() as f64;
    let mut svg =
        format!("<svg viewBox=\"0 0 640 {:.0}\" role=\"img\" aria-label=\"error of every matrix\">", full + 24.0);
    for (row, kind) in kinds.iter().enumerate() {
        let y = height * (row as f64 + 0.65);
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            escape(kind)
        );
    }
    for (layer, kind, error) in &cells {
        let row = kinds.iter().position(|known| known == kind).unwrap_or(0) as f64;
        let heat = if most > least { (error - least) / (most - least) } else { 0.5 };
        let (x, y) = (left + side * *layer as f64, height * row);
        let _ = write!(
            svg,
            "<g><title>layer {layer}, {}: {}</title><rect class=\"heat\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\" \
             fill-opacity=\"{:.2}\"/>",
            escape(kind),
            percent(*error),
            x + 1.0,
            y + 1.0,
            side - 2.0,
            height - 2.0,
            0.08 + 0.92 * heat
        );
        if side > 40.0 {
            let class = if heat > 0.55 { "tick on" } else { "tick" };
            let _ = write!(
                svg,
                "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.2}</text>",
                x + side / 2.0,
                y + 17.0,
                100.0 * error
            );
        }
        svg.push_str("</g>");
    }
    for layer in (0..layers).step_by(layers.div_ceil(12)) {
        let x = left + side * (layer as f64 + 0.5);
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{layer}</text>",
            full + 17.0
        );
    }
    let body = format!(
        "<figure><figcaption>‖W − Wq‖ / ‖W‖ in %, by layer and projection: {} (faint) to {} (strong)</figcaption>{svg}</svg></figure>",
        percent(least),
        percent(most)
    );
    section(
        "matrices",
        "Error of every matrix",
        "What rounding to four bits did to each matrix, as the export reports it.",
        &body,
    )
}

/// Layer, projection and error of a matrix of a layer; others have no place in the map.
fn place(matrix: &MatrixFigure) -> Option<(usize, &str, f64)> {
    let (layer, rest) = matrix.name.strip_prefix("model.layers.")?.split_once('.')?;
    let kind = rest.split('.').nth(1)?;
    Some((layer.parse().ok()?, kind.strip_suffix("_proj").unwrap_or(kind), matrix.relative_error))
}
