package treeserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/trees/treetest"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// remoteTree attaches to a tree through a session.
type remoteTree struct{ c *session.Client }

func (r remoteTree) Attach(ctx context.Context, _ sigma.Principal, name string) (sigma.File, error) {
	return r.c.Attach(ctx, name)
}

// TestConformance: a remote tree is as good as a local one.
func TestConformance(t *testing.T) {
	eachConn(t, func(t *testing.T, pair func(*testing.T) (client, server session.Conn)) {
		treetest.Run(t, treetest.Config{
			New: func(t *testing.T) sigma.Tree {
				c, root := dial(t, pair, treeserver.Config{Tree: newMemfs(t)})
				root.Close()
				return remoteTree{c}
			},
			Lacks: []treetest.Capability{treetest.Hidden, treetest.PassFiles},
		})
	})
}

// lister is a directory of n entries that gives cookies as its fields say.
type lister struct {
	treeserver.Base
	n        int
	each     bool // every entry has its cookie
	generous bool // returns more than was asked for, but never all
}

func (l lister) Attach(context.Context, sigma.Principal, string) (sigma.File, error) { return l, nil }
func (l lister) Walk(context.Context, []string) (sigma.File, []sigma.FileID, error) {
	return l, nil, nil
}
func (l lister) Open(context.Context, sigma.OpenFlags) error { return nil }
func (l lister) Stat(context.Context) (sigma.Stat, error) {
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir}}, nil
}

func (l lister) ReadDir(_ context.Context, cookie uint64, limit int) ([]sigma.DirEntry, uint64, bool, error) {
	if l.generous {
		limit += 2
	}
	var es []sigma.DirEntry
	for ; cookie < uint64(3*l.n) && len(es) < limit; cookie += 3 { // cookies are no counters
		e := sigma.DirEntry{Name: fmt.Sprintf("entry-%05d", cookie/3)}
		if l.each {
			e.Next = cookie + 3
		}
		es = append(es, e)
	}
	return es, cookie, cookie < uint64(3*l.n), nil
}

// listFrom lists with replies of count bytes.
func listFrom(r *raw, fid uint32, cookie uint64, count uint32) (all []sigmap.DirEntry) {
	r.Helper()
	for {
		m := ask[*sigmap.Rreaddir](r, 1, &sigmap.Treaddir{Fid: fid, Offset: cookie, Count: count})
		es, err := sigmap.DecodeDirEntries(m.Data)
		if err != nil {
			r.Fatal(err)
		}
		if len(es) == 0 {
			return all
		}
		all = append(all, es...)
		cookie = es[len(es)-1].Next
	}
}

// TestReadDirCookies: a client may go on after any entry of a reply, and misses nothing. Only a
// tree that returns more than was asked for, without cookies, may have some of them listed again.
func TestReadDirCookies(t *testing.T) {
	for name, tree := range map[string]lister{"each": {n: 700, each: true}, "last": {n: 700},
		"generous": {n: 700, generous: true}, "generous each": {n: 700, each: true, generous: true}} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, pairs["packet"], treeserver.Config{Tree: tree}).start(sigmap.VersionPlain)
			ask[*sigmap.Rlopen](r, 1, &sigmap.Tlopen{Fid: 1})
			all := listFrom(r, 1, 0, 8000)
			if !tree.generous || tree.each {
				if len(all) != 700 {
					t.Errorf("listed %d entries, want 700", len(all))
				}
				for _, count := range []uint32{40, 100, 1000} {
					if n := len(listFrom(r, 1, 0, count)); n != 700 {
						t.Errorf("with count %d: listed %d entries, want 700", count, n)
					}
				}
			}
			for i := 0; i < len(all); i += 1 + rand.IntN(20) {
				m := ask[*sigmap.Rreaddir](r, 1, &sigmap.Treaddir{Fid: 1, Offset: all[i].Next, Count: 8000})
				es, err := sigmap.DecodeDirEntries(m.Data)
				if err != nil {
					t.Fatal(err)
				}
				if all[i].Name != "entry-00699" && (len(es) == 0 || es[0].Name > fmt.Sprintf("entry-%05d", i+1)) {
					t.Fatalf("after %s came %v", all[i].Name, es[:min(len(es), 1)])
				}
			}
		})
	}
}

