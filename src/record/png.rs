//! A picture of a recording as PNG: a heat map for each target, one below the other.

use super::heatmap::{COLUMNS, Picture, TargetPicture};
use super::raster::{self, EMPTY, INK, LETTER, LINE, MARK, PAPER, RAMP, Raster};
use super::ticks;

/// Room for addresses, and for the legend.
const LEFT: usize = 17 * LETTER;
const RIGHT: usize = 16 * LETTER;
const WIDTH: usize = LEFT + COLUMNS + RIGHT;
/// Above each heat map, and below it.
const ABOVE: usize = 3 * LINE;
const BELOW: usize = 5 * LINE;

/// The whole picture.
pub fn draw(picture: &Picture) -> Raster {
    let heights = picture.targets.iter().map(|t| ABOVE + height(t) + BELOW);
    let lines = 2 + picture.notes.len();
    let head = lines * 2 * LINE;
    let mut raster = Raster::new(WIDTH, head + heights.sum::<usize>(), PAPER);
    let title = format!("hmkeeper: {}", picture.file);
    raster.text(&fitting(&title), (LETTER, LINE));
    for (i, note) in picture.notes.iter().enumerate() {
        raster.text(&fitting(note), (LETTER, LINE + (i + 1) * 2 * LINE));
    }
    let mut top = head;
    for target in &picture.targets {
        one(&mut raster, target, top + ABOVE);
        top += ABOVE + height(target) + BELOW;
    }
    raster
}

/// As much of a text as a line holds.
fn fitting(text: &str) -> String {
    text.chars().take(WIDTH / LETTER - 2).collect()
}

fn height(target: &TargetPicture) -> usize {
    let rows = target.layout.rows();
    rows * raster::row_pixels(rows)
}

fn one(out: &mut Raster, target: &TargetPicture, top: usize) {
    let height = height(target);
    let title = format!(
        "{} (pid {}), {}, gaps left out",
        target.name,
        target.pid,
        target.layout.total()
    );
    out.text(&fitting(&title), (LEFT, top - 2 * LINE));
    out.fill((LEFT - 1, top - 1), (COLUMNS + 2, height + 2), INK);
    let cells = raster::cells(target);
    out.paste(&cells, (LEFT, top), height / cells.height().max(1));
    for (at, address) in ticks::addresses(&target.layout, height as f64, 14.0) {
        let y = top + height - whole(at).min(height);
        let text = address.to_string();
        let x = (LEFT - 8).saturating_sub(text.len() * LETTER);
        out.text(&text, (x, y.saturating_sub(LINE / 2)));
        out.fill((LEFT - 6, y), (5, 1), MARK);
    }
    let bottom = top + height;
    for (at, text) in ticks::seconds(target.axis().span()) {
        let x = LEFT + whole(at * COLUMNS as f64);
        out.fill((x, bottom + 1), (1, 5), MARK);
        let half = text.len() * LETTER / 2;
        out.text(&text, (x.saturating_sub(half), bottom + LINE));
    }
    let axis = "time (s)";
    let middle = LEFT + COLUMNS / 2 - axis.len() * LETTER / 2;
    out.text(axis, (middle, bottom + 5 * LINE / 2));
    legend(out, (LEFT + COLUMNS + 2 * LETTER, top), height);
}

/// What the colours stand for.
fn legend(out: &mut Raster, (x, top): (usize, usize), height: usize) {
    const WIDE: usize = 2 * LETTER;
    // Below it what stands for nothing.
    let ramp = height.saturating_sub(5 * LINE).max(1);
    for y in 0..ramp {
        let hotness = 1.0 - y as f64 / ramp as f64;
        let shade = raster::shade(hotness).min(RAMP - 1);
        out.fill((x, top + y), (WIDE, 1), shade);
    }
    let beside = x + WIDE + LETTER / 2;
    out.text("100 %", (beside, top));
    out.text("of scans", (beside, top + 3 * LINE / 2));
    out.text("0 %", (beside, top + ramp.saturating_sub(LINE)));
    out.fill((x, top + height - 2 * LINE), (WIDE, LINE), EMPTY);
    out.text("no data", (beside, top + height - 2 * LINE));
}

/// A place that is not negative, in pixels.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(at: f64) -> usize {
    // `as` saturates.
    at.round() as usize
}

/// The bytes of a PNG file.
///
/// # Errors
/// When the encoder has none for it, as for a raster without pixels.
pub fn encode(raster: &Raster) -> Result<Vec<u8>, png::EncodingError> {
    let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut bytes = Vec::new();
    let (width, height) = (size(raster.width()), size(raster.height()));
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(raster::palette());
    let mut writer = encoder.write_header()?;
    writer.write_image_data(raster.pixels())?;
    writer.finish()?;
    Ok(bytes)
}
