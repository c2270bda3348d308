//! Encodes and decodes the records of docs/internals/launcher-protocol.md; no I/O, no policy.

use crate::cgroup::meter::Reading;
use crate::error::Error;
use crate::notes::Sums;
use crate::sockets::Found;

pub const VERSION: u16 = 1;
/// The largest record either side sends.
pub const MESSAGE_MAX: usize = 64 * 1024;
/// Targets lie in 0..64 and are distinct, so more descriptors cannot be meant.
pub const FDS_MAX: usize = 64;

/// Sockets of one question: the answer fits a record.
pub const SOCKETS_MAX: usize = 2048;

/// Descriptors of one proc that sigmad may have kept.
pub const KEPT_MAX: usize = 8;

/// A START as it came, bounds checked, meaning not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Start {
    pub weaken: u32,
    pub id: u64,
    pub profile: u32,
    pub uid: u32,
    pub gid: u32,
    pub pids_max: u32,
    pub memory_max: u64,
    pub cpu_shares: u32,
    pub nofile: u32,
    pub targets: Vec<u32>,
    pub group: Vec<u8>,
    /// Directory below the data directory, or empty: all of the data directory. Profile system
    /// only.
    pub subdir: Vec<u8>,
    pub argv: Vec<Vec<u8>>,
    pub envp: Vec<Vec<u8>>,
}

/// A GROUP as it came. It holds from now on, whether or not there are leaves in the group yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupShare {
    pub cpu_shares: u32,
    /// Processor time that all of it may use, in thousandths of a core; 0: no limit.
    pub quota_milli: u32,
    /// 1: it runs only where nothing else of its parent wants to.
    pub idle: u32,
    pub group: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Start(Start),
    Kill {
        id: u64,
    },
    Signal {
        id: u64,
        signo: u32,
    },
    Freeze {
        id: u64,
    },
    Thaw {
        id: u64,
    },
    Meter {
        id: u64,
    },
    /// What a group of leaves has, beside its siblings.
    Group(GroupShare),
    /// Nobody needs this group any more.
    Drop {
        group: Vec<u8>,
    },
    /// The second group stands aside while threads of the first wait for a processor.
    Yield {
        first: Vec<u8>,
        second: Vec<u8>,
    },
    /// Which of these sockets does the proc still have open? `shut` ends them for both sides.
    Sockets {
        id: u64,
        ask: u64,
        shut: bool,
        inodes: Vec<u64>,
    },
    /// With descriptors. Without any it brings another label for a proc that is kept already.
    Keep {
        id: u64,
        label: Vec<u8>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Started { id: u64, pid: u32, received: u64, cloned: u64, contained: u64, exec: u64 },
    Failed { id: u64, error: Error },
    Exited { id: u64, wait_status: i32, flags: u32, user_us: u64, system_us: u64, memory_peak: u64 },
    Frozen { id: u64, errno: i32 },
    Thawed { id: u64, errno: i32 },
    Metered { id: u64, reading: Reading },
    Sockets { ask: u64, found: Vec<Found> },
    Yielded(Sums),
}

/// EXITED: the kernel's out-of-memory killer took a process of the proc.
pub const FLAG_OOM: u32 = 1;
/// EXITED: a KILL message came before the end.
pub const FLAG_KILLED: u32 = 2;

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Error::Malformed("too short"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    fn u16(&mut self) -> Result<u16, Error> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn strings(&mut self, count: u16) -> Result<Vec<Vec<u8>>, Error> {
        // No capacity from the wire: each string costs at least four bytes of a bounded message.
        let mut out = Vec::new();
        for _ in 0..count {
            let len = self.u32()?;
            out.push(self.bytes(len as usize)?.to_vec());
        }
        Ok(out)
    }
}

/// Decodes one record of sigmad's.
pub fn decode(message: &[u8]) -> Result<Request, Error> {
    if message.len() > MESSAGE_MAX {
        return Err(Error::Malformed("too long"));
    }
    let mut r = Reader(message);
    let kind = r.u16()?;
    if r.u16()? != VERSION {
        return Err(Error::Malformed("unknown version"));
    }
    let request = match kind {
        1 => Request::Start(decode_start(&mut r)?),
        2 => Request::Kill { id: r.u64()? },
        3 => Request::Signal { id: r.u64()?, signo: r.u32()? },
        4 => Request::Freeze { id: r.u64()? },
        5 => Request::Thaw { id: r.u64()? },
        8 => Request::Meter { id: r.u64()? },
        9 => {
            let (id, len) = (r.u64()?, r.u16()?);
            Request::Keep { id, label: r.bytes(len as usize)?.to_vec() }
        }
        10 => {
            let (cpu_shares, quota_milli, idle, len) = (r.u32()?, r.u32()?, r.u32()?, r.u16()?);
            Request::Group(GroupShare { cpu_shares, quota_milli, idle, group: r.bytes(len as usize)?.to_vec() })
        }
        11 => {
            let (id, ask, shut, count) = (r.u64()?, r.u64()?, r.u32()?, r.u16()?);
            if count as usize > SOCKETS_MAX {
                return Err(Error::Malformed("too many sockets"));
            }
            let inodes = (0..count).map(|_| r.u64()).collect::<Result<_, _>>()?;
            Request::Sockets { id, ask, shut: shut != 0, inodes }
        }
        12 => {
            let len = r.u16()?;
            let first = r.bytes(len as usize)?.to_vec();
            let len = r.u16()?;
            Request::Yield { first, second: r.bytes(len as usize)?.to_vec() }
        }
        13 => {
            let len = r.u16()?;
            Request::Drop { group: r.bytes(len as usize)?.to_vec() }
        }
        _ => return Err(Error::Malformed("unknown type")),
    };
    if !r.0.is_empty() {
        return Err(Error::Malformed("trailing bytes"));
    }
    Ok(request)
}

