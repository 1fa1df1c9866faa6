//! Pixels: a picture of palette indices, its colours, and letters of 3 × 5 dots.

use super::heatmap::{COLUMNS, TargetPicture};

/// Colours of the ramp: hotness 0 is the first, 1 the last.
pub(super) const RAMP: u8 = 240;
/// Nothing was watched there.
pub(super) const EMPTY: u8 = 240;
/// Behind everything.
pub(super) const PAPER: u8 = 241;
/// Letters and frames.
pub(super) const INK: u8 = 242;
/// Marks.
pub(super) const MARK: u8 = 243;
const COLOURS: usize = 244;

/// The ramp at equal distances: "inferno" of matplotlib (CC0), whose lightness grows
/// evenly, so that it is read alike in grey and by the colour-blind.
const INFERNO: [[u8; 3]; 9] = [
    [0, 0, 4],
    [31, 12, 72],
    [85, 15, 109],
    [136, 34, 106],
    [186, 54, 85],
    [227, 89, 51],
    [249, 140, 10],
    [249, 201, 50],
    [252, 255, 164],
];

/// The ramp's index of a hotness of 0 to 1.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn shade(hotness: f64) -> u8 {
    (hotness.clamp(0.0, 1.0) * f64::from(RAMP - 1)).round() as u8
}

/// Red, green and blue of an index.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn colour(index: u8) -> [u8; 3] {
    match index {
        EMPTY => [0xe6, 0xe6, 0xe6],
        PAPER => [0xff; 3],
        INK => [0x22; 3],
        MARK => [0x80; 3],
        _ => {
            let steps = (INFERNO.len() - 1) as f64;
            let at = f64::from(index.min(RAMP - 1)) / f64::from(RAMP - 1) * steps;
            let low = (at as usize).min(INFERNO.len() - 2);
            let part = at - low as f64;
            let mix = |i: usize| {
                let (a, b) = (f64::from(INFERNO[low][i]), f64::from(INFERNO[low + 1][i]));
                (a + (b - a) * part).round() as u8
            };
            [mix(0), mix(1), mix(2)]
        }
    }
}

/// All colours, three bytes each.
pub(super) fn palette() -> Vec<u8> {
    let all = 0..u8::try_from(COLOURS).unwrap_or(u8::MAX);
    all.flat_map(colour).collect()
}

/// Pixels, row by row, the top one first; each an index of the palette.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raster {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Raster {
    /// All of one colour.
    pub(super) fn new(width: usize, height: usize, index: u8) -> Self {
        Self {
            width,
            height,
            pixels: vec![index; width * height],
        }
    }

    /// Columns of pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows of pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Indices, row by row.
    pub(super) fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Fills a rectangle, as far as it is inside.
    pub(super) fn fill(&mut self, (x, y): (usize, usize), (w, h): (usize, usize), index: u8) {
        let end = (x + w).min(self.width);
        for row in y..(y + h).min(self.height) {
            if x < end {
                self.pixels[row * self.width + x..row * self.width + end].fill(index);
            }
        }
    }

    /// Another one into this, each of its rows `scale` times.
    pub(super) fn paste(&mut self, other: &Self, (x, y): (usize, usize), scale: usize) {
        for row in 0..other.height * scale {
            let from = row / scale * other.width;
            for column in 0..other.width {
                let index = other.pixels[from + column];
                self.fill((x + column, y + row), (1, 1), index);
            }
        }
    }

    /// Letters twice as large as their dots; what there is no letter for is a box.
    pub(super) fn text(&mut self, text: &str, (x, y): (usize, usize)) {
        for (i, letter) in text.chars().enumerate() {
            let dots = glyph(letter);
            for row in 0..5 {
                for column in 0..3 {
                    if dots >> ((4 - row) * 3 + 2 - column) & 1 == 1 {
                        let at = (x + i * LETTER + column * 2, y + row * 2);
                        self.fill(at, (2, 2), INK);
                    }
                }
            }
        }
    }
}

