package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// group is a store and a clock for tests.
type group struct {
	t *testing.T
	*Store
	now time.Time
}

func newGroup(t *testing.T, shards ...uint16) *group {
	g := &group{t, New(), time.UnixMilli(1_000_000)}
	g.do(Request{Op: Found, Value: EncodeShards(shards)})
	return g
}

func (g *group) do(q Request) Result {
	g.t.Helper()
	b, err := q.Append(nil)
	if err != nil {
		g.t.Fatal(err)
	}
	var out []byte
	if q.Op.Reads() {
		out = g.Read(&q, g.now, nil)
	} else {
		Stamp(b, g.now)
		out = g.Apply(0, b)
	}
	var r Result
	if err := r.Parse(out); err != nil {
		g.t.Fatal(err)
	}
	return r
}

func (g *group) put(shard uint16, key, value string) Result {
	return g.do(Request{Op: Put, Shard: shard, Key: []byte(key), Value: []byte(value)})
}

func (g *group) get(shard uint16, key string) Result {
	return g.do(Request{Op: Get, Shard: shard, Key: []byte(key)})
}

func (g *group) want(r Result, code Code, value string) Result {
	g.t.Helper()
	if r.Code != code || string(r.Value) != value {
		g.t.Fatalf("got %v %q, want %v %q", r.Code, r.Value, code, value)
	}
	return r
}

func TestOperations(t *testing.T) {
	g := newGroup(t, 3)
	g.want(g.get(3, "a"), Missing, "")
	g.want(g.put(4, "a", "1"), NotHere, "")
	first := g.want(g.put(3, "a", "1"), Done, "")
	g.want(g.get(3, "a"), Done, "1")
	cas := Request{Op: Put, Shard: 3, Cond: IfVersion, If: first.Version, Key: []byte("a"), Value: []byte("2")}
	second := g.want(g.do(cas), Done, "")
	if r := g.want(g.do(cas), Mismatch, ""); r.Version != second.Version {
		t.Errorf("the version is said to be %d", r.Version)
	}
	make := Request{Op: Put, Shard: 3, Cond: IfVersion, Key: []byte("b"), Value: []byte{}}
	g.want(g.do(make), Done, "")
	g.want(g.do(make), Mismatch, "")
	del := Request{Op: Delete, Shard: 3, Key: []byte("a")}
	g.want(g.do(del), Done, "")
	g.want(g.do(del), Missing, "")
	g.want(g.get(3, "b"), Done, "")
}

// Goal: a write that is repeated has its first result and no further effect, an older one is
// refused.
func TestSessions(t *testing.T) {
	g := newGroup(t, 0)
	write := Request{Op: Put, Client: 7, Seq: 1, Key: []byte("k"), Value: []byte("v")}
	first := g.do(write)
	g.put(0, "k", "other")
	if again := g.do(write); again.Version != first.Version {
		t.Errorf("the repeated write has version %d, not %d", again.Version, first.Version)
	}
	g.want(g.get(0, "k"), Done, "other")
	write.Seq = 5
	g.want(g.do(write), Done, "")
	write.Seq = 4
	g.want(g.do(write), Old, "")
	for client := range uint64(sessionsMax) {
		g.do(Request{Op: Delete, Client: 100 + client, Seq: 1, Key: []byte("none")})
	}
	if n := len(g.shards[0].sessions.byClient); n != sessionsMax {
		t.Errorf("%d sessions are kept", n)
	}
}

func TestTTL(t *testing.T) {
	g := newGroup(t, 0)
	g.do(Request{Op: Put, Key: []byte("k"), Value: []byte("v"), TTL: 1000})
	g.do(Request{Op: Put, Key: []byte("keep"), Value: []byte("v"), TTL: 1000})
	g.put(0, "keep", "on")
	g.now = g.now.Add(999 * time.Millisecond)
	g.want(g.get(0, "k"), Done, "v")
	if due := g.Due(g.now); due != nil {
		t.Error(due)
	}
	g.now = g.now.Add(time.Millisecond)
	g.want(g.get(0, "k"), Missing, "")
	if due := g.Due(g.now); len(due) != 1 {
		t.Error(due)
	}
	g.do(Request{Op: Expire})
	g.now = g.now.Add(-time.Hour) // a new leader's clock
	g.want(g.get(0, "k"), Missing, "")
	g.want(g.get(0, "keep"), Done, "on")
	if g.Due(g.now) != nil || g.shards[0].due.Len() != 0 {
		t.Error("a time is left over")
	}
}

