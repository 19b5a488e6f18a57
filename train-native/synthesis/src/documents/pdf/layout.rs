//! From lines to paragraphs and headings.
//!
//! Lines are taken in the order in which the file writes them, which is that of reading in files of all common programs,
//! columns included. What the eye takes for a heading is one here: a short line, larger than most of the text or bold, on its own.

use std::collections::HashMap;

use super::frames::drop_frames;
use super::lines::{BULLETS, Line};
use crate::documents::outline::Outline;

/// How much larger than the text a heading is.
const LARGER: f64 = 1.08;

/// Levels of headings by their size.
const LEVELS: usize = 5;

/// Letters of a heading at most.
const HEADING: usize = 200;

/// What is larger than the usual distance between lines begins a paragraph.
const APART: f64 = 1.25;

/// And rows of a table are nearer than this.
const ROWS: f64 = 3.0;

/// Writes the lines of all pages as paragraphs below their headings.
pub(super) fn write(mut pages: Vec<Vec<Line>>, outline: &mut Outline) {
    drop_frames(&mut pages);
    forget_typewriters(&mut pages);
    let style = Style::of(&pages);
    let parts = parts(&pages, &style);
    for (place, part) in parts.iter().enumerate() {
        match (part, parts.get(place + 1)) {
            (Part::Text(text), _) => outline.block(text),
            (Part::Heading(level, text), Some(Part::Text(_))) => outline.heading(*level, text),
            (Part::Heading(level, text), Some(Part::Heading(next, _))) if next > level => {
                outline.heading(*level, text);
            }
            // With nothing below it, it is no heading, however it looks.
            (Part::Heading(_, text), _) => outline.block(text),
        }
    }
}

/// A part of a document.
enum Part {
    /// With its level, 1 to 6.
    Heading(u8, String),
    /// A paragraph, a list, a table.
    Text(String),
}

/// Lines to paragraphs and headings.
fn parts(pages: &[Vec<Line>], style: &Style) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut paragraph: Option<Paragraph> = None;
    let mut heading: Vec<&Line> = Vec::new();
    let mut before: Option<(usize, &Line)> = None;
    let all = pages
        .iter()
        .enumerate()
        .flat_map(|(page, lines)| lines.iter().map(move |line| (page, line)));
    for (page, line) in all {
        let last = before.replace((page, line));
        let gap =
            last.filter(|(last, _)| *last == page).map(|(_, last)| last.baseline - line.baseline);
        let close = gap.is_some_and(|gap| gap > 0.0 && gap < 2.0 * line.size);
        if let Some(last) = heading.last() {
            let same = (last.size, last.bold) == (line.size, line.bold);
            if same && close && style.looks_like_heading(line) {
                heading.push(line);
                continue;
            }
            parts.extend(style.heading(std::mem::take(&mut heading)));
        }
        if style.looks_like_heading(line)
            && style.stands_alone(last.map(|(_, last)| last), gap, line)
        {
            parts.extend(paragraph.take().map(|done| Part::Text(done.text)));
            heading.push(line);
            continue;
        }
        match &mut paragraph {
            Some(open) if style.goes_on(open, gap, line) => open.push(line),
            _ => {
                let done = paragraph.replace(Paragraph::new(line));
                parts.extend(done.map(|done| Part::Text(done.text)));
            }
        }
    }
    parts.extend(paragraph.map(|done| Part::Text(done.text)));
    parts.extend(style.heading(heading));
    parts
}

/// Where most lines are of one width, that says nothing of code.
fn forget_typewriters(pages: &mut [Vec<Line>]) {
    let said = pages.iter().flatten().filter_map(|line| line.monospace);
    let (code, all) = said.fold((0, 0), |(code, all), own| (code + usize::from(own), all + 1));
    if 2 * code > all {
        pages.iter_mut().flatten().for_each(|line| line.monospace = None);
    }
}

/// How most of a document looks.
struct Style {
    /// Size of most letters.
    body: f64,
    /// Whether most letters are bold.
    bold: bool,
    /// Usual distance between lines of a paragraph.
    leading: f64,
    /// Sizes of headings, largest first.
    sizes: Vec<f64>,
}

