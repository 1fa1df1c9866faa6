//! A picture of a recording as SVG: a heat map for each target, its cells as an image in
//! the file itself, since a shape for each of them would be 400,000.
//!
//! Nothing in it refers to anything outside. What comes from the recording, such as the
//! name of a process, is written by [`escaped`] only.

use std::fmt::Write as _;

use super::heatmap::{COLUMNS, Picture, TargetPicture};
use super::png;
use super::raster::{self, RAMP};
use super::ticks;
use crate::units::Bytes;
use crate::units::text::printable;

/// Room for addresses, and for the legend.
const LEFT: usize = 140;
const RIGHT: usize = 130;
/// Of each drawing, in pixels where nobody scales it.
pub(super) const WIDTH: usize = LEFT + COLUMNS + RIGHT;
/// Above each heat map, and below it.
const ABOVE: usize = 30;
const BELOW: usize = 50;
/// Of a curve, and how much more than its greatest value that shows.
const CHART: usize = 150;
const ROOM: f64 = 1.05;
/// Parts of a heat map that tell their values: rows and columns of cells in each.
const TIP_ROWS: usize = 12;
const TIP_COLUMNS: usize = 20;
/// Colours of tiers, told apart also by the colour-blind (Okabe and Ito 2008).
const TIERS: [&str; 8] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999",
];
/// Of all text.
pub(super) const FONT: &str = "font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\"";

/// Text as XML and HTML have it, also between quotes. What nobody sees, or they cannot
/// have, is written out.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The whole picture, as a file of its own.
///
/// # Errors
/// When the cells cannot be encoded.
pub fn draw(picture: &Picture) -> Result<String, ::png::EncodingError> {
    let heights = picture.targets.iter().map(|t| ABOVE + height(t) + BELOW);
    let head = 30 + 16 * picture.notes.len();
    let all = head + heights.sum::<usize>();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{all}\" \
         viewBox=\"0 0 {WIDTH} {all}\" {FONT}>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"14\">hmkeeper: {}</text>\n",
        escaped(&picture.file)
    );
    for (i, note) in picture.notes.iter().enumerate() {
        let y = 36 + 16 * i;
        let _ = writeln!(
            out,
            "<text x=\"10\" y=\"{y}\">note: {}</text>",
            escaped(note)
        );
    }
    let mut top = head;
    for target in &picture.targets {
        heat_map(&mut out, target, top + ABOVE, true)?;
        top += ABOVE + height(target) + BELOW;
    }
    out.push_str("</svg>\n");
    Ok(out)
}

/// One target's heat map, as an element for a page: its parts tell their values.
pub(super) fn inline_heat_map(target: &TargetPicture) -> Result<String, ::png::EncodingError> {
    let mut out = begin(ABOVE + height(target) + BELOW);
    heat_map(&mut out, target, ABOVE, false)?;
    tips(&mut out, target, ABOVE);
    out.push_str("</svg>\n");
    Ok(out)
}

fn begin(height: usize) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" {FONT}>\n")
}

fn height(target: &TargetPicture) -> usize {
    let rows = target.layout.rows();
    rows * raster::row_pixels(rows)
}

fn heat_map(
    out: &mut String,
    target: &TargetPicture,
    top: usize,
    is_titled: bool,
) -> Result<(), ::png::EncodingError> {
    let height = height(target);
    if is_titled {
        let _ = writeln!(
            out,
            "<text x=\"{LEFT}\" y=\"{}\" font-size=\"12\">{} (pid {}), {}, gaps left out</text>",
            top - 10,
            escaped(&target.name),
            target.pid,
            target.layout.total()
        );
    }
    let cells = base64(&png::encode(&raster::cells(target))?);
    let _ = writeln!(
        out,
        "<image x=\"{LEFT}\" y=\"{top}\" width=\"{COLUMNS}\" height=\"{height}\" \
         preserveAspectRatio=\"none\" style=\"image-rendering:pixelated\" \
         href=\"data:image/png;base64,{cells}\"/>"
    );
    frame(out, target, top, height);
    for (at, address) in ticks::addresses(&target.layout, height as f64, 14.0) {
        let y = (top + height) as f64 - at;
        mark(out, (LEFT as f64 - 6.0, y), (LEFT as f64, y));
        label(
            out,
            (LEFT as f64 - 9.0, y + 4.0),
            "end",
            &address.to_string(),
        );
    }
    let middle = top + height / 2;
    let _ = writeln!(
        out,
        "<text transform=\"translate(14 {middle}) rotate(-90)\" \
         text-anchor=\"middle\">address</text>"
    );
    legend(out, top, height);
    Ok(())
}

