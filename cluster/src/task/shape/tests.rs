//! Shapes of types, derived and by hand.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::time::Duration;

use serde::Deserialize;

use super::*;

fn text<T: DeserializeOwned>() -> String {
    of::<T>().to_string()
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape is asked for")]
struct Point {
    x: f64,
    y: Option<Vec<(u8, String)>>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape is asked for")]
enum Each {
    Unit,
    New(Point),
    Tuple(u8, Inner),
    Struct { a: bool, of: Inner },
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape is asked for")]
enum Inner {
    One,
    Two(i16),
}

#[test]
fn a_shape_has_the_fields_of_structs_and_all_variants_of_enums() {
    assert_eq!(text::<Point>(), "Point {x: f64, y: Option<[(u8, text)]>}");
    assert_eq!(
        text::<(Each, Inner)>(),
        "(Each {Unit | New(Point {x: f64, y: Option<[(u8, text)]>}) | Tuple(u8, Inner {One | Two(i16)}) \
         | Struct {a: bool, of: Inner {One | Two(i16)}}}, Inner {One | Two(i16)})"
    );
    assert_eq!(text::<BTreeMap<u8, HashMap<String, [char; 4]>>>(), "{u8: {text: [char; 4]}}");
    assert_eq!(text::<Result<(), NonZeroU32>>(), "Result {Ok(()) | Err(u32)}");
    assert_eq!(text::<Duration>(), "Duration {secs: u64, nanos: u32}");
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape is asked for")]
enum Tree {
    Fork(Box<Tree>, Box<Tree>),
    Many(Vec<Tree>),
    Leaf { of: Option<Box<List>> },
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape is asked for")]
struct List {
    here: u8,
    rest: Option<Box<List>>,
    last: u16,
}

#[test]
fn a_type_within_itself_has_an_end() {
    assert_eq!(text::<List>(), "List {here: u8, rest: Option<List {..}>, last: u16}");
    assert_eq!(
        text::<Tree>(),
        "Tree {Fork(Tree {..}, Tree {..}) | Many([Tree {..}]) \
         | Leaf {of: Option<List {here: u8, rest: Option<List {..}>, last: u16}>}}"
    );
}

/// Accepts nothing, or only what begins like a date.
struct Picky<const DATE: bool>;

impl<'de, const DATE: bool> Deserialize<'de> for Picky<DATE> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        assert!(!text.is_empty(), "it panics");
        let accepts = DATE && text.starts_with("2000");
        accepts.then_some(Picky).ok_or_else(|| serde::de::Error::custom("it is no date"))
    }
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape is asked for")]
struct After<T> {
    before: u8,
    it: T,
    after: u16,
}

#[test]
fn what_refuses_a_sample_is_tried_with_others_and_what_refuses_all_hides_what_follows() {
    assert_eq!(text::<After<Picky<true>>>(), "After {before: u8, it: text, after: u16}");
    assert_eq!(text::<After<Picky<false>>>(), "After {before: u8, it: text, after: ?}");
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape is asked for")]
struct Endless(Box<Endless>, u8);

#[test]
fn a_type_that_cannot_be_made_or_that_is_long_has_a_shape_too() {
    assert_eq!(text::<Endless>(), "Endless(Endless {..}, ?)");
    type Ten<T> = (T, T, u8, T, T, u16, T, T, u8, T);
    // They differ where the text is cut off.
    let (long, other) = (text::<(Ten<Ten<Point>>, u8)>(), text::<(Ten<Ten<Point>>, u16)>());
    assert!(long.len() < LONGEST + 30 && long.contains(".. #"), "{long}");
    assert_ne!(long, other);
    assert!(of::<Ten<Point>>().has_names() && !of::<Ten<u8>>().has_names());
}
