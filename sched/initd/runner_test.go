package initd

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
)

// world is a System in memory.
type world struct {
	mu      sync.Mutex
	files   map[Key]Versioned             // mu
	version sigma.Version                 // mu
	procs   map[sigma.ProcID]sigma.Status // mu; StatusNone = it runs
	spawns  int                           // mu
	stale   bool                          // mu; another one leads
	changed chan struct{}                 // takes one
}

func (w *world) List(context.Context) (map[Key]Versioned, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.files), nil
}

func (w *world) Changed(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	if since == 0 {
		return 1, nil
	}
	select {
	case <-w.changed:
		return since + 1, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (w *world) Save(_ context.Context, k Key, v Versioned) (sigma.Version, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if had, there := w.files[k]; w.stale || !there || had.Version != v.Version {
		return 0, sigma.Errorf("test", map[bool]sigma.Kind{true: sigma.KindStale, false: sigma.KindVersion}[w.stale],
			"not saved")
	}
	w.version++
	v.Version = w.version
	w.files[k] = v
	return v.Version, nil
}

func (w *world) Forget(_ context.Context, k Key, at sigma.Version) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.files[k].Version != at {
		return sigma.Errorf("test", sigma.KindVersion, "not removed")
	}
	delete(w.files, k)
	return nil
}

func (w *world) Look(_ context.Context, qs []Question) ([]Seen, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]Seen, len(qs))
	for i, q := range qs {
		switch s, there := w.procs[q.Proc]; {
		case !there:
			out[i].Sight = Gone
		case s.Code == sigma.StatusNone:
			out[i].Sight = Alive
		default:
			out[i] = Seen{Sight: Ended, Status: s}
		}
	}
	return out, nil
}

func (w *world) Spawn(_ context.Context, _ sigma.RealmID, id sigma.ProcID, _ sigma.Descriptor) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spawns++
	w.procs[id] = sigma.Status{}
	return nil
}

func (w *world) Stop(_ context.Context, _ sigma.RealmID, id sigma.ProcID) error {
	w.end(id)
	return nil
}

func (w *world) end(id sigma.ProcID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.procs[id] = sigma.Status{Code: sigma.StatusEvicted}
}

// change edits a record as a realm's program does.
func (w *world) change(k Key, f func(*Record)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.files[k]
	f(&v.Record)
	w.version++
	v.Version = w.version
	w.files[k] = v
	w.changed <- struct{}{}
}

func (w *world) present(k Key) sigma.ProcID {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.files[k]
	if p := v.Record.Present(); p != nil {
		return p.Proc
	}
	return ""
}

// The shell hears of what is registered, starts it, sees its end, starts it again, ends it when it
// is removed, and stops when another one leads.
func TestRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{files: map[Key]Versioned{}, procs: map[sigma.ProcID]sigma.Status{}, changed: make(chan struct{}, 1)}
		k := Key{"r", "web"}
		over := make(chan error, 1)
		go func() { over <- NewRunner("m1", w, slog.New(slog.DiscardHandler)).Run(t.Context()) }()
		synctest.Wait()
		w.change(k, func(r *Record) {
			*r = NewRecord(sigma.Registration{Name: "web", Descriptor: sigma.Descriptor{Program: "/bin/x"}}, time.Now())
		})
		synctest.Wait()
		first := w.present(k)
		if first == "" {
			t.Fatal("it was not started")
		}
		w.end(first)
		<-time.After(lookEvery + pauseMin + lookEvery)
		synctest.Wait()
		second := w.present(k)
		if second == "" || second == first || w.spawns != 2 {
			t.Fatalf("after %s it is %s, %d spawns", first, second, w.spawns)
		}
		w.change(k, func(r *Record) { r.Removed = true })
		<-time.After(2*lookEvery + 2*listRetry)
		synctest.Wait()
		if len(w.files) != 0 || w.procs[second].Code != sigma.StatusEvicted {
			t.Errorf("records %+v, procs %+v", w.files, w.procs)
		}
		w.mu.Lock()
		w.stale = true
		w.mu.Unlock()
		w.change(k, func(r *Record) {
			*r = NewRecord(sigma.Registration{Name: "web", Descriptor: sigma.Descriptor{Program: "/bin/x"}}, time.Now())
		})
		if err := <-over; err != nil || w.spawns != 2 {
			t.Errorf("when another one leads: %v, %d spawns", err, w.spawns)
		}
	})
}
