package treeserver_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

func encode(t testing.TB, tag uint16, m sigmap.Message) []byte {
	t.Helper()
	buf, err := sigmap.Encode(nil, tag, m)
	if err != nil {
		t.Fatal(err)
	}
	return buf
}

// resized claims size bytes in the header of msg.
func resized(msg []byte, size int) []byte {
	binary.LittleEndian.PutUint32(msg, uint32(size))
	return msg
}

// TestBadMessage sends one bad message in the middle of a session that has handles and a blocked
// request. The session ends with an error, everything of it is released, and another session of the
// same tree has not noticed.
func TestBadMessage(t *testing.T) {
	walk := encode(t, 9, &sigmap.Twalk{Fid: 1, NewFid: 20, Names: []string{"a", "b"}})
	names := append(walk[:15:15], 0xff, 0xff)
	cases := map[string][]byte{
		"truncated":      resized(walk[:len(walk)-2:len(walk)-2], len(walk)-2),
		"bytes left":     resized(append(walk[:len(walk):len(walk)], 1, 2, 3), len(walk)+3),
		"many names":     resized(names, len(names)),
		"string too far": resized(append(walk[:15:15], 1, 0, 0xff, 0xff), 19),
		"no type":        {7, 0, 0, 0},
		"size 0":         resized(make([]byte, 7), 0),
		"size 6":         resized(make([]byte, 7), 6),
		"size huge":      resized(make([]byte, 7), 1<<31),
		"tag in use":     encode(t, 5, &sigmap.Tclunk{Fid: 1}),
		"unknown in use": {7, 0, 0, 0, 250, 5, 0},
		"tag NoTag":      encode(t, sigmap.NoTag, &sigmap.Tclunk{Fid: 1}),
		"Tversion":       encode(t, sigmap.NoTag, &sigmap.Tversion{Msize: 65536, Version: sigmap.VersionSigma}),
		"bad put kind": resized(append(encode(t, 9, &sigmap.Tget{Fid: 1})[:4:4], 134, 9, 0, 1, 0, 0, 0, 0, 0, 99),
			14),
	}
	eachConn(t, func(t *testing.T, pair func(*testing.T) (client, server session.Conn)) {
		tree := &counting{Tree: newMemfs(t)}
		_, other := dial(t, pair, treeserver.Config{Tree: newMemfs(t)})
		for name, bad := range cases {
			t.Run(name, func(t *testing.T) {
				r := serve(t, pair, treeserver.Config{Tree: tree}).start(sigmap.VersionSigma)
				ask[*sigmap.Rwalk](r, 2, &sigmap.Twalk{Fid: 1, NewFid: 2})
				r.send(5, &sigmap.Twatch{Fid: 1, Since: 1 << 63})
				ask[*sigmap.Rgetattr](r, 2, &sigmap.Tgetattr{Fid: 1}) // so that the server has the watch
				if err := r.conn.Send(bad, nil); err != nil {
					t.Fatal(err)
				}
				if name == "no type" {
					r.conn.Close() // else a stream waits for the rest
				}
				r.waitEnd()
				if r.err == nil {
					t.Error("Serve returned nil")
				}
				tree.checkHandles(t)
				if _, err := other.Stat(t.Context()); err != nil {
					t.Errorf("another session: %v", err)
				}
			})
		}
	})
}

// TestOversizedRecord sends a record that is longer than any message.
func TestOversizedRecord(t *testing.T) {
	r := serve(t, pairs["packet"], treeserver.Config{Tree: newMemfs(t)}).start(sigmap.VersionSigma)
	if err := r.conn.Send(make([]byte, sigmap.MessageMax+1), nil); err != nil {
		t.Fatal(err)
	}
	r.waitEnd()
	if sigma.KindOf(r.err) != sigma.KindTooBig {
		t.Errorf("got %v, want too big", r.err)
	}
}

