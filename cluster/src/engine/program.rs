//! [`own_program`]: what an engine starts as its worker.

use std::env::current_exe;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// The executable of this process, as the kernel knows it.
const ITSELF: &str = "/proc/self/exe";

/// What starts this program once more, also after its file was replaced or removed, as by a build or an upgrade: the path of the executable while that leads to
/// it, else a name by which the kernel finds it. For engines that start workers.
///
/// A worker thus has the tasks of this process, not those of a newer file.
///
/// # Errors
///
/// If the system does not tell the path.
///
/// ```
/// let program = forebear_cluster::engine::own_program()?;
/// assert_eq!(program, std::env::current_exe()?); // nobody has replaced it
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn own_program() -> io::Result<OsString> {
    let path = current_exe()?;
    let file = |path: &std::path::Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let is_it = file(&path).is_some_and(|found| file(ITSELF.as_ref()).is_none_or(|own| own == found));
    Ok(if is_it { path.into_os_string() } else { ITSELF.into() })
}
