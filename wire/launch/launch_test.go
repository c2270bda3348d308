package launch

import (
	"encoding/hex"
	"os"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

// records are what the launcher sends, as its protocol's document lays them out.
var records = []struct {
	name, hex string
	want      Event
}{
	{"started",
		"1000 0100 0700000000000000 2a000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000",
		Started{ID: 7, PID: 42, Received: 1, Cloned: 2, Contained: 3, Executed: 4}},
	{"failed", "1100 0100 0700000000000000 08000000 0c00 0400 65786563", Failed{ID: 7, Errno: syscall.ENOEXEC,
		Step: "exec"}},
	{"exited", "1200 0100 0700000000000000 00070000 03000000 e803000000000000 d007000000000000 0010000000000000",
		Exited{ID: 7, Wait: 0x700, OOM: true, Killed: true, User: time.Millisecond, Sys: 2 * time.Millisecond,
			MemoryPeak: 4096}},
	{"frozen", "1400 0100 0700000000000000 03000000", Frozen{ID: 7, Errno: syscall.ESRCH}},
	{"thawed", "1500 0100 0700000000000000 00000000", Thawed{ID: 7}},
	{"found", "1b00 0100 0700000000000000 0100 1100000000000000 e803000000000000 d007000000000000",
		Found{Ask: 7, Sockets: []Socket{{Inode: 17, Sent: 1000, Received: 2000}}}},
	{"yielded", "1c00 0100 0000000000000000 0300000000000000 0200000000000000 e803000000000000 d007000000000000",
		Yielded{Looks: 3, Pushes: 2, Waited: time.Microsecond, CPU: 2 * time.Microsecond}},
	{"metered",
		"1800 0100 0700000000000000 e803000000000000 d007000000000000 0010000000000000 0020000000000000 03000000",
		Metered{ID: 7, User: time.Millisecond, Sys: 2 * time.Millisecond, Memory: 4096, MemoryPeak: 8192, Tasks: 3}},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	var b []byte
	for _, c := range s {
		if c != ' ' {
			b = append(b, byte(c))
		}
	}
	out, err := hex.DecodeString(string(b))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDecode(t *testing.T) {
	for _, r := range records {
		b := unhex(t, r.hex)
		got, err := Decode(b)
		if err != nil || !reflect.DeepEqual(got, r.want) {
			t.Errorf("%s: got %+v, %v, want %+v", r.name, got, err, r.want)
		}
		for n := range b {
			if e, err := Decode(b[:n]); err == nil {
				t.Errorf("%s cut to %d bytes: got %+v, want an error", r.name, n, e)
			}
		}
		if _, err := Decode(append(b, 0)); err == nil {
			t.Errorf("%s with a byte more was taken", r.name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range records {
		f.Add(unhex(f, r.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := Decode(b); err == nil && e == nil {
			t.Error("neither an event nor an error")
		}
	})
}

// A failed start tells the spawner what kind of failure it was.
func TestFailedErr(t *testing.T) {
	for _, c := range []struct {
		e    Failed
		want sigma.Kind
	}{{Failed{Step: "exec", Errno: syscall.ENOEXEC}, sigma.KindNoExec}, {Failed{Step: "plan", Errno: syscall.EINVAL},
		sigma.KindInvalid}, {Failed{Step: "clone", Errno: syscall.EAGAIN}, sigma.KindBusy},
		{Failed{Step: "seccomp", Errno: syscall.EINVAL}, sigma.KindOther},
		{Failed{Step: "launcher", Errno: syscall.ETIMEDOUT}, sigma.KindTimeout}} {
		if got := sigma.KindOf(c.e.Err()); got != c.want {
			t.Errorf("%+v: got %v, want %v", c.e, got, c.want)
		}
	}
}

// A request beyond one record is refused before anything is sent, and the end of the launcher ends
// Run with KindLost.
func TestLimits(t *testing.T) {
	ours, theirs, err := session.FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := session.UnixConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	l := New(conn)
	if err := l.Start(Request{Args: []string{string(make([]byte, messageMax))},
		Program: theirs}); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("got %v, want too big", err)
	}
	theirs.Close()
	if err := l.Run(t.Context(), func(Event) {}); sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("got %v, want lost", err)
	}
	if err := l.Kill(1); sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("got %v, want lost", err)
	}
}

// A burst of requests with more descriptors than may be unread waits for the launcher, which reads
// them, and none fails.
func TestBurstWaits(t *testing.T) {
	ours, theirs, err := session.FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := session.UnixConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	program, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	l := New(conn)
	l.passing.Of(l.raw, 3) // as if that were LauncherMax
	const requests = 50
	var reading sync.WaitGroup
	file, err := session.UnixConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reading.Go(func() {
		b, oob := make([]byte, messageMax), make([]byte, 256)
		for range requests {
			_, oobn, _, _, err := file.ReadMsgUnix(b, oob)
			if err != nil {
				t.Error(err)
				return
			}
			messages, _ := syscall.ParseSocketControlMessage(oob[:oobn])
			for i := range messages {
				fds, _ := syscall.ParseUnixRights(&messages[i])
				for _, fd := range fds {
					syscall.Close(fd)
				}
			}
		}
	})
	for i := range requests {
		if err := l.Start(Request{ID: uint64(i), Args: []string{"x"}, Program: program}); err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	reading.Wait()
}

// The launcher is gone only if the socket says so. Any other errno means that it is there, so that
// nobody waits for the word of its end.
func TestErrnoKeepsItsMeaning(t *testing.T) {
	ours, theirs, err := session.FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	conn, err := session.UnixConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	program, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	l := New(conn)
	want := func(what string, err error, kind sigma.Kind) {
		t.Helper()
		if err == nil || sigma.KindOf(err) != kind {
			t.Errorf("%s: got %v, want %v", what, err, kind)
		}
	}
	want("no such descriptor", l.Start(Request{Program: program, Passed: []Passed{{FD: 1 << 20, Target: 3}}}),
		sigma.KindOther)
	if err := conn.SetWriteBuffer(256 << 10); err != nil {
		t.Fatal(err)
	}
	l.passing.Of(l.raw, 64)
	l.patience = 50 * time.Millisecond
	for err = nil; err == nil; {
		err = l.Start(Request{Program: program})
	}
	want("what the launcher has not read", err, sigma.KindTimeout)
	for err = nil; err == nil; {
		err = l.Kill(1)
	}
	want("a launcher that does not read", err, sigma.KindTimeout)
	for n, buf := 1, make([]byte, messageMax); n > 0; {
		theirs.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		n, _ = theirs.Read(buf)
	}
	if err := l.Start(Request{Program: program}); err != nil {
		t.Errorf("after all was read: %v", err)
	}
	theirs.Close()
	want("the launcher is gone", l.Start(Request{Program: program}), sigma.KindLost)
	want("the launcher is gone", l.Kill(1), sigma.KindLost)
}