impl Style {
    fn of(pages: &[Vec<Line>]) -> Self {
        let mut by_size: HashMap<u64, usize> = HashMap::new();
        let (mut bold, mut all) = (0, 0);
        for line in pages.iter().flatten() {
            let letters = line.text.chars().count();
            *by_size.entry(line.size.to_bits()).or_default() += letters;
            all += letters;
            bold += if line.bold { letters } else { 0 };
        }
        let most = by_size.iter().max_by_key(|(size, letters)| (**letters, **size));
        let body = most.map_or(10.0, |(size, _)| f64::from_bits(*size));
        let mut gaps: Vec<f64> = Vec::new();
        for pair in pages.iter().flat_map(|lines| lines.windows(2)) {
            let gap = pair[0].baseline - pair[1].baseline;
            if pair.iter().all(|line| line.size == body) && gap > 0.5 * body && gap < 3.0 * body {
                gaps.push(gap);
            }
        }
        gaps.sort_by(f64::total_cmp);
        // Most distances are those within paragraphs, which are the smallest.
        let leading = gaps.get(gaps.len() / 4).copied().unwrap_or(1.2 * body);
        let mut style = Self { body, bold: 2 * bold > all, leading, sizes: Vec::new() };
        let larger = pages
            .iter()
            .flatten()
            .filter(|line| style.is_larger(line) && style.looks_like_heading(line));
        let mut sizes: Vec<f64> = larger.map(|line| line.size).collect();
        sizes.sort_by(|a, b| b.total_cmp(a));
        sizes.dedup();
        sizes.truncate(LEVELS);
        style.sizes = sizes;
        style
    }

    fn is_larger(&self, line: &Line) -> bool {
        line.size > LARGER * self.body
    }

    /// Whether a line is one that a heading may have.
    fn looks_like_heading(&self, line: &Line) -> bool {
        let bold =
            line.bold && line.monospace != Some(true) && !self.bold && line.size >= self.body;
        let distinct = self.is_larger(line) || bold;
        let letters = line.text.chars().filter(|letter| letter.is_alphabetic()).count();
        distinct
            && !line.cells
            && letters > 1
            && 2 * letters > line.text.chars().count() / 2
            && line.text.chars().count() <= HEADING
    }

    /// Whether a line is on its own: larger than the text, or apart from what is above it and no sentence.
    fn stands_alone(&self, before: Option<&Line>, gap: Option<f64>, line: &Line) -> bool {
        let ends_sentence = line.text.ends_with(['.', ',', ';', ':', '-']);
        self.is_larger(line)
            || !ends_sentence
                && gap.is_none_or(|gap| {
                    gap < 0.0
                        || gap > 1.1 * self.leading
                        || before.is_some_and(|last| self.looks_like_heading(last))
                })
    }

    /// The heading of some lines: text where it is too long for one.
    fn heading(&self, lines: Vec<&Line>) -> Option<Part> {
        let (first, rest) = lines.split_first()?;
        let level = match self.is_larger(first) {
            true => self.sizes.iter().position(|size| *size == first.size).unwrap_or(LEVELS),
            false => self.sizes.len(),
        };
        let mut all = Paragraph::new(first);
        rest.iter().for_each(|line| all.push(line));
        Some(match all.text.chars().count() > HEADING {
            true => Part::Text(all.text),
            false => Part::Heading(level.min(LEVELS) as u8 + 1, all.text),
        })
    }

    /// Whether a line goes on with a paragraph, `gap` points below its last line; `None` on another page.
    fn goes_on(&self, open: &Paragraph, gap: Option<f64>, line: &Line) -> bool {
        let ended = open.text.ends_with(['.', '!', '?', ':', '"', '”', ')']);
        let Some(gap) = gap.filter(|gap| *gap > 0.0) else {
            // Another page or column.
            let small = line.text.starts_with(char::is_lowercase);
            return small && !ended && (line.size - open.size).abs() <= 0.5;
        };
        let other = line.monospace.zip(open.monospace).is_some_and(|(a, b)| a != b);
        if open.cells && line.cells && gap < ROWS * self.leading {
            return true;
        }
        if other
            || (line.size - open.size).abs() > 1.0
            || gap > APART * self.leading.max(1.15 * line.size)
        {
            return false;
        }
        let indented =
            line.left > open.left + 0.8 * line.size && line.left < open.left + 5.0 * line.size;
        let short = open.last_right < open.right - 2.0 * line.size;
        !(indented && !open.listed && (ended || short))
    }
}

/// A paragraph while its lines come.
struct Paragraph {
    text: String,
    left: f64,
    right: f64,
    last_right: f64,
    size: f64,
    /// Whether it is a list, whose lines may be indented.
    listed: bool,
    /// Whether its last line is one of code.
    monospace: Option<bool>,
    /// Whether its last line is a table's row.
    cells: bool,
}

impl Paragraph {
    fn new(line: &Line) -> Self {
        let (listed, text) = item(&line.text);
        Self {
            text,
            left: line.left,
            right: line.right,
            last_right: line.right,
            size: line.size,
            listed,
            monospace: line.monospace,
            cells: line.cells,
        }
    }

