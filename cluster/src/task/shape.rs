//! [`of`]: the shape of a type, as text: what the type asks of its deserializer.
//!
//! Neither the name of a type nor its bytes in postcard describe its fields. So a struct whose fields have changed
//! would decode the bytes of an older program, and decode them wrongly. Therefore the signature of a task has the
//! shapes of its types, too.
//!
//! # How a shape is found
//!
//! The [`Probe`] is a deserializer without input. It answers each question of a type by a sample, and writes the question down. So the shape is what `Deserialize` does, derived or by hand, and the
//! same program always finds the same.
//!
//! * An enum is probed once for each variant: each *pass* chooses, in each enum that it meets, a variant that has not been tried.
//! * A type within itself is written by its name alone, and made as small as possible: options are empty there, and so are sequences and maps. An enum is made there of a variant that does not
//!   contain the enum. Until a pass has found one, the variants that need it are refused; then they are tried again.
//! * A type may refuse a sample: a text that is no date. What was asked before is known then, and what follows is not. It is tried with a few other [`samples`](SAMPLES).
//!
//! # What it does not see
//!
//! What a type does with the values: a length in metres that becomes one in feet has the same shape. What follows a value that refuses all samples. What a token stands for: a
//! [`PerWorker`](crate::PerWorker) or [`Stored`](crate::Stored) is a few numbers.

mod node;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserializer;
use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use self::node::{ShapeNode, Tried, Variant};
use crate::error::drop_payload;

/// So many questions are answered for one type.
const STEPS: usize = 20_000;
/// No type is probed more often.
const PASSES: usize = 500;
/// A longer text is cut, and its hash stands for the rest.
const LONGEST: usize = 500;

/// Numbers, texts and lengths of bytes that a value may accept.
const SAMPLES: [(u8, &str, usize); 4] =
    [(1, "1", 16), (0, "", 0), (2, "2000-01-01T00:00:00Z", 32), (3, "http://a.b/", 4)];

/// The shape of a type.
pub(super) struct Shape(ShapeNode);

/// Probes a type.
pub(super) fn of<T: DeserializeOwned>() -> Shape {
    let mut best = ShapeNode::Unknown;
    for sample in 0..SAMPLES.len() {
        let (node, whole) = explore::<T>(sample);
        if whole || node.size() > best.size() {
            best = node;
        }
        if whole {
            break;
        }
    }
    Shape(best)
}

/// What there is with this sample, and whether a value was made.
fn explore<T: DeserializeOwned>(sample: usize) -> (ShapeNode, bool) {
    let (mut node, mut whole) = (ShapeNode::Unknown, false);
    let (mut steps, mut small) = (STEPS, Vec::new());
    for _ in 0..PASSES {
        let before = (node.count_tried(), small.len());
        let mut walk = Walk {
            open: Vec::new(),
            inner: 0,
            again: Vec::new(),
            small: &mut small,
            steps: &mut steps,
            sample,
        };
        let probe = Probe { node: &mut node, walk: &mut walk };
        // A type that panics on a sample refuses it; so does one whose value, or payload, panics when it is dropped.
        whole |= match catch_unwind(AssertUnwindSafe(|| T::deserialize(probe).is_ok())) {
            Ok(made) => made,
            Err(payload) => {
                drop_payload(payload);
                false
            }
        };
        if small.len() > before.1 {
            node.try_refused();
        } else if !node.has_untried() || node.count_tried() == before.0 {
            break;
        }
    }
    (node, whole)
}

impl Shape {
    /// It has a struct or an enum: the names of its types do not say all.
    pub(super) fn has_names(&self) -> bool {
        self.0.has_names()
    }
}

/// Cut, if it is long.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        if text.len() <= LONGEST {
            return f.write_str(&text);
        }
        let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        // FNV-1a: the same on each machine, and in each version of the compiler.
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        write!(f, "{}.. #{hash:016x}", &text[..end])
    }
}

