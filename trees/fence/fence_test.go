package fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
)

// model is a table as it should be: it is told what was admitted and what has ended, and knows what
// was saved last.
type model struct {
	t *testing.T

	mu       sync.Mutex
	flying   map[string]map[sigma.Epoch]int // mu; admitted and not ended
	admitted map[string]sigma.Epoch         // mu; the newest
	saved    map[string]sigma.Epoch         // mu
}

func (m *model) save(rng *rand.Rand) func(context.Context, sigma.Fence, []sigma.Fence) error {
	return func(_ context.Context, raised sigma.Fence, all []sigma.Fence) error {
		m.mu.Lock()
		slow, fails := time.Duration(rng.IntN(5)), rng.IntN(5) == 0
		for epoch, n := range m.flying[raised.Name] {
			if n > 0 && epoch < raised.Epoch {
				m.t.Errorf("%v is saved while %d requests of epoch %d are under way", raised, n, epoch)
			}
		}
		m.mu.Unlock()
		<-time.After(slow)
		if fails {
			return errors.New("no space")
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		now := map[string]sigma.Epoch{}
		for _, f := range all {
			now[f.Name] = f.Epoch
		}
		for name, epoch := range m.saved {
			if now[name] < epoch {
				m.t.Errorf("fence %s was saved at epoch %d, and then at %d", name, epoch, now[name])
			}
		}
		m.saved = now
		return nil
	}
}

// TestTableModel has many requests of several epochs and fences come and go at random, some of
// which do not end when they should, some of which give up, while saving is slow and fails. Nothing
// older is ever under way beside or after something newer, and nothing that was admitted was not
// saved.
func TestTableModel(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runModel(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func runModel(t *testing.T, rng *rand.Rand) {
	m := &model{t: t, flying: map[string]map[sigma.Epoch]int{}, admitted: map[string]sigma.Epoch{},
		saved: map[string]sigma.Epoch{}}
	table := NewTable(Config{Save: m.save(rng)})
	names := []string{"a", "b"}
	for _, n := range names {
		m.flying[n] = map[sigma.Epoch]int{}
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 40 {
				m.mu.Lock()
				f := sigma.Fence{Name: names[rng.IntN(2)], Epoch: max(1, m.admitted["a"]) + sigma.Epoch(rng.IntN(3))}
				if f.Epoch > 1 && rng.IntN(3) == 0 {
					f.Epoch--
				}
				pause, stubborn, patience := time.Duration(rng.IntN(10)), rng.IntN(2) == 0,
					time.Duration(1+rng.IntN(30))
				m.mu.Unlock()
				m.request(t.Context(), table, f, pause, stubborn, patience)
			}
		})
	}
	all.Wait()
	if len(table.states) != 0 {
		t.Errorf("%d fences have something under way at the end", len(table.states))
	}
	for name, epoch := range m.admitted {
		if m.saved[name] < epoch {
			t.Errorf("%s: admitted %d, saved %d", name, epoch, m.saved[name])
		}
	}
}

func (m *model) request(ctx context.Context, table *Table, f sigma.Fence, pause time.Duration, stubborn bool,
	patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ctx, leave, err := table.Enter(ctx, f)
	m.mu.Lock()
	if err != nil {
		if sigma.KindOf(err) == sigma.KindStale && table.Newest(f.Name) <= f.Epoch {
			m.t.Errorf("%v was refused: %v", f, err)
		}
		m.mu.Unlock()
		return
	}
	if f.Epoch < m.admitted[f.Name] {
		m.t.Errorf("%v was admitted after epoch %d", f, m.admitted[f.Name])
	}
	m.admitted[f.Name] = f.Epoch
	for epoch, n := range m.flying[f.Name] {
		if n > 0 && epoch < f.Epoch {
			m.t.Errorf("%v was admitted beside epoch %d", f, epoch)
		}
	}
	if m.saved[f.Name] < f.Epoch {
		m.t.Errorf("%v was admitted, and %d is saved", f, m.saved[f.Name])
	}
	m.flying[f.Name][f.Epoch]++
	m.mu.Unlock()
	if stubborn {
		<-time.After(pause)
	} else {
		select {
		case <-ctx.Done():
			err = sigma.Wrap("test", "", ctx.Err())
		case <-time.After(pause):
		}
	}
	m.mu.Lock()
	m.flying[f.Name][f.Epoch]--
	m.mu.Unlock()
	if got := leave(err); sigma.KindOf(err) == sigma.KindCanceled && err != nil &&
		sigma.KindOf(got) != sigma.KindStale {
		m.t.Errorf("a request that was deposed got %v", got)
	}
}

// TestRestart: what was saved is known to the next table; what could not be saved is not admitted,
// and shuts out older ones all the same.
func TestRestart(t *testing.T) {
	ctx := t.Context()
	var saved []sigma.Fence
	full := errors.New("disk full")
	fail := full
	table := NewTable(Config{Save: func(_ context.Context, _ sigma.Fence, all []sigma.Fence) error {
		if fail == nil {
			saved = slices.Clone(all)
		}
		return fail
	}})
	enter := func(name string, epoch sigma.Epoch) error {
		_, leave, err := table.Enter(ctx, sigma.Fence{Name: name, Epoch: epoch})
		if err == nil {
			leave(nil)
		}
		return err
	}
	if err := enter("a", 2); err != full {
		t.Errorf("with a full disk: %v", err)
	}
	if err := enter("a", 1); sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("an older one: %v", err)
	}
	fail = nil
	if err := errors.Join(enter("a", 2), enter("b", 7), enter("", 0)); err != nil {
		t.Fatal(err)
	}
	known, err := Decode(Encode(saved))
	if err != nil || len(known) != 2 {
		t.Fatal(known, err)
	}
	table = NewTable(Config{Known: known})
	for _, f := range []struct {
		name  string
		epoch sigma.Epoch
		kind  sigma.Kind
	}{{"a", 1, sigma.KindStale}, {"b", 6, sigma.KindStale}, {"b", 7 + JumpMax + 1, sigma.KindInvalid},
		{"b", 0, sigma.KindInvalid}, {"c", 1<<64 - 1, sigma.KindInvalid},
		{strings.Repeat("n", sigma.PathMax+1), 1, sigma.KindInvalid}} {
		if err := enter(f.name, f.epoch); sigma.KindOf(err) != f.kind {
			t.Errorf("%.10s at epoch %d: got %v, want %v", f.name, f.epoch, err, f.kind)
		}
	}
	if err := errors.Join(enter("b", 7), enter("b", 7+JumpMax), enter("c", JumpMax)); err != nil {
		t.Error(err)
	}
}

