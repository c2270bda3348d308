package kernel

import (
	"context"
	"strings"
	"sync"
	"testing"

	"sigmaos.dev/kernel/realms"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
	"sigmaos.dev/trees/named/client"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// oneStore is a store of names in memory, for a named that starts once.
type oneStore struct {
	mu   sync.Mutex
	rev  named.Revision
	keys map[string]named.KV
	at   map[string]named.Revision
}

func (s *oneStore) Get(_ context.Context, key string) ([]byte, named.Revision, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kv, ok := s.keys[key]
	return kv.Value, s.at[key], ok, nil
}

func (s *oneStore) Scan(_ context.Context, prefix string, f func(string, []byte) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, kv := range s.keys {
		if strings.HasPrefix(k, prefix) {
			if err := f(k, kv.Value); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *oneStore) Commit(_ context.Context, b named.Batch) (named.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rev++
	for _, kv := range b.Puts {
		s.keys[kv.Key], s.at[kv.Key] = kv, s.rev
	}
	for _, k := range b.Deletes {
		delete(s.keys, k)
	}
	return s.rev, nil
}

func (s *oneStore) DeletePrefix(context.Context, string, int) (bool, error) { return false, nil }
func (s *oneStore) Lost() <-chan struct{}                                   { return nil }
func (s *oneStore) Close()                                                  {}

// withNamed gives the realm default a named as it is, of which the machine remembers what was read.
func (m *machine) withNamed() {
	m.t.Helper()
	srv, err := named.Open(m.t.Context(),
		named.Config{Store: &oneStore{keys: map[string]named.KV{}, at: map[string]named.Revision{}}})
	if err != nil {
		m.t.Fatal(err)
	}
	var over sync.WaitGroup
	ctx, end := context.WithCancel(context.Background())
	over.Go(func() { srv.Run(ctx) })
	m.t.Cleanup(func() { end(); srv.Close(); over.Wait() })
	if err := srv.Create(ctx, sigma.DefaultRealm); err != nil {
		m.t.Fatal(err)
	}
	n := client.New(client.Config{Budget: m.k.realms.Recalled, Dial: func(asked context.Context) (client.Session,
		error) {
		ours, theirs, err := session.Pair()
		if err != nil {
			return client.Session{}, err
		}
		over.Go(func() {
			treeserver.Serve(ctx, theirs, treeserver.Config{Tree: srv, Principal: sigma.Principal{
				Realm: sigma.SystemRealm, Machine: "m1", System: true}})
		})
		c, err := session.Dial(asked, ours)
		if err != nil {
			return client.Session{}, err
		}
		return realms.AttachNames(asked, c, sigma.DefaultRealm)
	}})
	m.t.Cleanup(n.Close)
	if old := m.k.realms.Replace(sigma.DefaultRealm, n); old != nil {
		old.Close()
	}
}

// TestModesRecalled: what sigmad answers from memory, where it receives the request, is kept from
// the realm's programs as its mode says, and not from the provider.
func TestModesRecalled(t *testing.T) {
	m := boot(t)
	m.withNamed()
	ctx := t.Context()
	provider := m.proc(sigma.Principal{Realm: sigma.SystemRealm, System: true})
	tenant := m.proc(sigma.Principal{Realm: sigma.DefaultRealm, Proc: "p"})
	get := func(root sigma.File, names ...string) error {
		_, _, err := root.(sigma.Getter).Get(ctx, names, 0, 10)
		return err
	}
	// recalled asks until the answer came from memory.
	recalled := func(root sigma.File, names ...string) error {
		for ctx.Err() == nil {
			before := m.k.realms.Recalled.Counts()
			err := get(root, names...)
			if after := m.k.realms.Recalled.Counts(); after.Hits > before.Hits && after.Misses == before.Misses {
				return err
			}
		}
		return ctx.Err()
	}
	if err := tenant.Mkdir(ctx, "d", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tenant.(sigma.Putter).Put(ctx, []string{"d", "f"}, []byte("x"), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	chmod := func(perm uint32, names ...string) {
		t.Helper()
		f, _, err := tenant.Walk(ctx, names)
		if err == nil {
			err = f.SetStat(ctx, sigma.StatChange{Perm: &perm})
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		path     []string
		mode, to uint32
	}{{[]string{"d", "f"}, 0o244, 0o644}, {[]string{"d"}, 0o655, 0o755}} {
		chmod(c.mode, c.path...)
		if err := recalled(provider, "d", "f"); err != nil {
			t.Errorf("%v: the provider: %v", c.path, err)
		}
		if err := recalled(tenant, "d", "f"); sigma.KindOf(err) != sigma.KindPermission || err == nil {
			t.Errorf("%v: a program: %v", c.path, err)
		}
		chmod(c.to, c.path...)
		if err := recalled(tenant, "d", "f"); err != nil {
			t.Errorf("%v, when the mode was changed: %v", c.path, err)
		}
	}
}
