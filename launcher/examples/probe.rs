//! A stand-in for sigmad in the tests: relays every record, with its descriptors, between the
//! launcher, whose socket comes from the keeper (3), and the test (4), so that the test itself
//! plays sigmad from outside of the container. When the launcher dies, the test gets a record of
//! four zeroes, and then those of the next one. A record of the test's that starts with 0xff ends
//! it with the code in the next byte.

use std::os::fd::RawFd;

const KEEPER: RawFd = 3;
const TEST: RawFd = 4;

fn main() {
    loop {
        let launcher = next_launcher();
        loop {
            let mut polls = [launcher, TEST].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            // SAFETY: two valid entries are passed, with their count.
            unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) };
            if polls[0].revents != 0 && !relay(launcher, TEST) {
                break;
            }
            if polls[1].revents != 0 && !relay(TEST, launcher) {
                std::process::exit(0);
            }
        }
        // SAFETY: the pointer is to four live bytes; nobody else uses the launcher's number.
        unsafe {
            libc::close(launcher);
            libc::send(TEST, [0u8; 4].as_ptr().cast(), 4, libc::MSG_NOSIGNAL);
        }
    }
}

/// Waits for the launcher that the keeper starts.
fn next_launcher() -> RawFd {
    let mut bytes = [0u8; 64];
    let mut control = [0u64; 16];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain numbers and pointers, for which all zeroes is a value.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control);
    // SAFETY: every pointer in msg is to a live local; a header of the control buffer is valid, if
    // there is one.
    unsafe {
        let len = libc::recvmsg(KEEPER, &mut msg, 0);
        let header = libc::CMSG_FIRSTHDR(&msg);
        if len != 4 || bytes[..4] != [32, 0, 1, 0] || header.is_null() {
            std::process::exit(1);
        }
        libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()
    }
}

/// Passes one record on; false at the end.
fn relay(from: RawFd, to: RawFd) -> bool {
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
        return false;
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
    true
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
