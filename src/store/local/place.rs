//! Where the local store is: one directory of this host for each user, theirs alone.
//!
//! The directory is chosen by the user's number alone and never by the environment, so that a run by hand meets the
//! runs of cron. It is looked at afresh for every operation: nothing that happened to it meanwhile goes unnoticed.

use std::fmt;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, mkdirat};
use nix::sys::statfs::fstatfs;
use nix::unistd::{Uid, User, geteuid};

use crate::store::{Reply, Trouble, decode};

/// root's directory.
const OF_ROOT: &str = "/run/rlock";
/// Everybody else's, below their home.
const OF_USER: &str = ".local/state/rlock";

/// How a directory is opened that only stands in a path.
pub(super) const STEP: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
/// What is ours is nobody else's.
pub(super) const OURS: Mode = Mode::S_IRWXU;

/// A directory, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address(Result<PathBuf, String>);

impl Address {
    /// This user's own directory.
    pub(crate) fn own() -> Self {
        let user = geteuid();
        if user.is_root() {
            return Self(Ok(OF_ROOT.into()));
        }
        Self(home(user).map(|home| home.join(OF_USER)).map_err(|why| {
            format!("local: {why}; name a directory of your own, as in RLOCK_URL=local:/path, or a server")
        }))
    }

    /// The directory that `rest`, the URL after `local:`, names; or the rest of a sentence "the URL …".
    pub(crate) fn parse(rest: &str) -> Result<Self, String> {
        if rest.is_empty() {
            return Ok(Self::own());
        }
        if rest.contains(['?', '#']) {
            return Err("has a `?` or a `#`, which mean nothing in local:/path; write %3F or %23 where they are part \
                        of the path"
                .into());
        }
        let path = PathBuf::from(decode(rest).ok_or("has a path with a bad percent-encoding")?);
        let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !is_plain || !path.is_absolute() || path == Path::new("/") {
            return Err("names no directory of its own; write the whole path, as in local:/var/lib/rlock".into());
        }
        Ok(Self(Ok(path)))
    }

    /// Whether there is a directory at all.
    pub(crate) fn is_known(&self) -> bool {
        self.0.is_ok()
    }

    /// The path.
    pub(super) fn path(&self) -> Reply<&Path> {
        self.0.as_deref().map_err(|why| Trouble::Config(why.clone()))
    }