func TestRange(t *testing.T) {
	g := newGroup(t, 0)
	for i := range 100 {
		g.put(0, fmt.Sprintf("k%02d", i), fmt.Sprint(i))
	}
	r := g.do(Request{Op: Range, Key: []byte("k10"), Value: []byte("k20"), If: 5})
	items, err := ParseItems(r.Value)
	if err != nil || len(items) != 5 || items[0].Key != "k10" || items[4].Key != "k14" {
		t.Error(items, err)
	}
	r = g.do(Request{Op: GetMany, Value: EncodeKeys([]string{"k01", "none", "k99"})})
	if items, err = ParseItems(r.Value); err != nil || len(items) != 2 || items[1].Value != "99" || r.Version != 3 {
		t.Error(items, r.Version, err)
	}
	r = g.do(Request{Op: Range, Key: []byte("k10"), If: 2, TTL: 1})
	items, err = ParseItems(r.Value)
	if err != nil || len(items) != 2 || items[0].Value != "" || items[0].Version == 0 {
		t.Errorf("without values: %+v, %v", items, err)
	}
}

// Goal: a watch gets all changes of its keys in order, or is told that it missed some.
func TestSince(t *testing.T) {
	g := newGroup(t, 0)
	w := NewWaiter("a", false)
	at := g.Versions([]uint16{0, 9})
	stop := g.Await(w, at)
	g.put(0, "b", "")
	select {
	case <-w.Woken:
		t.Error("woken by another key")
	default:
	}
	g.put(0, "a1", "x")
	<-w.Woken
	news := g.Since(w, at)
	if len(news) != 1 || len(news[0].Changes) != 1 || news[0].Changes[0].Value != "x" {
		t.Fatal(news)
	}
	stop()
	for i := range changesMax + 1 {
		g.put(0, "a", fmt.Sprint(i))
	}
	if news = g.Since(w, at); news[0].Code != Trimmed {
		t.Error(news[0].Code)
	}
	if len(g.shards[0].log.all) > 3*changesMax {
		t.Error("old changes are kept")
	}
}

// Goal: a watch that is behind when a shard begins to move gets all changes where the shard
// arrives.
func TestSinceAfterMove(t *testing.T) {
	from, to := newGroup(t, 5), newGroup(t)
	at := from.Versions([]uint16{5})
	for i := range 10 {
		from.put(5, "a", fmt.Sprint(i))
	}
	move(t, from, to, 5, 4, 1, whole)
	to.put(5, "a", "10")
	news := to.Since(NewWaiter("a", true), at)
	if len(news) != 1 || news[0].Code != Done || len(news[0].Changes) != 11 {
		t.Fatalf("%+v", news)
	}
	for i, c := range news[0].Changes {
		if c.Value != fmt.Sprint(i) {
			t.Errorf("change %d is %q", i, c.Value)
		}
	}
}

// move moves a shard from one group to another, with writes in between, as the mover does.
func move(t *testing.T, from, to *group, shard uint16, epoch, attempt uint64, between func(step int) (goOn bool)) {
	q := func(op Op) Request { return Request{Op: op, Shard: shard, Client: epoch, Seq: attempt} }
	mark := q(Mark)
	mark.If = 2
	at := from.want(from.do(mark), Done, "").Version
	prepare := q(Prepare)
	prepare.If = at
	to.want(to.do(prepare), Done, "")
	if !between(1) {
		return
	}
	delta := func() {
		for {
			all, code := from.ExportChanges(shard, at)
			if code != Done {
				t.Fatal(code)
			}
			if len(all) == 0 {
				return
			}
			r := q(ImportChanges)
			r.Value = EncodeChanges(all)
			at = to.want(to.do(r), Done, "").Version
		}
	}
	after := ""
	for page := uint64(1); ; page++ {
		items, code := from.Export(shard, after)
		if code != Done {
			t.Fatal(code)
		}
		if len(items) == 0 {
			break
		}
		after = items[len(items)-1].Key
		r := q(Import)
		r.If, r.Value = page, EncodeItems(items)
		to.want(to.do(r), Done, "")
		delta()
		if !between(2) {
			return
		}
	}
	delta()
	if !between(3) {
		return
	}
	from.want(from.do(q(Freeze)), Done, "")
	delta()
	sessions, code := from.ExportSessions(shard)
	if code != Done {
		t.Fatal(code)
	}
	r := q(ImportSessions)
	r.Value = EncodeSessions(sessions)
	to.want(to.do(r), Done, "")
	r = q(Activate)
	r.If = at
	to.want(to.do(r), Done, "")
}

