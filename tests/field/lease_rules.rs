//! F13, F16: odd times to live, foreign clocks, late renews, double releases.
