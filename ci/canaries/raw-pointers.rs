// Placed for ci/raw-pointers, and never compiled: a safe public function of each form that it has to see, with `//~` and what it is to print, and
// functions that are none. Laid out by rustfmt, as what it reads is.

pub fn takes(at: *const u8) -> bool { //~ raw-pointers::takes
    at.is_null()
}

pub const fn gives() -> *mut u8 { //~ raw-pointers::gives
    std::ptr::null_mut()
}

pub extern "C" fn called(at: *mut u8) { //~ raw-pointers::called
    drop(at);
}

pub fn on_several_lines( //~ raw-pointers::on_several_lines
    first: usize,
    second: Option<NonNull<u8>>,
) -> Option<usize> {
    second.map(|_| first)
}

pub fn names_a_type(node: &CanaryNode) -> bool { //~ raw-pointers::names_a_type
    node.is_last()
}

pub unsafe fn is_unsafe(at: *const u8) -> u8 {
    // SAFETY: by contract; nobody compiles this.
    unsafe { *at }
}

pub(crate) fn is_not_public(at: *const u8) -> bool {
    at.is_null()
}

fn is_private(at: *const u8) -> bool {
    at.is_null()
}

pub fn has_none(at: &u8) -> u8 {
    *at
}

pub struct CanaryNode {
    next: *const CanaryNode,
}

impl CanaryNode {
    pub fn new() -> CanaryNode { //~ CanaryNode::new
        CanaryNode { next: std::ptr::null() }
    }

    pub fn is_last(&self) -> bool { //~ CanaryNode::is_last
        self.next.is_null()
    }

    fn is_private_too(&self) -> bool {
        self.next.is_null()
    }
}

impl Default for CanaryNode {
    fn default() -> CanaryNode {
        CanaryNode::new()
    }
}

pub struct CanaryList<T> {
    first: Option<CanaryNode>,
    kind: PhantomData<T>,
}

impl<T: Clone> CanaryList<T> {
    pub fn is_empty(&self) -> bool { //~ CanaryList::is_empty
        self.first.is_none()
    }
}

pub enum CanaryPlace {
    Nowhere,
    At(AtomicPtr<u8>),
}

impl CanaryPlace {
    pub fn is_known(&self) -> bool { //~ CanaryPlace::is_known
        matches!(self, CanaryPlace::At(_))
    }
}

pub trait CanaryLinked {
    fn link(&self) -> *const u8; //~ CanaryLinked::link

    fn many(&self) -> usize;
}

pub struct CanaryPlain {
    at: usize,
}

impl CanaryPlain {
    pub fn points(&self, to: NonNull<u8>) -> bool { //~ CanaryPlain::points
        self.at == to.addr().get()
    }

    pub fn is_null(&self) -> bool {
        self.at == 0
    }
}

#[cfg(test)]
mod tests {
    pub fn of_a_test(at: *const u8) -> bool {
        at.is_null()
    }
}
