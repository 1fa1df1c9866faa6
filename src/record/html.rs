//! A picture of a recording as a page that stands alone: for each target its heat map,
//! its working set and its residency over time. No scripts, nothing from elsewhere: the
//! page itself forbids both.

use std::fmt::Write as _;

use super::heatmap::Picture;
use super::svg::{self, escaped};

const HEAD: &str = "<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" \
content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">
<style>
body { font: 14px sans-serif; color: #222; max-width: 1280px; margin: 1em auto; }
h1 { font-size: 20px; } h2 { font-size: 17px; margin-top: 2em; } h3 { font-size: 14px; }
td { padding-right: 2em; } svg { width: 100%; height: auto; display: block; }
</style>
";

/// The whole page.
///
/// # Errors
/// When the cells of a heat map cannot be encoded.
pub fn draw(picture: &Picture) -> Result<String, ::png::EncodingError> {
    let file = escaped(&picture.file);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n{HEAD}<title>{file}</title>\n</head>\n\
         <body>\n<h1>hmkeeper: {file}</h1>\n<table>\n"
    );
    let span = picture.axis.span().as_secs_f64();
    for (what, value) in [
        ("epochs", picture.epochs.to_string()),
        ("time", format!("{span:.1} s")),
        ("runs of the daemon", picture.runs.to_string()),
        ("targets shown", picture.targets.len().to_string()),
    ] {
        let _ = writeln!(out, "<tr><td>{what}</td><td>{value}</td></tr>");
    }
    out.push_str("</table>\n");
    for note in &picture.notes {
        let _ = writeln!(out, "<p>Note: {}.</p>", escaped(note));
    }
    for target in &picture.targets {
        let _ = writeln!(
            out,
            "<section>\n<h2>{} (pid {}): {} in {} pieces</h2>",
            escaped(&target.name),
            target.pid,
            target.layout.total(),
            target.layout.segments().len()
        );
        out.push_str("<h3>Hotness: address over time, gaps left out</h3>\n");
        out.push_str(&svg::inline_heat_map(target)?);
        out.push_str("<h3>Working set: memory whose hotness is at least half of the scans</h3>\n");
        out.push_str(&svg::working_set(target));
        out.push_str("<h3>Residency: memory present on each tier</h3>\n");
        out.push_str(&svg::residency(target));
        out.push_str("</section>\n");
    }
    out.push_str("</body>\n</html>\n");
    Ok(out)
}