/// A type: its name, and those of its fields or variants. Two types may have one name.
type Key = (&'static str, &'static [&'static str]);

/// What all probes of a pass share.
struct Walk<'a> {
    /// The types that are being made, from outside in.
    open: Vec<Key>,
    /// So deep it is in a type that is within itself.
    inner: usize,
    /// The types that were found within themselves.
    again: Vec<Key>,
    /// Of each enum a variant that does not contain the enum.
    small: &'a mut Vec<(Key, usize)>,
    steps: &'a mut usize,
    sample: usize,
}

/// A deserializer that answers by samples, and writes into `node` what it was asked.
struct Probe<'a, 'w> {
    node: &'a mut ShapeNode,
    walk: &'a mut Walk<'w>,
}

impl<'a, 'w> Probe<'a, 'w> {
    fn leaf(self, name: &'static str) -> Result<(u8, &'static str, usize), Error> {
        self.walk.step()?;
        *self.node = ShapeNode::Leaf(name);
        Ok(SAMPLES[self.walk.sample])
    }

    /// Makes a type that has a name. If it is within itself, what it asks is not written down again.
    fn named<T>(
        self,
        name: &'static str,
        parts: &'static [&'static str],
        make: impl FnOnce(&mut ShapeNode, &mut Walk<'w>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Probe { node, walk } = self;
        walk.step()?;
        let key = (name, parts);
        let again = walk.open.contains(&key);
        walk.open.push(key);
        let made = if again {
            *node = ShapeNode::Again(name);
            walk.again.push(key);
            walk.inner += 1;
            let made = make(&mut ShapeNode::Unknown, walk);
            walk.inner -= 1;
            made
        } else {
            make(node, walk)
        };
        walk.open.pop();
        made
    }
}

impl Walk<'_> {
    fn step(&mut self) -> Result<(), Error> {
        *self.steps = self.steps.checked_sub(1).ok_or_else(|| Error::custom("it asks too much"))?;
        // Each step takes some of the stack.
        if self.inner > 32 || self.open.len() > 64 { Err(Error::custom("it has no end")) } else { Ok(()) }
    }
}

fn seq_of(node: &mut ShapeNode) -> &mut ShapeNode {
    if !matches!(node, ShapeNode::Seq(_)) {
        *node = ShapeNode::Seq(Box::new(ShapeNode::Unknown));
    }
    match node {
        ShapeNode::Seq(inner) => inner,
        _ => unreachable!("it was made a sequence"),
    }
}

fn tuple_of<'a>(node: &'a mut ShapeNode, name: &'static str, length: usize) -> &'a mut Vec<ShapeNode> {
    if !matches!(node, ShapeNode::Tuple(is, nodes) if *is == name && nodes.len() == length) {
        *node = ShapeNode::Tuple(name, std::iter::repeat_with(|| ShapeNode::Unknown).take(length).collect());
    }
    match node {
        ShapeNode::Tuple(_, nodes) => nodes,
        _ => unreachable!("it was made a tuple"),
    }
}

fn struct_of<'a>(
    node: &'a mut ShapeNode,
    name: &'static str,
    fields: &'static [&'static str],
) -> &'a mut Vec<(&'static str, ShapeNode)> {
    if !matches!(node, ShapeNode::Struct(is, nodes) if *is == name && nodes.len() == fields.len()) {
        *node = ShapeNode::Struct(name, fields.iter().map(|field| (*field, ShapeNode::Unknown)).collect());
    }
    match node {
        ShapeNode::Struct(_, nodes) => nodes,
        _ => unreachable!("it was made a struct"),
    }
}

/// Gives an element for each node.
struct Elements<'a, 'w, I> {
    nodes: I,
    walk: &'a mut Walk<'w>,
}

impl<'a, 'w, 'n, 'de, I: ExactSizeIterator<Item = &'n mut ShapeNode>> SeqAccess<'de> for Elements<'a, 'w, I> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(node) = self.nodes.next() else { return Ok(None) };
        seed.deserialize(Probe { node, walk: self.walk }).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.nodes.len())
    }
}

/// Gives one entry, or none.
struct Entries<'a, 'w> {
    key: Option<&'a mut ShapeNode>,
    value: Option<&'a mut ShapeNode>,
    walk: &'a mut Walk<'w>,
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(node) = self.key.take() else { return Ok(None) };
        seed.deserialize(Probe { node, walk: self.walk }).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let node = self.value.take().ok_or_else(|| Error::custom("there is one entry"))?;
        seed.deserialize(Probe { node, walk: self.walk })
    }

    fn size_hint(&self) -> Option<usize> {
        Some(usize::from(self.key.is_some()))
    }
}

/// Gives this variant.
struct Chosen<'a, 'w> {
    index: usize,
    payload: Probe<'a, 'w>,
}

impl<'a, 'w, 'de> EnumAccess<'de> for Chosen<'a, 'w> {
    type Error = Error;
    type Variant = Probe<'a, 'w>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Probe<'a, 'w>), Error> {
        let index: serde::de::value::U32Deserializer<Error> = (self.index as u32).into_deserializer();
        Ok((seed.deserialize(index)?, self.payload))
    }
}

impl<'de> VariantAccess<'de> for Probe<'_, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        *self.node = ShapeNode::Leaf("");
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        let nodes = tuple_of(self.node, "", length).iter_mut();
        visitor.visit_seq(Elements { nodes, walk: self.walk })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let nodes = struct_of(self.node, "", fields).iter_mut().map(|(_, node)| node);
        visitor.visit_seq(Elements { nodes, walk: self.walk })
    }
}

/// A number, by the sample.
macro_rules! numbers {
    ($($method:ident, $visit:ident, $name:literal, $type:ty;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            let (number, ..) = self.leaf($name)?;
            visitor.$visit(number as $type)
        })*
    };
}

