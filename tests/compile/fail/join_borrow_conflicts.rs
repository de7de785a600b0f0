//! Both arms of a join may run at once.
use forebear::join;

fn main() {
    let mut sum = 0;
    join(|| sum += 1, || sum += 2); //~ E0499 cannot borrow `sum` as mutable more than once at a time
}
