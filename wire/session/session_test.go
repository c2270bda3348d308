package session_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// liar is a server that answers what the test says.
type liar struct {
	conn session.Conn
	// answer gives the whole reply to a request, nil for none; an error ends the session.
	answer func(tag uint16, m sigmap.Message) ([]byte, []*os.File, error)
}

func (l *liar) run() {
	defer l.conn.Close()
	for {
		buf, files, err := l.conn.Recv()
		session.CloseFiles(files)
		if err != nil {
			return
		}
		tag, m, err := sigmap.Decode(buf)
		if err != nil {
			return
		}
		var reply []byte
		var back []*os.File
		switch m.(type) {
		case *sigmap.Tversion:
			reply, err = sigmap.Encode(nil, tag, &sigmap.Rversion{Msize: sigmap.MessageMax,
				Version: sigmap.VersionSigma})
		case *sigmap.Tattach:
			reply, err = sigmap.Encode(nil, tag, &sigmap.Rattach{})
		default:
			reply, back, err = l.answer(tag, m)
		}
		if err != nil {
			return
		}
		if reply != nil {
			if files, err := l.conn.Passing().Pack(back); err == nil {
				l.conn.Send(reply, files)
			}
		}
	}
}

// dialLiar starts a liar and a client of it.
func dialLiar(t *testing.T, answer func(tag uint16, m sigmap.Message) ([]byte, []*os.File, error)) (*session.Client,
	sigma.File) {
	t.Helper()
	a, b, err := session.Pair()
	if err != nil {
		t.Fatal(err)
	}
	return dialConn(t, a, b, answer)
}

func dialConn(t testing.TB, a, b session.Conn, answer func(tag uint16, m sigmap.Message) ([]byte, []*os.File,
	error)) (*session.Client, sigma.File) {
	t.Helper()
	var server sync.WaitGroup
	server.Go((&liar{b, answer}).run)
	c, err := session.Dial(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		server.Wait()
	})
	root, err := c.Attach(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	return c, root
}

// always answers everything with m.
func always(m sigmap.Message) func(tag uint16, _ sigmap.Message) ([]byte, []*os.File, error) {
	return func(tag uint16, _ sigmap.Message) ([]byte, []*os.File, error) {
		buf, err := sigmap.Encode(nil, tag, m)
		return buf, nil, err
	}
}