impl<'de> Deserializer<'de> for Probe<'_, '_> {
    type Error = Error;

    numbers! {
        deserialize_i8, visit_i8, "i8", i8;
        deserialize_i16, visit_i16, "i16", i16;
        deserialize_i32, visit_i32, "i32", i32;
        deserialize_i64, visit_i64, "i64", i64;
        deserialize_i128, visit_i128, "i128", i128;
        deserialize_u8, visit_u8, "u8", u8;
        deserialize_u16, visit_u16, "u16", u16;
        deserialize_u32, visit_u32, "u32", u32;
        deserialize_u64, visit_u64, "u64", u64;
        deserialize_u128, visit_u128, "u128", u128;
        deserialize_f32, visit_f32, "f32", f32;
        deserialize_f64, visit_f64, "f64", f64;
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let (number, ..) = self.leaf("bool")?;
        visitor.visit_bool(number == 1)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf("char")?;
        visitor.visit_char('1')
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let (_, text, _) = self.leaf("text")?;
        visitor.visit_str(text)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let (.., length) = self.leaf("bytes")?;
        visitor.visit_bytes(&[1; 32][..length])
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf("()")?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.leaf(name)?;
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.walk.step()?;
        if self.walk.inner > 0 {
            return visitor.visit_none();
        }
        if !matches!(self.node, ShapeNode::Option(_)) {
            *self.node = ShapeNode::Option(Box::new(ShapeNode::Unknown));
        }
        match self.node {
            ShapeNode::Option(node) => visitor.visit_some(Probe { node, walk: self.walk }),
            _ => unreachable!("it was made an option"),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.walk.step()?;
        let elements = usize::from(self.walk.inner == 0);
        let nodes = std::slice::from_mut(seq_of(self.node))[..elements].iter_mut();
        visitor.visit_seq(Elements { nodes, walk: self.walk })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.walk.step()?;
        if !matches!(self.node, ShapeNode::Map(_)) {
            *self.node = ShapeNode::Map(Box::new((ShapeNode::Unknown, ShapeNode::Unknown)));
        }
        let ShapeNode::Map(entry) = self.node else { unreachable!("it was made a map") };
        let (key, value) = &mut **entry;
        let has = self.walk.inner == 0;
        visitor.visit_map(Entries { key: has.then_some(key), value: Some(value), walk: self.walk })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.walk.step()?;
        let nodes = tuple_of(self.node, "", length).iter_mut();
        visitor.visit_seq(Elements { nodes, walk: self.walk })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.named(name, &[], |node, walk| {
            let node = &mut tuple_of(node, name, 1)[0];
            visitor.visit_newtype_struct(Probe { node, walk })
        })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.named(name, &[], |node, walk| {
            let nodes = tuple_of(node, name, length).iter_mut();
            visitor.visit_seq(Elements { nodes, walk })
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.named(name, fields, |node, walk| {
            let nodes = struct_of(node, name, fields).iter_mut().map(|(_, node)| node);
            visitor.visit_seq(Elements { nodes, walk })
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let key = (name, variants);
        self.named(name, variants, |node, walk| {
            if !matches!(node, ShapeNode::Enum(is, known) if *is == name && known.len() == variants.len()) {
                let untried =
                    |name: &&'static str| Variant { name, node: ShapeNode::Unknown, tried: Tried::No };
                *node = ShapeNode::Enum(name, variants.iter().map(untried).collect());
            }
            let ShapeNode::Enum(_, known) = node else { unreachable!("it was made an enum") };
            let small = walk.small.iter().find(|(of, _)| *of == key).map(|(_, index)| *index);
            let is_again = walk.open.iter().filter(|open| **open == key).count() > 1;
            let index = if let (Some(small), true) = (small, walk.inner > 0) {
                small
            } else if is_again {
                return Err(Error::custom("it is not known how to make a small one"));
            } else {
                let is_open = |variant: &Variant| variant.tried == Tried::No || variant.node.has_untried();
                let is_made = |variant: &Variant| variant.tried == Tried::Made;
                known.iter().position(is_open).or_else(|| known.iter().position(is_made)).unwrap_or(0)
            };
            let Some(chosen) = known.get_mut(index) else { return Err(Error::custom("it has no variant")) };
            if chosen.tried == Tried::No {
                chosen.tried = Tried::Refused;
            }
            let before = walk.again.len();
            let payload = Probe { node: &mut chosen.node, walk: &mut *walk };
            let made = visitor.visit_enum(Chosen { index, payload })?;
            chosen.tried = Tried::Made;
            if small.is_none() && !walk.again[before..].contains(&key) {
                walk.small.push((key, index));
            }
            Ok(made)
        })
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        self.leaf("any")?;
        Err(Error::custom("nothing says what it is"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    /// As postcard is.
    fn is_human_readable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
