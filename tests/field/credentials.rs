//! F31, F32: forged, expired and misplaced credentials; huge tokens.
