//! SOCK_SEQPACKET sockets with descriptors and credentials beside the bytes.

use super::{Result, check, own};
use crate::error::Errno;
use libc::{c_int, c_long, c_void};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Room for SCM_MAX_FD (253) descriptors: the kernel never passes more in one message.
const CONTROL_BYTES: usize = 2048;

pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the array has room for the two numbers that the kernel writes.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } as c_long)?;
    Ok((own(fds[0] as c_long), own(fds[1] as c_long)))
}

/// A TCP socket, unconnected, that does not block.
pub fn tcp(family: c_int) -> Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes plain numbers.
    check(unsafe { libc::socket(family, kind, 0) } as c_long).map(own)
}

/// Hears of the end of each TCP connection of this network namespace, with what it carried
/// (sock_diag(7)), and of nothing else: its filter passes what the kernel says by itself (nlmsg_pid
/// 0), and no answer to a question.
pub fn tcp_ends() -> Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes plain numbers.
    let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) } as c_long).map(own)?;
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NLMSG_PID_AT),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let (at, len) = ((&raw const program).cast(), size_of_val(&program) as libc::socklen_t);
    // SAFETY: the program and its steps are live, and their sizes are passed.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at, len) } as c_long)?;
    // SAFETY: sockaddr_nl is plain numbers, for which all zeroes is a value.
    let mut to: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    to.nl_family = libc::AF_NETLINK as u16;
    to.nl_groups = TCP_ENDS;
    let (at, len) = ((&raw const to).cast(), size_of_val(&to) as libc::socklen_t);
    // SAFETY: the address is live, and its size is passed.
    check(unsafe { libc::bind(fd.as_raw_fd(), at, len) } as c_long)?;
    Ok(fd)
}

/// Where `struct nlmsghdr` has nlmsg_pid.
const NLMSG_PID_AT: u32 = 12;

/// The groups 1 and 3 of NETLINK_SOCK_DIAG: SKNLGRP_INET_TCP_DESTROY and SKNLGRP_INET6_TCP_DESTROY.
const TCP_ENDS: u32 = 1 << 0 | 1 << 2;

/// From now on each record received carries its sender's process id.
pub fn ask_credentials(fd: &OwnedFd) -> Result<()> {
    set_option(fd.as_raw_fd(), libc::SO_PASSCRED, 1)
}

/// Lets so many bytes of records wait for the peer.
pub fn set_send_buffer(fd: &OwnedFd, bytes: c_int) -> Result<()> {
    set_option(fd.as_raw_fd(), libc::SO_SNDBUFFORCE, bytes)
}

fn set_option(fd: RawFd, name: c_int, value: c_int) -> Result<()> {
    let value: *const c_int = &value;
    // SAFETY: the value is a live int and its size is passed.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, value.cast(), 4) } as c_long).map(drop)
}

/// What one recvmsg gave.
pub struct Received {
    pub len: usize,
    pub fds: Vec<OwnedFd>,
    /// The sender's process id in our PID namespace, when asked for.
    pub pid: Option<i32>,
    /// Bytes did not fit and are lost.
    pub truncated: bool,
    /// Descriptors did not fit, or this process may have no more; some are lost.
    pub short: bool,
}

/// Receives one record without waiting. A length of zero is the end.
pub fn receive(fd: RawFd, buf: &mut [u8]) -> Result<Received> {
    receive_with(fd, buf, libc::MSG_DONTWAIT)
}

/// Receives one record, waiting for it. A length of zero is the end.
pub fn receive_waiting(fd: RawFd, buf: &mut [u8]) -> Result<Received> {
    receive_with(fd, buf, 0)
}

fn receive_with(fd: RawFd, buf: &mut [u8], flags: c_int) -> Result<Received> {
    let mut control = [0u64; CONTROL_BYTES / 8];
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast::<c_void>(), iov_len: buf.len() };
    // SAFETY: msghdr is plain numbers and pointers, for which all zeroes is a value.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = CONTROL_BYTES;
    // SAFETY: every pointer in msg is to a live local or to the caller's buffer.
    let len = check(unsafe { libc::recvmsg(fd, &mut msg, flags | libc::MSG_CMSG_CLOEXEC) } as c_long)? as usize;
    let mut received = Received {
        len,
        fds: Vec::new(),
        pid: None,
        truncated: msg.msg_flags & libc::MSG_TRUNC != 0,
        short: msg.msg_flags & libc::MSG_CTRUNC != 0,
    };
    // SAFETY: the kernel has filled msg's control buffer, which these macros walk.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&msg) };
    while !header.is_null() {
        // SAFETY: a non-null header lies in the control buffer, as does the data of its length.
        unsafe { take_control(header, &mut received) };
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(&msg, header) };
    }
    Ok(received)
}