// failing answers everything with one error.
type failing struct {
	treeserver.Base
	err error
}

func (f failing) Attach(context.Context, sigma.Principal, string) (sigma.File, error) { return f, nil }
func (f failing) Stat(context.Context) (sigma.Stat, error)                            { return sigma.Stat{}, nil }
func (f failing) Sync(context.Context) error                                          { return f.err }

// TestErrors: kind, path, words and hint of an error reach the client; its cause stays. A plain
// client gets an errno.
func TestErrors(t *testing.T) {
	for kind := range sigma.KindLoop + 1 {
		tree := failing{err: &sigma.Error{Op: "x.Y", Kind: kind, Path: "/a/b", Msg: "message", Hint: "hint",
			Err: errors.New("/var/secret")}}
		_, root := dial(t, pairs["packet"], treeserver.Config{Tree: tree})
		var e *sigma.Error
		if err := root.Sync(t.Context()); !errors.As(err, &e) || e.Kind != kind || e.Path != "/a/b" ||
			e.Msg != "message" || e.Hint != "hint" || e.Err != nil {
			t.Errorf("%v: got %#v", kind, err)
		}
		r := serve(t, pairs["packet"], treeserver.Config{Tree: tree}).start(sigmap.VersionPlain)
		m := ask[*sigmap.Rlerror](r, 1, &sigmap.Tfsync{Fid: 1})
		if got := sigma.KindOf(sigmap.Err(m)); got != kind {
			t.Errorf("%v became errno %d, which is %v", kind, m.Errno, got)
		}
	}
	wrapped := fmt.Errorf("around: %w", sigma.PathError("x.Y", sigma.KindNoSpace, "/p"))
	_, root := dial(t, pairs["packet"], treeserver.Config{Tree: failing{err: wrapped}})
	if err := root.Sync(t.Context()); sigma.KindOf(err) != sigma.KindNoSpace || err.Error() != "/p: no space" {
		t.Errorf("got %v", err)
	}
	_, root = dial(t, pairs["packet"], treeserver.Config{Tree: failing{err: &os.PathError{Op: "open",
		Path: "/var/secret", Err: os.ErrPermission}}})
	if err := root.Sync(t.Context()); err == nil || bytes.Contains([]byte(err.Error()), []byte("secret")) {
		t.Errorf("got %v", err)
	}
}

// TestPlainDialect: the messages that sigmaP adds do not exist for a plain client, and an endpoint
// can be read as a file.
func TestPlainDialect(t *testing.T) {
	tree := newMemfs(t)
	_, root := dial(t, pairs["packet"], treeserver.Config{Tree: tree})
	const text = "sigma-endpoint/1 r m p AAAAAAAAAAAAAAAAAAAAAA tree"
	if _, _, err := root.(sigma.Putter).Put(t.Context(), []string{"e"}, []byte(text),
		sigma.PutOptions{Kind: sigma.KindEndpoint}); err != nil {
		t.Fatal(err)
	}
	r := serve(t, pairs["stream"], treeserver.Config{Tree: tree}).start(sigmap.VersionPlain)
	for _, m := range []sigmap.Message{&sigmap.Tget{Fid: 1}, &sigmap.Tput{Fid: 1}, &sigmap.Twatch{Fid: 1},
		&sigmap.Tlease{Fid: 1, TTL: 1}, &sigmap.Tcall{Fid: 1}, &sigmap.Tpass{Fid: 1}} {
		if e := ask[*sigmap.Rlerror](r, 1, m); e.Errno != 95 {
			t.Errorf("%T: got errno %d, want 95", m, e.Errno)
		}
	}
	ask[*sigmap.Rwalk](r, 1, &sigmap.Twalk{Fid: 1, NewFid: 2, Names: []string{"e"}})
	ask[*sigmap.Rlopen](r, 1, &sigmap.Tlopen{Fid: 2})
	if m := ask[*sigmap.Rread](r, 1, &sigmap.Tread{Fid: 2, Count: 1000}); string(m.Data) != text {
		t.Errorf("got %q", m.Data)
	}
	if m := ask[*sigmap.Rread](r, 1, &sigmap.Tread{Fid: 2, Offset: 1 << 60, Count: 1000}); len(m.Data) > 0 {
		t.Errorf("got %q after the end", m.Data)
	}
	// A fid may be walked to itself (9P walk(5)).
	ask[*sigmap.Rwalk](r, 1, &sigmap.Twalk{Fid: 1, NewFid: 1, Names: []string{"e"}})
	if m := ask[*sigmap.Rreadlink](r, 1, &sigmap.Treadlink{Fid: 1}); m.Target != text {
		t.Errorf("got %q", m.Target)
	}
}