// ops are all that a client does.
var ops = map[string]func(ctx context.Context, f sigma.File) error{
	"Walk":  func(ctx context.Context, f sigma.File) error { return second(f.Walk(ctx, []string{"a", "b"})) },
	"Clone": func(ctx context.Context, f sigma.File) error { return second(f.Walk(ctx, nil)) },
	"Stat":  func(ctx context.Context, f sigma.File) error { _, err := f.Stat(ctx); return err },
	"SetStat": func(ctx context.Context, f sigma.File) error {
		size, perm, at := uint64(1), uint32(2), time.Unix(1, 2)
		return f.SetStat(ctx, sigma.StatChange{Size: &size, Perm: &perm, Modified: &at})
	},
	"Open":   func(ctx context.Context, f sigma.File) error { return f.Open(ctx, sigma.OpenReadWrite) },
	"Create": func(ctx context.Context, f sigma.File) error { _, err := f.Create(ctx, "n", 0, 0); return err },
	"ReadAt": func(ctx context.Context, f sigma.File) error {
		_, err := f.ReadAt(ctx, make([]byte, 10), 0)
		return err
	},
	"WriteAt": func(ctx context.Context, f sigma.File) error {
		_, err := f.WriteAt(ctx, make([]byte, 10), 0)
		return err
	},
	"ReadDir":  func(ctx context.Context, f sigma.File) error { _, _, _, err := f.ReadDir(ctx, 0, 2); return err },
	"Mkdir":    func(ctx context.Context, f sigma.File) error { return f.Mkdir(ctx, "n", 0) },
	"Symlink":  func(ctx context.Context, f sigma.File) error { return f.Symlink(ctx, "n", "t") },
	"ReadLink": func(ctx context.Context, f sigma.File) error { _, err := f.ReadLink(ctx); return err },
	"Remove":   func(ctx context.Context, f sigma.File) error { return f.Remove(ctx, "n") },
	"Rename":   func(ctx context.Context, f sigma.File) error { return f.Rename(ctx, "n", f, "m") },
	"Sync":     func(ctx context.Context, f sigma.File) error { return f.Sync(ctx) },
	"Get": func(ctx context.Context, f sigma.File) error {
		_, _, err := f.(sigma.Getter).Get(ctx, []string{"a"}, 0, 10)
		return err
	},
	"Put": func(ctx context.Context, f sigma.File) error {
		_, _, err := f.(sigma.Putter).Put(ctx, []string{"a"}, nil, sigma.PutOptions{})
		return err
	},
	"Watch":  func(ctx context.Context, f sigma.File) error { _, err := f.(sigma.Watcher).Watch(ctx, 0); return err },
	"Lease":  func(ctx context.Context, f sigma.File) error { _, err := f.(sigma.Leaser).Lease(ctx, 1); return err },
	"Renew":  func(ctx context.Context, f sigma.File) error { return f.(sigma.Leaser).Renew(ctx, 1) },
	"Revoke": func(ctx context.Context, f sigma.File) error { return f.(sigma.Leaser).Revoke(ctx, 1) },
	"Call": func(ctx context.Context, f sigma.File) error {
		_, files, err := f.(sigma.Caller).Call(ctx, "m", nil, nil)
		session.CloseFiles(files)
		return err
	},
	"PassFile": func(ctx context.Context, f sigma.File) error {
		file, err := f.(sigma.FilePasser).PassFile(ctx)
		if err == nil {
			file.Close()
		}
		return err
	},
}

func second(f sigma.File, _ []sigma.FileID, err error) error {
	if f != nil {
		f.Close()
	}
	return err
}

// TestWrongReply: a reply of another type than the request's is an error of that request, and the
// session goes on.
func TestWrongReply(t *testing.T) {
	_, root := dialLiar(t, always(&sigmap.Rstatfs{}))
	for name, op := range ops {
		if err := op(t.Context(), root); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s: got %v, want invalid", name, err)
		}
	}
}

// TestLies: replies of the right type whose content cannot be.
func TestLies(t *testing.T) {
	ids := make([]sigma.FileID, 3)
	for _, c := range []struct {
		name, op string
		m        sigmap.Message
	}{
		{"more ids than names", "Walk", &sigmap.Rwalk{IDs: ids}},
		{"no ids", "Walk", &sigmap.Rwalk{}},
		{"ids of a clone", "Clone", &sigmap.Rwalk{IDs: ids}},
		{"more than asked for", "ReadAt", &sigmap.Rread{Data: make([]byte, 11)}},
		{"wrote more", "WriteAt", &sigmap.Rwrite{Count: 11}},
		{"wrote nothing", "WriteAt", &sigmap.Rwrite{}},
		{"more entries than asked for", "ReadDir", &sigmap.Rlist{Entries: []sigma.DirEntry{{Name: "a"}, {Name: "b"},
			{Name: "c"}}}},
		{"entry ..", "ReadDir", &sigmap.Rlist{Entries: []sigma.DirEntry{{Name: ".."}}}},
		{"entry with /", "ReadDir", &sigmap.Rlist{Entries: []sigma.DirEntry{{Name: "a/b"}}}},
		{"a listing without end", "ReadDir", &sigmap.Rlist{More: true}},
		{"more than asked for", "Get", &sigmap.Rget{Data: make([]byte, 11)}},
		{"stopped beyond the end", "Get", &sigmap.Rstop{Walked: 2, Kind: sigma.KindSymlink}},
		{"stopped at a file", "Get", &sigmap.Rstop{Walked: 1, Kind: sigma.KindFile}},
		{"stopped beyond the end", "Put", &sigmap.Rstop{Walked: 9, Kind: sigma.KindEndpoint}},
		{"no file", "PassFile", &sigmap.Rpass{}},
	} {
		_, root := dialLiar(t, always(c.m))
		if err := ops[c.op](t.Context(), root); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s, %s: got %v, want invalid", c.op, c.name, err)
		}
	}
}

