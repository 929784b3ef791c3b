//! The command: finding it, how it ended, and the tree of processes that grows from it.

mod tree;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};
use serde::{Deserialize, Serialize};

pub use tree::{Left, Tree, Why};
pub(crate) use tree::{children_of, is_stopped, parent_of};

use crate::error::Error;

/// Where commands are looked for when PATH is not set, as the C library does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The longest part shown of PATH.
const MOST_SHOWN: usize = 120;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// With this code, 0 to 255.
    Code(i32),
    /// Of this signal.
    Signal(i32),
}

/// A command that was found and can probably be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    path: PathBuf,
    argv: Vec<OsString>,
}

impl Program {
    /// The command of these words, the first of which names it. The words are passed on as they are.
    pub fn find(argv: Vec<OsString>) -> Result<Self, Error> {
        let name = argv.first().map(OsString::as_os_str).unwrap_or_default();
        let path = find(name)?;
        Ok(Self { path, argv })
    }

    /// `/bin/sh -c text`.
    pub fn shell(text: OsString) -> Result<Self, Error> {
        Self::find(vec!["/bin/sh".into(), "-c".into(), text])
    }

    /// The file that is run.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The words it is given, its name first.
    pub fn argv(&self) -> &[OsString] {
        &self.argv
    }

    /// Its name for people, without its directory and arguments.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned()
    }

    /// Why it could not be started after all, from the `errno` of the attempt.
    pub fn not_started(&self, errno: i32) -> Error {
        let (path, reason) = (self.path.display(), io::Error::from_raw_os_error(errno));
        match errno {
            libc::ENOENT => Error::NotFound(format!(
                "`{path}` cannot be run: it is gone, or the interpreter that its first line names does not exist"
            )),
            libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::ESRCH => {
                Error::Os(format!("cannot start a process for `{path}`: {reason}"))
            }
            _ => Error::CannotRun(format!("`{path}` cannot be run: {reason}")),
        }
    }
}

/// The file that execvp(3) would run for `name`.
pub fn find(name: &OsStr) -> Result<PathBuf, Error> {
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    find_in(name, &path)
}

fn find_in(name: &OsStr, path: &OsStr) -> Result<PathBuf, Error> {
    let shown = name.display();
    // A command line that was quoted as one word.
    let has_blank = name.as_bytes().contains(&b' ');
    let hint = if has_blank { "; for a line of shell give -c before it" } else { "" };
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return match look_at(&file) {
            Found::Program => Ok(file),
            Found::Nothing => {
                Err(Error::NotFound(format!("`{shown}` does not exist; check the path of the command{hint}")))
            }
            Found::Unusable(why) => Err(Error::CannotRun(format!("`{shown}` cannot be run: {why}"))),
        };
    }
    let mut unusable = None;
    for directory in path.as_bytes().split(|byte| *byte == b':').filter(|_| !name.is_empty()) {
        // An empty entry is the working directory.
        let directory = if directory.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(directory)) };
        let file = directory.join(name);
        match look_at(&file) {
            Found::Program => return Ok(file),
            Found::Nothing => {}
            Found::Unusable(why) => unusable = unusable.or(Some((file, why))),
        }
    }
    let chars: Vec<char> = path.to_string_lossy().chars().collect();
    let searched: String = if chars.len() > MOST_SHOWN {
        let (begin, end) = (&chars[..MOST_SHOWN / 2], &chars[chars.len() - MOST_SHOWN / 2..]);
        begin.iter().chain(['…'].iter()).chain(end).collect()
    } else {
        chars.iter().collect()
    };
    Err(match unusable {
        Some((file, why)) => Error::CannotRun(format!("`{}` cannot be run: {why}", file.display())),
        None => {
            Error::NotFound(format!("`{shown}` was not found in PATH={searched}; give its full path or set PATH{hint}"))
        }
    })
}

enum Found {
    Program,
    Unusable(String),
    Nothing,
}

fn look_at(file: &Path) -> Found {
    match fs::metadata(file) {
        Ok(meta) if meta.is_dir() => Found::Unusable("it is a directory".into()),
        Ok(_) => match faccessat(AT_FDCWD, file, AccessFlags::X_OK, AtFlags::AT_EACCESS) {
            Ok(()) => Found::Program,
            Err(_) => Found::Unusable("it is not executable (see chmod +x, and mount options)".into()),
        },
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Found::Unusable(error.to_string()),
        Err(_) => Found::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn file(path: &Path, mode: u32) {
        fs::write(path, "true\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_search_goes_as_execvp_goes() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir_all(a.join("both")).unwrap();
        fs::create_dir(&b).unwrap();
        file(&a.join("plain"), 0o644);
        file(&a.join("later"), 0o644);
        file(&b.join("later"), 0o755);
        file(&b.join("both"), 0o755);
        symlink("/no/such/file", a.join("dangling")).unwrap();
        let path: OsString = format!("/no/such:{}::{}", a.display(), b.display()).into();
        let look = |name: &str| find_in(name.as_ref(), &path);

        assert_eq!(look("later"), Ok(b.join("later")), "what cannot be run is passed over");
        assert_eq!(look("both"), Ok(b.join("both")), "so is a directory");
        assert!(matches!(look("plain"), Err(Error::CannotRun(text)) if text.contains("not executable")));
        assert!(matches!(look("missing"), Err(Error::NotFound(text)) if text.contains(path.to_str().unwrap())));
        assert!(matches!(look("dangling"), Err(Error::NotFound(_))));
        assert!(matches!(look(""), Err(Error::NotFound(_))));
        let line = look("echo hi").unwrap_err().to_string();
        assert!(line.contains("give -c before it"), "{line}");
        let line = find_in("missing".as_ref(), "/no/such/directory:".repeat(100).as_ref()).unwrap_err().to_string();
        assert!(line.contains('…') && line.chars().count() < 200, "{line}");
        assert_eq!(find_in("src".as_ref(), "".as_ref()).unwrap_err().code(), 126, "an empty entry is here");
    }

    #[test]
    fn a_name_with_a_slash_is_not_searched() {
        let dir = tempfile::tempdir().unwrap();
        let (plain, script) = (dir.path().join("plain"), dir.path().join("script"));
        file(&plain, 0o644);
        file(&script, 0o700);
        let look = |path: &Path| find_in(path.as_os_str(), "".as_ref());
        assert_eq!(look(&script), Ok(script.clone()));
        assert_eq!(look(&plain).unwrap_err().code(), 126);
        assert_eq!(look(dir.path()).unwrap_err().code(), 126);
        assert_eq!(look(&script.join("below")).unwrap_err().code(), 127);
        assert_eq!(look(&dir.path().join("none")).unwrap_err().code(), 127);
    }

    #[test]
    fn the_shell_gets_its_text_as_one_word() {
        let program = Program::shell("echo 'a b'; exit 3".into()).unwrap();
        assert_eq!(program.argv(), ["/bin/sh", "-c", "echo 'a b'; exit 3"]);
        assert_eq!(program.name(), "sh");
    }

    #[test]
    fn a_failed_start_has_the_code_that_env_gives() {
        let program = Program::shell("true".into()).unwrap();
        assert_eq!(program.not_started(libc::ENOENT).code(), 127);
        assert_eq!(program.not_started(libc::ENOEXEC).code(), 126);
        assert_eq!(program.not_started(libc::E2BIG).code(), 126);
        assert_eq!(program.not_started(libc::EAGAIN).code(), 71);
    }
}
