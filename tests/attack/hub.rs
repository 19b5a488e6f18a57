//! A hostile Hub: names that leave the cache, answers that lie, bodies cut short.