// Goal: after a move the other group has all that the first had, its sessions and changes included.
func TestMove(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	from, to := newGroup(t, 5), newGroup(t)
	model := map[string]string{}
	write := func() {
		key, value := fmt.Sprint(rnd.IntN(300)), fmt.Sprint(rnd.Uint64())
		if rnd.IntN(3) == 0 {
			from.do(Request{Op: Delete, Shard: 5, Key: []byte(key)})
			delete(model, key)
		} else {
			from.put(5, key, value)
			model[key] = value
		}
	}
	for range 1000 {
		write()
	}
	once := Request{Op: Put, Shard: 5, Client: 9, Seq: 1, Key: []byte("once"), Value: []byte("v")}
	first := from.do(once)
	model["once"] = "v"
	at := from.Versions([]uint16{5})
	move(t, from, to, 5, 1, 77, func(int) bool {
		for range 200 {
			write()
		}
		return true
	})
	if r := from.put(5, "k", "v"); r.Code != NotHere || r.Version != 2 {
		t.Error("the first group still serves", r)
	}
	if again := to.do(once); again.Version != first.Version {
		t.Error("a repeated write took effect")
	}
	if to.shards[5].keys.Len() != len(model) || to.shards[5].bytes != from.shards[5].bytes {
		t.Errorf("%d keys of %d", to.shards[5].keys.Len(), len(model))
	}
	for key, value := range model {
		to.want(to.get(5, key), Done, value)
	}
	if news := to.Since(NewWaiter("", false), at); news[0].Code != Done || len(news[0].Changes) == 0 {
		t.Error("a watch did not go on", news[0].Code)
	}
	from.want(from.do(Request{Op: Drop, Shard: 5, Client: 1}), Done, "")
	move(t, to, from, 5, 2, 78, whole) // and back
	from.want(from.get(5, "once"), Done, "v")
}

// whole is a move that nothing comes between.
func whole(int) bool { return true }

// Goal: commands of a mover that another one has overtaken have no effect, wherever it stopped.
func TestMoveOvertaken(t *testing.T) {
	for stop := 1; stop <= 3; stop++ {
		t.Run(fmt.Sprint("stopped at ", stop), func(t *testing.T) {
			from, to := newGroup(t, 5), newGroup(t)
			const keys = 5000
			for i := range keys {
				from.put(5, fmt.Sprint(i), string(bytes.Repeat([]byte("x"), 100)))
			}
			overtaken := false
			move(t, from, to, 5, 4, 1, func(step int) bool {
				overtaken = step == stop
				return !overtaken
			})
			if !overtaken {
				t.Fatal("the move has no such step")
			}
			late := func(ops ...Op) {
				for _, op := range ops {
					g := to
					if op == Freeze {
						g = from
					}
					r := g.do(Request{Op: op, Shard: 5, Client: 4, Seq: 1, Value: EncodeItems(nil)})
					if r.Code != Refused && !(op == Prepare && r.Code == Already) {
						t.Errorf("%d: %v", op, r.Code)
					}
				}
			}
			move(t, from, to, 5, 4, 2, func(int) bool {
				late(Freeze, Import, ImportChanges, ImportSessions)
				return true
			})
			late(Prepare, Freeze, Import, ImportChanges, ImportSessions)
			if n := to.shards[5].keys.Len(); n != keys || to.shards[5].state != Serving {
				t.Errorf("%d keys of %d, state %d", n, keys, to.shards[5].state)
			}
		})
	}
}

// Goal: sessions and the changes that are kept count, and the changes have a part of the limit,
// also while a move keeps them; a mover that was too slow is told.
func TestBytes(t *testing.T) {
	const limit, shards = 8 << 20, 16
	from, to := New(), newGroup(t)
	from.SetLimit(limit)
	g := &group{t, from, time.UnixMilli(1_000_000)}
	var ids []uint16
	for id := range uint16(shards) {
		ids = append(ids, id)
	}
	g.do(Request{Op: Found, Value: EncodeShards(ids)})
	for i := range 100 * shards {
		g.do(Request{Op: Put, Shard: uint16(i % shards), Client: uint64(1 + i), Seq: 1, Key: []byte("k"),
			Value: make([]byte, 8<<10)})
	}
	keys := shards * (8<<10 + keyCost + 1)
	if n := g.Bytes() - keys - 100*shards*sessionCost; n > limit/4 || n < limit/8 {
		t.Errorf("the changes take %d of %d bytes", n, limit)
	}
	mark := Request{Op: Mark, Shard: 3, Client: 1, Seq: 1, If: 2}
	at := g.want(g.do(mark), Done, "").Version
	to.want(to.do(Request{Op: Prepare, Shard: 3, Client: 1, Seq: 1, If: at}), Done, "")
	for range limit / (8 << 10) {
		g.put(3, "k", string(make([]byte, 8<<10)))
	}
	if n := from.shards[3].log.bytes; n > limit/8 || n < limit/16 {
		t.Errorf("the changes of a shard that moves take %d of %d bytes", n, limit)
	}
	if _, code := g.ExportChanges(3, at); code != Trimmed {
		t.Errorf("a mover that was too slow is answered by %v", code)
	}
}

