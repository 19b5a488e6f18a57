//! Documents to passages.
//!
//! A passage lies within one section. Paragraphs are joined while they fit; one that is too long is cut behind
//! lines (items, rows, code) and sentences, a sentence that is too long between words, a word between letters. Passages are slices of their
//! section, so that nothing is lost, and only the overlap stands twice.
//!
//! What is too little to stand alone (`min_tokens`): within a section it takes sentences of the paragraph
//! behind it, or, at the end, of the passage before it. A whole section that is too little goes, where it
//! introduces the section below it, to that one's start; with its neighbours of the same rank, where they are
//! too little as well, it makes a section of the heading above, in which their own headings stand as lines.
//! A question with a short answer, and what has no such neighbour, stays a passage of its own.

use std::ops::Range;

use anyhow::{Result, bail};
use rayon::prelude::*;

use super::passage::{ABOVE, Passage, embedded};
use super::structure::is_question;
use super::{Document, Section, Split, borders};

/// Most bytes a token stands for: what a tokenizer takes for one unknown word may be of any length.
const BYTES_A_TOKEN: usize = 32;
/// Title and headings may take one part in so many of a passage.
const TITLE_PART: usize = 3;
/// Fewest tokens of a passage: a few words with the tokens around them.
const FEWEST: usize = 16;

/// Tokens of a text, with those that stand around it.
pub type Count<'a> = dyn Fn(&str) -> Result<usize> + Sync + 'a;

/// How large passages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRule {
    /// Most tokens of a passage: title, headings and text, with the tokens around them.
    pub tokens: usize,
    /// Tokens of a passage that are those of the end of the one before it, at most; whole sentences.
    pub overlap: usize,
    /// Fewest tokens of a text that stands alone, where it can be avoided.
    pub min_tokens: usize,
}

impl Default for ChunkRule {
    fn default() -> Self {
        Self { tokens: 256, overlap: 0, min_tokens: 16 }
    }
}

impl ChunkRule {
    /// Refuses what makes no passages.
    ///
    /// # Errors
    /// Too few tokens, or an overlap or a least size of more than half of them.
    pub fn check(&self) -> Result<()> {
        if self.tokens < FEWEST {
            bail!("passages of {} tokens hold no text; give {FEWEST} or more", self.tokens);
        }
        let half = self.tokens / 2;
        for (what, tokens) in [("an overlap", self.overlap), ("a least size", self.min_tokens)] {
            if tokens > half {
                bail!("{what} of {tokens} tokens is more than half of {}; lower it", self.tokens);
            }
        }
        Ok(())
    }
}

/// The passages of a document, in order, all for [`Split::Train`]. The time is near to linear in its length.
///
/// # Errors
/// As [`ChunkRule::check`], or of `count`.
pub fn passages(document: &Document, rule: &ChunkRule, count: &Count<'_>) -> Result<Vec<Passage>> {
    rule.check()?;
    let measure = Measure { count, around: count("")?, rule };
    let sections = measure.joined(&document.sections)?;
    let cut = sections.par_iter().map(|section| measure.cut(&document.title, section));
    let cut: Vec<_> = cut.collect::<Result<_>>()?;
    let mut passages = Vec::new();
    for (section, (title, texts)) in sections.iter().zip(cut) {
        for (text, tokens) in texts {
            passages.push(Passage {
                id: format!("{}#{}", document.name, passages.len() + 1),
                title: title.clone(),
                text,
                document: document.name.clone(),
                heading: section.heading.clone(),
                split: Split::Train,
                tokens,
                origin: document.origin.clone(),
                licence: document.licence.clone(),
            });
        }
    }
    Ok(passages)
}

/// How finely a piece of text was cut out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Paragraph,
    Line,
    Sentence,
    /// Part of a sentence.
    Part,
}

/// A piece of a section that is not cut as long as it fits.
#[derive(Debug, Clone)]
struct Atom {
    range: Range<usize>,
    /// Tokens of it alone, nearly what it adds to a passage.
    size: usize,
    level: Level,
    /// Whether a paragraph that does not fit begins here.
    opens: bool,
}

/// A passage while it is made.
#[derive(Debug, Clone)]
struct Piece {
    atoms: Vec<Atom>,
    /// How many of them are the overlap.
    shared: usize,
    tokens: usize,
}

