package named

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// machineRoot attaches to the test's realm as a machine does.
func machineRoot(t testing.TB, s *Server) *file {
	t.Helper()
	attach(t, s)
	f, err := s.Attach(t.Context(), sigma.Principal{Machine: "m1", System: true}, string(testRealm))
	if err != nil {
		t.Fatal(err)
	}
	return f.(*file)
}

func call(t testing.TB, f *file, method string, ask, answer func(*sigmap.Coder)) error {
	t.Helper()
	payload, err := sigmap.Payload(ask)
	if err != nil {
		t.Fatal(err)
	}
	reply, _, err := f.Call(t.Context(), method, payload, nil)
	if err == nil {
		err = sigmap.Parse(reply, answer)
	}
	return err
}

func pollFeed(t testing.TB, f *file, p sigmap.NamesPoll) (a sigmap.NamesFeed) {
	t.Helper()
	if err := call(t, f, sigmap.CallFeed.Name, func(c *sigmap.Coder) {
		c.NamesPoll(&p)
	}, func(c *sigmap.Coder) { c.NamesFeed(&a) }); err != nil {
		t.Fatal(err)
	}
	return a
}

// printChanges tells changes in words, in some order.
func printChanges(a sigmap.NamesFeed) string {
	var out []string
	for _, x := range a.Changes {
		n := x.Node
		switch x.Kind {
		case sigmap.NodeChanged:
			out = append(out, fmt.Sprintf("%q is %s of %d bytes", n.Stat.Name, n.Stat.ID.Kind, n.Stat.Size))
		case sigmap.NodeGone:
			out = append(out, "one is gone")
		case sigmap.EntryChanged:
			out = append(out, fmt.Sprintf("%q leads to %t", n.Stat.Name, n.Stat.ID.Path != 0))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// The feed tells each change once, in order, and says when it cannot.
func TestFeed(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	root := machineRoot(t, s)
	first := pollFeed(t, root, sigmap.NamesPoll{Wait: 60_000})
	if !first.Reset || first.Number == 0 {
		t.Fatalf("the first answer is %+v", first)
	}
	since := first.At
	next := func(want string) {
		t.Helper()
		a := pollFeed(t, root, sigmap.NamesPoll{Number: first.Number, Since: since, Wait: 60_000})
		if got := printChanges(a); got != want || a.Reset || a.At <= since {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		since = a.At
	}
	put(t, root, "a", "1")
	next(`"" is dir of 0 bytes, "a" leads to true`)
	put(t, root, "a", "12")
	next(`"a" is file of 2 bytes`)
	if err := root.Mkdir(t.Context(), "d", 0o755); err != nil {
		t.Fatal(err)
	}
	next(`"" is dir of 0 bytes, "d" leads to true`)
	if err := root.Rename(t.Context(), "a", root, "b"); err != nil {
		t.Fatal(err)
	}
	next(`"" is dir of 0 bytes, "a" leads to false, "b" is file of 2 bytes, "b" leads to true`)
	if err := root.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	next(`"" is dir of 0 bytes, "b" leads to false, one is gone`)

	answered := make(chan sigmap.NamesFeed)
	go func() {
		answered <- pollFeed(t, root, sigmap.NamesPoll{Number: first.Number, Since: since, Wait: 60_000})
	}()
	lease, err := root.Lease(t.Context(), LeaseLeast)
	if err == nil {
		_, _, err = root.Put(t.Context(), []string{"e"}, nil, sigma.PutOptions{Lease: lease})
	}
	if err != nil {
		t.Fatal(err)
	}
	a := <-answered
	if got := printChanges(a); got != `"" is dir of 0 bytes, "e" leads to true` {
		t.Errorf("who waited got %s", got)
	}
	since = a.At
	next(`"" is dir of 0 bytes, "e" leads to false, one is gone`) // when its lease is over

	for _, p := range []sigmap.NamesPoll{{Number: first.Number + 2, Since: since},
		{Number: first.Number, Since: since + 100}, {Number: first.Number, Since: first.At - 1}} {
		if a := pollFeed(t, root, p); !a.Reset {
			t.Errorf("%+v was answered %+v", p, a)
		}
	}
	if a := pollFeed(t, root, sigmap.NamesPoll{Number: first.Number, Since: since}); a.Reset || a.At != since ||
		len(a.Changes) > 0 {
		t.Errorf("when there was nothing to tell, the answer was %+v", a)
	}
}

// Many changes come in several answers, of each version all; too many are not told.
func TestFeedOverflow(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	root := machineRoot(t, s)
	first := pollFeed(t, root, sigmap.NamesPoll{})
	lease, err := root.Lease(t.Context(), LeaseMax)
	if err != nil {
		t.Fatal(err)
	}
	created := func(n int) {
		for i := range n {
			if _, _, err := root.Put(t.Context(), []string{fmt.Sprint(i, strings.Repeat("n", 200))}, nil,
				sigma.PutOptions{Lease: lease}); err != nil {
				t.Fatal(err)
			}
		}
	}
	created(1000)
	seen := map[string]bool{}
	p := sigmap.NamesPoll{Number: first.Number, Since: first.At}
	for range 20 {
		a := pollFeed(t, root, p)
		if a.Reset || len(a.Changes) > 0 && a.Changes[0].At <= p.Since {
			t.Fatalf("after %d: %+v", p.Since, a.Reset)
		}
		for _, x := range a.Changes {
			if x.Kind == sigmap.EntryChanged {
				seen[x.Node.Stat.Name] = true
			}
		}
		p.Since = a.At
	}
	if len(seen) != 1000 {
		t.Errorf("%d names were told", len(seen))
	}
	if err := root.Revoke(t.Context(), lease); err != nil { // in one transaction
		t.Fatal(err)
	}
	a := pollFeed(t, root, p)
	if !a.Reset {
		t.Errorf("%d changes came in one answer", len(a.Changes))
	}
	put(t, root, "x", "") // goes on from there
	if got := printChanges(pollFeed(t, root, sigmap.NamesPoll{Number: a.Number,
		Since: a.At})); got != `"" is dir of 0 bytes, "x" leads to true` {
		t.Errorf("afterwards: %s", got)
	}
	l := root.slot.current.Load()
	for i := 0; len(l.feed.changes) < feedMax-2; i++ {
		put(t, root, fmt.Sprint("many", i), "")
	}
	for i := range 5 {
		put(t, root, fmt.Sprint("more", i), "")
	}
	if n := len(l.feed.changes); n > feedMax {
		t.Errorf("%d changes are kept", n)
	}
	if a := pollFeed(t, root, sigmap.NamesPoll{Number: a.Number, Since: first.At}); !a.Reset {
		t.Error("what was too many is told in part")
	}
}

// Goal: to keep one more change than the feed has room for costs no copy of all.
func TestFeedFullIsCheap(t *testing.T) {
	f := feed{kept: true, changes: make([]sigmap.NamesChange, feedMax)}
	const more = 2 * feedMax
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range more {
		f.addLocked([]sigmap.NamesChange{{At: sigma.Version(i + 1)}})
	}
	runtime.ReadMemStats(&after)
	if first := f.changes[0].At; len(f.changes) != feedMax || first != more-feedMax+1 || f.since != first-1 {
		t.Errorf("%d changes are kept, from %d, since %d", len(f.changes), first, f.since)
	}
	if n := (after.TotalAlloc - before.TotalAlloc) / more; n > 16<<10 {
		t.Errorf("a change takes %d bytes", n)
	}
}

// A realm for which nobody polls keeps no changes.
func TestFeedIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := serve(t, Config{Store: newMemStore()})
		defer stop()
		root := machineRoot(t, s)
		put(t, root, "a", "")
		l := root.slot.current.Load()
		if l.feed.kept {
			t.Error("changes are kept for nobody")
		}
		first := pollFeed(t, root, sigmap.NamesPoll{})
		go func() {
			time.Sleep(3 * feedIdle / 2) // of the bubble's clock
			put(t, root, "b", "")
		}()
		a := pollFeed(t, root, sigmap.NamesPoll{Number: first.Number, Since: first.At,
			Wait: 2 * uint32(feedIdle.Milliseconds())})
		if len(a.Changes) == 0 {
			t.Error("who waited was not told")
		}
		time.Sleep(2 * feedIdle)
		l.mu.RLock()
		kept := l.feed.kept
		l.mu.RUnlock()
		if kept {
			t.Error("changes are kept when nobody has polled for long")
		}
		put(t, root, "c", "")
		if a := pollFeed(t, root, sigmap.NamesPoll{Number: first.Number, Since: a.At}); !a.Reset {
			t.Error("a feed that was not kept goes on")
		}
		time.Sleep(2 * feedIdle)
	})
}

// A look tells the files along a path, and why it stopped.
func TestLook(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	root := machineRoot(t, s)
	ctx := t.Context()
	if err := root.Mkdir(ctx, "d", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := root.Put(ctx, []string{"d", "f"}, []byte("hello"), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := root.Symlink(ctx, "l", "/d"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		names string
		max   uint32
		nodes int
		why   sigma.Kind
		data  string
	}{
		{"d f", 100, 3, sigma.KindOther, "hello"}, {"d f", 4, 3, sigma.KindOther, "-"}, {"d", 100, 2, sigma.KindOther,
			"-"}, {"d g h", 100, 2, sigma.KindNotFound, "-"},
		{"d f x", 100, 3, sigma.KindNotDir, "hello"}, {"l", 100, 2, sigma.KindOther, "/d"},
		{"l f", 100, 2, sigma.KindNotDir, "/d"},
	} {
		q := sigmap.NamesLook{From: root.id, Names: strings.Fields(c.names), Max: c.max}
		var got sigmap.NamesFound
		err := call(t, root, sigmap.CallLook.Name, func(e *sigmap.Coder) {
			e.NamesLook(&q)
		}, func(d *sigmap.Coder) { d.NamesFound(&got) })
		data := "-"
		if got.HasData {
			data = string(got.Data)
		}
		if err != nil || len(got.Nodes) != c.nodes || got.Why != c.why || data != c.data {
			t.Errorf("%s: %+v, %v", c.names, got, err)
		}
	}
	q := sigmap.NamesLookDir{Dir: root.id, Max: 1}
	var got sigmap.NamesListing
	if err := call(t, root, sigmap.CallLookDir.Name, func(e *sigmap.Coder) {
		e.NamesLookDir(&q)
	}, func(d *sigmap.Coder) { d.NamesListing(&got) }); err != nil || len(got.Entries) != 1 || !got.More ||
		got.Entries[0].Name != "d" {
		t.Errorf("a listing: %+v, %v", got, err)
	}
}

// Only machines may ask for what all programs of a realm do.
func TestFeedIsForMachines(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	root := attach(t, s)
	machine := machineRoot(t, s)
	put(t, root, "a", "")
	below, _, err := machine.Walk(t.Context(), []string{"a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []sigma.Caller{root, below.(*file)} {
		for _, m := range []string{sigmap.CallFeed.Name, sigmap.CallLook.Name, sigmap.CallLookDir.Name} {
			if _, _, err := f.Call(t.Context(), m, nil, nil); sigma.KindOf(err) != sigma.KindUnsupported {
				t.Errorf("%s was answered %v", m, err)
			}
		}
	}
	for _, m := range []string{sigmap.CallFeed.Name, sigmap.CallLook.Name, sigmap.CallLookDir.Name} { // nonsense
		if _, _, err := machine.Call(t.Context(), m, []byte{1, 2}, nil); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("nonsense for %s was answered %v", m, err)
		}
	}
}
