// Package traces records what procs asked for and waited, and runs a record, or a made-up load,
// again in virtual time.
package traces

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/members"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sched/sim"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/hostdir"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return []*cobra.Command{
		newTraceCommand(a),
		newSimCommand(a),
	}
}

func newTraceCommand(a *app) *cobra.Command {
	return cli.Parent("trace", "Record what procs asked for, waited and ran, for sigma sim",
		`A trace is a file that tells of the procs of a run when they were spawned, what they asked
for, how long they waited and how long they ran. sigma sim --trace runs it again in virtual
time. It names realms, but neither programs nor arguments.`, newTraceRecordCommand(a))
}

func newTraceRecordCommand(a *app) *cobra.Command {
	var length time.Duration
	cmd := &cobra.Command{
		Use:   "record [--for TIME] FILE",
		Short: "Record the procs of all realms",
		Long: `Write to FILE (- is standard output) what is remembered of all procs of all realms that have
started and ended, with the machines of the system and the realms' shares. With --for it
goes on for a TIME, so that nothing is forgotten meanwhile: of each realm some thousand
procs are remembered, for an hour. ^C ends it early; what was recorded is written. FILE is
replaced as a whole in the end: until then it is what it was.`,
		Example: `  sudo sigma trace record procs.trace
  sudo sigma trace record --for 10m procs.trace
  sigma sim --trace procs.trace`,
		Args: cli.Between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if length < 0 {
				return cli.UsageError(cmd, "", "a negative time")
			}
			return a.traceRecord(cmd.Context(), args[0], length)
		},
	}
	cmd.Flags().DurationVar(&length, "for", 0, "go on recording for a `TIME`, as in 10m")
	return cmd
}

// traceEvery is how often procs are looked at while a trace is recorded.
const traceEvery = 2 * time.Second

// recording is what is known of a run so far.
type recording struct {
	known map[sigma.ProcID]bool
	ended []sigma.ProcInfo // that have started, too
	trace sim.Trace
}

func (a *app) traceRecord(ctx context.Context, path string, length time.Duration) (err error) {
	m, err := members.Open(ctx, a.App)
	if err != nil {
		return err
	}
	r := &recording{known: map[sigma.ProcID]bool{}, trace: sim.Trace{Shares: map[sigma.RealmID]uint32{}}}
	all, err := m.List(ctx)
	if err != nil {
		return err
	}
	for _, i := range all {
		if i.State != sigma.MachineLost {
			r.trace.Sizes = append(r.trace.Sizes, sim.Size{CPU: i.CPU, Memory: i.Memory})
		}
	}
	out, end := term.Raw(a.Out), func() error { return nil }
	if path != "-" {
		f, err := newWhole(path) // before the time is spent
		if err != nil {
			return err
		}
		defer f.drop()
		out, end = f, f.end
	}
	failed := false
	for until := time.Now().Add(length); ; {
		left, err := r.look(ctx, a)
		if ctx.Err() != nil {
			err = nil
		}
		if err != nil && !failed && length > 0 { // it may be only for a moment
			a.Remark("sigma: procs cannot be seen: %v", err)
		}
		failed = err != nil
		if wait := min(traceEvery, time.Until(until)); ctx.Err() == nil && wait > 0 && len(r.ended) < sim.TraceMax {
			datadir.Pause(ctx, wait)
			continue
		}
		if err != nil && len(r.ended) == 0 {
			return err
		}
		return cmp.Or(r.write(a, out, end, path, left), err)
	}
}

// Look adds what has ended since it looked last, and counts what has not.
func (r *recording) look(ctx context.Context, a *app) (left int, err error) {
	var realms []sigma.RealmInfo
	c, err := a.ClientOf(ctx, sigma.SystemRealm)
	if err == nil {
		realms, err = c.Realms().List(ctx)
	}
	if err != nil {
		a.Drop(sigma.SystemRealm)
		return 0, err
	}
	for _, realm := range realms {
		if realm.ID == sigma.SystemRealm {
			continue
		}
		if realm.Shares > 1 {
			r.trace.Shares[realm.ID] = realm.Shares
		}
		var procs []sigma.ProcInfo
		if c, err = a.ClientOf(ctx, realm.ID); err == nil {
			procs, err = c.List(ctx, true)
		}
		if err != nil {
			a.Drop(realm.ID)
		}
		switch {
		case err == nil:
		case sigma.KindOf(err) == sigma.KindNotFound: // removed just now
			err = nil
			continue
		default:
			return left, err
		}
		for _, p := range procs {
			switch t := p.Times; {
			case p.State != sigma.ProcEnded:
				left++
			case r.known[p.ID] || t.Executed.IsZero() || t.Ended.Before(t.Executed) || len(r.ended) >= sim.TraceMax:
			default:
				r.known[p.ID] = true
				r.ended = append(r.ended, p)
			}
		}
	}
	return left, nil
}

func (r *recording) write(a *app, out io.Writer, end func() error, path string, left int) error {
	if len(r.ended) == 0 {
		return &sigma.Error{Op: "sigma.trace", Kind: sigma.KindNotFound,
			Msg: "no procs are remembered that have started and ended", Hint: "record for a while, with --for 1m"}
	}
	slices.SortStableFunc(r.ended, func(x, y sigma.ProcInfo) int {
		return cmp.Or(x.Times.Spawned.Compare(y.Times.Spawned), cmp.Compare(x.ID, y.ID))
	})
	for _, p := range r.ended {
		t := p.Times
		ar := sim.Arrival{At: t.Spawned.Sub(r.ended[0].Times.Spawned), Realm: p.Realm, Memory: max(sigma.MemoryLeast,
			p.Memory), CPU: p.CPU, Run: t.Ended.Sub(t.Executed), Waited: -1}
		if !t.Placed.IsZero() {
			ar.Waited, ar.Start = max(0, t.Placed.Sub(t.Spawned)), max(0, t.Executed.Sub(t.Placed))
		}
		r.trace.Arrivals = append(r.trace.Arrivals, ar)
	}
	if err := r.trace.Write(out); err != nil {
		return datadir.Explain(path, err)
	}
	if err := end(); err != nil {
		return datadir.Explain(path, err)
	}
	words := fmt.Sprintf("%d procs", len(r.ended))
	if left > 0 {
		words += fmt.Sprintf("; %d have not ended and are left out", left)
	}
	a.Remark("sigma: recorded %s", words)
	return nil
}

// Whole is a local file that is put in its place when all of it is on the disk, so that who reads
// it, or finds it after a crash, has the old one or the new one. What is no regular file, as
// /dev/stdout, is written as it is.
type whole struct {
	*os.File
	beside *hostdir.File // nil = it is in its place
}

// newWhole begins a file that takes the place of what path leads to, with its mode.
func newWhole(path string) (*whole, error) {
	mode := os.FileMode(0o666)
	if st, err := os.Stat(path); err == nil {
		if mode = st.Mode().Perm(); !st.Mode().IsRegular() {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			return &whole{File: f}, err
		}
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return nil, err
		}
	}
	f, err := hostdir.Create(path, mode)
	if err != nil {
		return nil, err
	}
	return &whole{f.File, f}, nil
}

// end puts the file in its place. drop follows.
func (w *whole) end() error {
	if w.beside == nil {
		return w.Close()
	}
	if err := w.Sync(); err != nil {
		return err
	}
	return w.beside.Commit()
}

// drop removes what end has not put in its place.
func (w *whole) drop() {
	if w.beside == nil {
		w.Close()
		return
	}
	w.beside.Drop()
}
