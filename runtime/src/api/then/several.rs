//! [`Dependencies`]: tuples and rows of requests that another one follows.

use std::ptr::NonNull;

use forebear_context::error::WaitError;

use crate::api::request::Request;
use crate::api::then::dependent::ErasedHandle;
#[cfg(doc)]
use crate::then_all;

/// Several requests that another one follows: a tuple of up to six references, or a reference to a slice, an array or a `Vec`. See [`then_all`].
///
/// ```
/// use forebear::{Dependencies, Request, then_all};
///
/// /// A request that is over when all these are.
/// fn after<D: Dependencies>(dependencies: D) -> Request<()> {
///     then_all(dependencies, |_| ())
/// }
/// let (one, two) = (Request::new(|| 1), Request::new(|| 2));
/// after((&one, &two)).wait()?;
/// assert!(one.is_done() && two.is_done());
/// let more: Vec<_> = (0..10).map(|n| Request::new(move || n)).collect();
/// let sum = then_all(&more, |values| values.into_iter().sum::<i32>());
/// assert_eq!(sum.wait()?, &45);
/// # Ok::<(), forebear::WaitError>(())
/// ```
pub trait Dependencies: sealed::Sealed {
    /// What the dependent gets.
    type Values<'a>;

    /// The values of all dependencies, or the error of the first that has none.
    ///
    /// # Safety
    ///
    /// `value` answers where the value of the dependency with this number lies, which the edge of this number leads to.
    #[doc(hidden)]
    unsafe fn values<'a>(
        len: usize,
        value: &dyn Fn(usize) -> Result<NonNull<()>, WaitError>,
    ) -> Result<Self::Values<'a>, WaitError>;
}

mod sealed {
    /// Only the types here are dependencies.
    pub trait Sealed {
        /// How many they are.
        fn count(&self) -> usize;
        /// A handle of one of them; `None` behind the last.
        fn handle(&self, at: usize) -> Option<super::ErasedHandle>;
    }
}

macro_rules! rows {
    ($([$($n:tt)*] $row:ty),+) => {$(
        impl<T: Send + Sync + 'static, $($n)*> sealed::Sealed for $row {
            fn count(&self) -> usize {
                self.len()
            }

            fn handle(&self, at: usize) -> Option<ErasedHandle> {
                self.get(at).map(ErasedHandle::of)
            }
        }

        impl<T: Send + Sync + 'static, $($n)*> Dependencies for $row {
            type Values<'a> = Vec<&'a T>;

            unsafe fn values<'a>(
                len: usize,
                value: &dyn Fn(usize) -> Result<NonNull<()>, WaitError>,
            ) -> Result<Vec<&'a T>, WaitError> {
                // SAFETY: by contract.
                (0..len).map(|at| Ok(unsafe { value(at)?.cast::<T>().as_ref() })).collect()
            }
        }
    )+};
}

rows! { [] &[Request<T>], [] &Vec<Request<T>>, [const N: usize] &[Request<T>; N] }

macro_rules! tuples {
    ($($($T:ident $at:tt),+;)+) => {$(
        impl<$($T: Send + Sync + 'static),+> sealed::Sealed for ($(&Request<$T>,)+) {
            fn count(&self) -> usize {
                [$($at),+].len()
            }

            fn handle(&self, at: usize) -> Option<ErasedHandle> {
                match at {
                    $($at => Some(ErasedHandle::of(self.$at)),)+
                    _ => None,
                }
            }
        }
        impl<$($T: Send + Sync + 'static),+> Dependencies for ($(&Request<$T>,)+) {
            type Values<'a> = ($(&'a $T,)+);

            unsafe fn values<'a>(
                _: usize,
                value: &dyn Fn(usize) -> Result<NonNull<()>, WaitError>,
            ) -> Result<($(&'a $T,)+), WaitError> {
                // SAFETY: by contract.
                Ok(($(unsafe { value($at)?.cast::<$T>().as_ref() },)+))
            }
        }
    )+};
}

tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
}
