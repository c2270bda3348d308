package member

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/lib/replica"
	"sigmaos.dev/wire/sigmap"
)

// newAlone gives a member of a group of one that has shards.
func newAlone(t *testing.T, shards ...uint16) *Member {
	m := &Member{id: 1, self: "a", store: store.New(), limit: 1 << 30}
	var err error
	m.replica, err = replica.Open(t.Context(), replica.Config{ID: 1, Machine: m.store, Peers: map[uint64]string{1: "a"},
		CommandMax: commandMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.replica.Close() })
	m.ask(t, m.apply, store.Request{Op: store.Found, Value: store.EncodeShards(shards)})
	return m
}

// apply applies any request.
func (m *Member) apply(t *testing.T, arg []byte) ([]byte, error) {
	return m.propose(t.Context(), arg, nil)
}

func (m *Member) ask(t *testing.T, h func(*testing.T, []byte) ([]byte, error), q store.Request) (r store.Result) {
	t.Helper()
	b, err := q.Append(nil)
	if err == nil {
		b, err = h(t, b)
	}
	if err == nil {
		err = r.Parse(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Goal: a watch of a quiet key in a busy shard sees its change, however many others there are in
// one call, and goes on behind them.
func TestWatchQuietKey(t *testing.T) { synctest.Test(t, testWatchQuietKey) }

func testWatchQuietKey(t *testing.T) {
	const others = 5000
	m := newAlone(t, 3)
	put := func(key string) {
		m.ask(t, m.apply, store.Request{Op: store.Put, Shard: 3, Key: []byte(key)})
	}
	ask := func(at uint64, wait time.Duration) []store.News {
		enc := sigmap.NewEncoder(nil)
		places := []store.At{{Shard: 3, Version: at}}
		(&calls.WatchArg{Prefix: "quiet", Exact: true, Wait: wait, Places: places}).Code(enc)
		out, err := m.watch(t.Context(), enc.Bytes(), nil)
		if err != nil {
			t.Fatal(err)
		}
		news, err := store.ParseNews(out)
		if err != nil {
			t.Fatal(err)
		}
		return news
	}
	for i := range 1000 { // more than a page, fewer than are kept
		put(fmt.Sprint("other", i))
	}
	put("quiet")
	began := time.Now()
	news := ask(0, calls.WaitMost)
	last := news[len(news)-1]
	if len(last.Changes) != 1 || last.Changes[0].Key != "quiet" || last.Version != 1001 {
		t.Fatalf("behind a page of other keys: %v", news)
	}
	if d := time.Since(began); d > calls.WaitMost/2 {
		t.Errorf("the answer took %v", d)
	}
	answer := make(chan []store.News)
	at := last.Version
	go func() { answer <- ask(at, calls.WaitMost) }()
	synctest.Wait()
	for i := range others {
		put(fmt.Sprint("other", i))
		if i%100 == 0 { // the watch keeps up
			synctest.Wait()
		}
	}
	put("quiet")
	news = <-answer
	if last = news[len(news)-1]; len(last.Changes) != 1 || last.Version != 1002+others {
		t.Fatalf("behind %d other keys: %v", others, news)
	}
	for range 100 {
		put("other")
	}
	if news = ask(last.Version, time.Millisecond); len(news) != 1 || news[0].Version != last.Version+100 ||
		len(news[0].Changes) != 0 {
		t.Errorf("a call that ends without changes does not tell where to go on: %v", news)
	}
}