// TestStart checks what may come before a session has started.
func TestStart(t *testing.T) {
	eachConn(t, func(t *testing.T, pair func(*testing.T) (client, server session.Conn)) {
		for name, m := range map[string]sigmap.Message{
			"no Tversion":   &sigmap.Tattach{Fid: 1},
			"small msize":   &sigmap.Tversion{Msize: 4096, Version: sigmap.VersionSigma},
			"not a request": &sigmap.Rversion{},
		} {
			t.Run(name, func(t *testing.T) {
				r := serve(t, pair, treeserver.Config{Tree: newMemfs(t)})
				r.send(1, m)
				r.waitEnd()
				if r.err == nil {
					t.Error("Serve returned nil")
				}
			})
		}
		r := serve(t, pair, treeserver.Config{Tree: newMemfs(t)})
		for _, v := range []struct{ asked, got string }{{"9P2000", "unknown"}, {"9P2000.L.other", sigmap.VersionPlain},
			{sigmap.VersionPlain, sigmap.VersionPlain},
			{sigmap.VersionSigma, sigmap.VersionSigma}} {
			got := ask[*sigmap.Rversion](r, sigmap.NoTag, &sigmap.Tversion{Msize: 1 << 30, Version: v.asked})
			if got.Version != v.got || got.Msize != sigmap.MessageMax {
				t.Errorf("asked for %q: got %+v, want %q", v.asked, got, v.got)
			}
		}
	})
}

// TestRefused sends requests that are answered with an error and leave the session as it was.
func TestRefused(t *testing.T) {
	long := strings.Repeat("x", 300)
	cases := []struct {
		name string
		m    sigmap.Message
		kind sigma.Kind
	}{
		{"unknown fid", &sigmap.Tgetattr{Fid: 99}, sigma.KindInvalid},
		{"attach of a fid in use", &sigmap.Tattach{Fid: 1}, sigma.KindInvalid},
		{"attach of NoFid", &sigmap.Tattach{Fid: sigmap.NoFid}, sigma.KindInvalid},
		{"attach of no root", &sigmap.Tattach{Fid: 9, Aname: "nobody"}, sigma.KindNotFound},
		{"walk to a fid in use", &sigmap.Twalk{Fid: 1, NewFid: 2}, sigma.KindInvalid},
		{"walk up", &sigmap.Twalk{Fid: 1, NewFid: 9, Names: []string{".."}}, sigma.KindInvalid},
		{"walk to a path", &sigmap.Twalk{Fid: 1, NewFid: 9, Names: []string{"a/b"}}, sigma.KindInvalid},
		{"walk to nothing", &sigmap.Twalk{Fid: 1, NewFid: 9, Names: []string{"nothing"}}, sigma.KindNotFound},
		{"reply", &sigmap.Rread{}, sigma.KindInvalid},
		{"read unopened", &sigmap.Tread{Fid: 2, Count: 1}, sigma.KindInvalid},
		{"write unopened", &sigmap.Twrite{Fid: 2, Data: []byte("x")}, sigma.KindInvalid},
		{"list unopened", &sigmap.Treaddir{Fid: 2, Count: 1000}, sigma.KindInvalid},
		{"long name", &sigmap.Tmkdir{Fid: 1, Name: long}, sigma.KindInvalid},
		{"empty name", &sigmap.Tlcreate{Fid: 1}, sigma.KindInvalid},
		{"rename up", &sigmap.Trenameat{OldDir: 1, OldName: "d", NewDir: 1, NewName: ".."}, sigma.KindInvalid},
		{"remove", &sigmap.Tremove{Fid: 99}, sigma.KindUnsupported},
		{"call of a directory", &sigmap.Tcall{Fid: 1, Method: "m"}, sigma.KindUnsupported},
		{"pass of a directory", &sigmap.Tpass{Fid: 1}, sigma.KindUnsupported},
		{"lease for no time", &sigmap.Tlease{Fid: 1}, sigma.KindInvalid},
		{"lease for less", &sigmap.Tlease{Fid: 1, TTL: -1}, sigma.KindInvalid},
		{"put of nothing", &sigmap.Tput{Fid: 1}, sigma.KindInvalid},
		{"get of a directory", &sigmap.Tget{Fid: 1, Count: 1 << 31}, sigma.KindIsDir},
		{"clunk of an unknown fid", &sigmap.Tclunk{Fid: 99}, sigma.KindInvalid},
	}
	eachConn(t, func(t *testing.T, pair func(*testing.T) (client, server session.Conn)) {
		tree := &counting{Tree: newMemfs(t)}
		r := serve(t, pair, treeserver.Config{Tree: newMemfs(t)}).start(sigmap.VersionSigma)
		ask[*sigmap.Rmkdir](r, 1, &sigmap.Tmkdir{Fid: 1, Name: "d"})
		ask[*sigmap.Rwalk](r, 1, &sigmap.Twalk{Fid: 1, NewFid: 2, Names: []string{"d"}})
		for _, c := range cases {
			r.send(7, c.m)
			f := want[*sigmap.Rfail](r, 7)
			if f.Kind != c.kind {
				t.Errorf("%s: got %v (%s), want %v", c.name, f.Kind, f.Msg, c.kind)
			}
		}
		for typ := range 256 { // unknown to this version
			if sigmap.New(sigmap.Type(typ)) != nil {
				continue
			}
			if err := r.conn.Send([]byte{7, 0, 0, 0, uint8(typ), 7, 0}, nil); err != nil {
				t.Fatal(err)
			}
			r.fails(7, sigma.KindUnsupported)
		}
		ask[*sigmap.Rclunk](r, 1, &sigmap.Tclunk{Fid: 2})
		ask[*sigmap.Rclunk](r, 1, &sigmap.Tclunk{Fid: 1})
		r.stop()
		r.waitEnd()
		if r.err != nil {
			t.Errorf("Serve: %v", r.err)
		}
		tree.checkHandles(t)
	})
}

