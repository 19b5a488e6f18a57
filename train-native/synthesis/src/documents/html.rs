//! HTML by `html5gum`'s tokenizer: what a reader of the page sees, without the ways around it.

use html5gum::{DefaultEmitter, StartTag, Token, Tokenizer};

use super::block::Block;
use super::outline::{Outline, one_line};
use super::{Document, Facts};

/// Elements whose content is no text of the page.
const SKIPPED: [&[u8]; 14] = [
    b"script",
    b"style",
    b"nav",
    b"noscript",
    b"template",
    b"svg",
    b"iframe",
    b"noembed",
    b"noframes",
    b"object",
    b"textarea",
    b"select",
    b"button",
    b"dialog",
];

/// Those of them that hold no tags, and go on to their own end whatever comes.
const RAW: [&[u8]; 6] = [b"script", b"style", b"noscript", b"iframe", b"noembed", b"textarea"];

/// Elements whose end is always written, and ends what is still open in them.
const AROUND: [&[u8]; 10] = [
    b"html", b"body", b"main", b"article", b"section", b"header", b"footer", b"aside", b"div",
    b"table",
];

/// Elements that begin and end a paragraph.
const BLOCKS: [&[u8]; 30] = [
    b"address",
    b"article",
    b"aside",
    b"blockquote",
    b"body",
    b"center",
    b"details",
    b"dd",
    b"div",
    b"dl",
    b"dt",
    b"fieldset",
    b"figcaption",
    b"figure",
    b"footer",
    b"form",
    b"header",
    b"head",
    b"hr",
    b"html",
    b"li",
    b"main",
    b"p",
    b"pre",
    b"section",
    b"summary",
    b"caption",
    b"thead",
    b"tbody",
    b"legend",
];

/// A page.
pub(super) fn read(name: String, text: &str) -> Document {
    let mut outline = Outline::default();
    let facts = read_into(text, &mut outline);
    outline.finish(name, facts)
}

