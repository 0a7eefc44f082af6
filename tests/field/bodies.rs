//! F01, F04, F09: malformed bodies, sizes, odd strings.
