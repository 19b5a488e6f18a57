//! Files and pasted text to passages: each format to titled sections of plain text, and those cut
//! into passages that overlap a little.

use std::ops::Range;

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use unicode_segmentation::UnicodeSegmentation as _;
use wasm_bindgen::JsCast as _;

use crate::kiln::Passage;

/// Bytes of a passage at most: some 180 tokens, so that a small model reads all of it.
const PASSAGE: usize = 700;
/// Bytes that a passage shares with the one before, at most: its last sentence or two.
const OVERLAP: usize = 150;

/// The formats that can be read, for the file dialog.
pub(crate) const ACCEPTED: &str = ".txt,.md,.markdown,.csv,.json,.jsonl,.html,.htm,text/*";

/// Plain text under a title.
struct Section {
    title: String,
    text: String,
}

/// The passages of a file; its name says which format it has.
///
/// # Errors
/// Bytes that are no text, or no text of that format; nothing to read in it.
pub(crate) fn passages(name: &str, bytes: &[u8]) -> Result<Vec<Passage>, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("{name} is no text: byte {} is not UTF-8", error.valid_up_to()))?;
    if let Some(i) = text.find('\0') {
        return Err(format!("{name} is no text: byte {i} is zero"));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    let sections = match ending.as_deref() {
        Some("md" | "markdown") => markdown(text),
        Some("csv") => csv(text).map_err(|error| format!("{name}: {error}"))?,
        Some("json") => json(text).map_err(|error| format!("{name}: {error}"))?,
        Some("jsonl") => json_lines(text).map_err(|error| format!("{name}: {error}"))?,
        Some("html" | "htm") => html(text).map_err(|error| format!("{name}: {error}"))?,
        _ => vec![Section { title: String::new(), text: text.into() }],
    };
    let mut passages = Vec::new();
    for section in &sections {
        for chunk in chunks(&section.text) {
            let title = match section.title.trim() {
                "" => beginning(chunk),
                title => title.into(),
            };
            passages.push(Passage { title, text: chunk.into(), source: name.into() });
        }
    }
    match passages.is_empty() {
        true => Err(format!("{name} has no text to search in")),
        false => Ok(passages),
    }
}

/// Whole sentences, as many as fit into a passage, the next ones beginning a little before the end of
/// these; a sentence that is too long is cut between words.
fn chunks(text: &str) -> Vec<&str> {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    for sentence in sentences(text) {
        if sentence.len() <= PASSAGE {
            pieces.push(sentence);
            continue;
        }
        let start = sentence.start;
        let mut piece = start..start;
        for (i, word) in text[sentence].split_word_bound_indices() {
            let end = start + i + word.len();
            if end - piece.start > PASSAGE && !piece.is_empty() {
                pieces.push(piece.clone());
                piece.start = piece.end;
            }
            piece.end = end;
        }
        pieces.push(piece);
    }
    let mut chunks = Vec::new();
    let mut first = 0;
    while first < pieces.len() {
        let fits = |piece: &&Range<usize>| piece.end - pieces[first].start <= PASSAGE;
        let next = first + pieces[first..].iter().take_while(fits).count().max(1);
        let end = pieces[next - 1].end;
        chunks.push(text[pieces[first].start..end].trim());
        if next == pieces.len() {
            break;
        }
        let shared = |piece: &&Range<usize>| piece.start + OVERLAP >= end;
        first = next - pieces[first + 1..next].iter().rev().take_while(shared).count();
    }
    chunks
}

/// The built-in collection: subjects (`#`), titles (`##`), and a paragraph under each.
pub(crate) fn collection() -> Vec<Passage> {
    let mut subject = "";
    let mut passages: Vec<Passage> = Vec::new();
    for line in include_str!("../collection.md").lines() {
        if let Some(title) = line.strip_prefix("## ") {
            passages.push(Passage {
                title: title.into(),
                text: String::new(),
                source: subject.into(),
            });
        } else if let Some(name) = line.strip_prefix("# ") {
            subject = name;
        } else if let Some(passage) = passages.last_mut()
            && !line.is_empty()
        {
            if !passage.text.is_empty() {
                passage.text.push(' ');
            }
            passage.text.push_str(line);
        }
    }
    passages
}

/// Byte ranges of a text's sentences.
pub(crate) fn sentences(text: &str) -> Vec<Range<usize>> {
    text.split_sentence_bound_indices()
        .filter(|(_, sentence)| has_words(sentence))
        .map(|(i, sentence)| i..i + sentence.trim_end().len())
        .collect()
}

fn has_words(text: &str) -> bool {
    text.unicode_words().next().is_some()
}

/// The first words of a text, where nothing else can be its title.
fn beginning(text: &str) -> String {
    let mut words = text.split_whitespace();
    let title: Vec<&str> = words.by_ref().take(7).collect();
    let more = if words.next().is_some() { "…" } else { "" };
    format!("{}{more}", title.join(" "))
}

