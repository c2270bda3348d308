package filestream_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand"
	"net"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/ux"
	"sigmaos.dev/wire/filestream"
	"sigmaos.dev/wire/session"
)

// world is a file of scratch storage and a stream of it.
type world struct {
	*testing.T
	root sigma.File
	ctx  context.Context
}

func newWorld(t *testing.T, quota sigma.Bytes) *world {
	tree, err := ux.New(ux.Config{Dir: t.TempDir(), QuotaBytes: quota})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Close)
	root, err := tree.Attach(t.Context(), sigma.Principal{Realm: "default"}, "")
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, root, t.Context()}
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) make(name string, data []byte, flags sigma.OpenFlags) sigma.File {
	w.Helper()
	f, err := w.root.Create(w.ctx, name, sigma.OpenReadWrite|flags, 0o644)
	w.ok(err)
	if len(data) > 0 {
		_, err = f.WriteAt(w.ctx, data, 0)
		w.ok(err)
	}
	w.Cleanup(f.Close)
	return f
}

func (w *world) open(name string) sigma.File {
	w.Helper()
	f, ids, err := w.root.Walk(w.ctx, []string{name})
	w.ok(err)
	if len(ids) != 1 {
		w.Fatalf("no %s", name)
	}
	w.ok(f.Open(w.ctx, sigma.OpenRead))
	w.Cleanup(f.Close)
	return f
}

// stream gives a Client of a file over a socket pair, or over TCP.
func (w *world) stream(f sigma.File, writes, tcp bool) *filestream.Client {
	w.Helper()
	var ours, theirs net.Conn
	if tcp {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		w.ok(err)
		defer l.Close()
		theirs, err = net.Dial("tcp", l.Addr().String())
		w.ok(err)
		ours, err = l.Accept()
		w.ok(err)
	} else {
		a, b, err := session.FilePair(syscall.SOCK_STREAM)
		w.ok(err)
		ours, err = session.UnixConn(a)
		w.ok(err)
		theirs, err = session.UnixConn(b)
		w.ok(err)
	}
	over := make(chan struct{})
	check := func(write bool) error {
		if write && !writes {
			return sigma.Errorf("test", sigma.KindPermission, "the file is open for reading only")
		}
		return nil
	}
	go func() {
		defer close(over)
		filestream.Serve(w.ctx, ours, filestream.Config{File: f, Check: check})
	}()
	c := filestream.New(theirs)
	w.Cleanup(func() { c.Close(); <-over })
	return c
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(int64(n))).Read(b)
	return b
}

// A file is read whole by reads of all sizes, in order, and anywhere.
func TestRead(t *testing.T) {
	w := newWorld(t, 0)
	data := random(5<<20 + 12345)
	w.make("f", data, 0)
	for _, tcp := range []bool{false, true} {
		for _, piece := range []int{1, 70_000, 1 << 20, 3<<20 + 1, len(data), len(data) + 1} {
			c := w.stream(w.open("f"), false, tcp)
			var got []byte
			for off := 0; ; {
				p := make([]byte, piece)
				if piece == 1 { // a few of them do
					off = len(data) - 5
				}
				n, err := c.ReadAt(p, int64(off))
				got = append(got, p[:n]...)
				off += n
				if err == io.EOF {
					break
				}
				w.ok(err)
				if piece == 1 {
					got = data
					break
				}
			}
			if !bytes.Equal(got, data) {
				t.Errorf("pieces of %d: %d bytes came, or others", piece, len(got))
			}
		}
		c := w.stream(w.open("f"), false, tcp)
		r := rand.New(rand.NewSource(1))
		for range 50 {
			off, n := r.Intn(len(data)), 1+r.Intn(2<<20)
			if r.Intn(2) == 0 && c.Next() >= 0 && c.Next() < int64(len(data)) {
				off = int(c.Next())
			}
			p := make([]byte, n)
			got, err := c.ReadAt(p, int64(off))
			want := data[off:min(len(data), off+n)]
			if err != nil && err != io.EOF || !bytes.Equal(p[:got], want) || (err == io.EOF) != (got < n) {
				t.Fatalf("%d bytes at %d: %d, %v", n, off, got, err)
			}
		}
		if n, err := c.ReadAt(make([]byte, 9), int64(len(data))+7); n != 0 || err != io.EOF {
			t.Errorf("behind the end: %d, %v", n, err)
		}
	}
}

// What was written before a read began is read, although it was sent before: also where the file
// has become longer or shorter.
func TestReadIsCurrent(t *testing.T) {
	w := newWorld(t, 0)
	const piece = 100_000
	data := random(10 * piece)
	f := w.make("f", data, 0)
	c := w.stream(w.open("f"), false, false)
	p := make([]byte, piece)
	for i := range 12 {
		if i < 10 {
			change := random(piece - i)
			copy(data[i*piece:], change)
			_, err := f.WriteAt(w.ctx, change, uint64(i*piece))
			w.ok(err)
		}
		if i == 9 {
			data = append(data, random(piece+3)...)
			_, err := f.WriteAt(w.ctx, data[10*piece:], 10*piece)
			w.ok(err)
		}
		n, err := c.ReadAt(p, int64(i*piece))
		if err != nil && err != io.EOF || !bytes.Equal(p[:n], data[i*piece:min(len(data), (i+1)*piece)]) {
			t.Fatalf("piece %d: %d, %v, or other bytes", i, n, err)
		}
		if i == 4 {
			c.Reconsider()
		}
	}
	size := uint64(1)
	w.ok(f.SetStat(w.ctx, sigma.StatChange{Size: &size}))
	if n, err := c.ReadAt(p, piece); n != 0 || err != io.EOF {
		t.Errorf("of a file that was cut: %d, %v", n, err)
	}
}