// TestBrokenServer: a server that breaks the protocol, or goes away, ends the session; all who wait
// are told, and later requests too.
func TestBrokenServer(t *testing.T) {
	for name, break_ := range map[string]func(conn session.Conn, tag uint16){
		"garbage":     func(c session.Conn, _ uint16) { c.Send([]byte("nothing of this protocol"), nil) },
		"unknown tag": func(c session.Conn, tag uint16) { c.Send(encode(tag+5000, &sigmap.Rwatch{}), nil) },
		"twice": func(c session.Conn, tag uint16) {
			m := encode(tag, &sigmap.Rmkdir{})
			c.Send(m, nil)
			c.Send(m, nil)
		},
		"too long": func(c session.Conn, _ uint16) { c.Send(make([]byte, sigmap.MessageMax+1), nil) },
		"unknown type": func(c session.Conn, tag uint16) {
			c.Send([]byte{7, 0, 0, 0, 255, byte(tag), byte(tag >> 8)}, nil)
		},
		"empty": func(c session.Conn, _ uint16) { c.Send(nil, nil) },
		"close": func(c session.Conn, _ uint16) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			a, b, err := session.Pair()
			if err != nil {
				t.Fatal(err)
			}
			waiting := make(chan bool, 100)
			c, root := dialConn(t, a, b, func(tag uint16, m sigmap.Message) ([]byte, []*os.File, error) {
				switch m.(type) {
				case *sigmap.Twatch:
					waiting <- true
				case *sigmap.Tmkdir:
					break_(b, tag)
				}
				return nil, nil, nil
			})
			const n = 100
			errs := make(chan error, n)
			for range n {
				go func() {
					_, err := root.(sigma.Watcher).Watch(t.Context(), 0)
					errs <- err
				}()
			}
			for range n {
				<-waiting
			}
			if err := root.Mkdir(t.Context(), "break", 0); sigma.KindOf(err) != sigma.KindLost && name != "twice" {
				t.Errorf("got %v, want lost", err)
			}
			for range n {
				if err := <-errs; sigma.KindOf(err) != sigma.KindLost || session.Unsent(err) {
					t.Errorf("a waiter got %v, want lost", err)
				}
			}
			<-c.Done()
			if _, err := root.Stat(t.Context()); sigma.KindOf(err) != sigma.KindLost ||
				!session.Unsent(sigma.Wrap("test", "/x", err)) {
				t.Errorf("afterwards: got %v, want lost before it was sent", err)
			}
		})
	}
}

func encode(tag uint16, m sigmap.Message) []byte {
	buf, err := sigmap.Encode(nil, tag, m)
	if err != nil {
		panic(err)
	}
	return buf
}

// TestVersions: a server that does not speak the protocol is refused.
func TestVersions(t *testing.T) {
	for name, m := range map[string]sigmap.Message{
		"unknown": &sigmap.Rversion{Msize: sigmap.MessageMax, Version: "unknown"},
		"plain":   &sigmap.Rversion{Msize: sigmap.MessageMax, Version: sigmap.VersionPlain},
		"small":   &sigmap.Rversion{Msize: 8192, Version: sigmap.VersionSigma}, "another reply": &sigmap.Rflush{},
		"error": &sigmap.Rlerror{Errno: 5},
	} {
		a, b, err := session.Pair()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for { // a client tries more than one version
				if _, _, err := b.Recv(); err != nil || b.Send(encode(sigmap.NoTag, m), nil) != nil {
					return
				}
			}
		}()
		if _, err := session.Dial(t.Context(), a); err == nil {
			t.Errorf("%s: dialled", name)
		}
		b.Close()
	}
	synctest.Test(t, func(t *testing.T) { // a silent server costs what the context says
		a, b := net.Pipe()
		defer b.Close()
		go io.Copy(io.Discard, b)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if _, err := session.Dial(ctx, session.NewStreamConn(a)); sigma.KindOf(err) != sigma.KindTimeout ||
			time.Since(start) != time.Minute {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
	})
}

