package peer

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/lib/replica"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// text is a machine: the commands one after another.
type text struct {
	mu sync.Mutex
	s  strings.Builder
}

func (x *text) Apply(_ uint64, command []byte) []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.s.Write(command)
	return nil
}

func (x *text) Snapshot() (func(io.Writer) error, error) {
	s := x.get()
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}, nil
}

func (x *text) Restore(r io.Reader) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.s.Reset()
	_, err := io.Copy(&x.s, r)
	return err
}

func (x *text) get() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.s.String()
}

// host serves members by name over pipes.
type host struct {
	mu      sync.Mutex
	servers map[string]*call.Server
}

// dial connects as a proc of a realm.
func (h *host) dial(realm sigma.RealmID) func(context.Context, string) (net.Conn, error) {
	return func(_ context.Context, name string) (net.Conn, error) {
		h.mu.Lock()
		s := h.servers[name]
		h.mu.Unlock()
		if s == nil {
			return nil, sigma.Errorf("dial", sigma.KindNotFound, "no member %s", name)
		}
		a, b := net.Pipe()
		go s.ServeConn(context.Background(), b, sigma.Principal{Realm: realm, Proc: "p"})
		return a, nil
	}
}

func (h *host) member(t *testing.T, id uint64, peers map[uint64]string) (*replica.Replica, *text) {
	t.Helper()
	self := replica.Peer{ID: id, Name: fmt.Sprint("m", id)}
	tr, err := New(Config{Group: "g", Self: self, Realm: "r", Dial: h.dial("r"),
		Is: func(p sigma.Principal, m replica.Peer) bool { return m.ID < 9 && m.Name == fmt.Sprint("m", m.ID) }})
	if err != nil {
		t.Fatal(err)
	}
	m := &text{}
	r, err := replica.Open(t.Context(), replica.Config{ID: id, Peers: peers, Machine: m, Transport: tr,
		Tick: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s := call.NewServer(call.Config{MessageMax: replica.MessageMax})
	if err := tr.Register(s, r); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.servers[self.Name] = s
	h.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		tr.Close()
		<-done
		s.Close()
	})
	return r, m
}

// A group of one grows by a snapshot that goes over a stream, and commands follow it.
func TestGroup(t *testing.T) {
	h := &host{servers: map[string]*call.Server{}}
	first, _ := h.member(t, 1, map[uint64]string{1: "m1"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	big := strings.Repeat("x", 1<<20)
	for range 3 {
		if _, err := first.Propose(ctx, replica.Session{}, []byte(big)); err != nil {
			t.Fatal(err)
		}
	}
	_, second := h.member(t, 2, nil)
	_, third := h.member(t, 3, nil)
	if err := first.Change(ctx, map[uint64]string{1: "m1", 2: "m2", 3: "m3"}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := first.Propose(ctx, replica.Session{}, []byte(big)); err != nil {
			t.Fatal(err)
		}
	}
	for len(second.get()) != 6<<20 || len(third.get()) != 6<<20 {
		if !retry.Pause(ctx, 10*time.Millisecond) {
			t.Fatalf("got %d and %d bytes", len(second.get()), len(third.get()))
		}
	}
}

// Callers of another realm, of another group, and those that are no member are refused.
func TestRefused(t *testing.T) {
	h := &host{servers: map[string]*call.Server{}}
	h.member(t, 1, map[uint64]string{1: "m1"})
	second := replica.Peer{ID: 2, Name: "m2"}
	for name, c := range map[string]struct {
		cfg  Config
		want sigma.Kind
	}{
		"realm":  {Config{Group: "g", Self: second, Dial: h.dial("other")}, sigma.KindPermission},
		"group":  {Config{Group: "h", Self: second, Dial: h.dial("r")}, sigma.KindNotFound},
		"member": {Config{Group: "g", Self: replica.Peer{ID: 9, Name: "m9"}, Dial: h.dial("r")}, sigma.KindPermission},
		"bytes":  {Config{Group: "g", Self: second, Dial: h.dial("r")}, sigma.KindInvalid},
	} {
		tr, err := New(c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		err = tr.SendSnapshot(t.Context(), replica.Peer{ID: 1, Name: "m1"}, []byte("x"),
			func(io.Writer) error { return nil })
		if sigma.KindOf(err) != c.want {
			t.Errorf("%s: got %v", name, err)
		}
		tr.Send(replica.Peer{ID: 1, Name: "m1"}, []byte("x"))
		tr.Close()
	}
	if _, err := New(Config{}); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("got %v", err)
	}
}

func TestQueueIsBounded(t *testing.T) {
	l := &line{wake: make(chan struct{}, 1)}
	for range 100 {
		l.add(make([]byte, 1<<20))
	}
	if n := len(l.take()); n != 16 {
		t.Errorf("got %d MiB", n)
	}
}
