//! Folders of the user: what Kiln did not write it does not remove.
