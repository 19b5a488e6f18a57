//! What frames the text of pages: numbers, heads and feet, the lines of a table of contents.

use std::collections::HashMap;

use super::lines::Line;

/// A line stands at the head or the foot of so many pages, and of such a share of them, if it is no part of the text.
const REPEATED: (usize, f64) = (3, 0.2);

/// Drops what is no text: lines of a table of contents, what stands at the head or the foot of many pages, whatever its
/// number, and the pages' own numbers.
pub(super) fn drop_frames(pages: &mut [Vec<Line>]) {
    pages.iter_mut().for_each(|lines| lines.retain(|line| !is_contents(&line.text)));
    let height = |line: &Line| (line.baseline / 3.0).round() as i64;
    let mut same: HashMap<(i64, String), usize> = HashMap::new();
    // Lines with a number that grows with the pages, by what it is on the page before the first.
    let mut counting: HashMap<(i64, i64), usize> = HashMap::new();
    for (page, lines) in pages.iter().enumerate() {
        for line in outer(lines).into_iter().map(|place| &lines[place]) {
            let (text, number) = numbered(&line.text);
            *same.entry((height(line), text)).or_default() += 1;
            if let Some(number) = number {
                *counting.entry((height(line), number - page as i64)).or_default() += 1;
            }
        }
    }
    let least = (REPEATED.0).max((REPEATED.1 * pages.len() as f64).ceil() as usize);
    for (page, lines) in pages.iter_mut().enumerate() {
        let mut places = outer(lines);
        let ends = [places.first().copied(), places.last().copied()];
        places.retain(|&place| {
            let line = &lines[place];
            let (text, number) = numbered(&line.text);
            let alone = text == "#" && ends.contains(&Some(place));
            let counts = |number: i64| counting[&(height(line), number - page as i64)] >= least;
            alone || number.is_some_and(counts) || same[&(height(line), text)] >= least
        });
        places.sort_unstable();
        places.into_iter().rev().for_each(|place| drop(lines.remove(place)));
    }
}

/// A line with `#` for the number at its end or its beginning, and that number.
fn numbered(line: &str) -> (String, Option<i64>) {
    let bare = line.trim_matches(['-', '–', '—', '|', ' ']);
    let last = bare.rsplit_once(' ').map_or(("", bare), |(rest, last)| (rest, last));
    let first = bare.split_once(' ').map_or(("", bare), |(first, rest)| (rest, first));
    for (rest, word) in [last, first] {
        if let Some(number) = page_number(word) {
            let text = if rest.is_empty() { "#".into() } else { format!("{rest} #") };
            return (text, Some(number));
        }
    }
    (bare.into(), None)
}

/// A number in digits or in small Roman letters, as pages have them.
fn page_number(word: &str) -> Option<i64> {
    /// Values of Roman letters and pairs of them.
    const ROMAN: [(&str, i64); 9] = [
        ("c", 100),
        ("xc", 90),
        ("l", 50),
        ("xl", 40),
        ("x", 10),
        ("ix", 9),
        ("v", 5),
        ("iv", 4),
        ("i", 1),
    ];
    if word.len() <= 4 && word.bytes().all(|byte| byte.is_ascii_digit()) {
        return word.parse().ok();
    }
    let (mut rest, mut number) = (word, 0);
    for (letters, value) in ROMAN {
        // Of what stands for a five, and of pairs, there is one.
        let most = if [100, 10, 1].contains(&value) { 3 } else { 1 };
        for _ in 0..most {
            if let Some(after) = rest.strip_prefix(letters) {
                (rest, number) = (after, number + value);
            }
        }
    }
    (rest.is_empty() && number > 0).then_some(number)
}

/// Whether dots lead from a title to its page's number.
fn is_contents(line: &str) -> bool {
    let Some((title, number)) = line.trim_end().rsplit_once(['.', ' ']) else { return false };
    let dots = |sign: char| match sign {
        '.' => Some(1),
        '…' => Some(3),
        ' ' => Some(0),
        _ => None,
    };
    let dots: usize = title.chars().rev().map_while(dots).sum();
    dots >= 4 && page_number(number).is_some()
}

/// Places of a page's two highest and two lowest lines.
fn outer(lines: &[Line]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lines.len()).collect();
    order.sort_by(|&a, &b| lines[a].baseline.total_cmp(&lines[b].baseline));
    let count = order.len();
    if count > 4 {
        order.drain(2..count - 2);
    }
    order
}