impl Piece {
    fn size(&self) -> usize {
        size(&self.atoms)
    }
}

fn size(atoms: &[Atom]) -> usize {
    atoms.iter().map(|atom| atom.size).sum()
}

/// The text from the first to the last of some atoms.
fn slice<'t>(text: &'t str, atoms: &[Atom]) -> &'t str {
    match atoms {
        [] => "",
        [first, ..] => {
            let end = atoms.last().map_or(first.range.end, |last| last.range.end);
            text[first.range.start..end].trim()
        }
    }
}

struct Measure<'a> {
    count: &'a Count<'a>,
    /// Tokens of an empty text.
    around: usize,
    rule: &'a ChunkRule,
}

impl Measure<'_> {
    /// Tokens of a text as it is embedded. One that is far too long is only estimated.
    fn whole(&self, text: &str) -> Result<usize> {
        let least = text.len() / BYTES_A_TOKEN;
        match least > self.rule.tokens {
            true => Ok(least),
            false => Ok((self.count)(text)?.max(least)),
        }
    }

    /// Tokens that a text adds to others.
    fn size(&self, text: &str) -> Result<usize> {
        match text.trim().is_empty() {
            true => Ok(0),
            false => Ok(self.whole(text)?.saturating_sub(self.around)),
        }
    }

    /// Whether a section is too little to stand alone.
    fn is_tiny(&self, section: &Section) -> Result<bool> {
        let most = self.rule.min_tokens * BYTES_A_TOKEN;
        Ok(section.text.len() <= most && self.size(&section.text)? < self.rule.min_tokens)
    }

    /// The sections, those that are too little joined with others.
    fn joined(&self, sections: &[Section]) -> Result<Vec<Section>> {
        self.with_neighbours(self.introduced(sections)?)
    }

    /// The sections, with the introductions that are too little in front of what they introduce.
    fn introduced(&self, sections: &[Section]) -> Result<Vec<Section>> {
        // From the end, so that an introduction finds what it introduces complete; all texts are joined once.
        let mut below: Vec<(&Section, Vec<&str>)> = Vec::new();
        for section in sections.iter().rev().filter(|section| !section.text.trim().is_empty()) {
            let text = section.text.as_str();
            match below.last_mut() {
                Some((next, texts))
                    if next.heading.len() > section.heading.len()
                        && next.heading.starts_with(&section.heading)
                        && !asks(next)
                        && self.is_tiny(section)? =>
                {
                    texts.push(text);
                }
                _ => below.push((section, vec![text])),
            }
        }
        let introduced = below.into_iter().rev().map(|(section, mut texts)| {
            texts.reverse();
            Section { heading: section.heading.clone(), text: texts.join("\n\n") }
        });
        Ok(introduced.collect())
    }

    /// The sections, neighbours of one rank that are too little made one.
    fn with_neighbours(&self, sections: Vec<Section>) -> Result<Vec<Section>> {
        let mut joined: Vec<Section> = Vec::new();
        // The run of neighbours that ends `joined`: the heading above them, and their size.
        let mut run: Option<(Vec<String>, usize)> = None;
        for section in sections {
            let parent = match section.heading.split_last() {
                Some((_, above)) if !asks(&section) && self.is_tiny(&section)? => above.to_vec(),
                _ => {
                    run = None;
                    joined.push(section);
                    continue;
                }
            };
            let size = self.size(&section.text)?;
            match (&mut run, joined.last_mut()) {
                (Some((of, so_far)), Some(last))
                    if *of == parent && *so_far < self.rule.min_tokens =>
                {
                    if last.heading.len() > parent.len() {
                        *last = Section { heading: parent, text: with_heading(last) };
                    }
                    last.text.push_str("\n\n");
                    last.text.push_str(&with_heading(&section));
                    *so_far += size;
                }
                _ => {
                    run = Some((parent, size));
                    joined.push(section);
                }
            }
        }
        Ok(joined)
    }

    /// A passage's title and its tokens: the document's and the headings, as far as there is room for them.
    fn title(&self, title: &str, heading: &[String]) -> Result<(String, usize)> {
        let parts: Vec<&str> = [title]
            .into_iter()
            .chain(heading.iter().map(String::as_str))
            .filter(|part| !part.is_empty())
            .collect();
        let [first, .., last] = parts[..] else {
            return self.shortened(parts.first().copied().unwrap_or_default());
        };
        let whole = parts.join(ABOVE);
        for title in [whole, [first, last].join(ABOVE)] {
            let size = self.size(&title)?;
            if size <= self.rule.tokens / TITLE_PART {
                return Ok((title, size));
            }
        }
        self.shortened(last)
    }

    /// The start of a title that there is room for, and its tokens.
    fn shortened(&self, title: &str) -> Result<(String, usize)> {
        let mut title = title;
        loop {
            let size = self.size(title)?;
            if size <= self.rule.tokens / TITLE_PART {
                return Ok((title.to_string(), size));
            }
            title = borders::middle(title).map_or("", |place| title[..place].trim());
        }
    }

    /// A section's title, and its texts with their tokens.
    fn cut(&self, title: &str, section: &Section) -> Result<(String, Vec<(String, usize)>)> {
        let text = section.text.as_str();
        let (title, size) = self.title(title, &section.heading)?;
        let room = self.rule.tokens.saturating_sub(size + self.around);
        let pieces = self.pieces(&title, room, text)?;
        let texts =
            pieces.iter().map(|piece| (slice(text, &piece.atoms).to_string(), piece.tokens));
        Ok((title, texts.filter(|(text, _)| !text.is_empty()).collect()))
    }

    /// The passages of a section, where a title leaves so many tokens for the text.
    fn pieces(&self, title: &str, room: usize, text: &str) -> Result<Vec<Piece>> {
        let rule = self.rule;
        let exact = |atoms: &[Atom]| self.whole(&embedded(title, slice(text, atoms)));
        let paragraphs = borders::paragraphs(text);
        let atoms: Vec<Vec<Atom>> = paragraphs
            .into_par_iter()
            .map(|range| self.atoms(text, range, Level::Paragraph, room))
            .collect::<Result<_>>()?;
        // Last first.
        let mut waiting: Vec<Atom> = atoms.into_iter().flatten().rev().collect();
        let mut pieces: Vec<Piece> = Vec::new();
        while !waiting.is_empty() {
            let mut atoms = match pieces.last() {
                Some(before) => self.overlap(text, before)?,
                None => Vec::new(),
            };
            let mut shared = atoms.len();
            let mut so_far = size(&atoms);
            while let Some(next) = waiting.last() {
                if atoms.len() == shared {
                    // The overlap makes room for what is new.
                    while shared > 0 && so_far + next.size > room {
                        so_far -= atoms.remove(0).size;
                        shared -= 1;
                    }
                } else if next.opens && 2 * so_far >= room {
                    break;
                } else if so_far + next.size > room {
                    if so_far >= rule.min_tokens {
                        break;
                    }
                    let Some(parts) = self.sentences(text, next)? else { break };
                    waiting.pop();
                    waiting.extend(parts.into_iter().rev());
                    continue;
                }
                so_far += next.size;
                atoms.extend(waiting.pop());
            }
            // What announces something stands before it.
            if let (Some(last), true) =
                (atoms.last(), atoms.len() > shared + 1 && !waiting.is_empty())
                && text[last.range.clone()].trim_end().ends_with(':')
                && so_far - last.size >= rule.min_tokens
            {
                waiting.extend(atoms.pop());
            }
            let tokens = loop {
                let tokens = exact(&atoms)?;
                let new = atoms.len() - shared;
                if tokens <= rule.tokens {
                    break tokens;
                } else if shared > 0 {
                    atoms.drain(..std::mem::take(&mut shared));
                } else if new > 1 {
                    // As many as are probably too many, so that few steps lead there.
                    let back = (new * (tokens - rule.tokens) / tokens).clamp(1, new - 1);
                    waiting.extend(atoms.drain(new - back..).rev());
                } else if let Some([first, second]) = self.halves(text, &atoms[0])? {
                    atoms = vec![first];
                    waiting.push(second);
                } else {
                    // One character, whatever the tokenizer makes of it.
                    break tokens;
                }
            };
            pieces.push(Piece { atoms, shared, tokens });
        }
        for i in 1..pieces.len() {
            let (before, from) = pieces.split_at_mut(i);
            if let (Some(before), [piece, ..]) = (before.last_mut(), from)
                && piece.shared == 0
                && piece.size() < rule.min_tokens
            {
                self.even_out(text, before, piece, room, &exact)?;
            }
        }
        pieces.retain(|piece| !piece.atoms.is_empty());
        Ok(pieces)
    }

    /// A range as atoms that fit.
    fn atoms(
        &self,
        text: &str,
        range: Range<usize>,
        level: Level,
        room: usize,
    ) -> Result<Vec<Atom>> {
        let part = &text[range.clone()];
        // Parts of sentences are small, so that passages of them are full.
        let most = if level == Level::Part { (room / 4).max(1) } else { room };
        let size = self.size(part)?;
        if size <= most {
            return Ok(vec![Atom { range, size, level, opens: false }]);
        }
        let moved = |part: Range<usize>| range.start + part.start..range.start + part.end;
        let (parts, finer): (Vec<_>, _) = match level {
            Level::Paragraph => (borders::lines(part), Level::Line),
            Level::Line => (borders::sentences(part), Level::Sentence),
            Level::Sentence | Level::Part => match borders::middle(part) {
                Some(place) => (vec![0..place, place..part.len()], Level::Part),
                None => return Ok(vec![Atom { range, size, level, opens: false }]),
            },
        };
        let mut atoms = Vec::new();
        for part in parts {
            atoms.extend(self.atoms(text, moved(part), finer, room)?);
        }
        if let (Level::Paragraph, Some(first)) = (level, atoms.first_mut()) {
            first.opens = true;
        }
        Ok(atoms)
    }

    /// The lines of a paragraph that has several, else its sentences.
    fn sentences(&self, text: &str, atom: &Atom) -> Result<Option<Vec<Atom>>> {
        let part = &text[atom.range.clone()];
        let (lines, sentences) = match atom.level {
            Level::Paragraph => (borders::lines(part), borders::sentences(part)),
            Level::Line => (Vec::new(), borders::sentences(part)),
            Level::Sentence | Level::Part => return Ok(None),
        };
        let (ranges, level) = match lines.len() > 1 {
            true => (lines, Level::Line),
            false => (sentences, Level::Sentence),
        };
        if ranges.len() < 2 {
            return Ok(None);
        }
        let atoms = ranges.into_iter().map(|range| {
            let range = atom.range.start + range.start..atom.range.start + range.end;
            let size = self.size(&text[range.clone()])?;
            Ok(Atom { range, size, level, opens: false })
        });
        atoms.collect::<Result<_>>().map(Some)
    }

    fn halves(&self, text: &str, atom: &Atom) -> Result<Option<[Atom; 2]>> {
        let Range { start, end } = atom.range;
        let Some(place) = borders::middle(&text[start..end]) else { return Ok(None) };
        let half = |range: Range<usize>| -> Result<Atom> {
            let size = self.size(&text[range.clone()])?;
            Ok(Atom { range, size, level: Level::Part, opens: false })
        };
        Ok(Some([half(start..start + place)?, half(start + place..end)?]))
    }

    /// The end of a passage that the next one begins with.
    fn overlap(&self, text: &str, before: &Piece) -> Result<Vec<Atom>> {
        let mut left = self.rule.overlap;
        let mut shared: Vec<Atom> = Vec::new();
        if left == 0 {
            return Ok(shared);
        }
        // Never the whole of it.
        let mut atoms = before.atoms.get(1..).unwrap_or_default().to_vec();
        if let (true, [only]) = (atoms.is_empty(), &before.atoms[..]) {
            atoms = self.sentences(text, only)?.unwrap_or_default();
            atoms.drain(..atoms.len().min(1));
        }
        while let Some(atom) = atoms.pop() {
            if atom.size <= left {
                left -= atom.size;
                shared.push(atom);
            } else if let Some(parts) = self.sentences(text, &atom)? {
                atoms.extend(parts);
            } else {
                break;
            }
        }
        shared.reverse();
        Ok(shared)
    }

    /// Moves the end of a passage to the start of the next one, which is too little, or the whole of that one
    /// to this, where it fits.
    fn even_out(
        &self,
        text: &str,
        before: &mut Piece,
        piece: &mut Piece,
        room: usize,
        exact: &dyn Fn(&[Atom]) -> Result<usize>,
    ) -> Result<()> {
        let least = self.rule.min_tokens;
        if before.size() + piece.size() <= room {
            let both = [&before.atoms[..], &piece.atoms].concat();
            let tokens = exact(&both)?;
            if tokens <= self.rule.tokens {
                // The empty one goes, and this one stands where the next looks for its neighbour.
                *piece = Piece { atoms: both, shared: before.shared, tokens };
                before.atoms.clear();
                return Ok(());
            }
        }
        let (mut first, mut second) = (before.atoms.clone(), piece.atoms.clone());
        while size(&second) < least {
            let Some(atom) = first.pop() else { return Ok(()) };
            let moves = size(&second) + atom.size <= room && size(&first) >= least;
            if moves && first.len() >= before.shared {
                second.insert(0, atom);
            } else if let Some(parts) = self.sentences(text, &atom)? {
                first.extend(parts);
            } else {
                return Ok(());
            }
        }
        let tokens = [exact(&first)?, exact(&second)?];
        if tokens.iter().all(|tokens| *tokens <= self.rule.tokens) {
            (before.atoms, before.tokens) = (first, tokens[0]);
            (piece.atoms, piece.tokens) = (second, tokens[1]);
        }
        Ok(())
    }
}

