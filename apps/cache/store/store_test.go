package store

import (
	"bytes"
	"container/list"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"sigmaos.dev/sigma"
)

func newStore(t testing.TB, limit int64) *Store {
	t.Helper()
	s, err := New(Config{Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// check compares what a store counts with what it has.
func check(t testing.TB, s *Store) {
	t.Helper()
	st := s.Stats()
	if st.Memory > st.Limit {
		t.Fatalf("%d bytes are taken of %d", st.Memory, st.Limit)
	}
	for i := range s.shards {
		sh := &s.shards[i]
		live, keys, small, main := 0, int64(0), 0, 0
		for slot := range sh.entries {
			tag, at := sh.entry(slot)
			if tag == 0 {
				continue
			}
			live++
			r := sh.record(at)
			if found, where, _ := sh.probe(r.key(), tag); found != slot || where != at || r.is(bitDead) {
				t.Fatalf("the record of %q is not found where it is", r.key())
			}
			it := sh.item(r)
			keys += int64(len(r.key()) + len(it.Value))
			bytes := r.size()
			if r.is(bitLarge) {
				bytes += pages(len(it.Value))
			}
			if r.is(bitMain) {
				main += bytes
			} else {
				small += bytes
			}
		}
		if live != sh.count || keys != sh.stats.Bytes || small != sh.small.bytes || main != sh.main.bytes {
			t.Fatalf("%d items of %d bytes, %d and %d in queues; counted as %d, %d, %d, %d", live, keys, small, main,
				sh.count, sh.stats.Bytes, sh.small.bytes, sh.main.bytes)
		}
	}
}

// Goal: what fits stays, exactly as it was stored last, whatever is done to it.
func TestKeepsWhatFits(t *testing.T) {
	s := newStore(t, LimitMin)
	want := map[string]string{}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 30_000 {
		key := fmt.Sprint("key", r.IntN(500))
		switch r.IntN(4) {
		case 0:
			s.Update([]byte(key), 1, func(Item, bool) (Item, Action) { return Item{}, Remove })
			delete(want, key)
		default:
			value := bytes.Repeat([]byte{byte(i)}, r.IntN(5000)*r.IntN(2)+r.IntN(100))
			if err := s.Set([]byte(key), Item{Value: value, Flags: uint32(i)}, 1); err != nil {
				t.Fatal(err)
			}
			want[key] = string(value)
		}
	}
	check(t, s)
	for i := range 500 {
		key := fmt.Sprint("key", i)
		got, found := s.Get([]byte(key), nil, 1)
		if value, is := want[key]; is != found || string(got.Value) != value {
			t.Errorf("%s: %d bytes, %v; want %d, %v", key, len(got.Value), found, len(value), is)
		}
	}
	if st := s.Stats(); st.Evicted > 0 || st.Items != int64(len(want)) {
		t.Errorf("%d were evicted, %d are there of %d", st.Evicted, st.Items, len(want))
	}
}

// Goal: the limit holds for any mix of sizes, and full stores keep working.
func TestLimitHolds(t *testing.T) {
	for _, most := range []int{1, 100, 4000, 70_000, 512 << 10} {
		s := newStore(t, LimitMin)
		r := rand.New(rand.NewPCG(3, uint64(most)))
		value := make([]byte, most)
		for total := 0; total < 6*LimitMin; {
			n := r.IntN(most)
			total += n + 50
			key := binary.BigEndian.AppendUint64(nil, r.Uint64N(1<<20))
			if err := s.Set(key, Item{Value: value[:n]}, 1); err != nil {
				t.Fatal(err)
			}
			if it, found := s.Get(key, nil, 1); !found || len(it.Value) != n {
				t.Fatalf("a value of %d bytes is not there when it was just stored", n)
			}
		}
		check(t, s)
		st := s.Stats()
		if most > 1 && st.Bytes+st.Items*60 < LimitMin*6/10 {
			t.Errorf("values of up to %d bytes: %d items of %d bytes fill a store of %d", most, st.Items, st.Bytes,
				LimitMin)
		}
	}
}

// Goal: keys that are stored again and again with other lengths do not evict others.
func TestDeadRecordsMakeRoom(t *testing.T) {
	s := newStore(t, LimitMin)
	for i := range 10_000 {
		s.Set(fmt.Append(nil, "stays", i), Item{Value: make([]byte, 100)}, 1)
	}
	for i := range 100_000 {
		s.Set(fmt.Append(nil, "changes", i%100), Item{Value: make([]byte, i%1000)}, 1)
	}
	check(t, s)
	if st := s.Stats(); st.Evicted > 0 || st.Items != 10_100 {
		t.Errorf("%d of 10100 are there, %d were evicted", st.Items, st.Evicted)
	}
}

func TestExpiryAndVersions(t *testing.T) {
	s := newStore(t, LimitMin)
	key := []byte("k")
	s.Set(key, Item{Value: []byte("v"), Expiry: 100}, 1)
	first, _ := s.Get(key, nil, 99)
	s.Update(key, 99, func(old Item, _ bool) (Item, Action) { return Item{Flags: 7, Expiry: 200}, Retime })
	second, found := s.Get(key, nil, 199)
	if !found || string(second.Value) != "v" || second.Flags != 7 || second.Version <= first.Version {
		t.Errorf("it is %+v, %v after %+v", second, found, first)
	}
	if _, found := s.Get(key, nil, 200); found {
		t.Error("it is there when it has expired")
	}
	s.Set(key, Item{Expiry: 5}, 200) // in the past
	if _, _, found := s.Peek(key, 200); found || s.Stats().Items != 0 {
		t.Error("it was stored although it had expired")
	}
	for _, n := range []int{s.ValueMax() + 1, 64 << 20} {
		if err := s.Set(key, Item{Value: make([]byte, n)}, 1); sigma.KindOf(err) != sigma.KindTooBig {
			t.Error(err)
		}
	}
	if err := s.Set(make([]byte, KeyMax+1), Item{}, 1); sigma.KindOf(err) != sigma.KindTooBig {
		t.Error(err)
	}
	if err := s.Set(nil, Item{}, 1); err != nil {
		t.Error(err)
	}
	if _, found := s.Get(nil, nil, 1); !found {
		t.Error("the empty key and value are not there")
	}
}

func TestFloor(t *testing.T) {
	floor := uint64(0)
	s, err := New(Config{Limit: LimitMin, Floor: func(key []byte) uint64 {
		if key[0] == 'a' {
			return floor
		}
		return 0
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Set([]byte("a"), Item{}, 1)
	s.Set([]byte("b"), Item{}, 1)
	floor = s.NextVersion()
	if _, found := s.Get([]byte("a"), nil, 1); found {
		t.Error("an item below the floor is there")
	}
	if _, found := s.Get([]byte("b"), nil, 1); !found {
		t.Error("another key's item is gone")
	}
	s.Set([]byte("a"), Item{}, 1)
	if _, found := s.Get([]byte("a"), nil, 1); !found {
		t.Error("a new item is below the floor")
	}
}

// Goal: a scan tells each key that is there all the while, though others come meanwhile and the
// index grows.
func TestScan(t *testing.T) {
	s := newStore(t, LimitMin)
	for i := range 2000 {
		s.Set(fmt.Append(nil, "stays", i), Item{}, 1)
	}
	seen, cursor := map[string]int{}, uint64(0)
	for calls := 0; calls == 0 || cursor != 0; calls++ {
		if calls > 10_000 {
			t.Fatal("the scan does not end")
		}
		cursor = s.Scan(cursor, 10, 1, func(key []byte) { seen[string(key)]++ })
		for i := range 20 {
			s.Set(fmt.Append(nil, "new", calls, i), Item{}, 1)
		}
	}
	for i := range 2000 {
		if seen[fmt.Sprint("stays", i)] != 1 {
			t.Errorf("stays%d was told %d times", i, seen[fmt.Sprint("stays", i)])
		}
	}
	s.Flush()
	check(t, s)
	if s.Scan(0, 10, 1, func([]byte) { t.Error("a key is there after a flush") }) != 0 || s.Stats().Items != 0 {
		t.Error("the store is not empty")
	}
}

// Goal: a store of several shards is one store, also for those who use it at the same time.
func TestShards(t *testing.T) {
	s := newStore(t, 4*shardBudget)
	if n := len(s.shards); n != 4 { // as many as the limit has room for, if there are cores
		t.Fatalf("it has %d shards", n)
	}
	var tasks sync.WaitGroup
	for g := range 4 {
		tasks.Go(func() {
			for i := range 5000 {
				key := fmt.Append(nil, "key", g, i)
				if err := s.Set(key, Item{Value: key}, 1); err != nil {
					t.Error(err)
				}
				s.Update([]byte("count"), 1, func(old Item, _ bool) (Item, Action) {
					n, _ := strconv.Atoi(string(old.Value))
					return Item{Value: strconv.AppendInt(nil, int64(n)+1, 10)}, Put
				})
				if it, found := s.Get(key, nil, 1); !found || !bytes.Equal(it.Value, key) {
					t.Errorf("%s is %q", key, it.Value)
				}
			}
		})
	}
	tasks.Wait()
	check(t, s)
	if it, _ := s.Get([]byte("count"), nil, 1); string(it.Value) != "20000" {
		t.Errorf("20000 additions make %s", it.Value)
	}
	seen, cursor := map[string]bool{}, s.Scan(0, 100, 1, func([]byte) {})
	for cursor != 0 {
		cursor = s.Scan(cursor, 100, 1, func(key []byte) { seen[string(key)] = true })
	}
	s.Scan(0, 100, 1, func(key []byte) { seen[string(key)] = true })
	if len(seen) != 20_001 || s.Stats().Items != 20_001 {
		t.Errorf("a scan tells %d keys of %d", len(seen), s.Stats().Items)
	}
	for i := range s.shards {
		if n := s.shards[i].count; n < 4000 || n > 6000 {
			t.Errorf("shard %d has %d items of 20001", i, n)
		}
	}
}

// lru is the dumb one: a plain LRU of so many items.
type lru struct {
	most  int
	order *list.List
	items map[uint64]*list.Element
}

func (l *lru) use(key uint64) (hit bool) {
	if e := l.items[key]; e != nil {
		l.order.MoveToFront(e)
		return true
	}
	l.items[key] = l.order.PushFront(key)
	if len(l.items) > l.most {
		e := l.order.Back()
		delete(l.items, l.order.Remove(e).(uint64))
	}
	return false
}

// Goal: on Zipf traces of several skews, with more keys than fit by several factors, no fewer uses
// hit than with an LRU that has as many items. A miss stores the item, as a cache before a database
// does.
func TestHitRatioBesideLRU(t *testing.T) {
	value := make([]byte, 100)
	for _, skew := range []float64{1.01, 1.1, 1.3} {
		for _, keys := range []uint64{60_000, 250_000, 1_000_000} {
			s := newStore(t, LimitMin)
			r := rand.New(rand.NewPCG(5, keys))
			z := rand.NewZipf(r, skew, 1, keys-1)
			trace := make([]uint64, 400_000)
			hits := 0
			for i := range trace {
				trace[i] = z.Uint64()
				key := binary.BigEndian.AppendUint64(nil, trace[i])
				if _, found := s.Get(key, nil, 1); found {
					hits++
				} else if err := s.Set(key, Item{Value: value}, 1); err != nil {
					t.Fatal(err)
				}
			}
			check(t, s)
			st := s.Stats()
			l := &lru{most: int(st.Items), order: list.New(), items: map[uint64]*list.Element{}}
			lruHits := 0
			for _, k := range trace {
				if l.use(k) {
					lruHits++
				}
			}
			t.Logf("skew %.2f, %d keys: %d items, %.4f hit, LRU %.4f", skew, keys, st.Items,
				float64(hits)/float64(len(trace)), float64(lruHits)/float64(len(trace)))
			if hits < lruHits {
				t.Errorf("skew %.2f, %d keys: %d hits, LRU %d", skew, keys, hits, lruHits)
			}
		}
	}
}

// Goal: an item of 100 bytes takes less memory than memcached's 1.3 times: there it has a chunk of
// 192 bytes and 8 bytes or more of the hash table.
func TestMemoryPerItem(t *testing.T) {
	s := newStore(t, 64<<20)
	for i := uint64(0); s.Stats().Evicted == 0 && i < 1<<20; i++ {
		for range 1000 {
			s.Set(fmt.Appendf(nil, "key:%012d", i), Item{Value: make([]byte, 100)}, 1)
			i++
		}
	}
	st := s.Stats()
	per := float64(st.Limit) / float64(st.Items)
	t.Logf("%.0f bytes per item of 116 bytes", per)
	if per > 200 {
		t.Errorf("%.0f bytes per item", per)
	}
}

func TestHot(t *testing.T) {
	s := newStore(t, LimitMin)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 200_000 {
		key := fmt.Append(nil, "cold", r.IntN(50_000))
		if i%4 == r.IntN(4) {
			key = []byte("hot")
		}
		s.Get(key, nil, 1)
	}
	if hot := s.Hot(3); len(hot) == 0 || hot[0].Key != "hot" || hot[0].Share < 0.15 || hot[0].Share > 0.35 {
		t.Errorf("the hottest are %+v", hot)
	}
}

// FuzzBesideMap does what the input says to a store and to a map. What the store has must be what
// the map has.
func FuzzBesideMap(f *testing.F) {
	r := rand.New(rand.NewPCG(9, 9))
	for range 8 {
		b := make([]byte, 3000)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		s := newStore(t, LimitMin)
		want := map[byte][]byte{}
		expiry := map[byte]int64{}
		now := int64(1)
		for ; len(ops) >= 3; ops = ops[3:] {
			op, k, n := ops[0], ops[1], int(ops[2])
			key := bytes.Repeat([]byte{k}, int(k)%40)
			key = append(key, k)
			now++
			switch op % 8 {
			case 0, 1, 2:
				n *= []int{1, 30, 2000}[op%8]
				value := bytes.Repeat([]byte{op}, n)
				at := int64(0)
				if op&64 != 0 {
					at = now + int64(n%50)
				}
				if s.Set(key, Item{Value: value, Expiry: at}, now) != nil {
					t.Fatal("not stored")
				}
				want[k], expiry[k] = value, at
			case 3:
				s.Update(key, now, func(Item, bool) (Item, Action) { return Item{}, Remove })
				delete(want, k)
			case 4:
				s.Update(key, now, func(old Item, found bool) (Item, Action) {
					v := append(bytes.Clone(old.Value), op)
					if !found || len(v) > s.ValueMax() {
						return Item{}, Leave
					}
					want[k] = v
					expiry[k] = old.Expiry
					return Item{Value: v, Expiry: old.Expiry}, Put
				})
			case 5:
				if n == 0 {
					s.Flush()
					clear(want)
				}
			default:
				it, found := s.Get(key, nil, now)
				value, is := want[k]
				if is && expiry[k] != 0 && expiry[k] <= now {
					is = false
				}
				if found && (!is || !bytes.Equal(it.Value, value)) || !found && is && s.Stats().Evicted == 0 {
					t.Fatalf("key %d: %d bytes, %v; want %d, %v", k, len(it.Value), found, len(value), is)
				}
			}
		}
		check(t, s)
	})
}

func BenchmarkGet(b *testing.B) {
	s := newStore(b, 64<<20)
	keys := make([][]byte, 100_000)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "key:%012d", i)
		s.Set(keys[i], Item{Value: make([]byte, 100)}, 1)
	}
	buf := make([]byte, 0, 200)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.Get(keys[i*7919%len(keys)], buf, 1)
	}
}

func BenchmarkSet(b *testing.B) {
	s := newStore(b, 64<<20)
	value, key := make([]byte, 100), make([]byte, 16)
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		binary.BigEndian.PutUint64(key, i*0x9E3779B97F4A7C15)
		s.Set(key, Item{Value: value}, 1)
	}
}
