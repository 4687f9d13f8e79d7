//! What was simulated, as a part of the page, as pictures and as lines of text.

use super::imagined::{COMMAND, Imagined};
use super::markup::esc;
use super::{claims, lanes, tornado};

/// The part of the page.
pub(super) fn html(imagined: &Imagined) -> String {
    let mut out = match &imagined.simulated {
        Some(simulated) => claims::html(simulated),
        None => format!(
            "<p class=\"missing\">The tables were not simulated. <code>{}</code> in the folder of this page adds them; then \
             draw it again with <code>warmcore report --out . --render</code>.</p>\n",
            esc(COMMAND)
        ),
    };
    let Some(pictures) = &imagined.pictures else {
        return out
            + "<p class=\"missing\">What moves the answers, and CPU lanes, were not simulated. \
               <code>warmcore report</code> adds them.</p>\n";
    };
    out.extend(pictures.lanes.as_ref().map(lanes::html));
    out + &tornado::html(&pictures.sensitivities)
}

/// The pictures, each a file of its own: name, then content.
pub(super) fn files(imagined: &Imagined) -> Vec<(String, String)> {
    let Some(pictures) = &imagined.pictures else { return Vec::new() };
    let lanes = pictures.lanes.as_ref().map(|lanes| ("sim-lanes".to_owned(), lanes::svg(lanes)));
    lanes.into_iter().chain(pictures.sensitivities.iter().map(tornado::file)).collect()
}

/// The same in lines of text.
pub(super) fn text(imagined: &Imagined) -> Vec<String> {
    let mut lines: Vec<String> = imagined.simulated.iter().flat_map(claims::text).collect();
    if let Some(pictures) = &imagined.pictures {
        lines.extend(pictures.lanes.iter().map(lanes::said));
        lines.extend(
            pictures.sensitivities.iter().map(|one| format!("{}: {}", one.asked, tornado::said(one))),
        );
    }
    lines
}