// TestServerThatDoesNotRead: a request to a server that takes no bytes fails in the end, and so
// does the session.
func TestServerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer b.Close()
		server := session.NewStreamConn(b)
		go func() {
			for _, m := range []sigmap.Message{&sigmap.Rversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSigma},
				&sigmap.Rattach{}} {
				buf, _, _ := server.Recv()
				tag, _, _ := sigmap.Decode(buf)
				server.Send(encode(tag, m), nil)
			}
		}()
		c, err := session.Dial(t.Context(), session.NewStreamConn(a))
		if err != nil {
			t.Fatal(err)
		}
		root, err := c.Attach(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		if err := root.Sync(t.Context()); sigma.KindOf(err) != sigma.KindLost {
			t.Errorf("got %v, want lost", err)
		}
		<-c.Done()
	})
}

// TestClose: closing a client answers those who wait and ends its goroutine; a closed handle does
// nothing any more.
func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	arrived := make(chan bool, 1)
	c, root := dialLiar(t, func(tag uint16, m sigmap.Message) ([]byte, []*os.File, error) {
		if _, ok := m.(*sigmap.Twatch); ok {
			arrived <- true
			return nil, nil, nil
		}
		return encode(tag, &sigmap.Rclunk{}), nil, nil
	})
	errs := make(chan error)
	go func() {
		_, err := root.(sigma.Watcher).Watch(t.Context(), 0)
		errs <- err
	}()
	<-arrived
	root.Close()
	root.Close()
	for name, op := range ops {
		if err := op(t.Context(), root); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s of a closed handle: got %v, want invalid", name, err)
		}
	}
	c.Close()
	c.Close()
	if err := <-errs; sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("got %v, want lost", err)
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
	}
}

// TestPassedFiles: more or fewer file descriptors than belong to a reply are closed.
func TestPassedFiles(t *testing.T) {
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() }) // after the liar has ended
	var count atomic.Int32
	_, root := dialLiar(t, func(tag uint16, m sigmap.Message) ([]byte, []*os.File, error) {
		var files []*os.File
		for range count.Load() {
			files = append(files, null)
		}
		if _, ok := m.(*sigmap.Tpass); ok {
			return encode(tag, &sigmap.Rpass{}), files, nil
		}
		return encode(tag, &sigmap.Rfail{Kind: sigma.KindBusy}), files, nil
	})
	open := func() int {
		es, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc")
		}
		return len(es)
	}
	before := open()
	for n := range int32(session.FilesMax + 1) {
		count.Store(n)
		f, err := root.(sigma.FilePasser).PassFile(t.Context())
		if (err == nil) != (n == 1) {
			t.Errorf("%d files: %v", n, err)
		}
		if f != nil {
			f.Close()
		}
		for name, op := range ops { // files with replies that carry none
			if err := op(t.Context(), root); err == nil && name != "PassFile" {
				t.Errorf("%s: no error", name)
			}
		}
	}
	if n := open(); n != before {
		t.Errorf("%d file descriptors before, %d after", before, n)
	}
}