// Writes arrive, and who is behind learns at Settle what became of them.
func TestWrite(t *testing.T) {
	w := newWorld(t, 64<<20)
	data := random(3<<20 + 77)
	for _, behind := range []bool{false, true} {
		f := w.make("f", nil, sigma.OpenTruncate)
		c := w.stream(f, true, behind)
		for off := 0; off < len(data); off += 700_000 {
			p := data[off:min(len(data), off+700_000)]
			if n, err := c.WriteAt(p, int64(off), behind); n != len(p) || err != nil {
				t.Fatal(n, err)
			}
		}
		w.ok(c.Settle())
		got := make([]byte, len(data))
		if n, err := c.ReadAt(got, 0); n != len(data) || err != nil || !bytes.Equal(got, data) {
			t.Error("other bytes are read than were written", n, err)
		}
	}
	c := w.stream(w.make("g", nil, 0), true, false)
	if n, err := c.WriteAt(data, 63<<20, false); sigma.KindOf(err) != sigma.KindNoSpace || n == len(data) {
		t.Errorf("beyond the quota: %d, %v", n, err)
	}
	if _, err := c.WriteAt(data[:100], 0, false); err != nil {
		t.Errorf("after a write that was refused: %v", err)
	}
	c = w.stream(w.make("h", nil, 0), true, false)
	_, err := c.WriteAt(data, 63<<20, true)
	if e := c.Settle(); sigma.KindOf(e) != sigma.KindNoSpace {
		t.Errorf("behind, beyond the quota: %v, then %v", err, e)
	}
	if _, err := c.WriteAt(data[:100], 0, true); sigma.KindOf(err) != sigma.KindNoSpace {
		t.Errorf("after one that was not made: %v", err)
	}
	c = w.stream(w.open("f"), false, false)
	if _, err := c.WriteAt(data, 0, false); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("to a file open for reading: %v", err)
	}
	if n, err := c.ReadAt(make([]byte, 100), 0); n != 100 || err != nil {
		t.Errorf("and then: %d, %v", n, err)
	}
}

// A stream that ends is broken, for who reads and who writes; what was written behind is lost.
func TestBroken(t *testing.T) {
	a, b := net.Pipe()
	b.Close()
	c := filestream.New(a)
	if _, err := c.ReadAt(make([]byte, 10), 0); !errors.Is(err, filestream.ErrBroken) {
		t.Error(err)
	}
	if _, err := c.WriteAt(make([]byte, 10), 0, false); !errors.Is(err, filestream.ErrBroken) {
		t.Error(err)
	}
	a, b = net.Pipe()
	go func() {
		io.ReadFull(b, make([]byte, filestream.HeadSize+10))
		b.Close()
	}()
	c = filestream.New(a)
	if _, err := c.WriteAt(make([]byte, 10), 0, true); err != nil {
		t.Error(err)
	}
	if err := c.Settle(); sigma.KindOf(err) != sigma.KindLost {
		t.Error(err)
	}
}

// FuzzServe: whatever comes on a stream, it is answered or ends.
func FuzzServe(f *testing.F) {
	f.Add(filestream.ReadRequest(100, 5))
	f.Add(append(filestream.WriteRequest(3, 5), "abc"...))
	f.Add(filestream.WriteRequest(1<<30, 1<<63))
	tree, err := ux.New(ux.Config{Dir: f.TempDir(), QuotaBytes: 1 << 20})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(tree.Close)
	root, err := tree.Attach(f.Context(), sigma.Principal{Realm: "default"}, "")
	if err != nil {
		f.Fatal(err)
	}
	file, err := root.Create(f.Context(), "f", sigma.OpenReadWrite, 0o644)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		a, b := net.Pipe()
		over := make(chan struct{})
		go func() {
			defer close(over)
			filestream.Serve(t.Context(), b, filestream.Config{File: file, Check: func(bool) error { return nil }})
		}()
		go io.Copy(io.Discard, a)
		a.SetWriteDeadline(time.Now().Add(10 * time.Second))
		a.Write(said)
		a.Close()
		<-over
	})
}

// FuzzClient: whatever a server answers, a read ends, and what it gives was sent.
func FuzzClient(f *testing.F) {
	f.Add(append(filestream.Answer(0, 1), "hello"...))
	f.Add(append(filestream.Answer(1, 0), "hello"...))
	f.Fuzz(func(t *testing.T, said []byte) {
		a, b := net.Pipe()
		go io.Copy(io.Discard, b)
		go func() {
			b.Write(said)
			b.Close()
		}()
		c := filestream.New(a)
		defer c.Close()
		p := make([]byte, 5)
		for off := int64(0); off < 100; off += 5 {
			if n, err := c.ReadAt(p, off); n < 0 || n > len(p) || n < len(p) && err == nil {
				t.Fatal(n, err)
			}
		}
		c.WriteAt(p, 0, false)
		b.Close()
	})
}