    /// The directory, made where it is missing if `make` says so; none where it is missing and not made.
    pub(super) fn open(&self, make: bool) -> Reply<Option<OwnedFd>> {
        let path = self.path()?;
        let mut at = open("/", STEP, Mode::empty()).map_err(|errno| self.failed("cannot open /", errno))?;
        for name in path.components().skip(1) {
            let name = name.as_os_str();
            let mut next = openat(&at, name, STEP, Mode::empty());
            if matches!(next, Err(Errno::ENOENT)) {
                if !make {
                    return Ok(None);
                }
                match mkdirat(&at, name, OURS) {
                    // Another may have been faster.
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(errno) => return Err(self.failed("cannot make the directory", errno)),
                }
                next = openat(&at, name, STEP, Mode::empty());
            }
            at = match next {
                Ok(next) => next,
                Err(Errno::ENOTDIR | Errno::ELOOP) => {
                    let link = fstatat(&at, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok_and(|stat| is_link(&stat));
                    let is = if link { "a symbolic link, and rlock follows none" } else { "not a directory" };
                    let name = name.display();
                    return Err(Trouble::Config(format!("{self}: `{name}` is {is}; remove it, or name a directory")));
                }
                Err(errno) => return Err(self.failed("cannot open the directory", errno)),
            };
        }
        self.check(&at)?;
        Ok(Some(at))
    }

    /// Ours, closed to others, and on a disk of this host.
    fn check(&self, root: &OwnedFd) -> Reply<()> {
        let stat = fstat(root).map_err(|errno| self.failed("cannot look at the directory", errno))?;
        let wrong = |text: String| Err(Trouble::Config(format!("{self}: {text}")));
        if stat.st_uid != geteuid().as_raw() {
            let (owner, us) = (user_name(Uid::from_raw(stat.st_uid)), user_name(geteuid()));
            return wrong(format!("the directory belongs to {owner}, not to {us}; remove it or name another"));
        }
        if stat.st_mode & 0o077 != 0 {
            let mode = stat.st_mode & 0o777;
            return wrong(format!("the directory is open to others (mode {mode:o}); chmod 700 it"));
        }
        let kind = fstatfs(root).map_err(|errno| self.failed("cannot look at the file system", errno))?;
        match shared(i128::from(kind.filesystem_type().0), || mount_type(root)) {
            Some(kind) => wrong(format!(
                "the directory is on {kind}, whose locks reach beyond this host or not even there; name a directory on \
                 a local disk, or a server"
            )),
            None => Ok(()),
        }
    }

    /// What a failed call means for the operation.
    pub(super) fn failed(&self, what: &str, errno: Errno) -> Trouble {
        if let Some(trouble) = Trouble::of_os(self, what, errno) {
            return trouble;
        }
        let desc = errno.desc();
        match errno {
            Errno::ENOSPC | Errno::EDQUOT => {
                Trouble::Later(format!("{self}: {what}: the disk is full ({desc}); make room on it"))
            }
            Errno::EROFS | Errno::EACCES | Errno::EPERM => {
                Trouble::Config(format!("{self}: {what}: {desc}; see to its owner, its mode and its mount"))
            }
            // No waiting would mend these.
            Errno::EMFILE => Trouble::Config(format!("{self}: {what}: {desc}; raise `ulimit -n`")),
            Errno::EFBIG => Trouble::Config(format!("{self}: {what}: {desc}; raise `ulimit -f`")),
            Errno::ENAMETOOLONG => Trouble::Config(format!("{self}: {what}: {desc}; name a shorter one")),
            Errno::ELOOP | Errno::ENOTDIR | Errno::EISDIR => {
                Trouble::Config(format!("{self}: {what}: {desc}; something else stands in its place, remove that"))
            }
            _ => Trouble::Later(format!("{self}: {what}: {desc}")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("local:")?;
        self.0.as_ref().map_or(Ok(()), |path| path.display().fmt(f))
    }
}

/// The home of the password database. What leads to it is the administrator's, links included.
fn home(user: Uid) -> Result<PathBuf, String> {
    let known = User::from_uid(user).map_err(|errno| format!("cannot look up user {user}: {}", errno.desc()))?;
    let home = known.ok_or_else(|| format!("user {user} is in no password database and has no home"))?.dir;
    if home.as_os_str().is_empty() {
        return Err(format!("user {user} has no home in the password database"));
    }
    fs::canonicalize(&home).map_err(|error| format!("the home {} cannot be used: {error}", home.display()))
}

fn user_name(user: Uid) -> String {
    User::from_uid(user).ok().flatten().map_or_else(|| format!("user {user}"), |user| user.name)
}

fn is_link(stat: &FileStat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFLNK
}

/// File systems that other hosts write too, or that a program may bring from anywhere.
const SHARED: [(i128, &str); 17] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9P"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x564c, "NCP"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x786f_4256, "a VirtualBox share"),
    (0xbacb_acbc, "a VMware share"),
];
const FUSE: i128 = 0x6573_5546;
/// Of those that programs bring, the ones that keep their files on a disk of this host.
const OF_THIS_HOST: [&str; 6] =
    ["fuseblk", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.encfs", "fuse.mergerfs", "fuse.bindfs"];

/// The name of a file system that is not this host's alone.
fn shared(kind: i128, mount_type: impl FnOnce() -> Option<String>) -> Option<String> {
    // Some machines know these numbers as negative ones.
    let kind = kind & 0xffff_ffff;
    if kind != FUSE {
        return SHARED.iter().find(|(shared, _)| *shared == kind).map(|(_, name)| (*name).to_owned());
    }
    let mount_type = mount_type().unwrap_or_else(|| "fuse".into());
    (!OF_THIS_HOST.contains(&mount_type.as_str())).then_some(mount_type)
}

/// The type that an open directory is mounted with.
fn mount_type(directory: impl AsFd) -> Option<String> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.as_fd().as_raw_fd())).ok()?;
    let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(mount))?;
    line.split_once(" - ")?.1.split(' ').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read() {
        for (rest, shown) in
            [("/x", "local:/x"), ("/a%20b/c", "local:/a b/c"), ("/x/", "local:/x/"), ("//x", "local:/x")]
        {
            let address = Address::parse(rest).expect(rest);
            assert_eq!(address.path(), Address::parse(shown.strip_prefix("local:").unwrap()).unwrap().path(), "{rest}");
        }
        for rest in ["x", "/", "/x?db=1", "/x#y", "/%zz", "/a/../b", "./x", "/%00"] {
            assert!(Address::parse(rest).is_err(), "{rest}");
        }
        assert_eq!(Address::parse(""), Ok(Address::own()));
    }

    #[test]
    fn what_is_not_this_hosts_alone_is_known_by_its_number_and_its_type() {
        let of = |kind, mounted: &str| shared(kind, || Some(mounted.to_owned()));
        assert_eq!(of(0x6969, ""), Some("NFS".into()));
        assert_eq!(of(-11_317_950, ""), Some("CIFS".into()), "as a negative number");
        assert_eq!((of(0xef53, ""), of(0x0102_1994, "")), (None, None), "ext4 and tmpfs");
        assert_eq!((of(FUSE, "fuse.sshfs"), of(FUSE, "fuseblk")), (Some("fuse.sshfs".into()), None));
        assert_eq!(shared(FUSE, || None), Some("fuse".into()));
        assert_eq!(mount_type(fs::File::open("/proc").unwrap()), Some("proc".into()));
    }
}
