//! What a probe has been asked, as a tree, and its text.

use std::fmt;

/// What was asked at one place.
pub(super) enum Node {
    Unknown,
    Leaf(&'static str),
    Option(Box<Node>),
    Seq(Box<Node>),
    Map(Box<(Node, Node)>),
    /// Without a name: a tuple or an array.
    Tuple(&'static str, Vec<Node>),
    Struct(&'static str, Vec<(&'static str, Node)>),
    Enum(&'static str, Vec<Variant>),
    /// A type within itself.
    Again(&'static str),
}

/// A variant of an enum, and what a pass has found of it.
pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) node: Node,
    pub(super) tried: Tried,
}

/// Whether a pass has chosen a variant, and whether a value came of it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Tried {
    No,
    Refused,
    Made,
}

impl Node {
    fn children(&self) -> Vec<&Node> {
        match self {
            Node::Unknown | Node::Leaf(_) | Node::Again(_) => Vec::new(),
            Node::Option(node) | Node::Seq(node) => vec![node],
            Node::Map(entry) => vec![&entry.0, &entry.1],
            Node::Tuple(_, nodes) => nodes.iter().collect(),
            Node::Struct(_, fields) => fields.iter().map(|(_, node)| node).collect(),
            Node::Enum(_, variants) => variants.iter().map(|variant| &variant.node).collect(),
        }
    }

    pub(super) fn size(&self) -> usize {
        1 + self.children().into_iter().map(Node::size).sum::<usize>()
    }

    pub(super) fn has_names(&self) -> bool {
        match self {
            Node::Struct(..) | Node::Enum(..) => true,
            Node::Tuple(name, _) if !name.is_empty() => true,
            _ => self.children().into_iter().any(Node::has_names),
        }
    }

    pub(super) fn has_untried(&self) -> bool {
        match self {
            Node::Enum(_, variants) if variants.iter().any(|variant| variant.tried == Tried::No) => true,
            _ => self.children().into_iter().any(Node::has_untried),
        }
    }

    /// Those that were refused are to be tried again.
    pub(super) fn try_refused(&mut self) {
        match self {
            Node::Unknown | Node::Leaf(_) | Node::Again(_) => {}
            Node::Option(node) | Node::Seq(node) => node.try_refused(),
            Node::Map(entry) => {
                entry.0.try_refused();
                entry.1.try_refused();
            }
            Node::Tuple(_, nodes) => nodes.iter_mut().for_each(Node::try_refused),
            Node::Struct(_, fields) => fields.iter_mut().for_each(|(_, node)| node.try_refused()),
            Node::Enum(_, variants) => {
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
            Node::Enum(_, variants) => variants.iter().filter(|variant| variant.tried != Tried::No).count(),
            _ => 0,
        };
        here + self.children().into_iter().map(Node::count_tried).sum::<usize>()
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Unknown => f.write_str("?"),
            Node::Leaf(name) => f.write_str(name),
            Node::Again(name) => write!(f, "{name} {{..}}"),
            Node::Option(node) => write!(f, "Option<{node}>"),
            Node::Seq(node) => write!(f, "[{node}]"),
            Node::Map(entry) => write!(f, "{{{}: {}}}", entry.0, entry.1),
            Node::Tuple(name, nodes) => {
                let texts: Vec<String> = nodes.iter().map(Node::to_string).collect();
                match &texts[..] {
                    [first, .., last] if texts.len() > 3 && texts.iter().all(|text| text == last) => {
                        write!(f, "{name}[{first}; {}]", texts.len())
                    }
                    texts => write!(f, "{name}({})", texts.join(", ")),
                }
            }
            Node::Struct(name, fields) => {
                write!(f, "{name} {{")?;
                for (at, (name, node)) in fields.iter().enumerate() {
                    write!(f, "{}{name}: {node}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
            Node::Enum(name, variants) => {
                write!(f, "{name} {{")?;
                for (at, Variant { name, node, .. }) in variants.iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { " | " })?;
                    match node {
                        Node::Leaf("") => f.write_str(name)?,
                        Node::Tuple("", _) | Node::Struct("", _) => write!(f, "{name}{node}")?,
                        node => write!(f, "{name}({node})")?,
                    }
                }
                f.write_str("}")
            }
        }
    }
}
