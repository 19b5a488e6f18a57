//! Files of texts, vectors and models that would give wrong numbers in silence.