// TestSmallMsize: answers keep to what the client can take.
func TestSmallMsize(t *testing.T) {
	r := serve(t, pairs["packet"], treeserver.Config{Tree: newMemfs(t)})
	ask[*sigmap.Rversion](r, sigmap.NoTag, &sigmap.Tversion{Msize: 8192, Version: sigmap.VersionPlain})
	ask[*sigmap.Rattach](r, 1, &sigmap.Tattach{Fid: 1})
	m := ask[*sigmap.Rlcreate](r, 1, &sigmap.Tlcreate{Fid: 1, Name: "f", Flags: 2, Mode: 0o600})
	ask[*sigmap.Rwrite](r, 1, &sigmap.Twrite{Fid: 1, Data: make([]byte, 60000)})
	d := ask[*sigmap.Rread](r, 1, &sigmap.Tread{Fid: 1, Count: 60000})
	if m.IOUnit > 8192-24 || len(d.Data) == 0 || len(d.Data) > 8192-24 {
		t.Errorf("unit %d, read %d bytes with msize 8192", m.IOUnit, len(d.Data))
	}
}

// TestCancelStorm gives up requests at random moments. Every request gets an answer or a context's
// error, and the session lives on: tags of flushed requests are not mixed up.
func TestCancelStorm(t *testing.T) {
	checkGoroutines(t)
	eachConn(t, func(t *testing.T, pair func(*testing.T) (client, server session.Conn)) {
		_, root := dial(t, pair, treeserver.Config{Tree: newMemfs(t)})
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for i := range 300 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(200))*time.Microsecond)
					var err error
					switch i % 3 {
					case 0:
						_, err = root.Stat(ctx)
					case 1:
						_, err = root.(sigma.Watcher).Watch(ctx, 1<<63)
					case 2:
						var f sigma.File
						if f, _, err = root.Walk(ctx, nil); err == nil {
							f.Close()
						}
					}
					cancel()
					if err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("got %v", err)
					}
				}
			})
		}
		all.Wait()
		if _, err := root.Stat(t.Context()); err != nil {
			t.Errorf("after the storm: %v", err)
		}
	})
}

// TestConcurrentCreate turns one fid into a file from many requests at once: one wins, no handle is
// lost.
func TestConcurrentCreate(t *testing.T) {
	tree := &counting{Tree: newMemfs(t)}
	r := serve(t, pairs["packet"], treeserver.Config{Tree: tree}).start(sigmap.VersionSigma)
	for i := range uint16(50) {
		r.send(i, &sigmap.Tlcreate{Fid: 1, Name: fmt.Sprint(i), Flags: 2, Mode: 0o600})
		r.send(100+i, &sigmap.Trenameat{OldDir: 1, OldName: "x", NewDir: 1, NewName: "y"})
		r.send(200+i, &sigmap.Twalk{Fid: 1, NewFid: 1})
	}
	won := 0
	for range 150 {
		if _, m := r.recv(); m.Type().String() == "Rlcreate" {
			won++
		}
	}
	if won != 1 {
		t.Errorf("%d creates of one fid succeeded", won)
	}
	r.stop()
	r.waitEnd()
	tree.checkHandles(t)
}