// TestHugeNumbers tries the ends of the ranges of offsets, counts and versions.
func TestHugeNumbers(t *testing.T) {
	eachConn(t, func(t *testing.T, pair func(*testing.T) (client, server session.Conn)) {
		r := serve(t, pair, treeserver.Config{Tree: newMemfs(t)}).start(sigmap.VersionSigma)
		ask[*sigmap.Rwalk](r, 1, &sigmap.Twalk{Fid: 1, NewFid: 2})
		ask[*sigmap.Rlcreate](r, 1, &sigmap.Tlcreate{Fid: 2, Name: "f", Flags: 2, Mode: 0o644})
		const most = 1<<64 - 1
		for _, off := range []uint64{most, most - 3, 1 << 63, 1<<63 - 1, 1<<62 + 1, 1 << 62} {
			r.send(1, &sigmap.Twrite{Fid: 2, Offset: off, Data: []byte("data")})
			if f := want[*sigmap.Rfail](r, 1); f.Kind != sigma.KindTooBig && f.Kind != sigma.KindNoSpace {
				t.Errorf("write at %d: %+v", off, f)
			}
			if m := ask[*sigmap.Rread](r, 1, &sigmap.Tread{Fid: 2, Offset: off, Count: 1<<32 - 1}); len(m.Data) > 0 {
				t.Errorf("read at %d: %d bytes", off, len(m.Data))
			}
			if m := ask[*sigmap.Rget](r, 1, &sigmap.Tget{Fid: 1, Names: []string{"f"}, Offset: off,
				Count: 1<<32 - 1}); len(m.Data) > 0 {
				t.Errorf("get at %d: %d bytes", off, len(m.Data))
			}
		}
		r.send(1, &sigmap.Tsetattr{Fid: 2, Valid: sigmap.AttrSetSize, Size: most})
		want[*sigmap.Rfail](r, 1)
		ask[*sigmap.Rsetattr](r, 1, &sigmap.Tsetattr{Fid: 2, Valid: sigmap.AttrSetMTime | sigmap.AttrSetMTimeTo,
			MTime: most, MTimeNsec: most})
		ask[*sigmap.Rgetattr](r, 1, &sigmap.Tgetattr{Fid: 2})
		ask[*sigmap.Rwalk](r, 1, &sigmap.Twalk{Fid: 1, NewFid: 3})
		ask[*sigmap.Rlopen](r, 1, &sigmap.Tlopen{Fid: 3})
		if m := ask[*sigmap.Rreaddir](r, 1, &sigmap.Treaddir{Fid: 3, Offset: most, Count: 1<<32 - 1}); len(m.Data) > 0 {
			t.Error("entries after the last cookie")
		}
		r.send(1, &sigmap.Treaddir{Fid: 3, Count: 10})
		r.fails(1, sigma.KindInvalid)
	})
}

