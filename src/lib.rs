//! forebear