fn decode_start(r: &mut Reader) -> Result<Start, Error> {
    let mut start = Start {
        weaken: r.u32()?,
        id: r.u64()?,
        profile: r.u32()?,
        uid: r.u32()?,
        gid: r.u32()?,
        pids_max: r.u32()?,
        memory_max: r.u64()?,
        cpu_shares: r.u32()?,
        nofile: r.u32()?,
        ..Start::default()
    };
    let (argc, envc, nfds) = (r.u16()?, r.u16()?, r.u16()?);
    let (group_len, subdir_len) = (r.u16()?, r.u16()?);
    if nfds as usize > FDS_MAX {
        return Err(Error::Malformed("too many descriptors"));
    }
    for _ in 0..nfds {
        start.targets.push(r.u32()?);
    }
    start.group = r.bytes(group_len as usize)?.to_vec();
    start.subdir = r.bytes(subdir_len as usize)?.to_vec();
    start.argv = r.strings(argc)?;
    start.envp = r.strings(envc)?;
    Ok(start)
}

/// Encodes one record for sigmad.
pub fn encode(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    match *reply {
        Reply::Started { id, pid, received, cloned, contained, exec } => {
            head(&mut out, 16, id);
            out.extend(pid.to_le_bytes());
            for time in [received, cloned, contained, exec] {
                out.extend(time.to_le_bytes());
            }
        }
        Reply::Failed { id, error } => {
            head(&mut out, 17, id);
            out.extend(error.errno().to_le_bytes());
            out.extend(error.number().to_le_bytes());
            let name = error.step().as_bytes();
            out.extend((name.len() as u16).to_le_bytes());
            out.extend(name);
        }
        Reply::Exited { id, wait_status, flags, user_us, system_us, memory_peak } => {
            head(&mut out, 18, id);
            out.extend(wait_status.to_le_bytes());
            out.extend(flags.to_le_bytes());
            for figure in [user_us, system_us, memory_peak] {
                out.extend(figure.to_le_bytes());
            }
        }
        Reply::Frozen { id, errno } => {
            head(&mut out, 20, id);
            out.extend(errno.to_le_bytes());
        }
        Reply::Thawed { id, errno } => {
            head(&mut out, 21, id);
            out.extend(errno.to_le_bytes());
        }
        Reply::Metered { id, reading } => {
            head(&mut out, 24, id);
            for figure in [reading.user_us, reading.system_us, reading.memory, reading.memory_peak] {
                out.extend(figure.to_le_bytes());
            }
            out.extend(reading.tasks.to_le_bytes());
        }
        Reply::Yielded(sums) => {
            head(&mut out, 28, 0);
            for figure in [sums.looks, sums.pushes, sums.waited_ns, sums.cpu_ns] {
                out.extend(figure.to_le_bytes());
            }
        }
        Reply::Sockets { ask, ref found } => {
            head(&mut out, 27, ask);
            out.extend((found.len() as u16).to_le_bytes());
            for figure in found.iter().flat_map(|one| [one.inode, one.sent, one.received]) {
                out.extend(figure.to_le_bytes());
            }
        }
    }
    out
}

/// Tells a new sigmad of a proc that another one had started; its descriptors come along.
pub fn adopt(id: u64, pid: u32, label: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(18 + label.len());
    head(&mut out, 25, id);
    out.extend(pid.to_le_bytes());
    out.extend((label.len() as u16).to_le_bytes());
    out.extend(label);
    out
}

/// Tells a new sigmad that it has heard of all, how many launchers the keeper had before, and the
/// age of this one.
pub fn done(before: u32, age_s: u32) -> Vec<u8> {
    [&26u16.to_le_bytes()[..], &VERSION.to_le_bytes(), &before.to_le_bytes(), &age_s.to_le_bytes()].concat()
}