/// What every drawing has: a frame and the time below it.
fn frame(out: &mut String, target: &TargetPicture, top: usize, height: usize) {
    let _ = writeln!(
        out,
        "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{COLUMNS}\" height=\"{height}\" \
         fill=\"none\" stroke=\"#222\"/>"
    );
    let bottom = (top + height) as f64;
    for (at, text) in ticks::seconds(target.axis().span()) {
        let x = LEFT as f64 + at * COLUMNS as f64;
        mark(out, (x, bottom), (x, bottom + 6.0));
        label(out, (x, bottom + 18.0), "middle", &text);
    }
    let middle = (LEFT + COLUMNS / 2) as f64;
    label(out, (middle, bottom + 34.0), "middle", "time (s)");
}

fn mark(out: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#808080\"/>"
    );
}

fn label(out: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let text = escaped(text);
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

fn web_colour(index: u8) -> String {
    let [r, g, b] = raster::colour(index);
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn legend(out: &mut String, top: usize, height: usize) {
    const STEPS: usize = 32;
    let x = LEFT + COLUMNS + 16;
    let ramp = height.saturating_sub(40) as f64;
    let each = ramp / STEPS as f64;
    for step in 0..STEPS {
        let hotness = 1.0 - (step as f64 + 0.5) / STEPS as f64;
        let y = top as f64 + step as f64 * each;
        // A little more, so that no line shows between.
        let (fill, high) = (web_colour(raster::shade(hotness).min(RAMP - 1)), each + 0.5);
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y:.1}\" width=\"14\" height=\"{high:.1}\" fill=\"{fill}\"/>"
        );
    }
    let beside = (x + 20) as f64;
    let top = top as f64;
    label(out, (beside, top + 10.0), "start", "100 %");
    label(out, (beside, top + 24.0), "start", "of scans saw");
    label(out, (beside, top + 38.0), "start", "it accessed");
    label(out, (beside, top + ramp), "start", "0 %");
    let y = top + ramp + 20.0;
    let empty = web_colour(raster::EMPTY);
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y:.1}\" width=\"14\" height=\"14\" fill=\"{empty}\"/>"
    );
    label(out, (beside, y + 11.0), "start", "no data");
}

/// Parts of a heat map with a text for whoever points at them.
fn tips(out: &mut String, target: &TargetPicture, top: usize) {
    let (layout, axis) = (&target.layout, target.axis());
    let rows = layout.rows();
    let scale = raster::row_pixels(rows);
    out.push_str("<g fill=\"none\" pointer-events=\"all\">\n");
    for row in (0..rows).step_by(TIP_ROWS) {
        let until = (row + TIP_ROWS).min(rows);
        let first = Bytes(layout.row_bytes().0 * row as u64);
        let last = Bytes((layout.row_bytes().0 * until as u64).min(layout.total().0));
        let addresses = format!("{} to {}", layout.address(first), layout.address(last));
        let y = top + (rows - until) * scale;
        let high = (until - row) * scale;
        for column in (0..COLUMNS).step_by(TIP_COLUMNS) {
            let block = target.block(row..until, column..column + TIP_COLUMNS);
            let Some(hotness) = block.hotness() else {
                continue;
            };
            let from = axis.start(column).as_secs_f64();
            let to = axis.start(column + TIP_COLUMNS).as_secs_f64();
            let _ = writeln!(
                out,
                "<rect x=\"{}\" y=\"{y}\" width=\"{TIP_COLUMNS}\" height=\"{high}\">\
                 <title>{addresses}\n{from:.1} s to {to:.1} s\n{:.0} % of scans</title></rect>",
                LEFT + column,
                hotness * 100.0
            );
        }
    }
    out.push_str("</g>\n");
}

/// The working set over time, below what could be moved.
pub(super) fn working_set(target: &TargetPicture) -> String {
    let (hot, all) = (target.working_set(), target.eligible());
    let most = ROOM * greatest(all.iter().chain(&hot));
    let mut out = begin(10 + CHART + BELOW);
    let _ = writeln!(
        out,
        "<path d=\"{}\" fill=\"none\" stroke=\"#999\" stroke-dasharray=\"4 3\"/>",
        line(&all, most)
    );
    let none = vec![0.0; COLUMNS];
    let tops: Vec<f64> = hot.iter().map(|v| v.unwrap_or(0.0)).collect();
    let (path, last) = (area(&none, &tops, most), TIERS[5]);
    let _ = writeln!(out, "<path d=\"{path}\" fill=\"{last}\"/>");
    chart(&mut out, target, most);
    key(
        &mut out,
        &[("working set", TIERS[5]), ("may be moved", "#999")],
    );
    out.push_str("</svg>\n");
    out
}