// TestConns checks what is refused before it is sent or taken.
func TestConns(t *testing.T) {
	x, y, err := session.FilePair(syscall.SOCK_STREAM)
	if err != nil {
		t.Fatal(err)
	}
	defer y.Close()
	if _, err := session.FromFile(x); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("a stream as packets: %v", err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.FromFile(null); err == nil {
		t.Error("/dev/null is a socket")
	}
	for name, c := range map[string]struct {
		bytes []byte
		want  string
	}{
		"cut header": {[]byte{1, 2}, "ends within"}, "cut body": {[]byte{9, 0, 0, 0, 1}, "ends within"},
		"short": {[]byte{6, 0, 0, 0, 1, 2}, "claims 6"},
		"long":  {[]byte{1, 0, 1, 0}, "claims 65537"}, "endless": {bytes.Repeat([]byte{0xff}, 100),
			"claims 4294967295"},
	} {
		a, b := net.Pipe()
		go func() {
			a.Write(c.bytes)
			a.Close()
		}()
		if _, _, err := session.NewStreamConn(b).Recv(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		b.Close()
	}
}

// FuzzReplies answers a client's requests with the types and bodies of the input. Whatever they
// are, every request returns.
func FuzzReplies(f *testing.F) {
	for _, m := range []sigmap.Message{&sigmap.Rwalk{IDs: make([]sigma.FileID, 2)},
		&sigmap.Rread{Data: []byte("0123456789")}, &sigmap.Rlist{Entries: []sigma.DirEntry{{Name: "a", Next: 1}}},
		&sigmap.Rget{Data: []byte("x")}, &sigmap.Rstop{Walked: 1, Kind: sigma.KindSymlink}, &sigmap.Rfail{Kind: 99},
		&sigmap.Rlerror{Errno: 1 << 31}, &sigmap.Rdescribe{}, &sigmap.Rcall{}} {
		buf := encode(0, m)
		f.Add(bytes.Repeat(append([]byte{byte(len(buf) - 7), buf[4]}, buf[7:]...), 10))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, b := net.Pipe()
		_, root := dialConn(t, session.NewStreamConn(a), session.NewStreamConn(b),
			func(tag uint16, m sigmap.Message) ([]byte, []*os.File, error) {
				if len(data) < 2 {
					return nil, nil, io.EOF
				}
				n := min(int(data[0]), len(data)-2)
				reply := binary.LittleEndian.AppendUint16([]byte{byte(7 + n), byte((7 + n) >> 8), 0, 0, data[1]}, tag)
				reply = append(reply, data[2:2+n]...)
				data = data[2+n:]
				return reply, nil, nil
			})
		for _, op := range ops {
			op(context.Background(), root)
		}
	})
}

// TestSeveral: replies of one record reach those who asked; a record that is more or less than
// whole replies ends the session, as one of several does from a server that did not agree to such.
func TestSeveral(t *testing.T) {
	const callers = 10
	for name, c := range map[string]struct {
		version string
		after   []byte
		ok      bool
	}{
		"whole":      {sigmap.VersionSeveral, nil, true},
		"garbage":    {sigmap.VersionSeveral, []byte("garbage"), false},
		"half":       {sigmap.VersionSeveral, []byte{7, 0, 0, 0}, false},
		"unasked":    {sigmap.VersionSeveral, encode(5000, &sigmap.Rfsync{}), false},
		"not agreed": {sigmap.VersionSigma, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, err := session.Pair()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				defer b.Close()
				var record []byte
				for waiting := 0; ; {
					buf, _, err := b.Recv()
					for len(buf) > 0 && err == nil {
						var msg []byte
						if msg, buf, err = sigmap.Cut(buf); err != nil {
							return
						}
						tag, m, err := sigmap.Decode(msg)
						switch m.(type) {
						case *sigmap.Tversion:
							b.Send(encode(tag, &sigmap.Rversion{Msize: sigmap.MessageMax, Version: c.version}), nil)
						case *sigmap.Tattach:
							b.Send(encode(tag, &sigmap.Rattach{}), nil)
						case *sigmap.Tfsync:
							record = append(record, encode(tag, &sigmap.Rfsync{})...)
							waiting++
						}
						if err != nil {
							return
						}
					}
					if err != nil {
						return
					}
					if waiting == callers {
						b.Send(append(record, c.after...), nil)
						record, waiting = nil, 0
					}
				}
			}()
			client, err := session.Dial(t.Context(), a)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			root, err := client.Attach(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			rounds := 1
			if c.ok {
				rounds = 100
			}
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					for range rounds {
						if err := root.Sync(t.Context()); err != nil {
							if c.ok || sigma.KindOf(err) != sigma.KindLost {
								t.Error(err)
							}
							return
						}
					}
				})
			}
			all.Wait()
			if !c.ok {
				<-client.Done()
			}
		})
	}
}
