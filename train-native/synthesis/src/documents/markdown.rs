//! Markdown by `pulldown-cmark`: headings make sections, signs of emphasis and addresses of links go, code
//! and tables stay as text.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::block::Block;
use super::outline::Outline;
use super::{Document, Facts, html};

/// Fewest words by which a picture tells something.
const PICTURE_WORDS: usize = 4;

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
    let start = text.len() - text.trim_start().len();
    for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
        reader.step(event, range.start <= start);
    }
    reader.flush();
    reader.outline.finish(name, reader.facts)
}

#[derive(Default)]
struct Reader {
    outline: Outline,
    facts: Facts,
    block: Block,
    /// Text of front matter or HTML, which is kept apart.
    apart: Option<String>,
    /// Open links and pictures.
    links: usize,
    pictures: usize,
    /// What stands for the picture.
    picture: String,
}

impl Reader {
    /// Takes the next event; whether it stands at the start of the document.
    fn step(&mut self, event: Event<'_>, first: bool) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag, first),
            Event::Text(text) | Event::Html(text) => match &mut self.apart {
                Some(apart) => apart.push_str(&text),
                None if self.pictures > 0 => self.picture.push_str(&text),
                None => self.block.push(&text),
            },
            Event::Code(text) | Event::InlineMath(text) | Event::DisplayMath(text) => {
                self.block.push(&text);
            }
            Event::SoftBreak => self.block.push(" "),
            Event::HardBreak => self.block.push("\n"),
            Event::InlineHtml(tag) if tag.to_ascii_lowercase().starts_with("<br") => {
                self.block.push(" ");
            }
            Event::Rule => self.border(),
            Event::TaskListMarker(done) => self.block.push(if done { "[x] " } else { "[ ] " }),
            Event::InlineHtml(_) | Event::FootnoteReference(_) => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { .. } => self.flush(),
            Tag::Paragraph | Tag::CodeBlock(_) => self.border(),
            Tag::List(first) => {
                self.border();
                self.block.open_list(first);
            }
            Tag::Item => self.block.item(),
            Tag::TableRow | Tag::TableHead => self.block.line(),
            Tag::TableCell => self.block.cell(),
            Tag::HtmlBlock | Tag::MetadataBlock(_) => self.apart = Some(String::new()),
            Tag::Link { .. } => self.links += 1,
            Tag::Image { .. } => self.pictures += 1,
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd, first: bool) {
        match tag {
            TagEnd::Heading(level) => {
                let text = self.block.take();
                self.outline.heading(number(level), &text);
            }
            TagEnd::List(_) => {
                self.block.close_list();
                self.border();
            }
            TagEnd::HtmlBlock => {
                let apart = self.apart.take().unwrap_or_default();
                if self.block.in_list() {
                    self.border();
                    self.block.push(&html::plain(&apart));
                } else {
                    self.flush();
                    html::read_into(&apart, &mut self.outline);
                }
            }
            TagEnd::MetadataBlock(_) => {
                let apart = self.apart.take().unwrap_or_default();
                match first {
                    true => self.front_matter(&apart),
                    // Between two lines, but not in front.
                    false => self.outline.block(&apart),
                }
            }
            TagEnd::Link => self.links = self.links.saturating_sub(1),
            TagEnd::Image => {
                self.pictures = self.pictures.saturating_sub(1);
                let text = std::mem::take(&mut self.picture);
                // A badge is a link, or says a word or two.
                if self.links == 0 && text.split_whitespace().count() >= PICTURE_WORDS {
                    self.block.push(&text);
                }
            }
            TagEnd::Paragraph
            | TagEnd::CodeBlock
            | TagEnd::Table
            | TagEnd::BlockQuote(_)
            | TagEnd::FootnoteDefinition => self.border(),
            _ => {}
        }
    }

    /// `key: value` of YAML and `key = value` of TOML, as far as they stand on one line.
    fn front_matter(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with([' ', '\t', '#', '['])) {
            if let Some((name, value)) = line.split_once([':', '=']) {
                self.facts.note(name, value.trim().trim_matches(['"', '\'']));
            }
        }
    }

    /// Ends a block; in a list only a line, as the whole list is a block.
    fn border(&mut self) {
        match self.block.in_list() {
            true => self.block.line(),
            false => self.flush(),
        }
    }

    fn flush(&mut self) {
        let text = self.block.take();
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
            ### Empty\n\n## Last\n> quoted ![a mast of wood](m.png) ![build](b.svg)\n\n[![badge](b.svg)](b.html)\n\n\
            ---\ntitle: no\n---\n\n[^1]: A note.\n";
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
                ("Last".into(), "quoted a mast of wood\n\ntitle: no\n\nA note."),
            ]
        );
    }

    #[test]
    fn a_list_of_any_depth_takes_room_for_its_text_alone() {
        let document = read("x".into(), &"- ".repeat(20_000));
        assert!(document.sections.iter().all(|section| section.text.len() < 1_000_000));
    }
}
