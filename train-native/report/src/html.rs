//! A self-contained HTML page.

use std::fmt::Write as _;

/// A page that is written section by section; everything is inside it, nothing is loaded.
#[derive(Debug, Clone, Default)]
pub struct Page {
    title: String,
    body: String,
}

/// A box of texts, each with what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Card {
    /// Line above it.
    pub title: String,
    /// What each text is, and the text.
    pub texts: Vec<(String, String)>,
    /// Line below it, which stands out.
    pub note: Option<String>,
}

/// Text with the characters that mean something in HTML replaced.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Page {
    /// An empty page.
    pub fn new(title: &str) -> Self {
        Self { title: title.into(), body: String::new() }
    }

    fn push(&mut self, html: std::fmt::Arguments<'_>) -> &mut Self {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(html);
        self
    }

    /// A heading.
    pub fn heading(&mut self, text: &str) -> &mut Self {
        self.push(format_args!("<h2>{}</h2>\n", escape(text)))
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) -> &mut Self {
        self.push(format_args!("<p>{}</p>\n", escape(text)))
    }

    /// An SVG picture with its caption.
    pub fn figure(&mut self, svg: &str, caption: &str) -> &mut Self {
        let caption = escape(caption);
        self.push(format_args!("<figure role=\"img\" aria-label=\"{caption}\">{svg}<figcaption>{caption}</figcaption></figure>\n"))
    }

    /// Small SVG pictures beside each other, each with its caption.
    pub fn figures(&mut self, pictures: &[(String, String)]) -> &mut Self {
        if pictures.is_empty() {
            return self;
        }
        self.push(format_args!("<div class=\"beside\">\n"));
        for (svg, caption) in pictures {
            self.figure(svg, caption);
        }
        self.push(format_args!("</div>\n"))
    }

    /// A table; the first row is its header.
    pub fn table(&mut self, rows: &[Vec<String>]) -> &mut Self {
        let mut html = String::from("<div class=\"wide\"><table>\n");
        for (i, row) in rows.iter().enumerate() {
            let tag = if i == 0 { "th" } else { "td" };
            let cells: String =
                row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
            html.push_str(&format!("<tr>{cells}</tr>\n"));
        }
        self.push(format_args!("{html}</table></div>\n"))
    }

    /// A table that opens on a click on its title.
    pub fn details(&mut self, title: &str, rows: &[Vec<String>]) -> &mut Self {
        self.push(format_args!("<details><summary>{}</summary>\n", escape(title)));
        self.table(rows);
        self.push(format_args!("</details>\n"))
    }

    /// Cards in columns beside each other, each with a heading.
    pub fn beside(&mut self, columns: &[(String, Vec<Card>)]) -> &mut Self {
        self.push(format_args!("<div class=\"beside\">\n"));
        for (heading, cards) in columns {
            self.push(format_args!("<section><h3>{}</h3>\n", escape(heading)));
            for card in cards {
                self.push(format_args!("<article><h4>{}</h4><dl>\n", escape(&card.title)));
                for (what, text) in &card.texts {
                    self.push(format_args!("<dt>{}</dt><dd>{}</dd>\n", escape(what), escape(text)));
                }
                self.push(format_args!("</dl>"));
                if let Some(note) = &card.note {
                    self.push(format_args!("<p class=\"note\">{}</p>", escape(note)));
                }
                self.push(format_args!("</article>\n"));
            }
            self.push(format_args!("</section>\n"));
        }
        self.push(format_args!("</div>\n"))
    }

    /// Text as it stands, in a fixed-width font.
    pub fn code(&mut self, text: &str) -> &mut Self {
        self.push(format_args!("<pre>{}</pre>\n", escape(text)))
    }

    /// The page.
    pub fn to_html(&self) -> String {
        let title = escape(&self.title);
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>body{{font:16px/1.5 system-ui,sans-serif;max-width:1120px;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}}\
             p,figcaption,li{{max-width:820px}}h1{{font-size:1.6rem}}h2{{font-size:1.15rem;margin-top:2rem}}figure{{margin:1rem 0}}\
             figure svg{{max-width:100%;height:auto}}figcaption{{color:#555;font-size:.9rem}}\
             .wide{{overflow-x:auto}}pre{{overflow-x:auto;background:#f6f6f6;padding:.8rem;font-size:.85rem}}table{{border-collapse:collapse}}\
             .beside{{display:grid;grid-template-columns:repeat(auto-fit,minmax(20rem,1fr));gap:1.5rem}}\
             .beside section{{min-width:0}}h3{{font-size:1rem}}\
             article{{border:1px solid #ddd;border-radius:6px;padding:.6rem .9rem;margin:0 0 .9rem;overflow-wrap:anywhere}}\
             article h4{{margin:0 0 .4rem;font-size:.85rem;color:#555;font-weight:normal}}\
             dl{{display:grid;grid-template-columns:5.2rem 1fr;gap:.25rem .6rem;margin:0;font-size:.9rem}}\
             dt{{color:#555}}dd{{margin:0}}.note{{margin:.5rem 0 0;font-size:.85rem;color:#9c2b12}}\
             td,th{{border-bottom:1px solid #ddd;padding:.3rem .8rem .3rem 0;text-align:left;vertical-align:top}}</style></head>\n\
             <body><h1>{title}</h1>\n{}</body></html>\n",
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let mut page = Page::new("a < b");
        page.paragraph("<script>").table(&[vec!["x & y".into()]]);
        let html = page.to_html();
        assert!(
            html.contains("&lt;script&gt;")
                && html.contains("x &amp; y")
                && html.contains("a &lt; b")
        );
        assert!(!html.contains("<script>"));
        let texts = vec![("<dt>".into(), "<script>".into())];
        let card = Card { title: "<b>".into(), texts, note: Some("\"<i>".into()) };
        let html = Page::new("t").beside(&[("<u>".into(), vec![card])]).to_html();
        for tag in ["<script>", "<b>", "<i>", "<u>", "<dt><"] {
            assert!(!html.contains(tag), "{tag}");
        }
    }
}
