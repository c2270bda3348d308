package rawio

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestMessages: records and descriptors go through a pair of sockets, what would wait is EAGAIN,
// and the end is an empty record.
func TestMessages(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK,
		0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := pair[0], pair[1]
	defer Close(a)
	var p, oob [64]byte
	if _, _, _, err := Recvmsg(a, p[:], oob[:]); err != syscall.EAGAIN {
		t.Errorf("receiving nothing: %v", err)
	}
	if err := Sendmsg(b, []byte("files"), syscall.UnixRights(b)); err != nil {
		t.Fatal(err)
	}
	n, oobn, flags, err := Recvmsg(a, p[:], oob[:])
	if err != nil || string(p[:n]) != "files" || flags&syscall.MSG_CTRUNC != 0 {
		t.Fatalf("got %q, flags %x, %v", p[:n], flags, err)
	}
	cmsgs, err := syscall.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(cmsgs) != 1 {
		t.Fatalf("got %v, %v", cmsgs, err)
	}
	fds, err := syscall.ParseUnixRights(&cmsgs[0])
	if err != nil {
		t.Fatal(err)
	}
	if n, err := Write(fds[0], []byte("again")); n != 5 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	Close(fds[0])
	if n, err := Read(a, p[:]); string(p[:n]) != "again" || err != nil {
		t.Errorf("got %q, %v", p[:n], err)
	}
	for err = nil; err == nil; {
		_, err = Write(b, p[:])
	}
	if err != syscall.EAGAIN {
		t.Errorf("writing to a full socket: %v", err)
	}
	Close(b)
	for n = 1; n > 0; {
		n, err = Read(a, p[:])
	}
	if err != nil {
		t.Errorf("at the end: %v", err)
	}
	if err := Sendmsg(a, []byte("x"), nil); err != syscall.EPIPE {
		t.Errorf("sending to nobody: %v", err)
	}
}

// TestUnpolled: a file that is not in Go's poller has no deadlines, calls on its descriptor do not
// wait, and it closes with the file; a descriptor that is none is refused.
func TestUnpolled(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(pair[1])
	f, err := Unpolled(pair[0], "end")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SetDeadline(time.Time{}); !errors.Is(err, os.ErrNoDeadline) {
		t.Errorf("it is in the poller: %v", err)
	}
	var p [8]byte
	if _, err := Read(int(f.Fd()), p[:]); err != syscall.EAGAIN {
		t.Errorf("reading nothing: %v", err)
	}
	if Inode(pair[0]) == 0 || Inode(pair[0]) == Inode(pair[1]) || Inode(-1) != 0 {
		t.Errorf("the inodes are %d, %d and %d", Inode(pair[0]), Inode(pair[1]), Inode(-1))
	}
	f.Close()
	if n, err := Read(pair[1], p[:]); n != 0 || err != nil {
		t.Errorf("after Close its peer reads %d, %v", n, err)
	}
	if _, err := Unpolled(-1, "none"); err == nil {
		t.Error("there is a file of no descriptor")
	}
}

func TestUnread(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK,
		0)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(pair[0])
	want := func(what string, some bool) {
		t.Helper()
		if n, err := Unread(pair[0]); err != nil || (n > 0) != some {
			t.Errorf("%s: %d, %v", what, n, err)
		}
	}
	var b [100]byte
	want("at first", false)
	Write(pair[0], b[:])
	if n, _ := Unread(pair[0]); n < len(b) {
		t.Errorf("of a record of %d bytes %d are unread", len(b), n)
	}
	Read(pair[1], b[:])
	want("after it was read", false)
	Write(pair[0], b[:])
	want("another", true)
	Close(pair[1])
	want("after its reader has gone", false)
	if _, err := Unread(-1); err == nil {
		t.Error("of no descriptor")
	}
}