/// Whether a section's heading is a question, which its text answers.
fn asks(section: &Section) -> bool {
    section.heading.last().is_some_and(|last| is_question(last))
}

/// A section's text below its heading.
fn with_heading(section: &Section) -> String {
    match section.heading.last() {
        Some(heading) => format!("{heading}\n{}", section.text),
        None => section.text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Words, with two tokens around them; a word is a token for every four letters.
    fn words(text: &str) -> Result<usize> {
        let tokens = |word: &str| word.chars().count().div_ceil(4);
        Ok(2 + text.split_whitespace().map(tokens).sum::<usize>())
    }

    /// A tokenizer whose tokens do not add up: whatever stands behind a space costs one more, and every line
    /// that begins another three.
    fn odd(text: &str) -> Result<usize> {
        let spaces = text.trim().matches(char::is_whitespace).count();
        Ok(words(text)? + spaces + 3 * text.trim().matches('\n').count())
    }

    fn document(sections: &[(&[&str], &str)]) -> Document {
        let sections = sections.iter().map(|(heading, text)| Section {
            heading: heading.iter().map(|part| part.to_string()).collect(),
            text: text.to_string(),
        });
        Document {
            name: "a.md".into(),
            title: "Ships".into(),
            licence: Some("MIT".into()),
            sections: sections.collect(),
            ..Document::default()
        }
    }

    fn rule(tokens: usize, overlap: usize, min_tokens: usize) -> ChunkRule {
        ChunkRule { tokens, overlap, min_tokens }
    }

    fn texts(document: &Document, rule: &ChunkRule) -> Vec<String> {
        passages(document, rule, &words).unwrap().into_iter().map(|passage| passage.text).collect()
    }

    /// A paragraph of sentences of four words.
    fn paragraph(sentences: usize) -> String {
        let all: Vec<String> = (0..sentences).map(|n| format!("The ship has {n}.")).collect();
        all.join(" ")
    }

    #[test]
    fn passages_know_where_they_are_from() {
        let document =
            document(&[(&[], "They float."), (&["Masts", "Sails"], "They are of cloth.")]);
        let passages = passages(&document, &rule(32, 0, 1), &words).unwrap();
        assert_eq!(passages.len(), 2);
        assert_eq!((passages[1].id.as_str(), passages[1].document.as_str()), ("a.md#2", "a.md"));
        assert_eq!(passages[0].embedded(), "Ships They float.");
        assert_eq!(passages[1].embedded(), "Ships > Masts > Sails They are of cloth.");
        assert_eq!(passages[1].tokens, words(&passages[1].embedded()).unwrap());
        assert_eq!(passages[1].licence.as_deref(), Some("MIT"));
        assert_eq!(passages[1].document_title(), Some("Ships"));
    }

    #[test]
    fn paragraphs_are_joined_and_long_ones_cut_behind_sentences() {
        let (short, long) = (paragraph(2), paragraph(12));
        // Eight tokens a short one; 4 for the title and around.
        let text = format!("{short}\n\n{short}\n\n{long}");
        let all = texts(&document(&[(&[], &text)]), &rule(32, 0, 2));
        assert_eq!(all[0], format!("{short}\n\n{short}"));
        assert!(all[1].starts_with("The ship has 0.") && all[1].ends_with('.'), "{all:?}");
        assert_eq!(all[1..].join(" "), long);
    }

    #[test]
    fn long_sentences_are_cut_at_words_and_long_words_at_letters() {
        let sentence = vec!["word"; 100].join(" ");
        let all = texts(&document(&[(&[], &sentence)]), &rule(32, 0, 2));
        assert!(all.len() <= 5 && all.join(" ") == sentence, "{all:?}");
        let word = "e\u{301}".repeat(300);
        let all = texts(&document(&[(&[], &word)]), &rule(32, 0, 2));
        assert!(all.concat() == word && all.iter().all(|part| part.starts_with('e')), "{all:?}");
        // What a tokenizer takes for one unknown token is not endless.
        let one = |text: &str| Ok(2 + text.split_whitespace().count());
        let document = document(&[(&[], &"x".repeat(100_000))]);
        let all = passages(&document, &rule(32, 0, 2), &one).unwrap();
        assert!(all.iter().all(|passage| passage.text.len() <= 32 * 32), "{}", all.len());
    }

    #[test]
    fn what_is_too_little_takes_from_its_neighbours() {
        // A short lead before a long paragraph takes sentences of it.
        let text = format!("For example:\n\n{}", paragraph(7));
        let all = texts(&document(&[(&[], &text)]), &rule(32, 0, 8));
        assert!(all[0].starts_with("For example:\n\nThe ship has 0."), "{all:?}");
        // A short end takes them from the passage before.
        let text = format!("{}\n\nThe end.", paragraph(7));
        let all = texts(&document(&[(&[], &text)]), &rule(32, 0, 8));
        assert!(all.len() == 2 && all[1].ends_with("has 6.\n\nThe end."), "{all:?}");
        assert!(words(&all[1]).unwrap() >= 10, "{all:?}");
    }

    #[test]
    fn sections_that_are_too_little_join_those_beside_them() {
        let long = paragraph(5);
        let document = document(&[
            (&["A"], "Short."),
            (&["A", "B"], &long),
            (&["C"], "one"),
            (&["D"], "two"),
            (&["Deep?"], "Yes."),
            (&["E"], "alone"),
            (&["F"], &long),
            (&["G", "H"], "other rank"),
        ]);
        let all = passages(&document, &rule(64, 0, 8), &words).unwrap();
        let all: Vec<(&str, &str)> =
            all.iter().map(|passage| (passage.title.as_str(), passage.text.as_str())).collect();
        assert_eq!(
            all,
            [
                ("Ships > A > B", format!("Short.\n\n{long}").as_str()),
                ("Ships", "C\none\n\nD\ntwo"),
                ("Ships > Deep?", "Yes."),
                ("Ships > E", "alone"),
                ("Ships > F", &long),
                ("Ships > G > H", "other rank"),
            ]
        );
    }

    #[test]
    fn an_overlap_is_whole_sentences_of_the_end_before() {
        let all = texts(&document(&[(&[], &paragraph(20))]), &rule(32, 8, 2));
        for pair in all.windows(2) {
            let last: Vec<&str> = pair[0].split_inclusive(". ").collect();
            let shared = last[last.len() - 2..].concat();
            assert!(pair[1].starts_with(shared.trim()), "{pair:?}");
        }
    }

    #[test]
    fn long_titles_leave_room_for_the_text() {
        let long = "heading ".repeat(400);
        let mut document =
            document(&[(&["first", &long, "last"], "text"), (&["first", &long], "text")]);
        let titles = |document: &Document| -> Vec<String> {
            let passages = passages(document, &rule(32, 0, 1), &words).unwrap();
            assert!(passages.iter().all(|passage| passage.tokens <= 32 && passage.text == "text"));
            passages.into_iter().map(|passage| passage.title).collect()
        };
        let shortened = titles(&document);
        assert_eq!(shortened[0], "Ships > last");
        assert!(shortened[1].starts_with("heading heading") && shortened[1].len() < 64);
        document.title = "x".repeat(100_000);
        assert_eq!(titles(&document)[0], "last");
    }

    #[test]
    fn rules_that_make_no_passage_are_refused() {
        for (rule, word) in [
            (rule(8, 0, 1), "8 tokens"),
            (rule(32, 17, 1), "overlap of 17"),
            (rule(32, 0, 17), "least size of 17"),
        ] {
            let error = passages(&document(&[]), &rule, &words).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let fails = |_: &str| bail!("no tokenizer");
        assert!(passages(&document(&[(&[], "a")]), &ChunkRule::default(), &fails).is_err());
    }

    #[test]
    fn a_long_document_is_counted_a_few_times_and_not_again_and_again() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let counted = AtomicUsize::new(0);
        let count = |text: &str| {
            counted.fetch_add(text.len() + 1, Ordering::Relaxed);
            odd(text)
        };
        let paragraphs =
            |length: usize| (0..2000).map(|_| paragraph(length) + "\n\n").collect::<String>();
        for text in [
            paragraphs(3),
            paragraphs(40),
            paragraph(20_000),
            "word ".repeat(60_000),
            "x".repeat(300_000),
            "a\n\n".repeat(60_000),
            "Yes: \n\n".repeat(30_000) + &paragraph(1000),
        ] {
            counted.store(0, Ordering::Relaxed);
            passages(&document(&[(&["H"], &text)]), &rule(64, 8, 16), &count).unwrap();
            let times = counted.load(Ordering::Relaxed) as f64 / text.len() as f64;
            assert!(times < 32.0, "{times} times {:?}", &text[..20]);
        }
    }

    #[test]
    fn many_introductions_stand_in_their_order_and_take_no_longer_each() {
        let mut sections: Vec<(&[&str], &str)> = vec![(&["A"], "Yes."); 50_000];
        sections[0].1 = "First.";
        sections.push((&["A", "B"], "The end."));
        let document = document(&sections);
        let all = passages(&document, &rule(64, 0, 8), &words).unwrap();
        assert!(all[0].text.starts_with("First.\n\nYes."), "{}", all[0].text);
        assert!(all[all.len() - 1].text.ends_with("Yes.\n\nThe end."));
        assert!(all.iter().all(|passage| passage.heading == ["A", "B"]));
    }

    fn bare(text: &str) -> String {
        text.split_whitespace().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn nothing_is_lost_or_doubled_and_all_is_within_the_limit(
            parts in prop::collection::vec(
                ("([A-H]{0,2}|Why [a-z]{2}\\?)", 1usize..4,
                 "([a-zA-Z]{1,9}[ .!?]{1,2}|[a-z]{30,90}|\n{1,3}|- |\\PC|[一-鿿]{1,20}){0,120}"),
                1..6,
            ),
            tokens in 16usize..80, min_tokens in 0usize..8, overlap in prop::sample::select(vec![0usize, 6]), odd_one: bool,
        ) {
            let mut outline = super::super::outline::Outline::default();
            for (heading, level, text) in &parts {
                outline.heading(*level as u8, heading);
                outline.block(text);
            }
            let document = outline.finish("x".into(), super::super::Facts::default());
            let count: &Count<'_> = if odd_one { &odd } else { &words };
            let passages = passages(&document, &rule(tokens, overlap, min_tokens), count).unwrap();
            for passage in &passages {
                prop_assert_eq!(passage.tokens.max(1), count(&passage.embedded()).unwrap().max(passage.embedded().len() / 32));
                let one = passage.text.chars().count() == 1;
                prop_assert!(passage.tokens <= tokens || one, "{:?}", passage);
            }
            if overlap == 0 && min_tokens == 0 {
                // By section, and so of the whole.
                let all: String = document.sections.iter().map(|section| bare(&section.text)).collect();
                let cut: String = passages.iter().map(|passage| bare(&passage.text)).collect();
                prop_assert_eq!(cut, all);
            } else {
                // Headings may have become lines, and overlaps stand twice: every section is still there, in order.
                let cut: String = passages.iter().map(|passage| bare(&passage.text)).collect();
                let mut rest = cut.chars();
                for letter in document.sections.iter().flat_map(|section| bare(&section.text).chars().collect::<Vec<_>>()) {
                    prop_assert!(rest.any(|next| next == letter), "{letter:?} is missing");
                }
            }
        }
    }
}