// TestBounds: a realm that makes up fences is refused new ones, by their number and by their bytes,
// and keeps those it has.
func TestBounds(t *testing.T) {
	for _, size := range []int{4, sigma.PathMax} {
		var e Epochs
		var last error
		created := 0
		for ; created <= FencesMax; created++ {
			f := sigma.Fence{Name: fmt.Sprintf("%0*d", size, created), Epoch: 1}
			var newer bool
			if newer, last = e.Check(f); last != nil {
				break
			} else if newer {
				e.Raise(f)
			}
		}
		if want := min(FencesMax, NamesMax/size); created != want || sigma.KindOf(last) != sigma.KindNoSpace {
			t.Errorf("%d fences of %d bytes were noted, %v; want %d", created, size, last, want)
		}
		if newer, err := e.Check(sigma.Fence{Name: fmt.Sprintf("%0*d", size, 0), Epoch: 2}); !newer || err != nil {
			t.Errorf("a known fence in a full table: %v, %v", newer, err)
		}
	}
}

// FuzzDecode: any file is refused or means what its encoding means.
func FuzzDecode(f *testing.F) {
	f.Add(Encode(nil))
	f.Add(Encode([]sigma.Fence{{Name: "/leader", Epoch: 3}, {Name: "a\n\x00\xff b", Epoch: 1<<64 - 1}}))
	f.Add([]byte("sigma-fences/1\n1 `a`\nend\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		fences, err := Decode(data)
		if err != nil {
			return
		}
		again, err := Decode(Encode(fences))
		if err != nil || !slices.Equal(again, fences) {
			t.Errorf("%q means %v, and then %v, %v", data, fences, again, err)
		}
	})
}

// TestDecodeDamaged: a list that was cut anywhere is not taken for a shorter one.
func TestDecodeDamaged(t *testing.T) {
	whole := Encode([]sigma.Fence{{Name: "/leader", Epoch: 30}, {Name: "/other", Epoch: 4}})
	for n := range whole {
		if got, err := Decode(whole[:n]); err == nil {
			t.Errorf("%q was taken for %v", whole[:n], got)
		}
	}
	if _, err := Decode(bytes.Replace(whole, []byte("/other"), []byte("/leader"), 1)); err == nil {
		t.Error("a fence that is there twice was taken")
	}
}
