package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
	"sigmaos.dev/trees/named/client/cache"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// memStore keeps names in memory through restarts of the server.
type memStore struct {
	drop func(named.KV) bool // what is lost; nil = nothing

	mu   sync.Mutex
	rev  named.Revision
	keys map[string]memValue
}

type memValue struct {
	value []byte
	at    named.Revision
}

func (m *memStore) Get(_ context.Context, key string) ([]byte, named.Revision, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.keys[key]
	return slices.Clone(v.value), v.at, ok, nil
}

func (m *memStore) Scan(_ context.Context, prefix string, f func(string, []byte) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(m.keys)) {
		if strings.HasPrefix(k, prefix) {
			if err := f(k, slices.Clone(m.keys[k].value)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *memStore) Commit(_ context.Context, b named.Batch) (named.Revision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys[b.Guard].at != b.GuardAt {
		return 0, errors.New("test: somebody else wrote")
	}
	m.rev++
	for _, kv := range b.Puts {
		if m.drop != nil && m.drop(kv) {
			continue
		}
		m.keys[kv.Key] = memValue{slices.Clone(kv.Value), m.rev}
	}
	for _, k := range b.Deletes {
		delete(m.keys, k)
	}
	return m.rev, nil
}

func (m *memStore) DeletePrefix(_ context.Context, prefix string, _ int) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.keys, func(k string, _ memValue) bool { return strings.HasPrefix(k, prefix) })
	return false, nil
}

func (m *memStore) Lost() <-chan struct{} { return nil }
func (m *memStore) Close()                {}

const testRealm = sigma.RealmID("acme")

// world is a named on a store, which can be replaced by another as after a kill, and sessions to
// it.
type world struct {
	*testing.T
	store *memStore
	pair  func() (client, server session.Conn, err error)

	mu       sync.Mutex
	srv      *named.Server      // mu
	stop     context.CancelFunc // mu; ends the server and its sessions
	sessions *sync.WaitGroup    // mu
	up       chan struct{}      // mu; closed while there is a server
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, store: &memStore{keys: map[string]memValue{}}, pair: session.Pair, up: make(chan struct{})}
	w.start()
	t.Cleanup(w.kill)
	if err := w.srv.Create(t.Context(), testRealm); err != nil {
		t.Fatal(err)
	}
	return w
}

// start brings up a server, which knows what is in the store.
func (w *world) start() {
	w.Helper()
	srv, err := named.Open(context.Background(), named.Config{Store: w.store})
	if err != nil {
		w.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	over := &sync.WaitGroup{}
	over.Go(func() { srv.Run(ctx) })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.srv, w.stop, w.sessions = srv, func() { stop(); srv.Close() }, over
	close(w.up)
}

// kill ends the server with its sessions at once.
func (w *world) kill() {
	w.mu.Lock()
	stop, sessions := w.stop, w.sessions
	if stop != nil {
		w.stop, w.up = nil, make(chan struct{})
	}
	w.mu.Unlock()
	if stop != nil {
		stop()
		sessions.Wait()
	}
}

func (w *world) restart() {
	w.Helper()
	w.kill()
	w.start()
}

// dial waits for a server, as sigmad does.
func (w *world) dial(ctx context.Context) (Session, error) {
	w.mu.Lock()
	up := w.up
	w.mu.Unlock()
	select {
	case <-up:
	case <-ctx.Done():
		return Session{}, sigma.Errorf("test", sigma.KindUnavailable, "no server")
	}
	client, server, err := w.pair()
	if err != nil {
		return Session{}, err
	}
	w.mu.Lock()
	if w.stop == nil {
		w.mu.Unlock()
		client.Close()
		server.Close()
		return w.dial(ctx)
	}
	srv := w.srv
	ends, end := context.WithCancel(context.Background())
	stop := w.stop
	w.stop = func() { end(); stop() }
	w.sessions.Go(func() {
		treeserver.Serve(ends, server, treeserver.Config{Tree: srv, Principal: sigma.Principal{Realm: sigma.SystemRealm,
			System: true}, Turns: treeserver.NewTurns(), ForRealms: true})
	})
	w.mu.Unlock()
	c, err := session.Dial(ctx, client)
	if err != nil {
		return w.again(ctx, err)
	}
	root, err := c.Attach(ctx, string(testRealm))
	if err != nil {
		c.Close()
		return w.again(ctx, err)
	}
	owner, err := c.Attach(ctx, string(testRealm)+sigmap.AsOwner)
	if err != nil {
		c.Close()
		return w.again(ctx, err)
	}
	return Session{Root: root.(Root), Owner: owner.(Root), Done: c.Done(), Close: c.Close}, nil
}

// again dials once more if the server ended just now.
func (w *world) again(ctx context.Context, err error) (Session, error) {
	if kind := sigma.KindOf(err); ctx.Err() == nil && (kind == sigma.KindLost || kind == sigma.KindUnavailable) {
		return w.dial(ctx)
	}
	return Session{}, err
}

// realm gives a Realm of the world's and its root.
func (w *world) realm() (*Realm, *File) {
	w.Helper()
	r := New(Config{Dial: w.dial, Budget: &cache.Budget{}})
	w.Cleanup(r.Close)
	root, err := r.Root(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return r, root
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}
