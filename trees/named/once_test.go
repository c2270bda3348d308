package named

import (
	"context"
	"fmt"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// numbered gives a context with a number.
func numbered(t testing.TB, client, seq uint64, again bool) context.Context {
	return sigma.WithOnce(t.Context(), sigma.Once{Client: client, Seq: seq, Done: seq - 1, Again: again})
}

// onceOutcome is all that the sender of a mutation is told.
type onceOutcome struct {
	id    sigma.FileID
	lease sigma.LeaseID
	at    sigma.Version
	err   error
}

type onceCase struct {
	name string
	do   func(ctx context.Context, root *file) onceOutcome
}

// onceCases are mutations of each kind.
func onceCases(lease sigma.LeaseID, written uint64) []onceCase {
	mode := uint32(0o700)
	byPut := func(o sigma.PutOptions, name string) func(ctx context.Context, root *file) onceOutcome {
		return func(ctx context.Context, root *file) onceOutcome {
			id, _, err := root.Put(ctx, []string{name}, []byte("data"), o)
			return onceOutcome{id: id, err: err}
		}
	}
	byHandle := func(do func(ctx context.Context, f *file) (sigma.Version, error)) func(ctx context.Context,
		root *file) onceOutcome {
		return func(ctx context.Context, root *file) (r onceOutcome) {
			f := &file{slot: root.slot, id: written}
			if r.err = f.Open(context.Background(), sigma.OpenWrite|sigma.OpenAppend); r.err == nil {
				r.at, r.err = do(ctx, f)
			}
			return r
		}
	}
	return []onceCase{
		{"exclusive put", byPut(sigma.PutOptions{MustMake: true}, "excl")},
		{"put", byPut(sigma.PutOptions{}, "excl")},
		{"append", byPut(sigma.PutOptions{Append: true}, "excl")},
		{"ephemeral put", byPut(sigma.PutOptions{Lease: lease}, "eph")},
		{"put of a symlink", byPut(sigma.PutOptions{Kind: sigma.KindSymlink}, "link")},
		{"put that may wait", byPut(sigma.PutOptions{MustMake: true, Wait: true}, "candidate")},
		{"exclusive create", func(ctx context.Context, root *file) onceOutcome {
			f, err := root.Create(ctx, "made", sigma.OpenWrite|sigma.OpenExclusive, 0o644)
			if err != nil {
				return onceOutcome{err: err}
			}
			return onceOutcome{id: f.(*file).FileID()}
		}},
		{"append by a handle", byHandle(func(ctx context.Context, f *file) (sigma.Version, error) {
			_, err := f.WriteAt(ctx, []byte("more"), 0)
			return 0, err
		})},
		{"write at a version", byHandle(func(ctx context.Context, f *file) (sigma.Version, error) {
			st, err := f.Stat(context.Background())
			if err != nil {
				return 0, err
			}
			if string(f.last.Load().n.data) != "more" { // it took effect, so that this is another version
				st.ID.Version--
			}
			_, now, err := f.WriteAtIf(ctx, []byte("!"), 0, st.ID.Version)
			return now, err
		})},
		{"mkdir", func(ctx context.Context, root *file) onceOutcome {
			return onceOutcome{err: root.Mkdir(ctx, "dir", 0o755)}
		}},
		{"symlink", func(ctx context.Context, root *file) onceOutcome {
			return onceOutcome{err: root.Symlink(ctx, "sym", "/x")}
		}},
		{"rename", func(ctx context.Context, root *file) onceOutcome {
			return onceOutcome{err: root.Rename(ctx, "old", root, "new")}
		}},
		{"setstat", func(ctx context.Context, root *file) onceOutcome {
			return onceOutcome{err: root.SetStat(ctx, sigma.StatChange{Perm: &mode})}
		}},
		{"remove", func(ctx context.Context, root *file) onceOutcome {
			return onceOutcome{err: root.Remove(ctx, "new")}
		}},
		{"lease", func(ctx context.Context, root *file) onceOutcome {
			id, err := root.Lease(ctx, time.Minute)
			return onceOutcome{lease: id, err: err}
		}},
		{"revoke", func(ctx context.Context, root *file) onceOutcome {
			return onceOutcome{err: root.Revoke(ctx, lease)}
		}},
	}
}

// failOnce has the next commit stored without anybody's knowing.
func failOnce(m *memStore) {
	m.mu.Lock()
	defer m.mu.Unlock()
	failed := false
	m.fail = func(Batch) failure {
		if failed {
			return succeeds
		}
		failed = true
		return isStored
	}
}

// TestOnce: each kind of mutation, sent again with its number, is not applied again and is answered
// as before: by the same server, by one after a restart, and when the outcome of the commit was
// unknown.
func TestOnce(t *testing.T) {
	store := newMemStore()
	s, stop := serve(t, Config{Store: store})
	root := attach(t, s)
	lease, err := root.Lease(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	put(t, root, "old", "x")
	written := put(t, root, "written", "").Path
	for i, c := range onceCases(lease, written) {
		client := uint64(100 + i)
		failOnce(store)
		before := commits(store)
		if got := c.do(numbered(t, client, 1, false), root); sigma.KindOf(got.err) != sigma.KindLost {
			t.Fatalf("%s: got %+v of a commit whose outcome is unknown", c.name, got)
		}
		first := c.do(numbered(t, client, 1, true), root)
		if first.err != nil {
			t.Fatalf("%s: sent again: %v", c.name, first.err)
		}
		if again := c.do(numbered(t, client, 1, true), root); again != first {
			t.Errorf("%s: got %+v, and when sent once more %+v", c.name, first, again)
		}
		stop()
		s, stop = serve(t, Config{Store: store})
		root = attach(t, s)
		if again := c.do(numbered(t, client, 1, true), root); again != first {
			t.Errorf("%s: got %+v, and after a restart %+v", c.name, first, again)
		}
		if n := commits(store) - before; n != 3 { // the mutation, and two claims of the realm
			t.Errorf("%s: %d commits", c.name, n)
		}
		if err := root.Mkdir(numbered(t, client, 2, false), c.name, 0o755); err != nil {
			t.Errorf("the next mutation: %v", err)
		}
		if late := c.do(numbered(t, client, 1, false), root); sigma.KindOf(late.err) != sigma.KindStale {
			t.Errorf("%s: a copy that comes late: %v", c.name, late.err)
		}
	}
	if data := get(t, root, "excl"); data != "datadata" {
		t.Errorf("the file that was put and appended to has %q", data)
	}
	if data := get(t, root, "written"); data != "more!" {
		t.Errorf("the file that was appended to has %q", data)
	}
}

func commits(m *memStore) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int(m.rev)
}

// TestOnceForgets: what is remembered is bounded: it goes when the client has its reply, says that
// it is gone, or is idle for long.
func TestOnceForgets(t *testing.T) {
	tr := newTree(testRealm, realmRecord{number: 1, nextID: 2, seq: 1}, sigma.RealmLimits{Names: 1 << 20,
		Bytes: 1 << 30, Leases: leasesDefault})
	root := newRoot(tr.rec)
	if err := tr.add(root); err != nil {
		t.Fatal(err)
	}
	store, now := map[string]bool{}, time.Unix(1000, 0)
	n := 0
	do := func(once sigma.Once, m mutation) reply {
		s := newStep(tr)
		s.forgetIdle(now)
		r := s.once(once, m, now)
		puts, deletes, _ := s.batch()
		for _, kv := range puts {
			if len(kv.Key) > 1 && kv.Key[:2] == "o/" {
				store[kv.Key] = true
			}
		}
		for _, key := range deletes {
			delete(store, key)
		}
		tr.merge(s)
		return r
	}
	mkdir := func(client, seq, done uint64) reply {
		n++
		return do(sigma.Once{Client: client, Seq: seq, Done: done}, createOp{dir: root.id, name: fmt.Sprint("d", n),
			kind: sigma.KindDir})
	}
	for seq := range uint64(100) {
		if r := mkdir(1, seq+1, seq); r.err != nil {
			t.Fatal(r.err)
		}
	}
	if e := tr.clients[1].entries; len(e) != 1 || len(store) != 1 {
		t.Errorf("%d replies are remembered, %d stored", len(e), len(store))
	}
	for seq := range uint64(onceEntriesMax) {
		if r := mkdir(2, seq+1, 0); r.err != nil {
			t.Fatal(r.err)
		}
	}
	if r := mkdir(2, onceEntriesMax+1, 0); sigma.KindOf(r.err) != sigma.KindBusy {
		t.Errorf("more mutations than are remembered: %v", r.err)
	}
	if r := do(sigma.Once{Client: 2, Seq: 1},
		removeOp{dir: root.id, name: "d1"}); sigma.KindOf(r.err) != sigma.KindInvalid {
		t.Errorf("a number for something else: %v", r.err)
	}
	for client := uint64(3); len(tr.clients) < onceClientsMax; client++ {
		if r := do(sigma.Once{Client: client, Seq: 1, Again: true},
			removeOp{dir: root.id, name: "nothing"}); sigma.KindOf(r.err) != sigma.KindNotFound {
			t.Fatal(r.err)
		}
	}
	if r := mkdir(1<<60, 1, 0); r.err != nil || tr.clients[1<<60] != nil {
		t.Errorf("one client too many: %v", r.err)
	}
	if r := do(sigma.Once{Client: 1 << 60, Seq: 1, Again: true},
		removeOp{dir: root.id, name: "d1"}); sigma.KindOf(r.err) != sigma.KindLost {
		t.Errorf("one client too many, again: %v", r.err)
	}
	if r := mkdir(1, 101, 100); r.err != nil || len(store) != 2 {
		t.Errorf("a client that is known: %v; %d records", r.err, len(store))
	}
	if r := do(sigma.Once{}, forgetOp{[]uint64{1, 2, 99_999}}); r.err != nil || tr.clients[1] != nil ||
		tr.clients[2] != nil || len(tr.dropped) != 2 {
		t.Errorf("forgetting: %v, %d records to drop", r.err, len(tr.dropped))
	}
	if r := mkdir(0, 0, 0); r.err != nil || len(store) != 0 || len(tr.dropped) != 0 {
		t.Errorf("with the next transaction: %v, %d records, %d to drop", r.err, len(store), len(tr.dropped))
	}
	now = now.Add(onceIdle)
	for range onceClientsMax / onceForgetMax {
		do(sigma.Once{Client: 5, Seq: 2, Done: 1, Again: true}, removeOp{dir: root.id, name: "nothing"})
	}
	if len(tr.clients) != 1 || len(tr.marks) != 1 {
		t.Errorf("%d clients after all but one were idle, %d to look at", len(tr.clients), len(tr.marks))
	}
}