fn markdown(text: &str) -> Vec<Section> {
    let mut sections = vec![Section { title: String::new(), text: String::new() }];
    let mut in_heading = false;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        let Some(section) = sections.last_mut() else { break };
        match event {
            Event::Start(Tag::Heading { level, .. }) if level <= HeadingLevel::H3 => {
                sections.push(Section { title: String::new(), text: String::new() });
                in_heading = true;
            }
            Event::End(TagEnd::Heading(_)) => in_heading = false,
            Event::Text(part) | Event::Code(part) => {
                let to = if in_heading { &mut section.title } else { &mut section.text };
                to.push_str(&part);
            }
            Event::SoftBreak | Event::HardBreak => section.text.push('\n'),
            Event::End(TagEnd::TableCell) => section.text.push(' '),
            Event::End(
                TagEnd::Paragraph
                | TagEnd::Item
                | TagEnd::CodeBlock
                | TagEnd::TableRow
                | TagEnd::TableHead,
            ) => section.text.push_str("\n\n"),
            _ => {}
        }
    }
    sections
}

/// A row is a section: the column that is called so its title, the rest its text.
fn csv(text: &str) -> Result<Vec<Section>, String> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names = reader.headers().map_err(|error| error.to_string())?.clone();
    let mut sections = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        sections.push(section(names.iter().zip(record.iter())));
    }
    Ok(sections)
}

fn json(text: &str) -> Result<Vec<Section>, String> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))?;
    Ok(match &value {
        serde_json::Value::Array(rows) => rows.iter().map(json_section).collect(),
        row => vec![json_section(row)],
    })
}

fn json_lines(text: &str) -> Result<Vec<Section>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| {
            let row = serde_json::from_str(line)
                .map_err(|error| format!("line {} is no JSON: {error}", i + 1))?;
            Ok(json_section(&row))
        })
        .collect()
}

fn json_section(value: &serde_json::Value) -> Section {
    match value {
        serde_json::Value::Object(fields) => {
            let texts: Vec<(&str, String)> =
                fields.iter().map(|(name, value)| (name.as_str(), plain(value))).collect();
            section(texts.iter().map(|(name, value)| (*name, value.as_str())))
        }
        other => Section { title: String::new(), text: plain(other) },
    }
}

/// The texts of a value, its lists and objects one after another.
fn plain(value: &serde_json::Value) -> String {
    use serde_json::Value;
    let join = |parts: Vec<String>| parts.join("\n");
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => join(values.iter().map(plain).collect()),
        Value::Object(fields) => join(fields.values().map(plain).collect()),
        number => number.to_string(),
    }
}

/// Fields of a row: those called text, title and the like are taken for what they are.
fn section<'a>(fields: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> Section {
    let of = |known: &[&str]| {
        let is = |name: &str| known.iter().any(|known| name.trim().eq_ignore_ascii_case(known));
        fields.clone().find(|(name, value)| is(name) && !value.trim().is_empty())
    };
    let title = of(&["title", "name", "heading", "subject", "question"]);
    let text = of(&["text", "body", "content", "passage", "description", "abstract", "answer"]);
    let text = match text {
        Some((_, text)) => text.to_string(),
        None => fields
            .clone()
            .filter(|(name, value)| {
                !value.trim().is_empty() && Some(*name) != title.map(|(name, _)| name)
            })
            .map(|(name, value)| format!("{name}: {value}"))
            .collect::<Vec<_>>()
            .join("\n"),
    };
    let title = title.map_or(String::new(), |(_, title)| title.to_string());
    // A row of a title alone is its own text.
    let text = if text.is_empty() { title.clone() } else { text };
    Section { title, text }
}

/// The words of a page; nothing of it is run or fetched.
fn html(text: &str) -> Result<Vec<Section>, String> {
    let failed = |_| "the page cannot be parsed".to_string();
    let parser = web_sys::DomParser::new().map_err(failed)?;
    let page = parser.parse_from_string(text, web_sys::SupportedType::TextHtml).map_err(failed)?;
    let mut out = String::new();
    if let Some(body) = page.query_selector("body").map_err(failed)? {
        words_of(&body, &mut out);
    }
    Ok(vec![Section { title: page.title(), text: out }])
}

