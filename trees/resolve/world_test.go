package resolve_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// world is a realm's tree and servers behind endpoints, all with real sessions.
type world struct {
	*testing.T
	*resolve.Tree
	root  sigma.File
	dials atomic.Int32

	mu      sync.Mutex
	servers map[sigma.EndpointID]*server // mu
	gate    chan struct{}                // mu; if not nil, dialling waits for it
}

type server struct {
	tree     sigma.Tree
	endpoint sigma.Endpoint
	mu       sync.Mutex
	dead     bool     // mu
	silent   bool     // dialling it gets no answer
	lies     string   // how it lies; "" = it does not
	conns    []func() // mu; end its sessions
}

const here = sigma.MachineID("m1")

// serveTree starts a session with tree over a pair of sockets.
func serveTree(t testing.TB, tree sigma.Tree) (sigma.File, <-chan struct{}, func(), error) {
	a, b, err := session.Pair()
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		treeserver.Serve(ctx, b, treeserver.Config{Tree: tree})
	}()
	end := func() {
		stop()
		<-ended
	}
	c, err := session.Dial(context.Background(), a)
	if err != nil {
		end()
		return nil, nil, nil, err
	}
	root, err := c.Attach(context.Background(), "")
	all := func() {
		end()
		c.Close()
	}
	t.Cleanup(all)
	return root, c.Done(), all, err
}

// newWorld makes a world whose root is tree (nil = an empty one in memory), reached through a
// session.
func newWorld(t *testing.T, tree sigma.Tree) *world {
	t.Helper()
	if tree == nil {
		tree = memfs.New(memfs.Config{})
	}
	root, _, _, err := serveTree(t, tree)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, root: root, servers: map[sigma.EndpointID]*server{}}
	w.Tree = resolve.New(resolve.Config{Root: root, Machine: here, Dial: w.dial})
	return w
}

func (w *world) dial(ctx context.Context, e sigma.Endpoint) (sigma.File, <-chan struct{}, error) {
	w.dials.Add(1)
	w.mu.Lock()
	s, gate := w.servers[e.ID], w.gate
	w.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, nil, sigma.Wrap("dial", "", ctx.Err())
		}
	}
	if s == nil {
		return nil, nil, sigma.Errorf("dial", sigma.KindUnavailable, "nobody listens")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return nil, nil, sigma.Errorf("dial", sigma.KindUnavailable, "the server is dead")
	}
	if s.silent {
		<-ctx.Done()
		return nil, nil, sigma.Wrap("dial", "", ctx.Err())
	}
	if s.lies != "" {
		return lying(w.T, s.lies)
	}
	root, done, end, err := serveTree(w.T, s.tree)
	s.conns = append(s.conns, end)
	return root, done, err
}

// serve makes a server on a machine and publishes its endpoint at path.
func (w *world) serve(path string, machine sigma.MachineID, tree sigma.Tree) *server {
	w.Helper()
	w.mu.Lock()
	id := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%016d", len(w.servers)))
	s := &server{tree: tree, endpoint: sigma.Endpoint{Realm: "r", Machine: machine, Proc: "p", ID: sigma.EndpointID(id),
		Form: sigma.FormTree}}
	w.servers[s.endpoint.ID] = s
	w.mu.Unlock()
	w.publish(path, s.endpoint)
	return s
}

func (w *world) publish(path string, e sigma.Endpoint) {
	w.Helper()
	_, err := w.Put(w.Context(), path, []byte(e.String()), sigma.PutOptions{Kind: sigma.KindEndpoint})
	w.ok("publish "+path, err)
}

// kill ends the server and its sessions; revive makes it accept again.
func (s *server) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
	for _, end := range s.conns {
		end()
	}
	s.conns = nil
}

func (s *server) revive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = false
}

func (w *world) ok(what string, err error) {
	w.Helper()
	if err != nil {
		w.Fatalf("%s: %v (%v)", what, err, sigma.KindOf(err))
	}
}

// fails wants an error of a kind that names path.
func (w *world) fails(what string, err error, kind sigma.Kind, path string) {
	w.Helper()
	e, ok := err.(*sigma.Error)
	if !ok || e.Kind != kind || e.Path != path {
		w.Errorf("%s: got %v (%v), want %v about %s", what, err, sigma.KindOf(err), kind, path)
	}
}

func (w *world) put(path, data string) {
	w.Helper()
	_, err := w.Put(w.Context(), path, []byte(data), sigma.PutOptions{})
	w.ok("Put "+path, err)
}

func (w *world) mkdir(paths ...string) {
	w.Helper()
	for _, p := range paths {
		w.ok("MkdirAll "+p, w.MkdirAll(w.Context(), p, 0o777))
	}
}

func (w *world) link(target, path string) {
	w.Helper()
	w.ok("Symlink "+path, w.Symlink(w.Context(), target, path))
}

// holds checks that the file at path has content want.
func (w *world) holds(path, want string) {
	w.Helper()
	data, _, err := w.Get(w.Context(), path)
	if err != nil || string(data) != want {
		w.Errorf("Get %s: %.50q, %v, want %.50q", path, data, err, want)
	}
}

// treeWith is a tree in memory with one file.
func treeWith(t *testing.T, name, data string) *memfs.Tree {
	t.Helper()
	tree := memfs.New(memfs.Config{})
	root, err := tree.Attach(t.Context(), sigma.Principal{}, "")
	if err == nil {
		_, _, err = root.(sigma.Putter).Put(t.Context(), []string{name}, []byte(data), sigma.PutOptions{Perm: 0o644})
	}
	if err != nil {
		t.Fatal(err)
	}
	root.Close()
	return tree
}