// Goal: commands of a move that come a second time, and late, change nothing.
func TestMoveRepeated(t *testing.T) {
	from, to := newGroup(t, 5), newGroup(t)
	from.put(5, "kept", "1")
	from.put(5, "deleted", "1")
	prepare := Request{Op: Prepare, Shard: 5, Client: 4, Seq: 1, If: from.shards[5].rev}
	items, _ := from.Export(5, "")
	page := Request{Op: Import, Shard: 5, Client: 4, Seq: 1, If: 1, Value: EncodeItems(items)}
	move(t, from, to, 5, 4, 1, func(step int) bool {
		switch step {
		case 2:
			to.want(to.do(prepare), Done, "")
			from.put(5, "kept", "2")
			from.do(Request{Op: Delete, Shard: 5, Key: []byte("deleted")})
		case 3:
			to.want(to.do(page), Done, "")
			to.want(to.do(prepare), Done, "")
		}
		return true
	})
	to.want(to.get(5, "kept"), Done, "2")
	to.want(to.get(5, "deleted"), Missing, "")
}

// Goal: a snapshot has everything, and writes after it are not in it.
func TestSnapshot(t *testing.T) {
	g := newGroup(t, 1, 2)
	for i := range 5000 {
		g.do(Request{Op: Put, Shard: uint16(1 + i%2), Client: uint64(1 + i%50), Seq: uint64(i),
			Key: []byte(fmt.Sprint(i)), Value: bytes.Repeat([]byte{byte(i)}, i%300), TTL: uint64(i%7) * 1000})
	}
	write, err := g.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	g.put(1, "later", "")
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer // two members may need it
	if err := write(&again); err != nil || !bytes.Equal(again.Bytes(), b.Bytes()) {
		t.Errorf("written again, the snapshot differs: %v", err)
	}
	now := &group{t, New(), g.now}
	if err := now.Restore(bytes.NewReader(b.Bytes())); err != nil {
		t.Fatal(err)
	}
	now.want(now.get(1, "later"), Missing, "")
	if again, want := now.put(1, "later", ""), g.get(1, "later"); again.Version != want.Version {
		t.Errorf("version %d, want %d", again.Version, want.Version)
	}
	for id, h := range g.shards {
		if x := now.shards[id]; x.keys.Len() != h.keys.Len() || x.bytes != h.bytes || x.due.Len() != h.due.Len() ||
			fmt.Sprint(x.sessions.all()) != fmt.Sprint(h.sessions.all()) {
			t.Errorf("shard %d differs", id)
		}
	}
	for cut := range 200 {
		if New().Restore(bytes.NewReader(b.Bytes()[:b.Len()*cut/200])) == nil {
			t.Fatal("a part of a snapshot was taken for one")
		}
	}
}

// FuzzApply: no command and no snapshot makes a store panic, and a request that is read is written
// as the same bytes.
func FuzzApply(f *testing.F) {
	q := Request{Op: Put, Shard: 1, Client: 2, Seq: 3, Key: []byte("k"), Value: []byte("v")}
	b, _ := q.Append(nil)
	f.Add(b)
	for op := Found; op < opEnd; op++ {
		q.Op, q.Value = op, EncodeItems([]Item{{Key: "k", Value: "v"}})
		b, _ := q.Append(nil)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := New()
		s.found = true
		s.shards[1] = newShard(1, Serving)
		s.shards[2] = newShard(2, Arriving)
		s.Apply(1, bytes.Clone(b))
		s.Restore(bytes.NewReader(b))
		var q Request
		if q.Parse(b) == nil {
			if again, err := q.Append(nil); err != nil || !bytes.Equal(again, b) {
				t.Errorf("%x became %x, %v", b, again, err)
			}
			s.Read(&q, time.Time{}, nil)
		}
		var r Result
		r.Parse(b)
		for _, parse := range []func([]byte) error{parses(ParseItems), parses(ParseChanges), parses(ParseSessions),
			parses(ParseKeys), parses(ParseShards), parses(ParseNews)} {
			parse(b)
		}
	})
}

// parses makes a parser one that gives its error only.
func parses[T any](parse func([]byte) (T, error)) func([]byte) error {
	return func(b []byte) error {
		_, err := parse(b)
		return err
	}
}

func BenchmarkApply(b *testing.B) {
	s := New()
	q := Request{Op: Found, Value: EncodeShards([]uint16{0})}
	found, _ := q.Append(nil)
	s.Apply(0, found)
	q = Request{Op: Put, Client: 1, Key: []byte("key-00000000"), Value: make([]byte, 100)}
	n := uint64(0)
	reply := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		n++
		q.Seq = n
		copy(q.Key[4:], fmt.Sprintf("%08d", n%10000))
		put, _ := q.Append(nil)
		reply = s.ApplyTo(put, reply[:0])
	}
}
