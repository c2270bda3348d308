package chaos

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
)

// realm is a realm with procs of which a killed one is replaced at once.
type realm struct {
	mu     sync.Mutex
	procs  []sigma.ProcInfo // mu
	count  int              // mu
	frozen int              // mu; at this time
	most   int              // mu; frozen at one time
	kills  int              // mu
	refuse error            // mu
}

func newRealm(n int) *realm {
	r := &realm{}
	for range n {
		r.addLocked("web@1")
	}
	r.addLocked("other")
	return r
}

func (r *realm) addLocked(name string) {
	r.count++
	r.procs = append(r.procs, sigma.ProcInfo{ID: sigma.ProcID(fmt.Sprint("p", r.count)), Name: name,
		State: sigma.ProcRunning})
}

func (r *realm) List(context.Context, bool) ([]sigma.ProcInfo, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.procs), r.refuse
}

func (r *realm) at(id sigma.ProcID) int {
	return slices.IndexFunc(r.procs, func(p sigma.ProcInfo) bool { return p.ID == id })
}

func (r *realm) Kill(_ context.Context, id sigma.ProcID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.procs[r.at(id)].Frozen {
		return errors.New("a paused proc is killed")
	}
	r.procs = slices.Delete(r.procs, r.at(id), r.at(id)+1)
	r.kills++
	r.addLocked("web@1")
	return nil
}

func (r *realm) Freeze(_ context.Context, id sigma.ProcID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.procs[r.at(id)].Frozen = true
	r.frozen++
	r.most = max(r.most, r.frozen)
	return nil
}

func (r *realm) Thaw(ctx context.Context, id sigma.ProcID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.procs[r.at(id)].Frozen = false
	r.frozen--
	return nil
}

func web(p sigma.ProcInfo) bool { return p.Name == "web@1" }

// Goal: a seed gives one plan, whose steps are in order and as the configuration says.
func TestPlan(t *testing.T) {
	c := Config{Seed: 7, For: time.Minute, Every: time.Second, PauseMost: 2 * time.Second}
	steps, err := c.Plan()
	again, _ := c.Plan()
	if err != nil || !reflect.DeepEqual(steps, again) || len(steps) < 40 || len(steps) > 120 {
		t.Fatalf("%d steps, %v", len(steps), err)
	}
	kinds, last := map[Kind]int{}, time.Duration(0)
	for _, s := range steps {
		kinds[s.Kind]++
		gap := s.At - last
		if last = s.At; gap < c.Every/2 || gap > 3*c.Every/2 || s.At >= c.For || s.At+s.Long > c.For ||
			(s.Kind == Pause) != (s.Long > 0) || s.Long > c.PauseMost {
			t.Errorf("%+v after %v", s, gap)
		}
	}
	if kinds[Kill] < 10 || kinds[Pause] < 10 {
		t.Errorf("%v", kinds)
	}
	c.Seed++
	if other, _ := c.Plan(); reflect.DeepEqual(steps, other) {
		t.Error("another seed gives the same plan")
	}
}

// Goal: what a step picks depends on the names, not on the order of the list.
func TestChoose(t *testing.T) {
	a, b := Target{"a", "1"}, Target{"b", "0"}
	for pick := range uint64(9) {
		s := Step{Pick: pick}
		first, ok := s.Choose([]Target{a, b}, 1)
		second, _ := s.Choose([]Target{b, a}, 1)
		if !ok || first != second || (pick%2 == 0) != (first == a) {
			t.Errorf("%d picks %v and %v", pick, first, second)
		}
	}
	if _, ok := (Step{}).Choose([]Target{a, b}, 2); ok {
		t.Error("one that is to be spared is picked")
	}
	if _, ok := (Step{}).Choose(nil, 0); ok {
		t.Error("one is picked of none")
	}
}

// Goal: configurations that make no sense are refused with a hint.
func TestRefused(t *testing.T) {
	for name, c := range map[string]Config{"no time": {}, "negative": {For: 1, Spare: -1},
		"too many": {For: time.Hour, Every: time.Millisecond}, "no fault": {For: time.Hour, Kinds: []Kind{"cut"}}} {
		if _, err := c.Plan(); sigma.KindOf(err) != sigma.KindInvalid || sigma.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Goal: faults reach procs that match only, as many as may be spared go on at all times, and all go
// on at the end.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRealm(3)
		var seen []Fault
		began := time.Now()
		err := Run(t.Context(), Config{Seed: 3, For: 10 * time.Minute, Every: time.Second, PauseMost: 5 * time.Second,
			Spare: 1}, r, web, func(f Fault) { seen = append(seen, f) })
		if err != nil || time.Since(began) != 10*time.Minute || r.frozen != 0 || r.most != 2 || r.kills < 100 {
			t.Errorf("%v after %v: %+v", err, time.Since(began), r)
		}
		kinds, skipped := map[Kind]int{}, 0
		for _, f := range seen {
			switch {
			case strings.HasPrefix(f.Error, "skipped"):
				skipped++
			case f.Error != "" || f.Target != "web@1" || f.Proc == "" || f.At < began.UnixNano() ||
				f.Until != 0 && f.Until < f.At:
				t.Errorf("%+v", f)
			default:
				kinds[f.Fault]++
			}
		}
		if kinds[Kill] != r.kills || kinds[Pause] < 100 || skipped == 0 {
			t.Errorf("%v, %d skipped, of %d", kinds, skipped, len(seen))
		}
	})
}

// Goal: a run that is ended early leaves nothing frozen, and one whose realm refuses says so.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRealm(3)
		ctx, cancel := context.WithCancel(t.Context())
		var seen []Fault
		ended := make(chan error)
		go func() {
			ended <- Run(ctx, Config{For: time.Hour, Every: time.Second, PauseMost: time.Hour, Kinds: []Kind{Pause}}, r,
				web, func(f Fault) { seen = append(seen, f) })
		}()
		<-time.After(10 * time.Second)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || r.most != 3 || r.frozen != 0 {
			t.Errorf("%v: %+v", err, r)
		}
		r.refuse, seen = errors.New("no"), nil
		err := Run(t.Context(), Config{For: 10 * time.Second}, r, web, func(f Fault) { seen = append(seen, f) })
		if err != nil || len(seen) == 0 || seen[0].Error != "no" {
			t.Errorf("%v: %+v", err, seen)
		}
	})
}
