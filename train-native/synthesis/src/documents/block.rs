//! A block of text while it is read: a paragraph, or a whole list or table line by line.

/// Deepest list that is indented; what lies deeper stands there too.
const DEEPEST: usize = 8;

/// The text, and the lists that are open in it.
#[derive(Debug, Default)]
pub(super) struct Block {
    text: String,
    /// Number of the next item of each; none where they are not numbered.
    lists: Vec<Option<u64>>,
}

impl Block {
    /// Adds a text as it is.
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Adds a text with one space for all white space between words.
    pub(super) fn flow(&mut self, text: &str) {
        for letter in text.chars() {
            if !letter.is_whitespace() {
                self.text.push(letter);
            } else if !self.text.is_empty() && !self.text.ends_with([' ', '\n']) {
                self.text.push(' ');
            }
        }
    }

    /// Whether lists are open, so that the block goes on.
    pub(super) fn in_list(&self) -> bool {
        !self.lists.is_empty()
    }

    /// Opens a list, with its first number where it has numbers.
    pub(super) fn open_list(&mut self, first: Option<u64>) {
        self.lists.push(first);
    }

    /// Closes the innermost list.
    pub(super) fn close_list(&mut self) {
        self.drop_sign();
        self.lists.pop();
    }

    /// Begins an item.
    pub(super) fn item(&mut self) {
        self.drop_sign();
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

    /// Begins a cell of a table's row.
    pub(super) fn cell(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.truncate(self.text.trim_end_matches(' ').len());
            self.text.push_str(" | ");
        }
    }

    /// Ends a line, if one has begun. The sign of an item is none by itself.
    pub(super) fn line(&mut self) {
        let (start, end) = self.last_line();
        let line = &self.text[start..end];
        if !line.trim().is_empty() && !is_sign(line) {
            self.text.truncate(end);
            self.text.push('\n');
        }
    }

    /// The whole text, and another block begins.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Removes the sign of an item that has nothing in it.
    fn drop_sign(&mut self) {
        let (start, end) = self.last_line();
        if is_sign(&self.text[start..end]) {
            self.text.truncate(start);
        }
    }

    /// Where the last line begins, and ends without its spaces.
    fn last_line(&self) -> (usize, usize) {
        let end = self.text.trim_end_matches(' ').len();
        (self.text[..end].rfind('\n').map_or(0, |place| place + 1), end)
    }
}

/// Whether a line is only the sign before an item.
fn is_sign(line: &str) -> bool {
    let line = line.trim();
    let number = line.strip_suffix('.').unwrap_or_default();
    line == "-" || !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_stand_on_lines_of_their_own_and_empty_ones_nowhere() {
        let mut block = Block::default();
        block.flow(" \n a\n  b ");
        block.line();
        block.open_list(Some(3));
        block.item();
        block.item();
        block.push("four");
        block.open_list(None);
        block.item();
        block.line();
        block.push("deep");
        block.item();
        block.close_list();
        block.item();
        block.close_list();
        assert!(!block.in_list());
        block.push("x");
        block.cell();
        block.push("y");
        assert_eq!(block.take(), "a b\n4. four\n  - deep\nx | y");
    }
}