/// A part of a page as paragraphs.
pub(super) fn plain(text: &str) -> String {
    let mut outline = Outline::default();
    read_into(text, &mut outline);
    // No heading becomes the title, and is lost.
    let untitled = Facts { title: Some(String::new()), ..Facts::default() };
    let sections = outline.finish(String::new(), untitled).sections;
    let texts = sections.into_iter().map(|section| {
        let heading = section.heading.last().map(|heading| format!("{heading}\n"));
        heading.unwrap_or_default() + &section.text
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// A page, or a part of one, into an outline; what its head says of it.
pub(super) fn read_into(text: &str, outline: &mut Outline) -> Facts {
    let mut emitter = DefaultEmitter::default();
    // The content of scripts and styles has no tags.
    emitter.naively_switch_states(true);
    let mut page = Page::new(outline);
    for token in Tokenizer::new_with_emitter(text, emitter) {
        // A string is read without errors.
        let Ok(token) = token;
        page.token(token);
    }
    page.finish()
}

/// Whose text is being read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Text,
    Title,
    Heading(u8),
}

/// An element that is left out, while it is open.
struct Skipped {
    name: Vec<u8>,
    /// How many of its kind are open in it.
    open: usize,
    /// How many of each element of [`AROUND`] are open in it.
    around: [usize; AROUND.len()],
    /// What stands in it, which is read after all where it never ends.
    held: Vec<Token>,
}

struct Page<'a> {
    outline: &'a mut Outline,
    facts: Facts,
    place: Place,
    skipped: Option<Skipped>,
    /// Whether only elements without tags are left out, as another one was never closed.
    lenient: bool,
    /// How many of each element of [`AROUND`] are open.
    around: [usize; AROUND.len()],
    block: Block,
    /// Open tables and preformatted blocks.
    tables: usize,
    preformatted: usize,
}

impl<'a> Page<'a> {
    fn new(outline: &'a mut Outline) -> Self {
        Self {
            outline,
            facts: Facts::default(),
            place: Place::Text,
            skipped: None,
            lenient: false,
            around: [0; AROUND.len()],
            block: Block::default(),
            tables: 0,
            preformatted: 0,
        }
    }

    fn token(&mut self, token: Token) {
        if let Some(skipped) = self.skipped.take() {
            self.skip(skipped, token);
            return;
        }
        match token {
            Token::StartTag(tag) => self.start(&tag),
            Token::EndTag(tag) => self.end(&tag.name),
            Token::String(text) => self.string(&String::from_utf8_lossy(&text)),
            Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }

    /// Leaves out what stands in an element, until it ends or one around it does.
    fn skip(&mut self, mut skipped: Skipped, token: Token) {
        let is_raw = RAW.contains(&skipped.name.as_slice());
        match &token {
            Token::EndTag(tag) if tag.name.as_slice() == skipped.name => {
                match skipped.open.checked_sub(1) {
                    Some(left) => skipped.open = left,
                    None => return,
                }
            }
            Token::EndTag(tag) if !is_raw => {
                if let Some(place) = around(&tag.name) {
                    match skipped.around[place].checked_sub(1) {
                        Some(left) => skipped.around[place] = left,
                        None if self.around[place] > 0 => return self.end(&tag.name),
                        None => {}
                    }
                }
            }
            Token::StartTag(tag) => {
                skipped.open += usize::from(tag.name.as_slice() == skipped.name);
                if let Some(place) = around(&tag.name) {
                    skipped.around[place] += 1;
                }
            }
            _ => {}
        }
        if !is_raw {
            skipped.held.push(token);
        }
        self.skipped = Some(skipped);
    }

    /// Ends the page with what is still open in it: what is not closed has no end to be left out up to, and is no
    /// heading.
    fn finish(mut self) -> Facts {
        self.lenient = true;
        if let Some(skipped) = self.skipped.take() {
            self.border();
            skipped.held.into_iter().for_each(|token| self.token(token));
        }
        if self.place == Place::Title {
            self.end(b"title");
        }
        self.flush();
        self.facts
    }

    fn start(&mut self, tag: &StartTag<()>) {
        let name = tag.name.as_slice();
        if SKIPPED.contains(&name) {
            // Only a picture may end where it begins.
            let is_empty = tag.self_closing && name == b"svg";
            if self.lenient && !RAW.contains(&name) {
                self.border();
            } else if !is_empty {
                self.skipped = Some(Skipped {
                    name: name.to_vec(),
                    open: 0,
                    around: [0; AROUND.len()],
                    held: Vec::new(),
                });
            }
            return;
        }
        if let Some(place) = around(name) {
            self.around[place] += 1;
        }
        match name {
            b"title" => {
                self.border();
                self.place = Place::Title;
            }
            b"meta" => self.meta(tag, b"name", b"content"),
            b"link" => self.meta(tag, b"rel", b"href"),
            [b'h', level @ b'1'..=b'6'] => {
                self.flush();
                self.place = Place::Heading(level - b'0');
            }
            b"br" => match self.place {
                Place::Text => self.line(),
                _ => self.block.flow(" "),
            },
            b"ul" | b"ol" | b"menu" => {
                self.border();
                self.block.open_list((name == b"ol").then_some(1));
            }
            b"li" => self.block.item(),
            b"table" => {
                self.border();
                self.tables += 1;
            }
            b"tr" => self.block.line(),
            b"td" | b"th" => self.block.cell(),
            b"pre" | b"listing" | b"xmp" => {
                self.border();
                self.preformatted += 1;
            }
            _ if BLOCKS.contains(&name) => self.border(),
            _ => {}
        }
    }

    fn end(&mut self, name: &[u8]) {
        if let Some(place) = around(name) {
            self.around[place] = self.around[place].saturating_sub(1);
        }
        match name {
            b"title" if self.place == Place::Title => {
                let text = self.block.take();
                self.facts.note("title", &one_line(&text));
                self.place = Place::Text;
            }
            [b'h', b'1'..=b'6'] => {
                if let Place::Heading(level) = self.place {
                    let text = self.block.take();
                    self.outline.heading(level, &text);
                }
                self.place = Place::Text;
            }
            b"ul" | b"ol" | b"menu" => {
                self.block.close_list();
                self.border();
            }
            b"table" => {
                self.tables = self.tables.saturating_sub(1);
                self.border();
            }
            b"pre" | b"listing" | b"xmp" => {
                self.preformatted = self.preformatted.saturating_sub(1);
                self.border();
            }
            _ if BLOCKS.contains(&name) => self.border(),
            _ => {}
        }
    }

    fn string(&mut self, text: &str) {
        match self.preformatted > 0 && self.place == Place::Text {
            true => self.block.push(text),
            false => self.block.flow(text),
        }
    }

    /// What a tag of the head names: a licence, or the page's own address.
    fn meta(&mut self, tag: &StartTag<()>, name: &[u8], value: &[u8]) {
        let of = |wanted: &[u8]| {
            let mut found = tag.attributes.iter().filter(|(name, _)| name.as_slice() == wanted);
            found.next().map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        };
        if let (Some(name), Some(value)) = (of(name), of(value)) {
            // What a page calls its source or title elsewhere than in its title is no fact of it.
            if matches!(name.to_ascii_lowercase().as_str(), "licence" | "license" | "canonical") {
                self.facts.note(&name, &value);
            }
        }
    }

    fn line(&mut self) {
        match self.preformatted > 0 {
            true => self.block.push("\n"),
            false => self.block.line(),
        }
    }

    /// Ends a block; in a list only a line, in a table nothing but a word, as both are blocks whole.
    fn border(&mut self) {
        match self.place {
            Place::Text => {}
            Place::Title | Place::Heading(_) => return self.block.flow(" "),
        }
        if self.tables > 0 {
            self.block.flow(" ");
        } else if self.block.in_list() {
            self.line();
        } else {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let text = self.block.take();
        self.outline.block(&text);
    }
}

/// The place of an element among those of [`AROUND`].
fn around(name: &[u8]) -> Option<usize> {
    AROUND.iter().position(|known| *known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_what_its_reader_sees() {
        let text = "<!DOCTYPE html><html><head><title>Tea &amp; timber</title><meta charset=utf-8>\
            <link rel=canonical href='https://a.example/tea'><meta name=license content='CC0'>\
            <style>p { color: red }</style><script>if (a < b) { document.write('<p>no</p>') }</script></head>\
            <body><nav>Home <nav>deep</nav> still</nav><h1>Tea <em>&amp;</em> timber</h1>\
            <p>The ship\n   carried <b>tea</b>&nbsp;&eacute;.<p>Unclosed<br>lines\
            <div>a<div>b</div></div><noscript>no</noscript><template><p>no</p></template>\
            <h2>Holds<br>below</h2><ul><li>one<li><li><p>two</p><ol><li>deep</li></ol></li></ul>\
            <table><tr><th>a<th>b<tr><td><p>1</p><td>2</table><pre>  x\n   y</pre><svg><text>no</text></svg>\
            <h3></h3>&lt;script&gt;shown&lt;/script&gt; <!-- no -->end";
        let document = read("a.html".into(), text);
        assert_eq!(document.title, "Tea & timber");
        assert_eq!(document.origin.as_deref(), Some("https://a.example/tea"));
        assert_eq!(document.licence.as_deref(), Some("CC0"));
        let texts: Vec<(String, &str)> = document
            .sections
            .iter()
            .map(|section| (section.heading.join("/"), section.text.as_str()))
            .collect();
        let expected = [
            ("", "The ship carried tea é.\n\nUnclosed\nlines\n\na\n\nb"),
            (
                "Holds below",
                "- one\n- two\n  1. deep\n\na | b\n1 | 2\n\n  x\n   y\n\n<script>shown</script> end",
            ),
        ];
        assert_eq!(texts, expected.map(|(heading, text)| (heading.to_string(), text)));
    }

    #[test]
    fn what_is_not_closed_or_not_opened_is_read_to_the_end() {
        for text in [
            "<ul><li>a",
            "</ul></table></pre>a",
            "<h1>a",
            "<title>a",
            "<svg/>a",
            "<p",
            "<!--",
            "<script>",
        ] {
            let document = read("x".into(), text);
            assert!(document.sections.len() <= 1, "{text}");
        }
        assert_eq!(read("x".into(), "</ul></table></pre>a").sections[0].text, "a");
        assert_eq!(plain("<h2>A</h2>b<p>c"), "A\nb\n\nc");
    }

    #[test]
    fn no_text_is_lost_to_what_is_not_closed() {
        let texts = |text: &str| {
            let document = read("x".into(), text);
            let sections = document.sections.iter();
            let all =
                sections.map(|section| format!("{}: {}", section.heading.join("/"), section.text));
            all.collect::<Vec<_>>().join("; ")
        };
        // A heading that goes on to the end.
        assert_eq!(texts("<p>a<h2>b<p>c"), ": a\n\nb c");
        // An element that is left out ends with the one around it, or is not left out.
        assert_eq!(texts("<div><nav><div>no</div></div><p>a<p>b"), ": a\n\nb");
        assert_eq!(texts("<p>a<nav>b<h2>c</h2><p>d<script>no()</script> e"), ": a\n\nb; : d e");
        assert_eq!(texts("<nav><p>no</div></nav>a"), ": a");
        // And leaves the heading that it stands in a heading.
        assert_eq!(texts("<h2>a<button>no</button> b</h2>c<h2>d</h2>e"), "a b: c; d: e");
        // What has no tags goes on to its own end.
        assert_eq!(texts("<div><script>'</div>'</script>a"), ": a");
    }
}
