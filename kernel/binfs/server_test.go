package binfs

import (
	"context"
	"encoding/binary"
	"os"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/wire/session"
)

// held is one file whose READs wait.
type held struct {
	nodes
	asked chan struct{}
	come  chan struct{} // closed when the bytes are there
}

func (h *held) read(ctx context.Context, _ uint64, p []byte, _ int64) (int, error) {
	h.asked <- struct{}{}
	select {
	case <-h.come:
		return len(p), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// ask sends a request as the kernel does.
func ask(t *testing.T, device *os.File, op uint32, unique uint64, body []byte) {
	t.Helper()
	b := make([]byte, requestHeader, requestHeader+len(body))
	binary.LittleEndian.PutUint32(b, uint32(requestHeader+len(body)))
	binary.LittleEndian.PutUint32(b[4:], op)
	binary.LittleEndian.PutUint64(b[8:], unique)
	if _, err := device.Write(append(b, body...)); err != nil {
		t.Fatal(err)
	}
}

// answer returns the next reply that is none to notifications.
func answer(t *testing.T, device *os.File) (unique uint64, errno syscall.Errno) {
	t.Helper()
	b := make([]byte, 1<<16)
	for {
		n, err := device.Read(b)
		if err != nil || n < replyHeader {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if unique = binary.LittleEndian.Uint64(b[8:]); unique != 0 {
			return unique, syscall.Errno(-int32(binary.LittleEndian.Uint32(b[4:])))
		}
	}
}

// Goal: a signal for who waits for a page does not take the page away, unless it would not come for
// long.
func TestInterrupt(t *testing.T) {
	for _, x := range []struct {
		patience time.Duration
		comes    bool
		want     syscall.Errno
	}{{time.Hour, true, 0}, {time.Millisecond, false, syscall.EINTR}} {
		kernel, device, err := session.FilePair(syscall.SOCK_SEQPACKET)
		if err != nil {
			t.Fatal(err)
		}
		h := &held{asked: make(chan struct{}, 1), come: make(chan struct{})}
		s := newServer(device, h)
		s.patience = x.patience
		over := make(chan error, 1)
		go func() { over <- s.run() }()
		read := make([]byte, 40)
		binary.LittleEndian.PutUint32(read[16:], 4096)
		ask(t, kernel, opRead, 2, read)
		<-h.asked
		ask(t, kernel, opInterrupt, 3, binary.LittleEndian.AppendUint64(nil, 2))
		ask(t, kernel, opOpen, 4, nil) // answered after the INTERRUPT was seen to
		if x.comes {
			if unique, errno := answer(t, kernel); unique != 4 || errno != syscall.ENOSYS {
				t.Errorf("request %d was answered with %v", unique, errno)
			}
			close(h.come)
		}
		for unique := uint64(0); unique != 2; {
			var errno syscall.Errno
			if unique, errno = answer(t, kernel); unique == 2 && errno != x.want {
				t.Errorf("with patience of %v the READ was answered with %v, want %v", x.patience, errno, x.want)
			}
		}
		device.SetReadDeadline(time.Unix(1, 0))
		if err := <-over; err != nil {
			t.Error(err)
		}
		kernel.Close()
		device.Close()
	}
}
