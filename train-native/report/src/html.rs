//! A self-contained HTML page.

use std::fmt::Write as _;

/// A page that is written section by section; everything is inside it, nothing is loaded.
#[derive(Debug, Clone, Default)]
pub struct Page {
    title: String,
    body: String,
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
    }
}
