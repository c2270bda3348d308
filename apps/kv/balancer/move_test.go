package balancer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// world is two groups in memory. Calls fail after a number of them, before or after they took
// effect.
type world struct {
	stores [3]*store.Store // 1 and 2
	mu     sync.Mutex      // a mover makes some calls at the same time
	left   int
	after  bool
	write  func()
}

var errKilled = sigma.Errorf("test", sigma.KindLost, "killed")

func (w *world) AskGroup(ctx context.Context, group uint32, m *call.Method, arg []byte) (r store.Result, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left--; w.left < 0 && !w.after {
		return r, errKilled
	}
	if w.write != nil {
		w.write()
	}
	s := w.stores[group]
	if m == calls.Step {
		store.Stamp(arg, time.Now())
		err = r.Parse(s.Apply(0, arg))
	} else {
		var a calls.ExportArg
		if err = sigmap.Parse(arg, a.Code); err == nil {
			r = export(s, a)
		}
	}
	if w.left < 0 {
		return r, errKilled
	}
	return r, err
}

func export(s *store.Store, a calls.ExportArg) store.Result {
	switch a.Part {
	case calls.Items:
		all, code := s.Export(a.Shard, a.After)
		return store.Result{Code: code, Value: store.EncodeItems(all)}
	case calls.Changes:
		all, code := s.ExportChanges(a.Shard, a.Version)
		return store.Result{Code: code, Value: store.EncodeChanges(all)}
	}
	all, code := s.ExportSessions(a.Shard)
	return store.Result{Code: code, Value: store.EncodeSessions(all)}
}

// begin has group i begin, with nothing but empty shards.
func (w *world) begin(t *testing.T, i int, shards ...uint16) {
	w.stores[i] = store.New()
	q := store.Request{Op: store.Found, Value: store.EncodeShards(shards)}
	b, err := q.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	w.stores[i].Apply(0, b)
}

// do makes a request of whichever group serves the shard, and reports how many do.
func (w *world) do(t *testing.T, q store.Request) (r store.Result, serve int) {
	t.Helper()
	for _, s := range w.stores[1:] {
		b, err := q.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		var one store.Result
		if q.Op.Reads() {
			b = s.Read(&q, time.Now(), nil)
		} else {
			b = s.Apply(0, b)
		}
		if err := one.Parse(b); err != nil {
			t.Fatal(err)
		}
		if one.Code != store.NotHere {
			r = one
			serve++
		}
	}
	return r, serve
}

// Goal: a mover that is killed before or after any of its calls is followed by another one that
// finishes, and no write is lost or served by two groups, whenever it was made.
func TestMoverKilled(t *testing.T) {
	for _, after := range []bool{false, true} {
		for kill := 0; kill < 200; kill++ {
			w := &world{after: after, left: kill}
			w.begin(t, 1, 7)
			w.begin(t, 2)
			model := map[string]string{}
			n := 0
			w.write = func() {
				for range 10 {
					n++
					key, value := fmt.Sprint(n%700), fmt.Sprintf("%01000d", n)
					r, serve := w.do(t, store.Request{Op: store.Put, Shard: 7, Key: []byte(key), Value: []byte(value)})
					if serve > 1 {
						t.Fatalf("%d calls: two groups serve the shard", kill)
					}
					if serve == 1 && r.Code == store.Done {
						model[key] = value
					}
				}
			}
			for range 100 {
				w.write()
			}
			m := mover{groups: w, shard: 7, from: 1, to: 2, epoch: 3}
			err := m.move(t.Context())
			if err == nil {
				err = m.drop(t.Context())
			}
			done := err == nil
			w.left = 1 << 30
			if err := m.move(t.Context()); err != nil {
				t.Fatalf("%d calls: the next mover: %v", kill, err)
			}
			if err := m.drop(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.write = nil
			for key, value := range model {
				r, serve := w.do(t, store.Request{Op: store.Get, Shard: 7, Key: []byte(key)})
				if serve != 1 || r.Code != store.Done || string(r.Value) != value {
					t.Fatalf("%d calls: %d serve, %s is %v %q", kill, serve, key, r.Code, r.Value)
				}
			}
			if done {
				break
			}
		}
	}
}

// Goal: a group of one that began anew after the shard had gone to another group, and before the
// configuration said so, does not serve it beside that group, and can get it back.
func TestMoveBackAfterRestart(t *testing.T) {
	w := &world{left: 1 << 30}
	w.begin(t, 1, 7)
	w.begin(t, 2)
	put := func(value string) {
		t.Helper()
		r, serve := w.do(t, store.Request{Op: store.Put, Shard: 7, Key: []byte("k"), Value: []byte(value)})
		if serve != 1 || r.Code != store.Done {
			t.Fatalf("%d serve, %v", serve, r.Code)
		}
	}
	move := func(m mover) {
		t.Helper()
		if err := m.move(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	put("1")
	there := mover{groups: w, shard: 7, from: 1, to: 2, epoch: 3}
	move(there)
	w.begin(t, 1, 7) // the owner, as far as the configuration says
	if err := there.drop(t.Context()); sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("the former group serves the shard, and dropping it gives %v", err)
	}
	move(there)
	put("2")
	for range 2 { // a balancer may die before it publishes that
		if err := there.drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		move(there)
	}
	w.begin(t, 1, 7) // by a configuration that it had read before
	move(mover{groups: w, shard: 7, from: 2, to: 1, epoch: 5})
	r, serve := w.do(t, store.Request{Op: store.Get, Shard: 7, Key: []byte("k")})
	if serve != 1 || string(r.Value) != "2" {
		t.Errorf("%d serve, the value is %q", serve, r.Value)
	}
}

// halted is groups of which one does not run.
type halted struct {
	*world
	group uint32
	asked []uint32
}

func (h *halted) AskGroup(ctx context.Context, group uint32, m *call.Method, arg []byte) (store.Result, error) {
	h.asked = append(h.asked, group)
	if group == h.group {
		return store.Result{}, errKilled
	}
	return h.world.AskGroup(ctx, group, m, arg)
}

// Goal: while the group that a shard goes to does not run, the other one is asked for nothing: it
// would keep changes for the move.
func TestMoveToNobody(t *testing.T) {
	h := &halted{world: &world{left: 1 << 30}, group: 2}
	h.begin(t, 1, 7)
	m := mover{groups: h, shard: 7, from: 1, to: 2, epoch: 3}
	if err := m.move(t.Context()); err != errKilled || slices.Contains(h.asked, 1) {
		t.Errorf("groups %v were asked: %v", h.asked, err)
	}
}