/// # Safety
/// `header` must point to a complete control message that recvmsg has just written.
unsafe fn take_control(header: *const libc::cmsghdr, received: &mut Received) {
    // SAFETY: the caller vouches for the header.
    let (level, kind, len) = unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
    // SAFETY: as above; the data follows the header.
    let data = unsafe { libc::CMSG_DATA(header) };
    // SAFETY: CMSG_LEN only computes.
    let bytes = len - unsafe { libc::CMSG_LEN(0) } as usize;
    match (level, kind) {
        (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
            for i in 0..bytes / 4 {
                // SAFETY: i lies within the data; each number is a descriptor made for us.
                let fd = unsafe { data.cast::<c_int>().add(i).read_unaligned() };
                received.fds.push(own(fd as c_long));
            }
        }
        (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
            // SAFETY: the data holds a whole ucred, as just checked.
            let cred = unsafe { data.cast::<libc::ucred>().read_unaligned() };
            received.pid = Some(cred.pid);
        }
        _ => {}
    }
}

/// Ends the connection for both sides, whoever else has copies of the descriptors.
pub fn shut_down(fd: &OwnedFd) {
    // SAFETY: shutdown takes plain numbers.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Where `struct tcp_info` (linux/tcp.h) has tcpi_bytes_acked, with tcpi_bytes_received behind it.
const TCP_BYTES_AT: usize = 120;

/// Bytes of a TCP connection that the other side has acknowledged, and that came from it.
pub fn tcp_bytes(fd: &OwnedFd) -> Result<(u64, u64)> {
    let mut info = [0u64; TCP_BYTES_AT / 8 + 2];
    let mut len = size_of_val(&info) as libc::socklen_t;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the result is a live local of integers, passed with its length.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, info.as_mut_ptr().cast(), &mut len) } as c_long)?;
    Ok((info[TCP_BYTES_AT / 8], info[TCP_BYTES_AT / 8 + 1]))
}

/// Sends one record; false: the peer's buffer is full, nothing was sent.
pub fn send(fd: RawFd, record: &[u8]) -> Result<bool> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: pointer and length are those of one live slice.
    let ret = unsafe { libc::send(fd, record.as_ptr().cast(), record.len(), flags) };
    match check(ret as c_long) {
        Ok(_) => Ok(true),
        Err(Errno(libc::EAGAIN | libc::ENOBUFS)) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Sends one record, of two parts, with copies of the descriptors, without waiting.
pub fn send_with(fd: RawFd, record: [&[u8]; 2], fds: &[RawFd]) -> Result<()> {
    let mut control = [0u64; CONTROL_BYTES / 8];
    let bytes = size_of_val(fds) as u32;
    let part = |part: &[u8]| libc::iovec { iov_base: part.as_ptr().cast_mut().cast::<c_void>(), iov_len: part.len() };
    let mut iov = record.map(part);
    // SAFETY: msghdr is plain numbers and pointers, for which all zeroes is a value.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = 2;
    msg.msg_control = control.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE only computes.
    msg.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as usize;
    if msg.msg_controllen > CONTROL_BYTES {
        return Err(Errno(libc::E2BIG));
    }
    // SAFETY: the control buffer has room for one header with all the descriptors, as just checked.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&msg);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
        std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(header).cast(), fds.len());
    }
    // SAFETY: every pointer in msg is to a live local or parameter.
    check(unsafe { libc::sendmsg(fd, &msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) } as c_long).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// The next message, within a generous time.
    fn heard(fd: &OwnedFd) -> Option<Vec<u8>> {
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        if unsafe { libc::poll(&mut poll, 1, 20_000) } != 1 {
            return None;
        }
        let mut message = vec![0; 4096];
        loop {
            // SAFETY: pointer and length are those of one live buffer.
            let len = unsafe { libc::recv(fd.as_raw_fd(), message.as_mut_ptr().cast(), message.len(), 0) };
            if len < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS) {
                continue; // More ended at once than there was room for.
            }
            message.truncate(usize::try_from(len).ok()?);
            return Some(message);
        }
    }

    /// Asks for a dump of all TCP sockets: SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP.
    fn ask_for_all(fd: &OwnedFd) {
        let mut question = [0u8; 72];
        question[0] = 72;
        question[4] = 20;
        question[6..8].copy_from_slice(&0x301u16.to_le_bytes());
        question[16] = libc::AF_INET as u8;
        question[17] = libc::IPPROTO_TCP as u8;
        question[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        // SAFETY: pointer and length are those of one live slice.
        assert_eq!(unsafe { libc::send(fd.as_raw_fd(), question.as_ptr().cast(), question.len(), 0) }, 72);
    }

    #[test]
    fn ends_of_tcp_connections_are_heard_and_no_answers() {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: socket takes plain numbers.
        let plain = own(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) } as c_long);
        ask_for_all(&plain);
        if heard(&plain).expect("an answer")[4..6] == (libc::NLMSG_ERROR as u16).to_ne_bytes() {
            eprintln!("SKIP: this kernel tells nothing of TCP connections (tcp_diag)");
            return;
        }
        let ends = tcp_ends().unwrap();
        ask_for_all(&ends);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[0; 1000]).unwrap();
        far.read_exact(&mut [0; 1000]).unwrap();
        drop((near, far));
        // Other tests' connections end too.
        loop {
            let message = heard(&ends).expect("the end of a connection");
            assert_eq!(message[12..16], [0; 4], "an answer came");
            let ports = [&message[20..22], &message[22..24]];
            if ports.contains(&&port.to_be_bytes()[..]) {
                return;
            }
        }
    }
}
