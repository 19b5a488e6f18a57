//! Power cuts and kills: what is half-written or damaged is never used in silence.
