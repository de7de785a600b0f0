//! What stores an address that forebear follows later is `unsafe`: a program without `unsafe` cannot leave such an address behind.

use std::ptr;

use forebear_context::context::edge::Ahead;
use forebear_context::context::{Context, ForeignContext, Reason, WaitNode, with_foreign};
use forebear_context::lineage::Lineage;
use forebear_sync::primitive::Place;

fn main() {
    let root = Lineage::root(1, 1);
    let _ = Lineage::child(&root, 1); //~ E0133 call to unsafe function `Lineage::child`
    let _ = Lineage::rooted_child(&root, 1, 2); //~ E0133 call to unsafe function `Lineage::rooted_child`
    let _ = Context::new(&const { ForeignContext::TABLE }); //~ E0133 call to unsafe function
    with_foreign(|context| {
        let ticket = context.begin(Reason::Lock, ptr::null_mut()); //~ E0133 call to unsafe function
        context.lead(Ahead::Unknown); //~ E0133 call to unsafe function
        context.bind(ticket); //~ E0133 call to unsafe function
        context.complete(Ahead::Unknown); //~ E0133 call to unsafe function
        context.abandon(ticket); //~ E0133 call to unsafe function
        context.settle_chosen(ticket); //~ E0133 call to unsafe function
        let _ = WaitNode::new(context, ticket); //~ E0133 call to unsafe function `WaitNode::new`
        let _ = Place::new(context, ticket, ()); //~ E0133 call to unsafe function `Place::<T>::new`
    });
}
