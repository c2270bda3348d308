// Package registrations is a machine's part in the procs that initd keeps running: it changes their
// records beside initd's leader and shows them, and does what the leader asks for: it says what has
// become of procs, spawns them and stops them. Users: kernel.
//
// Locks: Epoch.mu, under which procs.Table's is taken.
package registrations

import (
	"context"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sched/initd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
)

// Line is what is shown of a registration.
func Line(r *initd.ReadRecord) report.Registration {
	out := report.Registration{Realm: string(r.Key.Realm), Name: r.Key.Name, History: []report.Instance{}}
	if r.Err != nil {
		out.State = "damaged"
		return out
	}
	g := &r.Record.Registration
	out.Program, out.Args, out.Restart, out.Most = g.Descriptor.Program, g.Descriptor.Args, string(g.Restart), g.Most
	out.State, out.Starts, out.Added = r.Record.State(), r.Record.Starts, r.Record.Added
	if out.Args == nil {
		out.Args = []string{}
	}
	if p := r.Record.Present(); p != nil {
		out.Proc = string(p.Proc)
	}
	for _, i := range r.Record.History {
		line := report.Instance{Proc: string(i.Proc), Begun: i.Begun}
		if !i.Ended.IsZero() {
			line.Ended, line.Status = &i.Ended, report.OfStatus(i.Status)
		}
		out.History = append(out.History, line)
	}
	return out
}

// Add writes a new record. KindExists: there is one of the name.
func Add(ctx context.Context, t *resolve.Tree, dir string, key initd.Key, record initd.Record) error {
	names, err := t.ReadDir(sigma.WithSync(ctx), dir)
	if err != nil {
		return err
	}
	if is := slices.ContainsFunc(names, func(e sigma.DirEntry) bool {
		return e.Name == key.Name
	}); !is && len(names) >= sigma.RegistrationsMax {
		return &sigma.Error{Op: "kernel.initAdd", Kind: sigma.KindNoSpace,
			Msg: "the realm has as many registered procs as it may have", Hint: "remove some with: sigma init rm NAME"}
	}
	if _, err := initd.SaveRecord(ctx, t, key, initd.Versioned{Record: record},
		sigma.PutOptions{Perm: 0o600, MustMake: true}); err != nil {
		return err
	}
	return Changed(ctx, t)
}

// Change changes a record as it is then, and tells the leader. change is given why the record
// cannot be read, if it cannot; its error leaves the record as it is. One that is going is gone
// before anything else is done with its name: KindNotFound.
func Change(ctx context.Context, t *resolve.Tree, key initd.Key, change func(v *initd.Versioned,
	damaged error) error) error {
	for {
		v, err := initd.ReadOne(ctx, t, key)
		kind := sigma.KindOf(err)
		if err != nil && kind != sigma.KindInvalid {
			return err
		}
		if v.Record.Going {
			if _, err := t.Watch(ctx, key.Path(), v.Version); err != nil && sigma.KindOf(err) != sigma.KindStale {
				return err
			}
			continue
		}
		if err := change(&v, err); err != nil {
			return err
		}
		_, err = initd.SaveRecord(ctx, t, key, v, sigma.PutOptions{Perm: 0o600, MustExist: true, IfVersion: v.Version})
		if err != nil && sigma.KindOf(err) == sigma.KindVersion && ctx.Err() == nil { // the leader changed it meanwhile
			continue
		}
		if err != nil {
			return err
		}
		return Changed(ctx, t)
	}
}

// Changed tells the leader to look. Should that fail, it looks when it has another reason to.
func Changed(ctx context.Context, t *resolve.Tree) error {
	_, err := t.Put(ctx, initd.ChangedFile, []byte(time.Now().Format(time.RFC3339Nano)), sigma.PutOptions{Perm: 0o600})
	return err
}

// Unknown says in users' words that there is no such record.
func Unknown(err error) error {
	if err == nil || sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	return &sigma.Error{Op: "kernel.init", Kind: sigma.KindNotFound, Msg: "no registered proc of this name",
		Hint: "sigma init ls lists them"}
}

// Epoch is the epoch of the newest leader of initd that is known.
type Epoch struct {
	mu  sync.Mutex  // before procs.Table's
	now sigma.Epoch // mu
}

// Admit does what a leader of an epoch asks for, and nothing that a former one asks for from now
// on.
func (x *Epoch) Admit(e sigma.Epoch, do func()) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e < x.now {
		return sigma.Errorf("kernel.init", sigma.KindStale, "another leader of initd has the epoch %d; this is %d",
			x.now, e)
	}
	x.now = e
	do()
	return nil
}
