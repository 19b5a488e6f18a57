//! A block of text while it is read: a paragraph, or a whole list or table line by line.

/// Deepest list that is indented; what lies deeper stands there too.
const DEEPEST: usize = 8;

/// The text, and the lists that are open in it. What its last line holds is kept beside it, so that no line is
/// read again for each tag that ends it.
#[derive(Debug, Default)]
pub(super) struct Block {
    text: String,
    /// Where the last line begins.
    line: usize,
    /// Whether it begins with the sign of an item.
    sign: bool,
    /// Whether it says anything, the sign aside.
    full: bool,
    /// Number of the next item of each; none where they are not numbered.
    lists: Vec<Option<u64>>,
}

impl Block {
    /// Adds a text as it is.
    pub(super) fn push(&mut self, text: &str) {
        if let Some(end) = text.rfind('\n') {
            self.begin(self.text.len() + end + 1);
            self.full = !text[end..].trim().is_empty();
        } else {
            self.full |= !text.trim().is_empty();
        }
        self.text.push_str(text);
    }

    /// Adds a text with one space for all white space between words.
    pub(super) fn flow(&mut self, text: &str) {
        for letter in text.chars() {
            if !letter.is_whitespace() {
                self.text.push(letter);
                self.full = true;
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
        self.sign = true;
    }

    /// Begins a cell of a table's row.
    pub(super) fn cell(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.trim();
            self.push(" | ");
        }
    }

    /// Ends a line, if one has begun. The sign of an item is none by itself.
    pub(super) fn line(&mut self) {
        if self.full {
            self.trim();
            self.text.push('\n');
            self.begin(self.text.len());
        }
    }

    /// The whole text, and another block begins.
    pub(super) fn take(&mut self) -> String {
        self.begin(0);
        std::mem::take(&mut self.text)
    }

    /// A line begins at a place, with nothing in it.
    fn begin(&mut self, place: usize) {
        (self.line, self.sign, self.full) = (place, false, false);
    }

    /// Removes the spaces at the end.
    fn trim(&mut self) {
        self.text.truncate(self.text.trim_end_matches(' ').len());
    }

    /// Removes the sign of an item that has nothing in it.
    fn drop_sign(&mut self) {
        if self.sign && !self.full {
            self.text.truncate(self.line);
            self.begin(self.line);
        }
    }
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

    #[test]
    fn a_number_that_is_said_is_no_sign() {
        let mut block = Block::default();
        block.flow("1984. ");
        block.open_list(None);
        block.item();
        block.flow("5.");
        block.item();
        block.close_list();
        assert_eq!(block.take(), "1984.\n- 5.\n");
    }

    #[test]
    fn time_grows_with_the_text() {
        let mut block = Block::default();
        block.push(&" ".repeat(1 << 20));
        for _ in 0..100_000 {
            block.line();
            block.close_list();
        }
        assert_eq!(block.take().len(), 1 << 20);
    }
}
