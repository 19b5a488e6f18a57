//! Markdown by `pulldown-cmark`: headings make sections, signs of emphasis and addresses of links go, code
//! and tables stay as text.

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::outline::Outline;
use super::{Document, Facts, html};

/// Deepest list that is still indented; what lies deeper stands there too.
const DEEPEST: usize = 8;

/// A document in Markdown, perhaps with front matter (`---` or `+++`).
pub(super) fn read(name: String, text: &str) -> Document {
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_GFM
        | Options::ENABLE_HEADING_ATTRIBUTES
        | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS
        | Options::ENABLE_PLUSES_DELIMITED_METADATA_BLOCKS;
    let mut reader = Reader::default();
    for event in Parser::new_ext(text, options) {
        reader.step(event);
    }
    reader.flush();
    reader.outline.finish(name, reader.facts)
}

#[derive(Default)]
struct Reader {
    outline: Outline,
    facts: Facts,
    /// The block that is being read.
    text: String,
    /// Number of the next item of each open list; none where they are not numbered.
    lists: Vec<Option<u64>>,
    /// Where the text of front matter or HTML begins to be kept apart.
    apart: Option<String>,
}

impl Reader {
    fn step(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) | Event::Html(text) => match &mut self.apart {
                Some(apart) => apart.push_str(&text),
                None => self.text.push_str(&text),
            },
            Event::Code(text) | Event::InlineMath(text) | Event::DisplayMath(text) => {
                self.text.push_str(&text);
            }
            Event::SoftBreak => self.text.push(' '),
            Event::HardBreak => self.text.push('\n'),
            Event::InlineHtml(tag) if tag.to_ascii_lowercase().starts_with("<br") => {
                self.text.push(' ');
            }
            Event::Rule => self.border(),
            Event::TaskListMarker(done) => {
                self.text.push_str(if done { "[x] " } else { "[ ] " });
            }
            Event::InlineHtml(_) | Event::FootnoteReference(_) => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { .. } => self.flush(),
            Tag::Paragraph | Tag::CodeBlock(CodeBlockKind::Indented | CodeBlockKind::Fenced(_)) => {
                self.border();
            }
            Tag::List(first) => {
                self.border();
                self.lists.push(first);
            }
            Tag::Item => {
                self.line();
                let depth = self.lists.len().saturating_sub(1).min(DEEPEST);
                self.text.push_str(&"  ".repeat(depth));
                match self.lists.last_mut() {
                    Some(Some(number)) => {
                        self.text.push_str(&format!("{number}. "));
                        *number = number.saturating_add(1);
                    }
                    _ => self.text.push_str("- "),
                }
            }
            Tag::TableRow | Tag::TableHead => self.line(),
            Tag::TableCell if !self.text.is_empty() && !self.text.ends_with('\n') => {
                self.text.push_str(" | ");
            }
            Tag::HtmlBlock | Tag::MetadataBlock(_) => self.apart = Some(String::new()),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(level) => {
                let text = std::mem::take(&mut self.text);
                self.outline.heading(number(level), &text);
            }
            TagEnd::List(_) => {
                self.lists.pop();
                self.border();
            }
            TagEnd::HtmlBlock => {
                let apart = self.apart.take().unwrap_or_default();
                if self.lists.is_empty() {
                    self.flush();
                    html::read_into(&apart, &mut self.outline);
                } else {
                    self.border();
                    self.text.push_str(&html::plain(&apart));
                }
            }
            TagEnd::MetadataBlock(_) => self.front_matter(),
            TagEnd::Paragraph
            | TagEnd::CodeBlock
            | TagEnd::Table
            | TagEnd::BlockQuote(_)
            | TagEnd::FootnoteDefinition => self.border(),
            _ => {}
        }
    }

    /// `key: value` of YAML and `key = value` of TOML, as far as they stand on one line.
    fn front_matter(&mut self) {
        let text = self.apart.take().unwrap_or_default();
        for line in text.lines().filter(|line| !line.starts_with([' ', '\t', '#', '['])) {
            if let Some((name, value)) = line.split_once([':', '=']) {
                let value = value.trim().trim_matches(['"', '\'']);
                self.facts.note(name, value);
            }
        }
    }

    /// Ends a line, if one has begun.
    fn line(&mut self) {
        let end = self.text.trim_end_matches(' ').len();
        // The sign of an item is no line by itself.
        let begun = &self.text[self.text[..end].rfind('\n').map_or(0, |at| at + 1)..end];
        if !matches!(begun.trim_start(), "" | "-") {
            self.text.truncate(end);
            self.text.push('\n');
        }
    }

    /// Ends a block; in a list only a line, as the whole list is a block.
    fn border(&mut self) {
        match self.lists.is_empty() {
            true => self.flush(),
            false => self.line(),
        }
    }

    fn flush(&mut self) {
        let text = std::mem::take(&mut self.text);
        self.outline.block(&text);
    }
}

fn number(level: HeadingLevel) -> u8 {
    match level {
        HeadingLevel::H1 => 1,
        HeadingLevel::H2 => 2,
        HeadingLevel::H3 => 3,
        HeadingLevel::H4 => 4,
        HeadingLevel::H5 => 5,
        HeadingLevel::H6 => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_make_sections_and_signs_go() {
        let text = "---\ntitle: 'A ship'\nlicense: MIT\nurl: https://a.example/b\n---\nBefore *all*\nof it.\n\n\
            # A ship\n\nSee [the sea](sea.md) and `code`<br>here.[^1]\n\n\
            ```rust\nfn a() {\n    b();\n\n}\n```\n\n## Masts & sails\n\n- one\n- two\n  words\n\n  more\n  1. a\n  2. b\n\n\
            | a | b |\n|---|---|\n| 1 | 2 |\n\n<div>plain <b>HTML</b></div>\n\n<script>no()</script>\n\n\
            ### Empty\n\n## Last\n> quoted\n\n[^1]: A note.\n";
        let document = read("a/b.md".into(), text);
        assert_eq!((document.name.as_str(), document.title.as_str()), ("a/b.md", "A ship"));
        assert_eq!(document.licence.as_deref(), Some("MIT"));
        assert_eq!(document.origin.as_deref(), Some("https://a.example/b"));
        let sections: Vec<(String, &str)> = document
            .sections
            .iter()
            .map(|section| (section.heading.join("/"), section.text.as_str()))
            .collect();
        assert_eq!(
            sections,
            [
                (String::new(), "Before all of it."),
                (String::new(), "See the sea and code here.\n\nfn a() {\n    b();\n\n}"),
                (
                    "Masts & sails".into(),
                    "- one\n- two words\nmore\n  1. a\n  2. b\n\na | b\n1 | 2\n\nplain HTML"
                ),
                ("Last".into(), "quoted\n\nA note."),
            ]
        );
    }

    #[test]
    fn a_list_of_any_depth_takes_room_for_its_text_alone() {
        let document = read("x".into(), &"- ".repeat(20_000));
        assert!(document.sections.iter().all(|section| section.text.len() < 1_000_000));
    }
}