/// Pixels from one letter to the next, and in its height.
pub(super) const LETTER: usize = 8;
pub(super) const LINE: usize = 10;

/// Five rows of three dots: one octal digit each.
fn glyph(letter: char) -> u32 {
    match letter.to_ascii_lowercase() {
        ' ' => 0,
        '0' => 0o75557,
        '1' => 0o26227,
        '2' => 0o71747,
        '3' => 0o71317,
        '4' => 0o55711,
        '5' => 0o74717,
        '6' => 0o74757,
        '7' => 0o71244,
        '8' => 0o75757,
        '9' => 0o75717,
        'a' => 0o25755,
        'b' => 0o65656,
        'c' => 0o34443,
        'd' => 0o65556,
        'e' => 0o74647,
        'f' => 0o74644,
        'g' => 0o34553,
        'h' => 0o55755,
        'i' => 0o72227,
        'j' => 0o11152,
        'k' => 0o55655,
        'l' => 0o44447,
        'm' => 0o57755,
        'n' => 0o65555,
        'o' => 0o25552,
        'p' => 0o65644,
        'q' => 0o25573,
        'r' => 0o65655,
        's' => 0o34216,
        't' => 0o72222,
        'u' => 0o55557,
        'v' => 0o55522,
        'w' => 0o55775,
        'x' => 0o55255,
        'y' => 0o55222,
        'z' => 0o71247,
        '.' => 0o00002,
        ',' => 0o00024,
        ':' => 0o02020,
        ';' => 0o02024,
        '-' => 0o00700,
        '_' => 0o00007,
        '+' => 0o02720,
        '=' => 0o07070,
        '/' => 0o11244,
        '(' => 0o24442,
        ')' => 0o21112,
        '[' => 0o64446,
        ']' => 0o31113,
        '%' => 0o51245,
        '\'' => 0o22000,
        '"' => 0o55000,
        '<' => 0o12421,
        '>' => 0o42124,
        '!' => 0o22202,
        '*' => 0o05250,
        '#' => 0o57575,
        '|' => 0o22222,
        _ => 0o77777,
    }
}

/// A target's cells, one pixel each: the highest addresses at the top.
pub(super) fn cells(target: &TargetPicture) -> Raster {
    let rows = target.layout.rows();
    let mut raster = Raster::new(COLUMNS, rows, EMPTY);
    for row in 0..rows {
        for column in 0..COLUMNS {
            if let Some(hotness) = target.cell(row, column).hotness() {
                raster.pixels[(rows - 1 - row) * COLUMNS + column] = shade(hotness);
            }
        }
    }
    raster
}

/// How often each row is drawn so that a small target is not a line.
pub(super) fn row_pixels(rows: usize) -> usize {
    const LEAST: usize = 192;
    (LEAST / rows.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hotter_is_lighter() {
        let light = |index| {
            let [r, g, b] = colour(index).map(f64::from);
            0.2126 * r + 0.7152 * g + 0.0722 * b
        };
        for index in 1..RAMP {
            assert!(light(index) >= light(index - 1), "{index}");
        }
        assert_eq!((shade(0.0), shade(1.0), shade(7.0)), (0, 239, 239));
        assert_eq!(palette().len(), 3 * COLOURS);
    }

    #[test]
    fn what_is_drawn_outside_is_left_out() {
        let mut raster = Raster::new(4, 3, PAPER);
        raster.fill((3, 2), (9, 9), INK);
        raster.fill((9, 9), (1, 1), INK);
        raster.text("8", (0, 1));
        raster.paste(&Raster::new(2, 2, MARK), (3, 0), 2);
        assert_eq!(raster.pixels.len(), 12);
        assert_eq!(raster.pixels[3], MARK);
        assert_eq!(raster.pixels[4], INK);
    }

    #[test]
    fn letters_differ() {
        let letters = "0123456789abcdefghijklmnopqrstuvwxyz.,:;-_+=/()[]%'\"<>!*#| ";
        let all: std::collections::BTreeSet<u32> = letters.chars().map(glyph).collect();
        assert_eq!(all.len(), letters.len());
    }
}