/// The keeper's record that a control socket comes with, to sigmad and to the launcher.
pub fn control() -> Vec<u8> {
    [32u16.to_le_bytes(), VERSION.to_le_bytes()].concat()
}

/// The kind of socket that sigmad's record SOCKET asks the keeper for: AF_INET or AF_INET6 for TCP,
/// AF_NETLINK for one that hears of the ends of TCP connections.
pub fn socket_family(record: &[u8]) -> Option<i32> {
    let head = [33u16.to_le_bytes(), VERSION.to_le_bytes()].concat();
    let family: [u8; 4] = record.strip_prefix(head.as_slice())?.try_into().ok()?;
    Some(i32::from_le_bytes(family)).filter(|family| [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].contains(family))
}

/// The keeper's answer, with which the socket comes unless there is an errno.
pub fn socket(errno: i32) -> Vec<u8> {
    [&33u16.to_le_bytes()[..], &VERSION.to_le_bytes(), &errno.to_le_bytes()].concat()
}

fn head(out: &mut Vec<u8>, kind: u16, id: u64) {
    out.extend(kind.to_le_bytes());
    out.extend(VERSION.to_le_bytes());
    out.extend(id.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;

    /// A START written by hand from the table, so that the decoder is not checked against itself.
    fn start_bytes() -> Vec<u8> {
        let mut m = vec![1, 0, 1, 0];
        m.extend(3u32.to_le_bytes()); // weaken
        m.extend(77u64.to_le_bytes()); // id
        m.extend(0u32.to_le_bytes()); // profile
        m.extend(1001u32.to_le_bytes()); // uid
        m.extend(1002u32.to_le_bytes()); // gid
        m.extend(32u32.to_le_bytes()); // pids_max
        m.extend(1_000_000u64.to_le_bytes()); // memory_max
        m.extend(512u32.to_le_bytes()); // cpu_shares
        m.extend(256u32.to_le_bytes()); // nofile
        for count in [1u16, 2, 2, 10, 2] {
            m.extend(count.to_le_bytes());
        }
        m.extend(1u32.to_le_bytes());
        m.extend(3u32.to_le_bytes());
        m.extend(b"default/be");
        m.extend(b"d1");
        for s in [&b"hello"[..], b"A=1", b""] {
            m.extend((s.len() as u32).to_le_bytes());
            m.extend(s);
        }
        m
    }

    #[test]
    fn start_is_read_as_written_in_the_document() {
        let got = decode(&start_bytes()).unwrap();
        let want = Request::Start(Start {
            weaken: 3,
            id: 77,
            profile: 0,
            uid: 1001,
            gid: 1002,
            pids_max: 32,
            memory_max: 1_000_000,
            cpu_shares: 512,
            nofile: 256,
            targets: vec![1, 3],
            group: b"default/be".to_vec(),
            subdir: b"d1".to_vec(),
            argv: vec![b"hello".to_vec()],
            envp: vec![b"A=1".to_vec(), vec![]],
        });
        assert_eq!(got, want);
    }

    #[test]
    fn every_cut_and_every_extra_byte_is_refused() {
        let m = start_bytes();
        for len in 0..m.len() {
            assert!(decode(&m[..len]).is_err(), "prefix of {len} bytes");
        }
        let mut longer = m.clone();
        longer.push(0);
        assert_eq!(decode(&longer), Err(Error::Malformed("trailing bytes")));
        let mut version = m;
        version[2] = 2;
        assert_eq!(decode(&version), Err(Error::Malformed("unknown version")));
        assert_eq!(decode(&[99, 0, 1, 0]), Err(Error::Malformed("unknown type")));
    }

    #[test]
    fn keep_and_adopt() {
        let mut m = vec![9, 0, 1, 0];
        m.extend(7u64.to_le_bytes());
        m.extend([3, 0]);
        m.extend(b"abc");
        assert_eq!(decode(&m), Ok(Request::Keep { id: 7, label: b"abc".to_vec() }));
        assert!(decode(&m[..m.len() - 1]).is_err());
        let mut want = vec![25, 0, 1, 0];
        want.extend(7u64.to_le_bytes());
        want.extend([9, 0, 0, 0, 3, 0]);
        want.extend(b"abc");
        assert_eq!(adopt(7, 9, b"abc"), want);
        assert_eq!(done(2, 300), [26, 0, 1, 0, 2, 0, 0, 0, 44, 1, 0, 0]);
    }

    #[test]
    fn group_is_read_as_written_in_the_document() {
        let mut m = vec![10, 0, 1, 0];
        for field in [768u32, 1500, 1] {
            m.extend(field.to_le_bytes());
        }
        m.extend(5u16.to_le_bytes());
        m.extend(b"be/or");
        let want = GroupShare { cpu_shares: 768, quota_milli: 1500, idle: 1, group: b"be/or".to_vec() };
        assert_eq!(decode(&m).unwrap(), Request::Group(want));
        assert!(decode(&m[..m.len() - 1]).is_err(), "a group that is cut");
        m.push(0);
        assert!(decode(&m).is_err(), "a byte too many");
    }

    #[test]
    fn yield_is_read_as_written_in_the_document() {
        let mut m = vec![12, 0, 1, 0, 2, 0];
        m.extend(b"lc");
        m.extend([2, 0]);
        m.extend(b"be");
        let want = Request::Yield { first: b"lc".to_vec(), second: b"be".to_vec() };
        assert_eq!(decode(&m).unwrap(), want);
        assert!(decode(&m[..m.len() - 1]).is_err(), "a group that is cut");
        m.push(0);
        assert!(decode(&m).is_err(), "a byte too many");
        let drop = b"\x0d\0\x01\0\x02\0lc";
        assert_eq!(decode(drop).unwrap(), Request::Drop { group: b"lc".to_vec() });
        assert!(decode(&drop[..7]).is_err(), "a group that is cut");
        let sums = Sums { looks: 1, pushes: 2, waited_ns: 3, cpu_ns: 4 };
        let mut want = vec![28, 0, 1, 0];
        for figure in [0u64, 1, 2, 3, 4] {
            want.extend(figure.to_le_bytes());
        }
        assert_eq!(encode(&Reply::Yielded(sums)), want);
    }

    #[test]
    fn kill_and_signal() {
        let mut m = vec![2, 0, 1, 0];
        m.extend(5u64.to_le_bytes());
        assert_eq!(decode(&m), Ok(Request::Kill { id: 5 }));
        m[0] = 3;
        m.extend(15u32.to_le_bytes());
        assert_eq!(decode(&m), Ok(Request::Signal { id: 5, signo: 15 }));
        m.truncate(12);
        for (kind, want) in
            [(4, Request::Freeze { id: 5 }), (5, Request::Thaw { id: 5 }), (8, Request::Meter { id: 5 })]
        {
            m[0] = kind;
            assert_eq!(decode(&m), Ok(want));
        }
    }

    /// Deterministic noise, half of it grown from a valid START, must decode or be refused, never
    /// panic.
    #[test]
    fn noise_never_panics() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let valid = start_bytes();
        let mut accepted = 0;
        for round in 0..200_000 {
            let mut m = if round % 2 == 0 { (0..next() % 128).map(|_| next() as u8).collect() } else { valid.clone() };
            for _ in 0..next() % 4 {
                if !m.is_empty() {
                    let at = next() as usize % m.len();
                    m[at] = next() as u8;
                }
            }
            accepted += decode(&m).is_ok() as u32;
        }
        assert!(accepted > 1000, "only {accepted} accepted: the mutations are too coarse");
    }

    #[test]
    fn replies_are_laid_out_as_in_the_document() {
        let started = Reply::Started { id: 1, pid: 2, received: 3, cloned: 4, contained: 5, exec: 6 };
        let mut want = vec![16, 0, 1, 0];
        want.extend(1u64.to_le_bytes());
        want.extend(2u32.to_le_bytes());
        for v in [3u64, 4, 5, 6] {
            want.extend(v.to_le_bytes());
        }
        assert_eq!(encode(&started), want);

        let failed = Reply::Failed { id: 1, error: Error::Exec(Errno(8)) };
        let mut want = vec![17, 0, 1, 0];
        want.extend(1u64.to_le_bytes());
        want.extend(8i32.to_le_bytes());
        want.extend([30, 0, 4, 0]);
        want.extend(b"exec");
        assert_eq!(encode(&failed), want);

        let exited = Reply::Exited { id: 1, wait_status: 256, flags: 2, user_us: 3, system_us: 4, memory_peak: 5 };
        let mut want = vec![18, 0, 1, 0];
        want.extend(1u64.to_le_bytes());
        want.extend(256i32.to_le_bytes());
        want.extend(2u32.to_le_bytes());
        for v in [3u64, 4, 5] {
            want.extend(v.to_le_bytes());
        }
        assert_eq!(encode(&exited), want);

        let frozen = [20, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0];
        assert_eq!(encode(&Reply::Frozen { id: 1, errno: 3 }), frozen);
        assert_eq!(encode(&Reply::Thawed { id: 1, errno: 3 })[0], 21);

        let reading = Reading { user_us: 2, system_us: 3, memory: 4, memory_peak: 5, tasks: 6 };
        let mut want = vec![24, 0, 1, 0];
        for v in [1u64, 2, 3, 4, 5] {
            want.extend(v.to_le_bytes());
        }
        want.extend(6u32.to_le_bytes());
        assert_eq!(encode(&Reply::Metered { id: 1, reading }), want);
    }
}
