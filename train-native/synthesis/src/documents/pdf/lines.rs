//! From letters at places to lines.

use super::letters::Letter;
use crate::documents::outline::one_line;

/// A gap between letters that is a space, in their size.
const SPACE: f64 = 0.15;

/// And one that lies between the cells of a table.
const CELLS: f64 = 1.5;

/// Different letters that tell whether all have one width.
const LETTERS: usize = 3;

/// Signs of a list's items.
pub(super) const BULLETS: &str = "•◦▪‣●○■–*-·\u{f0b7}";

/// Letters that stand on a line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) baseline: f64,
    pub(super) size: f64,
    /// Whether most letters are.
    pub(super) bold: bool,
    /// Whether all letters are of one width, as in code; unknown of a line with few.
    pub(super) monospace: Option<bool>,
    /// Whether it is in pieces, as a table's row is.
    pub(super) cells: bool,
}

/// The lines of a page's letters.
pub(super) fn lines(letters: Vec<Letter>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut open: Option<OpenLine> = None;
    for letter in letters {
        match &mut open {
            Some(line) if line.goes_on(&letter) => line.push(letter),
            _ => {
                keep(&mut lines, open.take().and_then(OpenLine::close));
                open = Some(OpenLine::new(letter));
            }
        }
    }
    keep(&mut lines, open.and_then(OpenLine::close));
    lines
}

/// Keeps a line, unless it is the shadow of the one before.
fn keep(lines: &mut Vec<Line>, line: Option<Line>) {
    let shadow = |line: &Line| {
        let last = lines.last().filter(|last| last.text == line.text);
        last.is_some_and(|last| {
            let moved = (last.left - line.left).abs().max((last.baseline - line.baseline).abs());
            moved < 0.2 * line.size
        })
    };
    let line = line.filter(|line| !shadow(line));
    lines.extend(line);
}

/// A line while its letters come.
struct OpenLine {
    line: Line,
    last: Letter,
    /// Letters that are bold, and all.
    bold: usize,
    count: usize,
    sizes: f64,
    /// Different letters.
    known: Vec<String>,
    narrowest: f64,
    widest: f64,
}

impl OpenLine {
    fn new(letter: Letter) -> Self {
        let line = Line {
            text: String::new(),
            left: letter.left,
            right: letter.left,
            baseline: letter.baseline,
            size: letter.size,
            bold: false,
            monospace: None,
            cells: false,
        };
        let last = letter.clone();
        let known = Vec::new();
        let mut open = Self {
            line,
            last,
            bold: 0,
            count: 0,
            sizes: 0.0,
            known,
            narrowest: f64::MAX,
            widest: 0.0,
        };
        open.add(letter);
        open
    }

    /// Whether a letter stands on the line, raised or lowered ones with it.
    fn goes_on(&self, letter: &Letter) -> bool {
        let larger = self.line.size.max(letter.size);
        (letter.baseline - self.line.baseline).abs() < 0.5 * larger
            && letter.left > self.line.right - 0.6 * larger
    }

    fn push(&mut self, letter: Letter) {
        // Some programs make letters bold by showing them twice.
        let moved =
            (letter.left - self.last.left).abs().max((letter.baseline - self.last.baseline).abs());
        if letter.text == self.last.text && moved < 0.1 * letter.size {
            return;
        }
        let blank = |text: &str| text.chars().next_back().is_none_or(char::is_whitespace);
        let gap = (letter.left - self.line.right) / letter.size;
        if gap > CELLS && !is_sign(&self.line.text) {
            self.line.cells = true;
            self.line.text.push_str(" | ");
        } else if gap > SPACE && !blank(&self.line.text) {
            self.line.text.push(' ');
        }
        if letter.size > self.line.size {
            (self.line.size, self.line.baseline) = (letter.size, letter.baseline);
        }
        self.add(letter);
    }

    fn add(&mut self, letter: Letter) {
        for sign in letter.text.chars() {
            match written(sign) {
                Some(letters) => self.line.text.push_str(letters),
                None if sign.is_whitespace() => self.line.text.push(' '),
                None if sign.is_control() => {}
                None => self.line.text.push(sign),
            }
        }
        if !letter.text.trim().is_empty() {
            self.count += 1;
            self.bold += usize::from(letter.bold);
            self.sizes += letter.size;
            // Digits have one width in most fonts, and signs of Chinese in all.
            if letter.text.bytes().all(|byte| byte.is_ascii_alphabetic()) {
                if self.known.len() < LETTERS && !self.known.contains(&letter.text) {
                    self.known.push(letter.text.clone());
                }
                let width = (letter.right - letter.left) / letter.size;
                (self.narrowest, self.widest) = (self.narrowest.min(width), self.widest.max(width));
            }
        }
        self.line.right = self.line.right.max(letter.right);
        self.last = letter;
    }

    /// The line; none where it shows nothing.
    fn close(self) -> Option<Line> {
        let Self { mut line, bold, count, sizes, known, narrowest, widest, .. } = self;
        line.text = one_line(&line.text);
        line.bold = 2 * bold > count;
        line.monospace = (known.len() == LETTERS).then_some(widest - narrowest < 0.01);
        line.size = rounded(sizes / count as f64);
        (count > 0 && !line.text.is_empty()).then_some(line)
    }
}

/// The letters that one sign shows joined.
fn written(sign: char) -> Option<&'static str> {
    Some(match sign {
        'ﬀ' => "ff",
        'ﬁ' => "fi",
        'ﬂ' => "fl",
        'ﬃ' => "ffi",
        'ﬄ' => "ffl",
        'ﬅ' | 'ﬆ' => "st",
        _ => return None,
    })
}

/// To half points.
fn rounded(size: f64) -> f64 {
    (2.0 * size).round() / 2.0
}

/// Whether a text is the sign of a list's item, or a number, alone.
fn is_sign(text: &str) -> bool {
    let mut letters = text.trim_end().chars();
    BULLETS.contains(letters.next().unwrap_or(' ')) && letters.next().is_none()
        || text
            .trim_end()
            .trim_end_matches([')', '.'])
            .chars()
            .all(|sign| sign.is_numeric() || sign == '.')
}
