package kv

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// member is a realm with a store of one group, and its member: do and watch answer requests.
type member struct {
	cfg   *layout.Config
	do    func(context.Context, *store.Request) (store.Result, error)
	watch func() ([]store.News, error)
	dial  func(context.Context) (net.Conn, error)
}

func (m *member) Get(context.Context, string) ([]byte, sigma.FileID, error) {
	return m.cfg.Text(), sigma.FileID{Version: 1}, nil
}

func (m *member) Watch(ctx context.Context, _ string, _ sigma.Version) (sigma.Version, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func (m *member) WaitFor(ctx context.Context, _ string) error { return nil }

func (m *member) Find(string) call.Find {
	return func(context.Context, string, string) (string, func(context.Context) (net.Conn, error), error) {
		return "a", m.dial, nil
	}
}

// newClerk gives a clerk of a store with some shards whose only member answers by do.
func newClerk(t *testing.T, shards int, do func(context.Context, *store.Request) (store.Result, error)) (*Clerk,
	*member) {
	cfg := layout.New("s", "p", shards, 1, 1)
	m := &member{cfg: cfg, do: do}
	s := call.NewServer(call.Config{MessageMax: messageMax})
	if err := s.Handle(calls.Do, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		var q store.Request
		if err := q.Parse(arg); err != nil {
			return reply, err
		}
		r, err := m.do(ctx, &q)
		return r.Append(reply), err
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Handle(calls.Watch, func(_ context.Context, _, reply []byte) ([]byte, error) {
		news, err := m.watch()
		return append(reply, store.EncodeNews(news)...), err
	}); err != nil {
		t.Fatal(err)
	}
	m.dial = func(context.Context) (net.Conn, error) {
		client, server := net.Pipe()
		go s.ServeConn(context.WithoutCancel(t.Context()), server, sigma.Principal{})
		return client, nil
	}
	c, err := OpenBy(m, "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	return c, m
}

// Goal: a write that a member may have applied never fails with a kind that promises it was not.
func TestCloseDuringPut(t *testing.T) {
	taken := make(chan struct{})
	c, _ := newClerk(t, 1, func(ctx context.Context, _ *store.Request) (store.Result, error) {
		close(taken)
		<-ctx.Done()
		return store.Result{}, ctx.Err()
	})
	go func() {
		<-taken
		c.Close()
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.Put(ctx, "k", nil, Options{}); sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("got %v, want KindLost", err)
	}
	if _, err := c.Put(ctx, "k", nil, Options{}); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("after Close: got %v, want KindUnavailable", err)
	}
}

// newServed gives a clerk of a store of one group without bounds on its memory.
func newServed(t *testing.T, shards int) (*Clerk, *member) {
	s := store.New()
	c, m := newClerk(t, shards, func(_ context.Context, q *store.Request) (r store.Result, err error) {
		if q.Op.Reads() {
			err = r.Parse(s.Read(q, time.Now(), nil))
			return r, err
		}
		b, err := q.Append(nil)
		if err == nil {
			err = r.Parse(s.Apply(0, b))
		}
		return r, err
	})
	found := store.Request{Op: store.Found, Value: store.EncodeShards(m.cfg.Of(1))}
	if _, err := m.do(t.Context(), &found); err != nil {
		t.Fatal(err)
	}
	return c, m
}

// Goal: a listing goes on behind a page that ends with a key of the largest size.
func TestRangeLongKeys(t *testing.T) {
	c, _ := newServed(t, 1)
	var want []string
	for i := range 5 {
		key := string(byte('a'+i)) + strings.Repeat("\xff", store.KeyMax-1)
		if i == 4 {
			key = strings.Repeat("\xff", store.KeyMax)
		}
		want = append(want, key)
		if _, err := c.Put(t.Context(), key, make([]byte, store.PageMax), Options{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, list := range map[string]func() ([]Item, error){
		"Range": func() ([]Item, error) { return c.Range(t.Context(), 0, "", "", 10) },
		"Scan":  func() ([]Item, error) { return c.Scan(t.Context(), "", 10) },
	} {
		items, err := list()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, i := range items {
			got = append(got, i.Key)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s gives %d keys, want %d", name, len(got), len(want))
		}
	}
}

// Goal: a clerk follows a store that was removed and made again while the clerk did not look, with
// smaller epochs and fewer shards; its watches end.
func TestStoreMadeAgain(t *testing.T) {
	c, m := newServed(t, 4)
	watched, over := make(chan struct{}, 1), make(chan struct{})
	m.watch = func() ([]store.News, error) {
		select {
		case watched <- struct{}{}:
		default:
		}
		<-over
		return nil, sigma.Errorf("test", sigma.KindStale, "the member leads no more")
	}
	before := m.cfg.Clone()
	before.Epoch = 9
	c.learn(before, 1, nil)
	ended := make(chan error, 1)
	go func() {
		for _, err := range c.WatchPrefix(t.Context(), "", nil) {
			ended <- err
		}
	}()
	<-watched
	late := m.cfg.Clone()
	late.Epoch = 8
	c.learn(late, 1, nil)
	if cfg, err := c.Config(t.Context()); err != nil || cfg.Epoch != 9 {
		t.Errorf("an earlier configuration of the same file was taken: %v", err)
	}
	c.learn(layout.New("s", "p", 2, 1, 1), 2, nil)
	if cfg, err := c.Config(t.Context()); err != nil || len(cfg.Owners) != 2 {
		t.Errorf("the new store's configuration was not taken: %v", err)
	}
	close(over)
	if err := <-ended; sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("the watch ended by %v", err)
	}
}

// Goal: any number of long keys of one shard can be read at once.
func TestGetManyLongKeys(t *testing.T) {
	c, _ := newServed(t, 1)
	var keys []string
	for i := range 2000 {
		keys = append(keys, fmt.Sprintf("%0*d", store.KeyMax, i))
	}
	for _, key := range []string{keys[0], keys[len(keys)-1]} {
		if _, err := c.Put(t.Context(), key, nil, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := c.GetMany(t.Context(), keys...); err != nil || len(found) != 2 {
		t.Errorf("%d keys are found, %v", len(found), err)
	}
}

// Goal: a TTL that cannot be meant is refused; it would be one of centuries, or none.
func TestTTLRefused(t *testing.T) {
	c, _ := newServed(t, 1)
	for _, ttl := range []time.Duration{-time.Second, -1, time.Microsecond} {
		_, err := c.Put(t.Context(), "k", nil, Options{TTL: ttl})
		_, errIf := c.PutIf(t.Context(), "k", 0, nil, Options{TTL: ttl})
		if sigma.KindOf(err) != sigma.KindInvalid || sigma.KindOf(errIf) != sigma.KindInvalid {
			t.Errorf("%v: %v, %v", ttl, err, errIf)
		}
	}
}

// Goal: a watch asks less and less often for a shard that no group serves.
func TestWatchUnserved(t *testing.T) {
	c, m := newServed(t, 1)
	asked := 0
	began := time.Now()
	m.watch = func() ([]store.News, error) {
		if asked++; time.Since(began) < 3*pauseMost {
			return []store.News{{Code: store.NotHere}}, nil
		}
		return []store.News{{At: store.At{Version: 1}, Changes: []store.Change{{Item: store.Item{Key: "k"}}}}}, nil
	}
	for e, err := range c.Watch(t.Context(), "k", nil) {
		if err != nil || e.Key != "k" {
			t.Errorf("%+v, %v", e, err)
		}
		break
	}
	if asked > 12 { // 7 pauses double, then each is the longest
		t.Errorf("%d questions in %v", asked, time.Since(began))
	}
}
