package initd

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// System is what a Runner acts on: the names and the machines. Errors of KindStale mean that
// another one leads.
type System interface {
	// List reads all records. Those that cannot be read as such are left out.
	List(ctx context.Context) (map[Key]Versioned, error)
	// Changed waits until a realm's program has changed a record since a version, and gives the
	// next; 0 asks for the present one.
	Changed(ctx context.Context, since sigma.Version) (sigma.Version, error)
	// Save writes a record if its file is at the version.
	Save(ctx context.Context, k Key, v Versioned) (sigma.Version, error)
	// Forget removes a record if its file is at the version.
	Forget(ctx context.Context, k Key, at sigma.Version) error
	// Look tells what became of procs, in order.
	Look(ctx context.Context, qs []Question) ([]Seen, error)
	// Spawn makes a proc. It returns when that was done, or will not be.
	Spawn(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, d sigma.Descriptor) error
	// Stop asks a proc to go.
	Stop(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) error
}

const (
	lookEvery = 250 * time.Millisecond // at procs that run; while there are none nothing is done
	listRetry = 500 * time.Millisecond // after a failure
	stopMost  = 2 * time.Second        // for asking a proc to go
)

// Runner is one leadership.
type Runner struct {
	// Decided is told why a proc that ended is started later or not at all, and must not block; nil
	// = nobody asks. Not changed once Run is called.
	Decided func(decision.Record)

	core *Core
	sys  System
	log  *slog.Logger
	news chan struct{} // takes one: records were changed
}

// NewRunner makes one for a leader on a machine. Nothing runs yet.
func NewRunner(machine sigma.MachineID, sys System, log *slog.Logger) *Runner {
	return &Runner{core: NewCore(machine, sigma.NewProcID), sys: sys, log: log, news: make(chan struct{}, 1)}
}

// Run keeps registered procs running until ctx ends, or another one leads, which is no error.
func (r *Runner) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		r.watch(ctx)
	}()
	defer func() { cancel(); <-watching }()
	list := true
	for ctx.Err() == nil {
		var err error
		if list || r.core.Stale() {
			var all map[Key]Versioned
			if all, err = r.sys.List(ctx); err == nil {
				list = false
				err = r.do(ctx, r.core.Step(time.Now(), Listed{all}))
			}
		}
		if err == nil {
			err = r.look(ctx)
		}
		if err == nil {
			err = r.do(ctx, r.core.Step(time.Now(), Ticked{}))
		}
		switch kind := sigma.KindOf(err); {
		case err == nil:
		case kind == sigma.KindStale:
			return nil
		default:
			r.log.Debug("initd waits", "err", err)
		}
		select {
		case <-r.news:
			list = true
		case <-r.pause(err):
		case <-ctx.Done():
		}
	}
	return nil
}

// pause is until there is something to do by itself.
func (r *Runner) pause(err error) <-chan time.Time {
	wait := time.Duration(-1)
	sooner := func(d time.Duration) {
		if wait < 0 || d < wait {
			wait = max(d, 0)
		}
	}
	if at := r.core.Wakes(); !at.IsZero() {
		sooner(time.Until(at))
	}
	if len(r.core.Watched()) > 0 {
		sooner(lookEvery)
	}
	if err != nil || r.core.Stale() {
		wait = listRetry
	}
	if wait < 0 {
		return nil
	}
	return time.After(wait)
}

// watch tells of changes.
func (r *Runner) watch(ctx context.Context) {
	version := sigma.Version(0)
	for ctx.Err() == nil {
		v, err := r.sys.Changed(ctx, version)
		if err == nil && v != version {
			version = v
			select {
			case r.news <- struct{}{}:
			default:
			}
			continue
		}
		retry.Pause(ctx, listRetry)
	}
}

// look sees what became of the procs that run.
func (r *Runner) look(ctx context.Context) error {
	watched := r.core.Watched()
	keys := slices.SortedFunc(maps.Keys(watched), byName)
	for page := range slices.Chunk(keys, LookMax) {
		qs := make([]Question, len(page))
		for i, k := range page {
			qs[i] = Question{k.Realm, watched[k]}
		}
		seen, err := r.sys.Look(ctx, qs)
		if err != nil {
			return err
		}
		for i, s := range seen[:min(len(seen), len(page))] {
			if err := r.do(ctx, r.core.Step(time.Now(), Saw{page[i], qs[i].Proc, s.Sight, s.Ran,
				s.Status})); err != nil {
				return err
			}
		}
	}
	return nil
}

// do carries out effects and what they lead to. It fails only if another one leads, or ctx has
// ended.
func (r *Runner) do(ctx context.Context, fs []Effect) error {
	for len(fs) > 0 {
		f := fs[0]
		fs = fs[1:]
		next, err := r.act(ctx, f)
		if sigma.KindOf(err) == sigma.KindStale && err != nil {
			return err
		}
		if err != nil {
			r.log.Debug("initd: it was not done", "err", err)
		}
		if next != nil {
			fs = append(fs, r.core.Step(time.Now(), next)...)
		}
		if ctx.Err() != nil {
			return sigma.Wrap("initd.Runner", "", ctx.Err())
		}
	}
	return nil
}

// act carries out one effect, and says what has happened by it.
func (r *Runner) act(ctx context.Context, f Effect) (Event, error) {
	switch f := f.(type) {
	case Save:
		v, err := r.sys.Save(ctx, f.Key, f.Versioned)
		if err != nil {
			return Dropped{f.Key}, err
		}
		r.decided(f)
		return Saved{f.Key, v}, nil
	case Forget:
		if err := r.sys.Forget(ctx, f.Key, f.Version); err != nil {
			return Dropped{f.Key}, err
		}
		return Forgotten{f.Key}, nil
	case Stop:
		within, cancel := context.WithTimeout(ctx, stopMost)
		defer cancel()
		return nil, r.sys.Stop(within, f.Key.Realm, f.Proc)
	case Spawn:
		err := r.sys.Spawn(ctx, f.Key.Realm, f.Proc, f.Descriptor)
		switch kind := sigma.KindOf(err); {
		case err == nil:
			r.log.Info("a registered proc was spawned", "realm", f.Key.Realm, "name", f.Key.Name, "proc", f.Proc)
			return nil, nil
		case kind == sigma.KindStale, kind == sigma.KindLost,
			kind.Retryable(): // it may have been spawned: Look will tell
			return nil, err
		}
		return Refused{f.Key, f.Proc, err}, err
	}
	return nil, nil
}

// decided tells what was decided about an instance that ended.
func (r *Runner) decided(f Save) {
	if reason, why := f.Record.why(); reason != "" && r.Decided != nil {
		last := f.Record.History[len(f.Record.History)-1]
		d := decision.New("initd", f.Key.Realm, last.Proc, reason, why)
		d.Name = f.Key.Name
		r.Decided(d)
	}
}