// leaving makes files that somebody removes at once.
type leaving struct {
	treeserver.Base
	created bool
}

func (leaving) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return leaving{}, nil
}
func (leaving) Create(context.Context, string, sigma.OpenFlags, uint32) (sigma.File, error) {
	return leaving{created: true}, nil
}
func (l leaving) Stat(context.Context) (sigma.Stat, error) {
	if !l.created {
		return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir}}, nil
	}
	return sigma.Stat{}, sigma.Errorf("x", sigma.KindUnavailable, "")
}

// TestCreateTakesEffect: who made a file is told so, whatever comes after; an error would say that
// there is none.
func TestCreateTakesEffect(t *testing.T) {
	for _, version := range []string{sigmap.VersionSigma, sigmap.VersionPlain} {
		r := serve(t, pairs["packet"], treeserver.Config{Tree: leaving{}}).start(version)
		ask[*sigmap.Rlcreate](r, 1, &sigmap.Tlcreate{Fid: 1, Name: "f", Flags: 1 | syscall.O_EXCL, Mode: 0o600})
	}
}

// publishing notes what becomes of a file that was written.
type publishing struct {
	treeserver.Base
	events *[]string
	err    error
}

func (p publishing) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return p, nil
}
func (p publishing) Stat(context.Context) (sigma.Stat, error)    { return sigma.Stat{}, nil }
func (p publishing) Open(context.Context, sigma.OpenFlags) error { return nil }
func (p publishing) Close()                                      { *p.events = append(*p.events, "close") }
func (p publishing) Publish(context.Context) error {
	*p.events = append(*p.events, "publish")
	return p.err
}

// TestPublish: closing a handle publishes what was written, the end of a session does not.
func TestPublish(t *testing.T) {
	var events []string
	tree := publishing{events: &events, err: sigma.Errorf("x", sigma.KindNoSpace, "")}
	r := serve(t, pairs["packet"], treeserver.Config{Tree: tree}).start(sigmap.VersionSigma)
	ask[*sigmap.Rattach](r, 1, &sigmap.Tattach{Fid: 2})
	ask[*sigmap.Rlopen](r, 1, &sigmap.Tlopen{Fid: 1, Flags: 1})
	ask[*sigmap.Rlopen](r, 1, &sigmap.Tlopen{Fid: 2, Flags: 1})
	r.send(1, &sigmap.Tclunk{Fid: 1})
	r.fails(1, sigma.KindNoSpace)
	r.conn.Close()
	r.waitEnd()
	if want := []string{"publish", "close", "close"}; !slices.Equal(events, want) {
		t.Errorf("got %v, want %v", events, want)
	}
}

// TestBlob gets a file whose size is not known before, larger than one message.
func TestBlob(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789"), 10000)
	b := &treeserver.Blob{Name: "b", Content: func(context.Context) ([]byte, error) { return content, nil }}
	for _, count := range []int{100, sigmap.DataMax} {
		r, stop, err := treeserver.Get(t.Context(), b, nil, 0, count)
		if err != nil || stop != nil || !bytes.Equal(r.Data, content[:count]) || r.Size <= uint64(count) {
			t.Errorf("got %d bytes of %d, %v, %v", len(r.Data), r.Size, stop, err)
		}
	}
}

// caller passes back the files that come with a call, so many times as the payload has bytes.
type caller struct{ treeserver.Base }

