//go:build system

package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// patience is how long a raw connection waits for an answer, or for the end that it provoked.
const patience = 10 * time.Second

// raw opens one of the admin sockets without a client.
func raw(t *testing.T, s *testenv.System, socket string) *net.UnixConn {
	t.Helper()
	network := map[string]string{"admin.sock": "unixpacket", "9p.sock": "unix"}[socket]
	c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: filepath.Join(s.DataDir, "sigmad", socket), Net: network})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience * testenv.Slow()))
	return c
}

func encode(t *testing.T, tag uint16, m sigmap.Message) []byte {
	t.Helper()
	b, err := sigmap.Encode(nil, tag, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ended reads until the peer closes.
func ended(c net.Conn) error {
	buf := make([]byte, 1<<17)
	for {
		n, err := c.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errors.New("the connection is still open")
		case err != nil || n == 0:
			return nil
		}
	}
}

// attached is a session with the root as fid 1.
func attached(t *testing.T, s *testenv.System, socket string) *net.UnixConn {
	t.Helper()
	c := raw(t, s, socket)
	version := sigmap.VersionSigma
	if socket == "9p.sock" {
		version = sigmap.VersionPlain
	}
	for i, m := range []sigmap.Message{&sigmap.Tversion{Msize: sigmap.MessageMax, Version: version},
		&sigmap.Tattach{Fid: 1, Afid: sigmap.NoFid, Aname: "default", NUname: sigmap.NoFid}} {
		tag := uint16(i)
		if i == 0 {
			tag = sigmap.NoTag
		}
		if _, err := c.Write(encode(t, tag, m)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, sigmap.MessageMax)
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		if _, r, err := sigmap.Decode(buf[:n]); err != nil || r.Type() != m.Type()+1 {
			t.Fatalf("answer to %T: %T, %v", m, r, err)
		}
	}
	return c
}

// Messages that are none end their session, and nothing else.
func TestMalformedMessages(t *testing.T) {
	s := shared.Get(t)
	header := func(size uint32, typ byte) []byte {
		b := binary.LittleEndian.AppendUint32(nil, size)
		return append(b, typ, 0, 0)
	}
	random := make([]byte, 60000)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	version := encode(t, sigmap.NoTag, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.VersionPlain})
	unharmed(t, s, func() {
		for _, socket := range []string{"admin.sock", "9p.sock"} {
			for _, c := range []struct {
				name  string
				data  []byte
				whole bool // as it is the end of what is said; else the server knows at once
			}{
				{"one byte", []byte{1}, true},
				{"a header's half", version[:5], true},
				{"a message's half", version[:len(version)-3], true},
				{"size 0", header(0, 100), false},
				{"size 6", header(6, 100), false},
				{"size 4 GiB", header(0xffffffff, 100), false},
				{"size 1 MiB", header(1<<20, 116), false},
				{"a reply", encode(t, 1, &sigmap.Rclunk{}), false},
				{"no version", encode(t, 1, &sigmap.Tclunk{Fid: 1}), false},
				{"an unknown type first", header(7, 255), true},
				{"noise", random, true},
				{"a tiny msize", encode(t, sigmap.NoTag, &sigmap.Tversion{Msize: 10, Version: sigmap.VersionPlain}),
					false},
			} {
				t.Run(socket+" "+c.name, func(t *testing.T) {
					conn := raw(t, s, socket)
					if _, err := conn.Write(c.data); err != nil && !errors.Is(err, syscall.EPIPE) {
						t.Fatal(err)
					}
					if c.whole {
						conn.CloseWrite()
					}
					if err := ended(conn); err != nil {
						t.Error(err)
					}
				})
			}
		}
		conn := raw(t, s, "admin.sock")
		if _, err := conn.Write(make([]byte, 150_000)); err == nil {
			if err := ended(conn); err != nil {
				t.Errorf("an oversized record: %v", err)
			}
		}
	})
}

