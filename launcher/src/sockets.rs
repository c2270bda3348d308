//! Finds the sockets that a proc was passed among its descriptors, by their numbers, and shuts them
//! down. sigmad keeps no copy of what it passes, or nobody would see a proc close its end
//! (docs/adr/0020).

use crate::sys::{self, Result, socket};
use std::os::fd::{AsRawFd, OwnedFd};

/// A socket that is still open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub inode: u64,
    /// Bytes that the other side has acknowledged, and that came from it; 0 for what is not TCP.
    pub sent: u64,
    pub received: u64,
}

/// Looks for sockets among the descriptors of the processes; `wanted` is sorted. What ends
/// meanwhile is not found.
pub fn find(pids: &[i32], wanted: &[u64], shut: bool) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for pid in pids {
        // Opened first, so that whatever process the number means it is one and the same from here
        // on. A socket's number is its own on the whole host, so that even the wrong process could
        // not give a wrong socket.
        let Ok(pidfd) = sys::pidfd_open(*pid) else { continue };
        let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for entry in entries.flatten() {
            let Some(inode) = std::fs::read_link(entry.path()).ok().and_then(|to| number(to.to_str()?)) else {
                continue;
            };
            if wanted.binary_search(&inode).is_err() || found.iter().any(|other| other.inode == inode) {
                continue;
            }
            let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Ok(Some(one)) = take(&pidfd, fd, inode, shut) {
                found.push(one);
                if found.len() == wanted.len() {
                    return found;
                }
            }
        }
    }
    found
}

/// The number in the text of a link to a socket.
fn number(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Copies a descriptor of a process; None if it is another socket by now.
fn take(pidfd: &OwnedFd, fd: i32, inode: u64, shut: bool) -> Result<Option<Found>> {
    let copy = sys::pidfd_getfd(pidfd, fd)?;
    if sys::identity(copy.as_raw_fd())?.1 != inode {
        return Ok(None);
    }
    let (sent, received) = socket::tcp_bytes(&copy).unwrap_or_default();
    if shut {
        socket::shut_down(&copy);
    }
    Ok(Some(Found { inode, sent, received }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    fn inode(fd: &impl AsRawFd) -> u64 {
        sys::identity(fd.as_raw_fd()).unwrap().1
    }

    #[test]
    fn links_of_sockets_and_no_others_have_a_number() {
        assert_eq!(number("socket:[17]"), Some(17));
        for other in ["pipe:[17]", "socket:[17", "socket:17", "socket:[-1]", "socket:[]", "/x/socket:[17]"] {
            assert_eq!(number(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_wanted_is_found_and_shut_down_and_nothing_else() {
        let pids = [sys::getpid()];
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let (mut kept, mut other) = UnixStream::pair().unwrap();
        let mut wanted = vec![inode(&near), u64::MAX];
        wanted.sort();
        let looked = find(&pids, &wanted, false);
        assert_eq!(looked, [Found { inode: inode(&near), sent: 0, received: 0 }]);
        near.write_all(b"x").unwrap();
        far.read_exact(&mut [0]).unwrap();

        assert_eq!(find(&pids, &wanted, true).len(), 1);
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        assert!(near.write_all(b"x").is_err());
        kept.write_all(b"x").unwrap();
        other.read_exact(&mut [0]).unwrap();
        let gone = vec![inode(&near)];
        drop(near);
        assert_eq!(find(&pids, &gone, true), []);
    }

    #[test]
    fn tcp_says_how_much_it_carried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[0; 1000]).unwrap();
        far.read_exact(&mut [0; 1000]).unwrap();
        let found = find(&[sys::getpid()], &[inode(&far)], false);
        assert_eq!(found.first().map(|one| one.received), Some(1000));
    }
}