func (c caller) Attach(context.Context, sigma.Principal, string) (sigma.File, error) { return c, nil }
func (c caller) Stat(context.Context) (sigma.Stat, error)                            { return sigma.Stat{}, nil }
func (c caller) Call(_ context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File, error) {
	var back []*os.File
	for range payload {
		f, err := os.Open("/dev/null")
		if err != nil {
			return nil, back, err
		}
		back = append(back, f)
	}
	session.CloseFiles(files)
	if method == "fail" {
		return nil, back, sigma.Errorf("x", sigma.KindBusy, "no")
	}
	return payload, back, nil
}
func (c caller) PassFile(context.Context) (*os.File, error) { return os.Open("/dev/null") }
func (c caller) Open(context.Context, sigma.OpenFlags) error {
	return nil
}

func openFiles(t *testing.T) int {
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc")
	}
	return len(es)
}

// checkFiles waits until there are as many as before; the server closes what it sent after the
// client has it.
func checkFiles(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); openFiles(t) > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d file descriptors before, %d after", before, openFiles(t))
		}
	}
}

// TestPassedFiles passes file descriptors both ways, too many of them, with errors, with messages
// that take none and over streams that carry none; none is lost.
func TestPassedFiles(t *testing.T) {
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	_, warm := dial(t, pairs["packet"], treeserver.Config{Tree: caller{}})
	warm.Stat(t.Context())
	for _, keep := range []bool{false, true} {
		client, root := dial(t, pairs["packet"], treeserver.Config{Tree: caller{}, KeepFiles: keep})
		before := openFiles(t)
		c := root.(sigma.Caller)
		for n := range session.FilesMax + 2 {
			_, back, err := c.Call(t.Context(), "ok", make([]byte, n), slices.Repeat([]*os.File{null},
				min(n, session.FilesMax)))
			if n <= session.FilesMax && (err != nil || len(back) != n) || n > session.FilesMax &&
				sigma.KindOf(err) != sigma.KindTooBig {
				t.Errorf("%d files: got %d, %v", n, len(back), err)
			}
			session.CloseFiles(back)
			_, back, err = c.Call(t.Context(), "fail", make([]byte, n), nil)
			if sigma.KindOf(err) != sigma.KindBusy || len(back) > 0 {
				t.Errorf("got %v with %d files", err, len(back))
			}
		}
		if _, _, err := c.Call(t.Context(), "ok", nil, slices.Repeat([]*os.File{null},
			session.FilesMax+1)); sigma.KindOf(err) != sigma.KindTooBig {
			t.Errorf("got %v", err)
		}
		root.Open(t.Context(), sigma.OpenRead)
		f, err := root.(sigma.FilePasser).PassFile(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		checkFiles(t, before)
		client.Close()
	}
	_, root := dial(t, pairs["stream"], treeserver.Config{Tree: caller{}})
	before := openFiles(t)
	if _, _, err := root.(sigma.Caller).Call(t.Context(), "ok", []byte("1"),
		nil); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("file over a stream: got %v", err)
	}
	if _, _, err := root.(sigma.Caller).Call(t.Context(), "ok", nil,
		[]*os.File{null}); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("file over a stream: got %v", err)
	}
	if _, err := root.Stat(t.Context()); err != nil {
		t.Errorf("the session has ended: %v", err)
	}
	checkFiles(t, before)
}

// TestFilesWithOtherMessages sends file descriptors with a message that takes none.
func TestFilesWithOtherMessages(t *testing.T) {
	r := serve(t, pairs["packet"], treeserver.Config{Tree: caller{}, KeepFiles: true}).start(sigmap.VersionSigma)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	before := openFiles(t)
	for _, m := range []sigmap.Message{&sigmap.Tgetattr{Fid: 1}, &sigmap.Tcall{Fid: 99}, &sigmap.Tflush{OldTag: 1}} {
		files, err := r.conn.Passing().Pack([]*os.File{null, null})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.conn.Send(encode(t, 1, m), files); err != nil {
			t.Fatal(err)
		}
		r.recv()
	}
	checkFiles(t, before)
}