// A proper session may ask nonsense and gets errors; breaking the rules of tags ends it.
func TestNonsenseRequests(t *testing.T) {
	s := shared.Get(t)
	many := make([]string, sigmap.WalkMax)
	for i := range many {
		many[i] = strings.Repeat("d", 200)
	}
	unharmed(t, s, func() {
		for _, socket := range []string{"admin.sock", "9p.sock"} {
			c := attached(t, s, socket)
			buf := make([]byte, sigmap.MessageMax)
			for i, m := range []sigmap.Message{
				&sigmap.Tclunk{Fid: 77}, &sigmap.Twalk{Fid: 1, NewFid: 1, Names: []string{"..", "..", "etc"}},
				&sigmap.Twalk{Fid: 1, NewFid: 2, Names: []string{""}},
				&sigmap.Twalk{Fid: 1, NewFid: 2, Names: []string{"a/b"}}, &sigmap.Twalk{Fid: 1, NewFid: 2,
					Names: []string{"a\x00b"}},
				&sigmap.Twalk{Fid: 1, NewFid: 2, Names: many}, &sigmap.Tread{Fid: 1, Count: 0xffffffff},
				&sigmap.Tread{Fid: 1, Offset: 1<<64 - 1, Count: 10},
				&sigmap.Twrite{Fid: 1, Offset: 1 << 63, Data: []byte("x")}, &sigmap.Treaddir{Fid: 1, Count: 1},
				&sigmap.Tlopen{Fid: 1, Flags: 0xffffffff},
				&sigmap.Tattach{Fid: 1, Afid: sigmap.NoFid, Aname: "default"},
				&sigmap.Tattach{Fid: 9, Afid: sigmap.NoFid, Aname: "no realm of that name"},
				&sigmap.Tflush{OldTag: 999},
			} {
				tag := uint16(100 + i)
				if _, err := c.Write(encode(t, tag, m)); err != nil {
					t.Fatalf("%s: %T: %v", socket, m, err)
				}
				n, err := c.Read(buf)
				if err != nil {
					t.Fatalf("%s: no answer to %T: %v", socket, m, err)
				}
				got, r, err := sigmap.Decode(buf[:n])
				if err != nil || got != tag {
					t.Fatalf("%s: answer to %T: tag %d, %T, %v", socket, m, got, r, err)
				}
				if _, flush := m.(*sigmap.Tflush); !flush && sigmap.Err(r) == nil &&
					m.Type() != (&sigmap.Tlopen{}).Type() {
					t.Errorf("%s: %+v was answered with %T", socket, m, r)
				}
			}
			c.Close()
		}
	})
}

// Somebody who sends without end and reads nothing, or connects and says nothing, holds up only
// himself.
func TestEndlessMessages(t *testing.T) {
	r := connect(t, defaultRealm)
	s := r.s
	unharmed(t, s, func() {
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		sent := make(chan int, 20)
		for i := range 10 {
			socket := []string{"admin.sock", "9p.sock"}[i%2]
			c := attached(t, s, socket)
			c.SetDeadline(time.Time{})
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			walk := &sigmap.Twalk{Fid: 1, NewFid: 1}
			go func() {
				n := 0
				for {
					walk.NewFid, walk.Names = uint32(10+n), []string{"ux", "m1"}
					b, err := sigmap.Encode(nil, uint16(n), walk)
					if err == nil {
						_, err = c.Write(b)
					}
					if err != nil {
						sent <- n
						return
					}
					n++
				}
			}()
			for range 20 { // and silent ones
				defer raw(t, s, socket).Close()
			}
		}
		began := time.Now()
		for range 50 {
			if _, err := r.Put(r.ctx, "/meanwhile", nil, sigma.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			if out := s.Must(t, "run", program(t, "hello.c")); out != "hello\n" {
				t.Fatalf("run meanwhile: %q", out)
			}
		}
		t.Logf("50 runs meanwhile took %v", time.Since(began).Round(time.Millisecond))
		if rss := residentMiB(t, s.PID("sigmad")); rss > 500 {
			t.Errorf("sigmad has grown to %d MiB", rss)
		}
		cancel()
		for range 10 {
			select {
			case <-sent:
			case <-time.After(patience * testenv.Slow()):
				t.Fatal("a flood did not end with its connection")
			}
		}
		r.Remove(r.ctx, "/meanwhile")
	})
}

func residentMiB(t *testing.T, pid int) (mib int) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, _ := io.ReadAll(f)
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &mib); err == nil {
			return mib >> 10
		}
	}
	return 0
}

// The same on a proc's file descriptor 3: it may break its own session, and others notice nothing.
func TestProcSendsGarbage(t *testing.T) {
	r := connect(t, defaultRealm)
	r.run("probe.c", "exit", "0")
	unharmed(t, r.s, func() {
		neighbour := r.spawn(r.descriptor("goprobe", "notice"))[0]
		r.started(neighbour)
		for i := range 30 {
			if st, out := r.run("probe.c", "garbage", fmt.Sprint(1+i*37)); !st.OK() ||
				!strings.HasPrefix(out, "sent ") {
				t.Errorf("garbage: %+v %q", st, out)
			}
		}
		var floods []sigma.ProcID
		for range 4 {
			floods = append(floods, r.spawn(r.descriptor("probe.c", "flood", "200000"))[0])
		}
		for _, id := range floods {
			r.wrote(id, "ready")
			if out := r.output(id); !strings.Contains(out, "version answered with type 101") {
				t.Errorf("flood: %q", out)
			}
		}
		for range 10 {
			if st, out := r.run("goprobe", "names", "/beside"); !st.OK() {
				t.Errorf("a proc beside the floods: %+v %s", st, out)
			}
		}
		if rss := residentMiB(t, r.s.PID("sigmad")); rss > 500 {
			t.Errorf("sigmad has grown to %d MiB", rss)
		}
		for _, id := range floods {
			if err := r.Kill(r.ctx, id); err != nil {
				t.Fatal(err)
			}
			r.wait(id)
		}
		if err := r.Evict(r.ctx, neighbour, 0); err != nil {
			t.Fatal(err)
		}
		if st := r.wait(neighbour); st.Code != sigma.StatusEvicted {
			t.Errorf("the neighbour: %+v", st)
		}
	})
}