// TestFlush flushes requests in every state.
func TestFlush(t *testing.T) {
	eachConn(t, func(t *testing.T, pair func(*testing.T) (client, server session.Conn)) {
		r := serve(t, pair, treeserver.Config{Tree: newMemfs(t)}).start(sigmap.VersionSigma)
		ask[*sigmap.Rflush](r, 3, &sigmap.Tflush{OldTag: 77}) // unknown
		ask[*sigmap.Rflush](r, 3, &sigmap.Tflush{OldTag: 3})  // itself
		r.send(5, &sigmap.Twatch{Fid: 1, Since: 1 << 63})
		r.send(6, &sigmap.Tflush{OldTag: 5})
		r.fails(5, sigma.KindCanceled) // first the request's answer, then the flush's
		want[*sigmap.Rflush](r, 6)
		// Flushes of flushes are answered after what they flush.
		r.send(5, &sigmap.Twatch{Fid: 1, Since: 1 << 63})
		ask[*sigmap.Rgetattr](r, 2, &sigmap.Tgetattr{Fid: 1})
		r.send(6, &sigmap.Tflush{OldTag: 5})
		r.fails(5, sigma.KindCanceled)
		want[*sigmap.Rflush](r, 6)
		ask[*sigmap.Rgetattr](r, 5, &sigmap.Tgetattr{Fid: 1}) // the tags are free
		ask[*sigmap.Rgetattr](r, 6, &sigmap.Tgetattr{Fid: 1})
	})
}

// stuck is a file whose watch ignores its context until released.
type stuck struct {
	treeserver.Base
	release chan struct{}
}

func (s stuck) Attach(context.Context, sigma.Principal, string) (sigma.File, error) { return s, nil }
func (s stuck) Stat(context.Context) (sigma.Stat, error)                            { return sigma.Stat{}, nil }
func (s stuck) Watch(context.Context, sigma.Version) (sigma.Version, error) {
	<-s.release
	return 42, nil
}

// TestFlushOfFlush: a request that cannot be taken back is answered, then the flushes in order.
func TestFlushOfFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := stuck{release: make(chan struct{})}
		r := serve(t, pipe, treeserver.Config{Tree: tree}).start(sigmap.VersionSigma)
		r.send(5, &sigmap.Twatch{Fid: 1})
		r.send(6, &sigmap.Tflush{OldTag: 5})
		r.send(7, &sigmap.Tflush{OldTag: 6})
		r.send(8, &sigmap.Tflush{OldTag: 5})
		ask[*sigmap.Rgetattr](r, 9, &sigmap.Tgetattr{Fid: 1}) // others are served meanwhile
		close(tree.release)
		if v := want[*sigmap.Rwatch](r, 5); v.Version != 42 {
			t.Errorf("got %d", v.Version)
		}
		want[*sigmap.Rflush](r, 6)
		want[*sigmap.Rflush](r, 8)
		want[*sigmap.Rflush](r, 7)
	})
}

// TestAbandon: the client of a server that does not answer a flush gives up all the same, and its
// tags are not used again before the server has answered.
func TestAbandon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := stuck{release: make(chan struct{})}
		_, root := dial(t, pipe, treeserver.Config{Tree: tree})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 3 {
			if _, err := root.(sigma.Watcher).Watch(ctx, 0); sigma.KindOf(err) != sigma.KindTimeout &&
				sigma.KindOf(err) != sigma.KindCanceled {
				t.Errorf("got %v, want timeout", err)
			}
		}
		for range 100 {
			if _, err := root.Stat(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		close(tree.release)
		synctest.Wait()
		if v, err := root.(sigma.Watcher).Watch(t.Context(), 0); err != nil || v != 42 {
			t.Errorf("got %d %v", v, err)
		}
	})
}

