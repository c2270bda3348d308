package cache

import (
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// filled is a cache whose feed is at version 1.
func filled(cfg Config) (c *Cache, now time.Time) {
	now = time.Unix(1000, 0)
	c = New(cfg)
	c.Apply(now, &sigmap.NamesFeed{Number: 1, At: 1, Reset: true})
	return c, now
}

// enter remembers a file of the root.
func enter(c *Cache, now time.Time, id uint64, name string, data []byte) {
	f := c.Begin()
	defer f.End()
	root := sigmap.NamesNode{Stat: sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir, Path: rootID, Version: 1}}}
	file := sigmap.NamesNode{Parent: rootID, Stat: sigma.Stat{ID: sigma.FileID{Path: id, Version: 1}, Name: name,
		Size: uint64(len(data))}}
	f.Enter(now, []string{name}, &sigmap.NamesFound{Number: 1, At: 1, Why: sigma.KindOther,
		Nodes: []sigmap.NamesNode{root, file}, HasData: true, Data: data})
}

// However many names are read, what is remembered of them takes what it may and hardly more of the
// process's memory; what is read all the time stays.
func TestManyNames(t *testing.T) {
	const most, names = 8 << 20, 200_000
	c, now := filled(Config{Bytes: most, DataMax: 100, ListMax: 10, Lease: time.Second})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	enter(c, now, 2, "hot", []byte("hot"))
	for i := range names {
		enter(c, now, uint64(10+i), "name"+strconv.Itoa(i), []byte("sixteen bytes..."))
		if i%1000 == 0 {
			if _, _, ok := c.Look(now, rootID, []string{"hot"}, WantData, nil); !ok {
				t.Fatalf("what is read all the time was forgotten after %d others", i)
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	n := c.budget.Counts()
	if n.Bytes > most || n.Entries < 1000 || n.Forgotten < names/2 {
		t.Errorf("%+v", n)
	}
	if took := int64(after.HeapAlloc) - int64(before.HeapAlloc); took > 3*most/2 {
		t.Errorf("%d bytes are counted, the process took %d", n.Bytes, took)
	}
	runtime.KeepAlive(c)
}

// Names that are long count for what they are.
func TestLongNames(t *testing.T) {
	c, now := filled(Config{Bytes: 1 << 20, DataMax: 100, ListMax: 10, Lease: time.Second})
	for i := range 10_000 {
		f := c.Begin()
		root := sigmap.NamesNode{Stat: sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir, Path: rootID, Version: 1}}}
		name := strings.Repeat("x", 240) + strconv.Itoa(i)
		f.Enter(now, []string{name}, &sigmap.NamesFound{Number: 1, At: 1, Why: sigma.KindNotFound,
			Nodes: []sigmap.NamesNode{root}})
		f.End()
	}
	if n := c.budget.Counts(); n.Bytes > 1<<20 || n.Entries > (1<<20)/500 {
		t.Errorf("%+v", n)
	}
}

// BenchmarkLook is a read that memory answers.
func BenchmarkLook(b *testing.B) {
	c, now := filled(Config{Bytes: 1 << 20, DataMax: 100, ListMax: 10, Lease: time.Hour})
	enter(c, now, 2, "f", []byte("data"))
	var room [4]*Node
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := c.Look(now, rootID, []string{"f"}, WantData, room[:0]); !ok {
			b.Fatal("not remembered")
		}
	}
}
