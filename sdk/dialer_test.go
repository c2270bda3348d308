package sdk

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// system is as much of a machine as a Dialer needs: names, and somebody who connects to endpoints.
type system struct {
	names  *memfs.Tree
	writer *resolve.Tree                               // of names
	listed func()                                      // called after each listing, before it is answered
	dial   func(context.Context, sigma.Endpoint) error // what becomes of a dial
	refuse func() error                                // asked before each listing; nil = none is refused
}

// Attach implements sigma.Tree.
func (s *system) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	root, err := s.names.Attach(ctx, p, name)
	return &place{root, s}, err
}

// place is a file of a system.
type place struct {
	sigma.File
	s *system
}

func (p *place) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 2 && names[0] == "sys" {
		f := &treeserver.Callable{Name: names[1], ID: 1 << 40, Handle: p.s.call}
		return f, make([]sigma.FileID, 2), nil
	}
	f, ids, err := p.File.Walk(ctx, names)
	if f != nil {
		f = &place{f, p.s}
	}
	return f, ids, err
}

func (p *place) ReadDir(ctx context.Context, cookie uint64, n int) ([]sigma.DirEntry, uint64, bool, error) {
	if p.s.refuse != nil {
		if err := p.s.refuse(); err != nil {
			return nil, 0, false, err
		}
	}
	es, next, more, err := p.File.ReadDir(ctx, cookie, n)
	p.s.listed()
	return es, next, more, err
}

func (p *place) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	return p.File.(sigma.Watcher).Watch(ctx, since)
}

func (s *system) call(ctx context.Context, method string, payload []byte) ([]byte, []*os.File, error) {
	if method == sigmap.CallInfo.Name {
		info := sigmap.Info{Principal: sigma.Principal{Realm: "r", Machine: "m"}}
		reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.Info(&info) })
		return reply, nil, err
	}
	var e sigma.Endpoint
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.Endpoint(&e)
		c.Last(func() { c.Bool(new(bool)) })
	}); err != nil {
		return nil, nil, err
	}
	if err := s.dial(ctx, e); err != nil {
		return nil, nil, err
	}
	a, b, err := session.FilePair(syscall.SOCK_STREAM)
	if err != nil {
		return nil, nil, err
	}
	b.Close()
	return nil, []*os.File{a}, nil
}

// connect gives a client of s, whose names have a directory /d.
func (s *system) connect(t *testing.T) *Client {
	t.Helper()
	s.names = memfs.New(memfs.Config{})
	root, err := s.names.Attach(t.Context(), sigma.Principal{}, "")
	if err != nil {
		t.Fatal(err)
	}
	s.writer = resolve.New(resolve.Config{Root: root})
	if err := s.writer.Mkdir(t.Context(), "/d", 0o755); err != nil {
		t.Fatal(err)
	}
	a, b, err := session.Pair()
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- treeserver.Serve(context.Background(), b, treeserver.Config{Tree: s}) }()
	conn, err := session.Dial(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	c, err := start(t.Context(), conn, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); <-over; s.names.Close() })
	return c
}

func endpoint(i int) sigma.Endpoint {
	id := base64.RawURLEncoding.EncodeToString(append(make([]byte, 15), byte(i)))
	return sigma.Endpoint{Realm: "r", Machine: "m", Proc: "abcdefghijklmnop", ID: sigma.EndpointID(id),
		Form: sigma.FormStream}
}

// join makes member i of the directory.
func (s *system) join(t *testing.T, i int) {
	t.Helper()
	if _, err := s.writer.Put(t.Context(), fmt.Sprintf("/d/%d", i), []byte(endpoint(i).String()),
		sigma.PutOptions{Kind: sigma.KindEndpoint}); err != nil {
		t.Error(err)
	}
}

// leave takes it away.
func (s *system) leave(t *testing.T, i int) {
	t.Helper()
	if err := s.writer.Remove(t.Context(), fmt.Sprintf("/d/%d", i)); err != nil {
		t.Error(err)
	}
}

// Goal: who is stalled while members come and go finds one. Between each of its first listings and
// what it does next all that it saw are gone and others are there; the directory never is empty.
// When nobody is there any more, that is said.
func TestDialerTurnover(t *testing.T) {
	s := &system{}
	var mu sync.Mutex
	last, rounds := 2, 0 // mu; the members are the last three
	s.listed = func() {
		mu.Lock()
		defer mu.Unlock()
		if rounds == 0 {
			return
		}
		rounds--
		for range 3 {
			last++
			s.join(t, last)
		}
		for i := last - 5; i <= last-3; i++ {
			s.leave(t, i)
		}
	}
	s.dial = func(_ context.Context, e sigma.Endpoint) error {
		mu.Lock()
		defer mu.Unlock()
		for i := last - 2; i <= last; i++ {
			if e == endpoint(i) {
				return nil
			}
		}
		return sigma.Errorf("test", sigma.KindUnavailable, "nobody listens there")
	}
	c := s.connect(t)
	for i := range 3 {
		s.join(t, i)
	}
	for _, turn := range []int{0, 1, 5} {
		mu.Lock()
		rounds = turn
		mu.Unlock()
		conn, err := c.Dialer("/d").Dial(t.Context(), "")
		if err != nil {
			t.Fatalf("after %d turnovers: %v", turn, err)
		}
		conn.Close()
	}
	s.listed = func() {
		mu.Lock()
		defer mu.Unlock()
		for ; rounds < 3; rounds++ {
			s.leave(t, last-rounds)
		}
	}
	if _, err := c.Dialer("/d").Dial(t.Context(), ""); sigma.KindOf(err) != sigma.KindUnavailable ||
		!strings.Contains(err.Error(), "no server is published") {
		t.Errorf("nobody is there: %v", err)
	}
}

// Goal: a member that lives is found however long it takes to answer, also when another that does
// not live is asked after it.
func TestDialerSlow(t *testing.T) {
	s := &system{listed: func() {}}
	var slow atomic.Int32
	s.dial = func(ctx context.Context, e sigma.Endpoint) error {
		switch {
		case e != endpoint(0):
			return sigma.Errorf("test", sigma.KindUnavailable, "nobody listens there")
		case slow.Add(-1) >= 0:
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	c := s.connect(t)
	s.join(t, 0)
	s.join(t, 1)
	for turn := range uint64(2) {
		slow.Store(3)
		d := c.Dialer("/d")
		d.most = time.Millisecond
		d.turn.Store(turn)
		conn, err := d.Dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
}