// TestNeverReads has a client that asks for much and reads nothing. Others are not delayed, what it
// can pile up is bounded, and Serve ends when told to.
func TestNeverReads(t *testing.T) {
	eachConn(t, func(t *testing.T, pair func(*testing.T) (client, server session.Conn)) {
		tree := newMemfs(t)
		_, other := dial(t, pair, treeserver.Config{Tree: tree})
		if _, _, err := other.(sigma.Putter).Put(t.Context(), []string{"f"}, make([]byte, 32<<10),
			sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		r := serve(t, pair, treeserver.Config{Tree: tree}).start(sigmap.VersionSigma)
		sent := make(chan int)
		go func() {
			n := 0
			for tag := range uint16(0xffff) { // ends when the server reads no more and the test closes the connection
				buf, _ := sigmap.Encode(nil, tag, &sigmap.Tget{Fid: 1, Names: []string{"f"}, Count: 32 << 10})
				if r.conn.Send(buf, nil) != nil {
					break
				}
				n++
			}
			sent <- n
		}()
		for range 200 {
			if r, _, err := other.(sigma.Getter).Get(t.Context(), []string{"f"}, 0, 100); err != nil ||
				len(r.Data) != 100 {
				t.Fatalf("another client: %v", err)
			}
		}
		r.stop()
		r.waitEnd()
		if n := <-sent; n > 20000 {
			t.Errorf("the server took %d requests of a client that does not read", n)
		}
	})
}

// TestRequestsMax fills a session with requests that wait. One more is refused so that it can be
// retried; others can still be taken back.
func TestRequestsMax(t *testing.T) {
	checkGoroutines(t)
	r := serve(t, pairs["packet"], treeserver.Config{Tree: newMemfs(t)}).start(sigmap.VersionSigma)
	for tag := range uint16(treeserver.RequestsMax) {
		r.send(tag, &sigmap.Twatch{Fid: 1, Since: 1 << 63})
	}
	r.send(60000, &sigmap.Tgetattr{Fid: 1})
	r.fails(60000, sigma.KindBusy)
	r.send(60001, &sigmap.Tflush{OldTag: 17})
	r.fails(17, sigma.KindCanceled)
	want[*sigmap.Rflush](r, 60001)
	ask[*sigmap.Rgetattr](r, 60000, &sigmap.Tgetattr{Fid: 1})
}

// TestFidsMax opens files until they are refused; after one is closed there is room for one.
func TestFidsMax(t *testing.T) {
	tree := &counting{Tree: newMemfs(t)}
	r := serve(t, pairs["packet"], treeserver.Config{Tree: tree}).start(sigmap.VersionSigma)
	for fid := uint32(2); fid <= treeserver.FidsMax; fid++ {
		ask[*sigmap.Rwalk](r, 1, &sigmap.Twalk{Fid: 1, NewFid: fid})
	}
	r.send(1, &sigmap.Twalk{Fid: 1, NewFid: 1 << 20})
	r.fails(1, sigma.KindBusy)
	ask[*sigmap.Rclunk](r, 1, &sigmap.Tclunk{Fid: 2})
	ask[*sigmap.Rwalk](r, 1, &sigmap.Twalk{Fid: 1, NewFid: 1 << 20})
	r.conn.Close()
	r.waitEnd()
	if r.err != nil {
		t.Errorf("Serve: %v", r.err)
	}
	tree.checkHandles(t)
}

// TestEndless: a stream that never ends a message holds one buffer and is let go when the server
// ends.
func TestEndless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := serve(t, pipe, treeserver.Config{Tree: newMemfs(t)}).start(sigmap.VersionSigma)
		r.conn.Send(resized(make([]byte, 8), sigmap.MessageMax), nil)
		time.Sleep(time.Hour)
		select {
		case <-r.ended:
			t.Error("Serve returned")
		default:
		}
	})
}

// bomb is a tree that panics.
type bomb struct{ treeserver.Base }

func (b bomb) Attach(context.Context, sigma.Principal, string) (sigma.File, error) { return b, nil }
func (b bomb) Stat(context.Context) (sigma.Stat, error)                            { return sigma.Stat{}, nil }
func (b bomb) ReadLink(context.Context) (string, error)                            { panic("broken tree") }

// TestPanic: a bug in a tree costs one request.
func TestPanic(t *testing.T) {
	r := serve(t, pairs["packet"], treeserver.Config{Tree: bomb{}}).start(sigmap.VersionSigma)
	r.send(1, &sigmap.Treadlink{Fid: 1})
	if f := r.fails(1, sigma.KindOther); strings.Contains(fmt.Sprint(f), "broken") {
		t.Errorf("the panic reached the client: %+v", f)
	}
	ask[*sigmap.Rgetattr](r, 1, &sigmap.Tgetattr{Fid: 1})
}
