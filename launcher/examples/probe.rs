//! A stand-in for sigmad in the tests: relays every record, with its descriptors, between the launcher
//! (3) and the test (4), so that the test itself plays sigmad from outside of the container.
//! A record of the test's that starts with 0xff ends it with the code in the next byte.

use std::os::fd::RawFd;

const LAUNCHER: RawFd = 3;
const TEST: RawFd = 4;

fn main() {
    loop {
        let mut polls = [LAUNCHER, TEST].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: two valid entries are passed, with their count.
        unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) };
        for (poll, to) in polls.iter().zip([TEST, LAUNCHER]) {
            if poll.revents != 0 {
                relay(poll.fd, to);
            }
        }
    }
}

fn relay(from: RawFd, to: RawFd) {
    let mut bytes = vec![0u8; 70_000];
    let mut control = [0u64; 256];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain numbers and pointers, for which all zeroes is a value.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control);
    // SAFETY: every pointer in msg is to a live local.
    let len = unsafe { libc::recvmsg(from, &mut msg, 0) };
    if len <= 0 {
        std::process::exit(0);
    }
    if from == TEST && bytes[0] == 0xff {
        std::process::exit(bytes[1] as i32);
    }
    // SAFETY: msg still points to live locals, of which iov now has the length received.
    unsafe {
        (*msg.msg_iov).iov_len = len as usize;
        libc::sendmsg(to, &msg, libc::MSG_NOSIGNAL);
    }
    close_passed(&msg);
}

fn close_passed(msg: &libc::msghdr) {
    // SAFETY: msg's control buffer is live and was filled by recvmsg.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !header.is_null() {
        // SAFETY: the header is valid, its data are descriptors that only this process's loop uses.
        unsafe {
            let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / 4;
            for i in 0..count {
                let fd = libc::CMSG_DATA(header).cast::<RawFd>().add(i).read_unaligned();
                libc::close(fd);
            }
            header = libc::CMSG_NXTHDR(msg, header);
        }
    }
}
