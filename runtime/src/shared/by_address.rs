//! Lists of things by their addresses, which threads enter and leave.
//!
//! They are hash maps: nothing needs an order, and the code of an ordered map is several times as large, in every program. The hash has no secret, since
//! nobody chooses addresses.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

/// Room that an empty list keeps.
const ROOM: usize = 1024;

/// Things by their addresses.
pub(crate) type ByAddress<T> = HashMap<usize, T, BuildHasherDefault<DefaultHasher>>;

/// An empty list.
pub(crate) const fn new<T>() -> ByAddress<T> {
    HashMap::with_hasher(BuildHasherDefault::new())
}

/// Takes what stands there. The memory of a list that was long goes when the list is empty.
pub(crate) fn remove<T>(list: &mut ByAddress<T>, address: usize) -> Option<T> {
    let removed = list.remove(&address);
    if list.is_empty() && list.capacity() > ROOM {
        list.shrink_to(0);
    }
    removed
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_was_long_keeps_no_memory_when_it_is_empty() {
        let mut list = new();
        (0..10 * ROOM).for_each(|address| _ = list.insert(address, ()));
        (1..10 * ROOM).for_each(|address| assert_eq!(remove(&mut list, address), Some(())));
        assert!(list.capacity() > ROOM && list.contains_key(&0));
        assert_eq!((remove(&mut list, 0), remove(&mut list, 0)), (Some(()), None));
        assert_eq!(list.capacity(), 0);
    }
}
