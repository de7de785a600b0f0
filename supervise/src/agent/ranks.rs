//! Ranks: which worker is which, on one machine and on several.
//!
//! Each agent (a *node* here) starts workers of one role. Global ranks count all workers of all nodes, in the order of the nodes. Role ranks count the workers of
//! one role, in the same order. Local ranks count the workers of one node. Each numbering begins at 0 and has no gaps.

/// One agent among several: what it runs. For [`LocalAgentBuilder::among`](super::LocalAgentBuilder::among).
///
/// ```
/// use forebear_supervise::agent::{Node, assign_ranks};
///
/// let nodes = [Node::new("trainer", 2), Node::new("reader", 1), Node::new("trainer", 3)];
/// let last = assign_ranks(&nodes, 2).unwrap();
/// assert_eq!((last[0].rank, last[0].world_size), (3, 6));
/// assert_eq!((last[0].role_rank, last[0].role_world_size), (2, 5));
/// assert_eq!((last[2].local_rank, last[2].local_world_size), (2, 3));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// What its workers do.
    pub role: String,
    /// How many workers it has.
    pub workers: usize,
}

impl Node {
    /// A node with so many workers of this role.
    ///
    /// ```
    /// use forebear_supervise::agent::Node;
    /// assert_eq!(Node::new("trainer", 4).workers, 4);
    /// ```
    pub fn new(role: impl Into<String>, workers: usize) -> Node {
        Node { role: role.into(), workers }
    }
}

/// The numbers of one worker.
///
/// ```
/// use forebear_supervise::agent::{Node, assign_ranks};
/// let alone = assign_ranks(&[Node::new("trainer", 2)], 0).unwrap();
/// assert_eq!((alone[1].rank, alone[1].group_rank, alone[1].group_world_size), (1, 0, 1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Ranks {
    /// Its number among all workers.
    pub rank: usize,
    /// How many workers there are.
    pub world_size: usize,
    /// Its number among the workers of its agent.
    pub local_rank: usize,
    /// How many workers its agent has.
    pub local_world_size: usize,
    /// Its number among the workers of its role.
    pub role_rank: usize,
    /// How many workers of its role there are.
    pub role_world_size: usize,
    /// The number of its agent.
    pub group_rank: usize,
    /// How many agents there are.
    pub group_world_size: usize,
}

/// How many workers an agent can have.
pub(super) const MOST_WORKERS: usize = 1 << 16;

/// The ranks of the workers of `nodes[own]`, in the order of their local ranks. `None`: there is no such node, or one of them has more workers than an agent can
/// have (65,536).
///
/// ```
/// use forebear_supervise::agent::{Node, assign_ranks};
/// assert!(assign_ranks(&[Node::new("trainer", 2)], 1).is_none());
/// assert!(assign_ranks(&[Node::new("trainer", 2), Node::new("trainer", usize::MAX)], 0).is_none());
/// ```
#[must_use]
pub fn assign_ranks(nodes: &[Node], own: usize) -> Option<Vec<Ranks>> {
    let me = nodes.get(own)?;
    if nodes.iter().any(|node| node.workers > MOST_WORKERS) {
        return None;
    }
    // No sum overflows: a node takes more than 16 bytes of an address space of at most 2^48.
    let sum = |nodes: &[Node]| nodes.iter().map(|node| node.workers).sum::<usize>();
    let of_role = |nodes: &[Node]| {
        nodes.iter().filter(|node| node.role == me.role).map(|node| node.workers).sum::<usize>()
    };
    let (before, role_before) = (sum(&nodes[..own]), of_role(&nodes[..own]));
    let (world_size, role_world_size) = (sum(nodes), of_role(nodes));
    let of = |local_rank| Ranks {
        rank: before + local_rank,
        world_size,
        local_rank,
        local_world_size: me.workers,
        role_rank: role_before + local_rank,
        role_world_size,
        group_rank: own,
        group_world_size: nodes.len(),
    };
    Some((0..me.workers).map(of).collect())
}