fn words_of(node: &web_sys::Node, out: &mut String) {
    const SILENT: [&str; 5] = ["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "SVG"];
    const INLINE: [&str; 12] =
        ["A", "ABBR", "B", "CODE", "EM", "I", "MARK", "Q", "SMALL", "SPAN", "STRONG", "SUB"];
    if node.node_type() == web_sys::Node::TEXT_NODE {
        let text = node.text_content().unwrap_or_default();
        let mut words = text.split_whitespace().peekable();
        if words.peek().is_some() && text.starts_with(char::is_whitespace) {
            out.push(' ');
        }
        out.push_str(&words.collect::<Vec<_>>().join(" "));
        if text.ends_with(char::is_whitespace) {
            out.push(' ');
        }
        return;
    }
    let name = node.dyn_ref::<web_sys::Element>().map(web_sys::Element::tag_name);
    let name = name.unwrap_or_default().to_ascii_uppercase();
    if SILENT.contains(&name.as_str()) {
        return;
    }
    let children = node.child_nodes();
    for i in 0..children.length() {
        if let Some(child) = children.get(i) {
            words_of(&child, out);
        }
    }
    if !INLINE.contains(&name.as_str()) {
        out.push_str("\n\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(name: &str, text: &str) -> Vec<(String, String)> {
        let found = passages(name, text.as_bytes()).unwrap();
        found.into_iter().map(|passage| (passage.title, passage.text)).collect()
    }

    #[test]
    fn chunks_are_whole_sentences_that_overlap() {
        let sentence = |i: usize| format!("Sentence number {i} says something of usual length. ");
        let text: String = (0..60).map(sentence).collect();
        let chunks = chunks(&text);
        assert!(chunks.len() > 3);
        for pair in chunks.windows(2) {
            assert!(pair[0].len() <= PASSAGE && pair[0].ends_with('.') && pair[1].starts_with('S'));
            let shared = sentences(pair[0]).len()
                - sentences(pair[0])
                    .iter()
                    .filter(|range| !pair[1].contains(&pair[0][(*range).clone()]))
                    .count();
            assert!((1..=3).contains(&shared), "{shared}");
        }
        assert!(chunks.last().unwrap().contains("number 59"));
        // Nothing is lost of a sentence without end, nor cut inside a letter.
        let long = "wörter ".repeat(500);
        let cut = super::chunks(&long);
        assert!(cut.iter().all(|chunk| chunk.len() <= PASSAGE && chunk.starts_with('w')));
        assert!(cut.iter().map(|chunk| chunk.matches("wörter").count()).sum::<usize>() >= 500);
        assert!(super::chunks(&"x".repeat(5000)).len() == 1, "a word is not cut");
        assert!(super::chunks(" \n--\n").is_empty());
    }

    #[test]
    fn each_format_is_read() {
        let found = titles(
            "a.md",
            "before\n\n# One *two*\n\nText with `code` and\na [link](x).\n\n- item\n\n| a | b |\n|---|---|\n| c | d |\n",
        );
        assert_eq!(found[0].1, "before");
        assert_eq!(found[1].0, "One two");
        assert!(found[1].1.starts_with("Text with code and\na link."), "{found:?}");
        assert!(found[1].1.contains("item") && found[1].1.contains("c d"));
        let found = titles("a.csv", "id,Title,text\n1,First,\"Some, text\"\n2,Second,More\n");
        assert_eq!(
            found,
            [("First".into(), "Some, text".into()), ("Second".into(), "More".into())]
        );
        let found = titles("a.csv", "city,country\nOslo,Norway\n");
        assert_eq!(found[0].1, "city: Oslo\ncountry: Norway");
        let found = titles("a.json", r#"{"question": "Why?", "answer": ["Because", {"x": 1}]}"#);
        assert_eq!(found, [("Why?".into(), "Because\n1".into())]);
        let found = titles("a.jsonl", "\"plain\"\n\n{\"title\": \"alone\"}\n");
        assert_eq!(found, [("plain".into(), "plain".into()), ("alone".into(), "alone".into())]);
        let found = titles("a.txt", "\u{feff}one two three four five six seven eight");
        assert_eq!(found[0].0, "one two three four five six seven…");
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let says = |name: &str, bytes: &[u8]| passages(name, bytes).unwrap_err();
        assert_eq!(says("a.txt", b"ab\xff"), "a.txt is no text: byte 2 is not UTF-8");
        assert_eq!(says("a.txt", b"ab\0"), "a.txt is no text: byte 2 is zero");
        assert_eq!(says("a.txt", b" \n"), "a.txt has no text to search in");
        assert!(says("a.json", b"{").contains("no JSON"));
        assert!(says("a.jsonl", b"1\n{").contains("line 2"));
        assert!(says("a.csv", b"a,b\n1\n").contains("a.csv"));
    }

    #[test]
    fn the_collection_is_whole() {
        let all = collection();
        assert!(all.len() >= 300, "{}", all.len());
        assert!(
            all.iter().all(|one| !one.source.is_empty()
                && one.text.len() > 80
                && one.text.len() <= PASSAGE)
        );
        let mut titles: Vec<&str> = all.iter().map(|one| one.title.as_str()).collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), all.len());
    }
}