/// What is on each tier over time, one above the other.
pub(super) fn residency(target: &TargetPicture) -> String {
    let tiers = target.residency();
    let mut tops = vec![vec![0.0; COLUMNS]];
    for (_, bytes) in &tiers {
        let below = &tops[tops.len() - 1];
        let sums = below.iter().zip(bytes);
        tops.push(sums.map(|(sum, b)| sum + b.unwrap_or(0.0)).collect());
    }
    let most = ROOM * tops[tops.len() - 1].iter().copied().fold(0.0, f64::max);
    let mut out = begin(10 + CHART + BELOW);
    let mut names = Vec::new();
    for (i, (name, _)) in tiers.iter().enumerate() {
        let colour = TIERS[i % TIERS.len()];
        let path = area(&tops[i], &tops[i + 1], most);
        let _ = writeln!(
            out,
            "<path d=\"{path}\" fill=\"{colour}\"><title>{}</title></path>",
            escaped(name)
        );
        names.push((*name, colour));
    }
    chart(&mut out, target, most);
    key(&mut out, &names);
    out.push_str("</svg>\n");
    out
}

fn greatest<'a>(values: impl Iterator<Item = &'a Option<f64>>) -> f64 {
    values.flatten().copied().fold(0.0, f64::max)
}

/// Pixels from the top of a chart.
fn depth(value: f64, most: f64) -> f64 {
    10.0 + CHART as f64 * (1.0 - value / most.max(f64::MIN_POSITIVE))
}

fn chart(out: &mut String, target: &TargetPicture, most: f64) {
    frame(out, target, 10, CHART);
    for (at, text) in ticks::sizes(most) {
        let y = 10.0 + CHART as f64 * (1.0 - at);
        mark(out, (LEFT as f64 - 6.0, y), (LEFT as f64, y));
        label(out, (LEFT as f64 - 9.0, y + 4.0), "end", &text);
    }
}

/// Names and colours beside a chart.
fn key(out: &mut String, names: &[(&str, &str)]) {
    let x = LEFT + COLUMNS + 16;
    for (i, (name, colour)) in names.iter().enumerate() {
        let y = 12 + i * 18;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"
        );
        let shown: String = name.chars().take(16).collect();
        label(out, ((x + 17) as f64, (y + 10) as f64), "start", &shown);
    }
}

/// Steps along the values; nothing where there are none.
fn line(values: &[Option<f64>], most: f64) -> String {
    let mut path = String::new();
    let mut last = None;
    for (column, value) in values.iter().enumerate() {
        if *value == last {
            continue;
        }
        let x = LEFT + column;
        match (last, value) {
            (None, Some(value)) => {
                let _ = write!(path, "M{x} {:.1}", depth(*value, most));
            }
            (Some(_), Some(value)) => {
                let _ = write!(path, "H{x}V{:.1}", depth(*value, most));
            }
            (_, None) => {
                let _ = write!(path, "H{x}");
            }
        }
        last = *value;
    }
    if last.is_some() {
        let _ = write!(path, "H{}", LEFT + values.len());
    }
    path
}

/// What lies between two curves.
fn area(low: &[f64], high: &[f64], most: f64) -> String {
    let end = LEFT + high.len();
    let mut path = format!(
        "M{LEFT} {:.1}",
        depth(low.first().copied().unwrap_or(0.0), most)
    );
    let mut last = f64::NAN;
    for (column, &value) in high.iter().enumerate() {
        if value.to_bits() != last.to_bits() {
            let _ = write!(path, "H{}V{:.1}", LEFT + column, depth(value, most));
            last = value;
        }
    }
    let _ = write!(path, "H{end}");
    last = f64::NAN;
    for (column, &value) in low.iter().enumerate().rev() {
        if value.to_bits() != last.to_bits() {
            let _ = write!(path, "H{}V{:.1}", LEFT + column + 1, depth(value, most));
            last = value;
        }
    }
    path.push('Z');
    path
}

/// Bytes as text (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            if i <= three.len() {
                let letter = LETTERS[(bits >> (18 - 6 * i) & 63) as usize];
                text.push(char::from(letter));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let of = |text: &str| base64(text.as_bytes());
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(of),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
        assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
    }

    #[test]
    fn no_name_ends_an_element() {
        assert_eq!(
            escaped("a<b> & \"c'\u{1}\n"),
            "a&lt;b&gt; &amp; &quot;c&#39;\\u{1}\\n"
        );
    }

    #[test]
    fn curves_are_steps() {
        let path = line(&[None, Some(1.0), Some(1.0), Some(2.0), None], 2.0);
        assert_eq!(path, "M141 85.0H143V10.0H144");
        let path = area(&[0.0, 0.0], &[1.0, 2.0], 2.0);
        assert_eq!(path, "M140 160.0H140V85.0H141V10.0H142H142V160.0Z");
    }
}
