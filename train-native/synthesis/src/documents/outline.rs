//! Headings and paragraphs, one after another, to sections.

use super::{Document, Facts, Section};

/// Letters of a title or a heading. They stand before every passage, and a document that marks its whole text as
/// one heading would stand there again and again.
const LONGEST: usize = 200;

/// A document while it is read.
#[derive(Debug, Default)]
pub(super) struct Outline {
    /// Open headings with their levels, outermost first.
    open: Vec<(u8, String)>,
    sections: Vec<Section>,
    /// Text below the last heading.
    text: String,
    /// Levels of all headings.
    levels: Vec<u8>,
    /// The first heading.
    first: Option<String>,
}

impl Outline {
    /// Begins a section. One without a text is nothing to find things by. A heading that is too long is shortened,
    /// and stands whole below itself.
    pub(super) fn heading(&mut self, level: u8, text: &str) {
        let whole = one_line(text);
        let text = shortened(&whole);
        if text.is_empty() {
            return;
        }
        self.close();
        while self.open.last().is_some_and(|(open, _)| *open >= level) {
            self.open.pop();
        }
        self.levels.push(level);
        self.first.get_or_insert_with(|| text.clone());
        if text.len() < whole.len() {
            self.block(&whole);
        }
        self.open.push((level, text));
    }

    /// Adds a paragraph.
    pub(super) fn block(&mut self, text: &str) {
        let text = text.trim_end().trim_start_matches('\n');
        if text.trim().is_empty() {
            return;
        }
        if !self.text.is_empty() {
            self.text.push_str("\n\n");
        }
        self.text.push_str(text);
    }

    fn close(&mut self) {
        if !self.text.is_empty() {
            let heading = self.open.iter().map(|(_, text)| text.clone()).collect();
            self.sections.push(Section { heading, text: std::mem::take(&mut self.text) });
        }
    }

    /// The document. Without a title of its own it is called as its first heading, where no other is of
    /// that level or above. The title is no heading any more.
    pub(super) fn finish(mut self, name: String, facts: Facts) -> Document {
        self.close();
        let topmost =
            self.levels.first().filter(|first| self.levels[1..].iter().all(|level| level > first));
        let own = facts.title.as_deref().map(|title| shortened(&one_line(title)));
        let title = own.or(self.first.filter(|_| topmost.is_some())).unwrap_or_default();
        for section in &mut self.sections {
            if section.heading.first().is_some_and(|heading| says(&title, heading)) {
                section.heading.remove(0);
            }
        }
        Document {
            name,
            title,
            origin: facts.origin,
            licence: facts.licence,
            sections: self.sections,
        }
    }
}

/// Whether a title is a heading, perhaps with the name of the whole behind it (`Heading - Whole`).
fn says(title: &str, heading: &str) -> bool {
    title.strip_prefix(heading).is_some_and(|rest| {
        rest.is_empty()
            || rest.starts_with([' ', ':'])
                && rest.trim_start().starts_with(['-', '|', ':', '·', '—', '–', '»', '•'])
    })
}

/// A text as one line, single spaces between its words.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The words of a line as far as a heading may go.
fn shortened(line: &str) -> String {
    let Some((end, _)) = line.char_indices().nth(LONGEST) else { return line.into() };
    let end = line[..end].rfind(' ').unwrap_or(end);
    line[..end].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(headings: &[(u8, &str)], title: Option<&str>) -> (String, Vec<String>) {
        let mut outline = Outline::default();
        for (level, heading) in headings {
            outline.heading(*level, heading);
            outline.block(&format!("of {heading}"));
        }
        let facts = Facts { title: title.map(String::from), ..Facts::default() };
        let document = outline.finish("x".into(), facts);
        let paths = document.sections.iter().map(|section| section.heading.join("/"));
        (document.title.clone(), paths.collect())
    }

    #[test]
    fn the_one_topmost_heading_is_the_title() {
        let paths = |paths: &[&str]| paths.iter().map(|path| path.to_string()).collect::<Vec<_>>();
        let headings = [(1, "A"), (2, "B"), (4, "C"), (3, "D"), (2, "E")];
        let below = ["", "B", "B/C", "B/D", "E"];
        assert_eq!(outline(&headings, None), ("A".into(), paths(&below)));
        assert_eq!(outline(&headings, Some(" A\n")), ("A".into(), paths(&below)));
        let all = ["A", "A/B", "A/B/C", "A/B/D", "A/E"];
        assert_eq!(outline(&headings, Some("Z")), ("Z".into(), paths(&all)));
        let named = outline(&headings[..2], Some("A - All of it"));
        assert_eq!(named, ("A - All of it".into(), paths(&["", "B"])));
        assert_eq!(outline(&headings[..1], Some("A B - All")).1, ["A"]);
        // Of several none is.
        let two = outline(&[(1, "A"), (2, "B"), (1, "C")], None);
        assert_eq!(two, (String::new(), paths(&["A", "A/B", "C"])));
        let late = outline(&[(2, "B"), (1, "A")], None);
        assert_eq!(late, (String::new(), paths(&["B", "A"])));
    }

    #[test]
    fn long_headings_are_shortened_and_lose_nothing() {
        let mut outline = Outline::default();
        let long = "word ".repeat(100);
        outline.heading(1, &long);
        outline.block("text");
        let document = outline.finish("x".into(), Facts::default());
        assert_eq!(document.title, "word ".repeat(40).trim());
        assert_eq!(document.sections[0].text, format!("{}\n\ntext", long.trim()));
        assert_eq!(shortened(&"x".repeat(300)).len(), LONGEST);
    }
}