    fn push(&mut self, line: &Line) {
        let (begins_item, text) = item(&line.text);
        let code = self.monospace == Some(true) && line.monospace != Some(false);
        let hyphen = self.text.ends_with('\u{ad}') || is_broken(&self.text, &text);
        if begins_item || code || self.cells && line.cells {
            self.text.push('\n');
            self.listed |= begins_item;
        } else if hyphen {
            self.text.pop();
        } else if !(self.text.ends_with(is_wide) && text.starts_with(is_wide)) {
            self.text.push(' ');
        }
        self.text.push_str(&text);
        self.left = self.left.min(line.left);
        self.right = self.right.max(line.right);
        self.last_right = line.right;
        self.monospace = line.monospace.or(self.monospace);
        self.cells = line.cells;
    }
}

/// Whether a hyphen stands in the middle of a word, small or in capitals.
fn is_broken(text: &str, next: &str) -> bool {
    let mut back = text.chars().rev();
    let hyphen = matches!(back.next(), Some('-' | '\u{2010}'));
    let around: Vec<char> = back.take(2).chain(next.chars().take(2)).collect();
    let capitals = around.len() == 4 && around.iter().all(|letter| letter.is_uppercase());
    let small = around.first().is_some_and(|letter| letter.is_lowercase())
        && next.starts_with(char::is_lowercase);
    hyphen && (small || capitals)
}

/// Whether a line begins with the sign of a list's item, and its text with `- ` for all such signs.
fn item(text: &str) -> (bool, String) {
    let mut letters = text.chars();
    let sign = letters.next().is_some_and(|sign| BULLETS.contains(sign));
    match letters.as_str().strip_prefix(' ') {
        Some(rest) if sign => (true, format!("- {rest}")),
        _ => (false, text.to_string()),
    }
}

