//! What a probe has been asked, as a tree, and its text.

use std::fmt;

/// What was asked at one place.
pub(super) enum ShapeNode {
    Unknown,
    Leaf(&'static str),
    Option(Box<ShapeNode>),
    Seq(Box<ShapeNode>),
    Map(Box<(ShapeNode, ShapeNode)>),
    /// Without a name: a tuple or an array.
    Tuple(&'static str, Vec<ShapeNode>),
    Struct(&'static str, Vec<(&'static str, ShapeNode)>),
    Enum(&'static str, Vec<Variant>),
    /// A type within itself.
    Again(&'static str),
}

/// A variant of an enum, and what a pass has found of it.
pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) node: ShapeNode,
    pub(super) tried: Tried,
}

/// Whether a pass has chosen a variant, and whether a value came of it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Tried {
    No,
    Refused,
    Made,
}

impl ShapeNode {
    fn children(&self) -> Vec<&ShapeNode> {
        match self {
            ShapeNode::Unknown | ShapeNode::Leaf(_) | ShapeNode::Again(_) => Vec::new(),
            ShapeNode::Option(node) | ShapeNode::Seq(node) => vec![node],
            ShapeNode::Map(entry) => vec![&entry.0, &entry.1],
            ShapeNode::Tuple(_, nodes) => nodes.iter().collect(),
            ShapeNode::Struct(_, fields) => fields.iter().map(|(_, node)| node).collect(),
            ShapeNode::Enum(_, variants) => variants.iter().map(|variant| &variant.node).collect(),
        }
    }

    pub(super) fn size(&self) -> usize {
        1 + self.children().into_iter().map(ShapeNode::size).sum::<usize>()
    }

    pub(super) fn has_names(&self) -> bool {
        match self {
            ShapeNode::Struct(..) | ShapeNode::Enum(..) => true,
            ShapeNode::Tuple(name, _) if !name.is_empty() => true,
            _ => self.children().into_iter().any(ShapeNode::has_names),
        }
    }

    pub(super) fn has_untried(&self) -> bool {
        match self {
            ShapeNode::Enum(_, variants) if variants.iter().any(|variant| variant.tried == Tried::No) => true,
            _ => self.children().into_iter().any(ShapeNode::has_untried),
        }
    }

    /// Those that were refused are to be tried again.
    pub(super) fn try_refused(&mut self) {
        match self {
            ShapeNode::Unknown | ShapeNode::Leaf(_) | ShapeNode::Again(_) => {}
            ShapeNode::Option(node) | ShapeNode::Seq(node) => node.try_refused(),
            ShapeNode::Map(entry) => {
                entry.0.try_refused();
                entry.1.try_refused();
            }
            ShapeNode::Tuple(_, nodes) => nodes.iter_mut().for_each(ShapeNode::try_refused),
            ShapeNode::Struct(_, fields) => fields.iter_mut().for_each(|(_, node)| node.try_refused()),
            ShapeNode::Enum(_, variants) => {
                for variant in variants {
                    if variant.tried == Tried::Refused {
                        variant.tried = Tried::No;
                    }
                    variant.node.try_refused();
                }
            }
        }
    }

    pub(super) fn count_tried(&self) -> usize {
        let here = match self {
            ShapeNode::Enum(_, variants) => {
                variants.iter().filter(|variant| variant.tried != Tried::No).count()
            }
            _ => 0,
        };
        here + self.children().into_iter().map(ShapeNode::count_tried).sum::<usize>()
    }
}

impl fmt::Display for ShapeNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShapeNode::Unknown => f.write_str("?"),
            ShapeNode::Leaf(name) => f.write_str(name),
            ShapeNode::Again(name) => write!(f, "{name} {{..}}"),
            ShapeNode::Option(node) => write!(f, "Option<{node}>"),
            ShapeNode::Seq(node) => write!(f, "[{node}]"),
            ShapeNode::Map(entry) => write!(f, "{{{}: {}}}", entry.0, entry.1),
            ShapeNode::Tuple(name, nodes) => {
                let texts: Vec<String> = nodes.iter().map(ShapeNode::to_string).collect();
                match &texts[..] {
                    [first, .., last] if texts.len() > 3 && texts.iter().all(|text| text == last) => {
                        write!(f, "{name}[{first}; {}]", texts.len())
                    }
                    texts => write!(f, "{name}({})", texts.join(", ")),
                }
            }
            ShapeNode::Struct(name, fields) => {
                write!(f, "{name} {{")?;
                for (at, (name, node)) in fields.iter().enumerate() {
                    write!(f, "{}{name}: {node}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
            ShapeNode::Enum(name, variants) => {
                write!(f, "{name} {{")?;
                for (at, Variant { name, node, .. }) in variants.iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { " | " })?;
                    match node {
                        ShapeNode::Leaf("") => f.write_str(name)?,
                        ShapeNode::Tuple("", _) | ShapeNode::Struct("", _) => write!(f, "{name}{node}")?,
                        node => write!(f, "{name}({node})")?,
                    }
                }
                f.write_str("}")
            }
        }
    }
}
