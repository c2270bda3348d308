package member

import (
	"strings"
	"testing"

	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/sigma"
)

// Goal: a member without room refuses new keys only: a write that it has applied has its result
// again, and one of a shard that is elsewhere is sent there.
func TestRepeatedWhenFull(t *testing.T) {
	m := newAlone(t, 3)
	do := func(t *testing.T, arg []byte) ([]byte, error) { return m.do(t.Context(), arg, nil) }
	put := store.Request{Op: store.Put, Shard: 3, Client: 1, Seq: 1, Key: []byte("k"), Value: []byte("v")}
	first := m.ask(t, do, put)
	m.full.Store(true)
	if again := m.ask(t, do, put); again.Code != store.Done || again.Version != first.Version {
		t.Errorf("the repeated write has %+v, not %+v", again, first)
	}
	there := put
	if there.Shard = 4; m.ask(t, do, there).Code != store.NotHere {
		t.Error("a write of a shard that is not served here was not sent on")
	}
	put.Seq = 2
	b, err := put.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := do(t, b); sigma.KindOf(err) != sigma.KindNoSpace {
		t.Errorf("got %v, want KindNoSpace", err)
	}
}

// Goal: a move does not bring a group more than it has room for, and what it brought is no reason
// to refuse the next attempt.
func TestMoveWhenFull(t *testing.T) {
	m := newAlone(t)
	m.limit = 1 << 20
	page := store.EncodeItems([]store.Item{{Key: "k", Value: strings.Repeat("x", 1<<20), Version: 1}})
	for _, c := range []struct {
		op      store.Op
		shard   uint16
		attempt uint64
		page    uint64
		want    sigma.Kind
	}{
		{store.Prepare, 3, 1, 0, sigma.KindOther},
		{store.Import, 3, 1, 1, sigma.KindOther},
		{store.Import, 3, 1, 2, sigma.KindNoSpace},
		{store.Prepare, 4, 1, 0, sigma.KindNoSpace},
		{store.Prepare, 3, 2, 0, sigma.KindOther},
		{store.Prepare, 4, 1, 0, sigma.KindOther},
	} {
		q := store.Request{Op: c.op, Shard: c.shard, Client: 1, Seq: c.attempt, If: c.page, Value: page}
		b, err := q.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.step(t.Context(), b, nil); err != nil && sigma.KindOf(err) != c.want ||
			err == nil && c.want != sigma.KindOther {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
