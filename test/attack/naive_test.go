//go:build system

package attack

import (
	"encoding/binary"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"sigmaos.dev/wire/sigmap"
)

// naive is a server of sigmaP that has none of the checks which hostile messages are about: it
// trusts sizes and types, begins no session before it serves, counts nothing, and lets everybody be
// whom he says. What harms it would harm sigmad if sigmad were so; that is the control of messages.
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

// naiveRequests and naiveFids are what it holds at most before it counts as harmed; treeserver
// holds RequestsMax, 4096, and 65536 handles.
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
	harmed := serveNaive(t, pair[0])
	cmd.Process.Kill()
	cmd.Wait()
	return harmed
}

// serveNaive has a naive server answer at a socket, which it closes, and reports whether that was
// harmed.
func serveNaive(t *testing.T, fd int) bool {
	t.Helper()
	defer syscall.Close(fd)
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_PASSCRED, 1); err != nil {
		t.Fatal(err)
	}
	n := &naive{fd: fd}
	n.serve()
	return n.harmed
}

// A peer may have ended before the server reads its messages: on a busy host the forger of empty
// messages has.
func TestNaiveReadsWhatTheEndedSent(t *testing.T) {
	for _, message := range [][]byte{{}, {1}, nil} {
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if message != nil {
			err = syscall.Sendmsg(pair[1], message, nil, nil, 0)
		}
		syscall.Close(pair[1])
		if harmed := serveNaive(t, pair[0]); err != nil || harmed != (message != nil) {
			t.Errorf("%v: harmed %v, %v", message, harmed, err)
		}
	}
}

// serve answers until the peer ends, or it is harmed. A message has its sender's credentials, which
// tells one of no bytes from the end.
func (n *naive) serve() {
	defer func() {
		if recover() != nil {
			n.harmed = true
		}
	}()
	buf, credentials := make([]byte, 64<<10), make([]byte, syscall.CmsgSpace(syscall.SizeofUcred)) // no room for files
	for !n.harmed {
		size, with, _, _, err := syscall.Recvmsg(n.fd, buf, credentials, 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || size == 0 && with == 0 {
			return
		}
		n.message(buf[:size])
	}
}

// message trusts what it reads, so that the run-time checks of Go stand for what a server in
// another language would do to its memory.
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
