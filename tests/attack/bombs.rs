//! Small files that would become large, and numbers that make no sense.
