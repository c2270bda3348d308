package chaos

import (
	"context"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// requestMax is how long one request to the system may take.
const requestMax = 10 * time.Second

// Procs is what Run needs of a realm. *sdk.Client has it.
type Procs interface {
	List(ctx context.Context, all bool) ([]sigma.ProcInfo, error)
	Kill(ctx context.Context, id sigma.ProcID) error
	Freeze(ctx context.Context, id sigma.ProcID) error
	Thaw(ctx context.Context, id sigma.ProcID) error
}

// Fault is what was done. As a line of JSON it can be laid beside a history (lib/history).
type Fault struct {
	Fault  Kind         `json:"fault"`
	Target string       `json:"target"` // its name; "" = there were none to take
	Proc   sigma.ProcID `json:"proc,omitempty"`
	At     int64        `json:"at"`              // nanoseconds since 1970
	Until  int64        `json:"until,omitempty"` // end of a pause
	Error  string       `json:"error,omitempty"` // why it was not done
}

// runner is a Run.
type runner struct {
	procs  Procs
	match  func(sigma.ProcInfo) bool
	spare  int
	began  time.Time
	report func(Fault)

	pauses sync.WaitGroup
	mu     sync.Mutex
	paused map[sigma.ProcID]bool // mu; by this run
}

// Run does the faults of a plan, to procs that match and run at the time, until it is over or ctx
// ends. report gets each fault, one at a time, when it is over. A fault that fails is reported with
// its error and does not end the run.
func Run(ctx context.Context, cfg Config, procs Procs, match func(sigma.ProcInfo) bool, report func(Fault)) error {
	steps, err := cfg.Plan()
	if err != nil {
		return err
	}
	var reporting sync.Mutex
	r := &runner{procs: procs, match: match, spare: cfg.Spare, began: time.Now(), paused: map[sigma.ProcID]bool{},
		report: func(f Fault) {
			reporting.Lock()
			defer reporting.Unlock()
			report(f)
		}}
	defer r.pauses.Wait()
	for _, s := range steps {
		if !retry.Pause(ctx, time.Until(r.began.Add(s.At))) {
			return ctx.Err()
		}
		r.do(ctx, s)
	}
	if !retry.Pause(ctx, time.Until(r.began.Add(cfg.For))) {
		return ctx.Err()
	}
	return nil
}

// now is the time as a history has it: that of the start, and from then on by the monotonic clock.
func (r *runner) now() int64 { return r.began.UnixNano() + int64(time.Since(r.began)) }

// targets are the procs that match and run, and are not frozen.
func (r *runner) targets(ctx context.Context) (ts []Target, err error) {
	all, err := r.procs.List(ctx, false)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range all {
		if p.State == sigma.ProcRunning && !p.Frozen && !r.paused[p.ID] && r.match(p) {
			ts = append(ts, Target{p.Name, p.ID})
		}
	}
	return ts, err
}

// do does one step. A pause goes on after it.
func (r *runner) do(ctx context.Context, s Step) {
	within, cancel := context.WithTimeout(ctx, requestMax)
	defer cancel()
	f := Fault{Fault: s.Kind}
	ts, err := r.targets(within)
	t, ok := s.Choose(ts, r.spare)
	if f.Target, f.Proc = t.Name, t.Proc; err == nil && !ok {
		f.Error = "skipped: no more procs run than are to be spared"
	}
	f.At = r.now()
	switch {
	case err != nil || !ok:
	case s.Kind == Kill:
		err = r.procs.Kill(within, t.Proc)
	default:
		if err = r.pause(within, t.Proc); err == nil {
			r.pauses.Go(func() { r.thawLater(ctx, s, f) })
			return
		}
	}
	if err != nil {
		f.Error = err.Error()
	}
	r.report(f)
}

// pause freezes a proc. If it is not known whether it is frozen, it is thawed.
func (r *runner) pause(ctx context.Context, id sigma.ProcID) error {
	r.mu.Lock()
	r.paused[id] = true
	r.mu.Unlock()
	err := r.procs.Freeze(ctx, id)
	if err != nil {
		r.thaw(ctx, id)
	}
	return err
}

// thawLater ends a pause, at the end of its time or of the run.
func (r *runner) thawLater(ctx context.Context, s Step, f Fault) {
	retry.Pause(ctx, s.Long)
	err := r.thaw(ctx, f.Proc)
	f.Until = r.now()
	if kind := sigma.KindOf(err); err != nil && kind != sigma.KindNotFound { // not found: it has ended meanwhile
		f.Error = err.Error()
	}
	r.report(f)
}

// thaw lets a proc go on, also when ctx has ended.
func (r *runner) thaw(ctx context.Context, id sigma.ProcID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestMax)
	defer cancel()
	err := r.procs.Thaw(ctx, id)
	r.mu.Lock()
	delete(r.paused, id)
	r.mu.Unlock()
	return err
}
