//go:build system

package attack

import (
	"encoding/binary"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigmap"
)

// naive is a server of sigmaP that has none of the checks which hostile messages are about: it trusts sizes and types, begins no session before it serves, counts nothing, and lets
// everybody be whom he says. What harms it would harm sigmad if sigmad were so; that is the control of messages.
type naive struct {
	fd      int
	session *naiveSession // nil before Tattach
	held    int           // requests and answers in memory
	harmed  bool
}

type naiveSession struct {
	fids map[uint32]bool
	root string // whose files it sees
}

// naiveRequests and naiveFids are what it holds at most before it counts as harmed; treekit holds RequestsMax, 4096, and 65536 handles.
const (
	naiveRequests = 5000
	naiveFids     = 66_000
)

// harmsNaive runs the forger against a naive server and reports whether that was harmed.
func harmsNaive(t *testing.T, p programs, args ...string) bool {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "theirs")
	cmd := exec.Command(p.forger, args...)
	cmd.ExtraFiles = []*os.File{theirs}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	n := &naive{fd: pair[0]}
	n.serve()
	syscall.Close(pair[0])
	cmd.Process.Kill()
	cmd.Wait()
	return n.harmed
}

// serve answers until the peer ends, or it is harmed.
func (n *naive) serve() {
	defer func() {
		if recover() != nil {
			n.harmed = true
		}
	}()
	buf := make([]byte, 64<<10)
	for !n.harmed {
		size, _, _, _, err := syscall.Recvmsg(n.fd, buf, nil, 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || size == 0 && n.ended() {
			return
		}
		n.message(buf[:size])
	}
}

// ended tells the end from a message of no bytes.
func (n *naive) ended() bool {
	fds := []unix.PollFd{{Fd: int32(n.fd), Events: unix.POLLIN}}
	unix.Poll(fds, 0)
	return fds[0].Revents&unix.POLLHUP != 0
}

// message trusts what it reads, so that the run-time checks of Go stand for what a server in another language would do to its memory.
func (n *naive) message(b []byte) {
	size, typ, tag := binary.LittleEndian.Uint32(b), sigmap.Type(b[4]), binary.LittleEndian.Uint16(b[5:])
	body := b[7:size:size]
	switch typ {
	case (*sigmap.Tversion)(nil).Type():
		n.held++
		n.answer(tag, &sigmap.Rversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSigma})
	case (*sigmap.Tattach)(nil).Type():
		_, m, _ := sigmap.Decode(b)
		who := m.(*sigmap.Tattach).Aname
		n.session = &naiveSession{fids: map[uint32]bool{}, root: who}
		n.harmed = n.harmed || who != "" // it has let somebody in as another
		n.answer(tag, &sigmap.Rattach{})
	case (*sigmap.Twalk)(nil).Type():
		n.session.fids[binary.LittleEndian.Uint32(body[4:])] = true
		n.held-- // answered at once
		n.answer(tag, &sigmap.Rwalk{})
	default:
		if _, _, err := sigmap.Decode(b); err != nil {
			panic("it works with what is no message")
		}
		_ = n.session.root
	}
	n.held++
	n.harmed = n.harmed || n.held > naiveRequests || n.session != nil && len(n.session.fids) > naiveFids
}

// answer sends, or keeps the answer for later if the peer does not read.
func (n *naive) answer(tag uint16, m sigmap.Message) {
	b, err := sigmap.Encode(nil, tag, m)
	if err == nil {
		syscall.Sendmsg(n.fd, b, nil, nil, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
	}
}