/// Whether a sign is of a writing that has no spaces between words.
fn is_wide(sign: char) -> bool {
    matches!(sign, '\u{2e80}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    use super::super::letters::Letter;
    use super::super::lines::lines;
    use super::*;
    use crate::documents::{Document, Facts};

    /// A line of letters of unlike widths that begins at a place; `\t` leaves a gap as between a table's cells.
    fn typed(left: f64, baseline: f64, size: f64, text: &str) -> Vec<Letter> {
        let mut x = left;
        let mut letters = Vec::new();
        for letter in text.chars() {
            let width = size
                * match letter {
                    'i' | 'l' | 't' | '.' | ',' => 0.3,
                    'm' | 'w' => 0.8,
                    '\t' => 3.0,
                    ' ' => 0.25,
                    _ => 0.5,
                };
            if !letter.is_whitespace() {
                let text = letter.to_string();
                letters.push(Letter {
                    text,
                    left: x,
                    right: x + width,
                    baseline,
                    size,
                    bold: false,
                });
            }
            x += width;
        }
        letters
    }

    fn document(pages: Vec<Vec<Vec<Letter>>>) -> Document {
        let mut outline = Outline::default();
        let pages = pages.into_iter().map(|page| lines(page.into_iter().flatten().collect()));
        write(pages.collect(), &mut outline);
        outline.finish("x".into(), Facts::default())
    }

    fn sections(document: &Document) -> Vec<(String, &str)> {
        let sections = document.sections.iter();
        sections.map(|section| (section.heading.join("/"), section.text.as_str())).collect()
    }

    #[test]
    fn letters_become_lines_and_words() {
        let mut letters = typed(10.0, 100.0, 10.0, "one two");
        // A raised number, the same letter twice for boldness, a sign for two letters, and the next line.
        letters.extend(typed(43.0, 104.0, 6.0, "3"));
        letters.push(letters[6].clone());
        let fi = Letter {
            text: "ﬁ".into(),
            left: 60.0,
            right: 64.0,
            baseline: 100.0,
            size: 10.0,
            bold: false,
        };
        letters.push(fi);
        letters.extend(typed(10.0, 88.0, 10.0, "three"));
        let texts: Vec<String> = lines(letters).into_iter().map(|line| line.text).collect();
        assert_eq!(texts, ["one two3 fi", "three"]);
        assert!(lines(typed(0.0, 0.0, 10.0, "  ")).is_empty());
    }

    #[test]
    fn paragraphs_end_at_gaps_and_indents_and_go_on_over_pages() {
        let read = document(vec![
            vec![
                typed(10.0, 200.0, 10.0, "The first paragraph has a line that is broken in a won-"),
                typed(10.0, 188.0, 10.0, "derful word and ends."),
                typed(
                    25.0,
                    176.0,
                    10.0,
                    "The second one is indented, as in a book, and it is long",
                ),
                typed(10.0, 164.0, 10.0, "enough for two lines, of which this is the second."),
                typed(10.0, 140.0, 10.0, "A gap begins a third, which goes on"),
            ],
            vec![
                typed(10.0, 200.0, 10.0, "on the next page."),
                typed(10.0, 188.0, 10.0, "• an item"),
                typed(18.0, 176.0, 10.0, "of two lines"),
                typed(10.0, 164.0, 10.0, "• another"),
            ],
        ]);
        assert_eq!(
            sections(&read)[0].1.split("\n\n").collect::<Vec<_>>(),
            [
                "The first paragraph has a line that is broken in a wonderful word and ends.",
                "The second one is indented, as in a book, and it is long enough for two lines, of which this is the \
                 second.",
                "A gap begins a third, which goes on on the next page.\n- an item of two lines\n- another",
            ]
        );
    }

    #[test]
    fn larger_and_bold_lines_are_headings() {
        let bold = |letters: Vec<Letter>| {
            letters.into_iter().map(|one| Letter { bold: true, ..one }).collect()
        };
        let read = document(vec![vec![
            typed(10.0, 300.0, 20.0, "On harbours"),
            typed(10.0, 270.0, 14.0, "Lights and what they say to"),
            typed(10.0, 254.0, 14.0, "those at sea"),
            typed(10.0, 230.0, 10.0, "They burn all night, and are seen from afar."),
            bold(typed(10.0, 206.0, 10.0, "Thick mist")),
            typed(10.0, 190.0, 10.0, "Then a bell rings, once in each minute, until it clears."),
            bold(typed(10.0, 178.0, 10.0, "This sentence is loud.")),
            typed(10.0, 154.0, 10.0, "Berth\tDepth"),
            typed(10.0, 136.0, 10.0, "Coal\t7 m"),
            typed(10.0, 112.0, 14.0, "Tides"),
            typed(10.0, 90.0, 10.0, "Twice a day."),
        ]]);
        assert_eq!(read.title, "On harbours");
        let lights = "Lights and what they say to those at sea";
        assert_eq!(
            sections(&read),
            [
                (lights.into(), "They burn all night, and are seen from afar."),
                (
                    format!("{lights}/Thick mist"),
                    "Then a bell rings, once in each minute, until it clears. This sentence is loud.\n\nBerth | \
                     Depth\nCoal | 7 m"
                ),
                ("Tides".into(), "Twice a day."),
            ]
        );
    }

    #[test]
    fn what_frames_the_text_is_left_out() {
        let chapter = ["One", "One", "Two", "Two"];
        let signs = ["a pear", "a plum", "an apple", "a quince"];
        let page = |number: usize| {
            vec![
                typed(10.0, 400.0, 8.0, "The port's handbook"),
                typed(10.0, 388.0, 8.0, &format!("{} {}", chapter[number], number + 7)),
                typed(10.0, 300.0, 10.0, &format!("Text of page {} is here to stay.", number + 7)),
                typed(10.0, 270.0, 10.0, "Tides ........... 12"),
                typed(10.0, 240.0, 10.0, &format!("It has a year, 1848, and {}.", signs[number])),
                typed(100.0, 20.0, 10.0, ["iv", "v", "vi", "vii"][number]),
            ]
        };
        let read = document((0..4).map(page).collect());
        let expected: Vec<String> = (0..4)
            .map(|page| {
                let sign = signs[page];
                format!(
                    "Text of page {} is here to stay.\n\nIt has a year, 1848, and {sign}.",
                    page + 7
                )
            })
            .collect();
        assert_eq!(sections(&read)[0].1, expected.join("\n\n"));
    }

    #[test]
    fn code_keeps_its_lines() {
        let code = |baseline: f64, text: &str| {
            let letters = text.chars().enumerate().filter(|(_, letter)| *letter != ' ');
            letters
                .map(|(place, letter)| {
                    let left = 10.0 + 6.0 * place as f64;
                    Letter {
                        text: letter.into(),
                        left,
                        right: left + 6.0,
                        baseline,
                        size: 10.0,
                        bold: true,
                    }
                })
                .collect::<Vec<_>>()
        };
        let prose = [
            "The pump is started by hand, which",
            "takes two people, or so, if it",
            "has not run dry, by:",
        ];
        let mut page: Vec<Vec<Letter>> = prose
            .iter()
            .enumerate()
            .map(|(line, text)| typed(10.0, 200.0 - 12.0 * line as f64, 10.0, text))
            .collect();
        page.extend([
            code(160.0, "pump --quay fish {"),
            code(148.0, "  }"),
            code(136.0, "log --to file"),
        ]);
        let read = document(vec![page]);
        assert_eq!(
            sections(&read)[0].1,
            format!("{}\n\npump --quay fish {{\n}}\nlog --to file", prose.join(" "))
        );
    }
}
