package fence

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"sigmaos.dev/sigma"
)

// Config says what a Table begins with and where it keeps what it learns.
type Config struct {
	Known []sigma.Fence // saved by an earlier Table
	// Save makes all fences durable before it returns nil; raised is the one that is new among
	// them. It is called for one raise at a time. After an error the epoch is not admitted, and
	// saving is tried again with the next request of it. nil: what is learned ends with the
	// program.
	Save func(ctx context.Context, raised sigma.Fence, all []sigma.Fence) error
}

// Table admits requests. Safe for concurrent use.
type Table struct {
	save   func(ctx context.Context, raised sigma.Fence, all []sigma.Fence) error
	saving chan struct{} // holds a token; who saves has it

	mu     sync.Mutex
	seen   Epochs            // mu; the newest epochs that requests carried: older ones are refused
	saved  Epochs            // mu; the newest that may be admitted
	states map[string]*state // mu; fences that requests are under way for
}

// state is what goes on with one fence.
type state struct {
	flights map[*flight]struct{} // admitted requests
	raising chan struct{}        // closed when the raise that is under way is over; nil if none is
	waiting int                  // requests that wait or raise; the state stays for them
}

// flight is a request that was admitted and has not ended.
type flight struct {
	epoch  sigma.Epoch
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// NewTable makes a Table. Those of cfg.Known beyond the bounds count too.
func NewTable(cfg Config) *Table {
	t := &Table{save: cfg.Save, saving: make(chan struct{}, 1), states: map[string]*state{}}
	for _, f := range cfg.Known {
		if f.Name != "" {
			t.seen.Raise(f)
			t.saved.Raise(f)
		}
	}
	return t
}

// deposed is why the context of a request ends when a newer epoch comes.
type deposed struct{ err *sigma.Error }

func (d deposed) Error() string { return d.err.Error() }

func nothing(err error) error { return err }

// Enter admits a request that carries f, or refuses it. Admitted, the request uses the context that
// is returned, and ends with leave, which is given the request's error and returns what to answer:
// if a newer epoch came meanwhile, the context has ended and an error that says so becomes
// KindStale; the request may have taken effect then. A request without a fence is always admitted.
//
// The first request of a newer epoch waits until those of older ones have ended and the epoch is
// saved. ctx bounds the waiting.
func (t *Table) Enter(ctx context.Context, f sigma.Fence) (_ context.Context, leave func(error) error, err error) {
	if t == nil || f.Name == "" {
		return ctx, nothing, nil
	}
	t.mu.Lock()
	s := t.states[f.Name]
	if s == nil {
		s = &state{flights: map[*flight]struct{}{}}
		t.states[f.Name] = s
	}
	s.waiting++
	defer func() { // with t.mu held
		s.waiting--
		t.forgetLocked(f.Name, s)
		t.mu.Unlock()
	}()
	for {
		newer, err := t.seen.Check(f)
		if err != nil {
			return nil, nil, err
		}
		if newer {
			t.seen.Raise(f)
			for x := range s.flights {
				x.cancel(deposed{Stale(sigma.Fence{Name: f.Name, Epoch: x.epoch}, f.Epoch)})
			}
		}
		if t.saved.Newest(f.Name) == f.Epoch {
			ctx, leave := t.admitLocked(ctx, f, s)
			return ctx, leave, nil
		}
		if wait := s.raising; wait != nil { // of this epoch or an older one
			t.mu.Unlock()
			select {
			case <-wait:
			case <-ctx.Done():
				err = sigma.Wrap("fence.Enter", f.Name, ctx.Err())
			}
			t.mu.Lock()
		} else {
			err = t.raiseLocked(ctx, f, s)
		}
		if err != nil {
			return nil, nil, err
		}
	}
}

// raiseLocked makes f's epoch one that is admitted: it waits for the requests of older ones and has
// it saved.
func (t *Table) raiseLocked(ctx context.Context, f sigma.Fence, s *state) (err error) {
	raising := make(chan struct{})
	s.raising = raising
	older := make([]*flight, 0, len(s.flights))
	for x := range s.flights {
		older = append(older, x)
	}
	t.mu.Unlock()
	for _, x := range older {
		select {
		case <-x.done:
			continue
		case <-ctx.Done():
		}
		err = &sigma.Error{Op: "fence.Enter", Path: f.Name, Kind: sigma.KindOf(ctx.Err()),
			Msg: "a request of an older epoch does not end", Err: ctx.Err()}
		break
	}
	if err == nil {
		err = t.saveOne(ctx, f)
	}
	t.mu.Lock()
	s.raising = nil
	close(raising)
	return err
}

// saveOne has all fences saved with f among them, after which f may be admitted. Who saves next
// saves f too.
func (t *Table) saveOne(ctx context.Context, f sigma.Fence) error {
	select {
	case t.saving <- struct{}{}:
	case <-ctx.Done():
		return sigma.Wrap("fence.Enter", f.Name, ctx.Err())
	}
	defer func() { <-t.saving }()
	t.mu.Lock()
	all := make([]sigma.Fence, 0, t.saved.Len()+1)
	t.saved.All(func(x sigma.Fence) {
		if x.Name != f.Name {
			all = append(all, x)
		}
	})
	t.mu.Unlock()
	all = append(all, f)
	slices.SortFunc(all, func(a, b sigma.Fence) int { return cmp.Compare(a.Name, b.Name) })
	if t.save != nil {
		if err := t.save(ctx, f, all); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.saved.Raise(f)
	return nil
}

// admitLocked begins a request.
func (t *Table) admitLocked(ctx context.Context, f sigma.Fence, s *state) (context.Context, func(error) error) {
	ctx, cancel := context.WithCancelCause(ctx)
	x := &flight{epoch: f.Epoch, cancel: cancel, done: make(chan struct{})}
	s.flights[x] = struct{}{}
	return ctx, func(err error) error {
		cause := context.Cause(ctx)
		cancel(nil)
		t.mu.Lock()
		delete(s.flights, x)
		t.forgetLocked(f.Name, s)
		t.mu.Unlock()
		close(x.done)
		var d deposed
		if sigma.KindOf(err) == sigma.KindCanceled && err != nil && errors.As(cause, &d) {
			return d.err
		}
		return err
	}
}

func (t *Table) forgetLocked(name string, s *state) {
	if s.waiting == 0 && len(s.flights) == 0 && t.states[name] == s {
		delete(t.states, name)
	}
}

// Newest returns the newest epoch of a fence that a request carried; 0 if there is none.
func (t *Table) Newest(name string) sigma.Epoch {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen.Newest(name)
}
