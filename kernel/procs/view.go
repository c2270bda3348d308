package procs

import (
	"context"
	"strings"

	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
)

// View is the procs as they are while a function runs that was given it: the core's facts, and the
// Table's.
type View struct {
	*schedd.Core
	t *Table
}

// With calls f, which may look at all procs and must neither block nor call the Table.
func (t *Table) With(f func(v View)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(View{t.core, t})
}

// Logs is what a proc prints; nil if it has no logs.
func (v View) Logs(id sigma.ProcID) *Logs {
	if p := v.t.of[id]; p != nil && p.logs.Out != nil {
		return &p.logs
	}
	return nil
}

// Output is how many bytes a proc has written.
func (v View) Output(id sigma.ProcID) sigma.Bytes {
	if l := v.Logs(id); l != nil {
		return sigma.Bytes(l.Out.Written() + l.Err.Written())
	}
	return 0
}

// Proc is what schedd knows of a proc of a realm, as it is now; false if it knows none.
func (t *Table) Proc(realm sigma.RealmID, id sigma.ProcID) (schedd.Proc, bool) {
	p, ok := t.Find(id)
	return p, ok && p.Realm == realm
}

// Find is Proc for a proc of any realm.
func (t *Table) Find(id sigma.ProcID) (schedd.Proc, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.core.Find(id); p != nil {
		return *p, true
	}
	return schedd.Proc{}, false
}

// Running counts the procs that run here or are about to, guests too.
func (t *Table) Running() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.core.Running()
}

// Queued counts the best-effort procs that wait at besched.
func (t *Table) Queued() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.core.Queued()
}

// Memory is what procs may have together, and what of it is free.
func (t *Table) Memory() (capacity, free sigma.Bytes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.core.Capacity(), t.core.Free()
}

// Live counts the procs of a realm that are at home here and have not ended.
func (t *Table) Live(realm sigma.RealmID) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.core.Live(realm)
}

// Pending counts what is kept only for procs that have not ended: timers, notices and waits.
func (t *Table) Pending() (timers, notices, waits int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.of {
		if p.timer != nil {
			timers++
		}
		if p.notice != nil {
			notices++
		}
		if p.wake != nil {
			waits++
		}
	}
	return timers, notices, waits
}

// Known counts the procs of which the Table has something beside schedd's facts.
func (t *Table) Known() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.of)
}

// Until is what somebody waits for of a proc.
type Until bool

const (
	Started Until = false
	Ended   Until = true
)

func (u Until) is(p *schedd.Proc) bool { return p.Ended() || u == Started && p.HasStarted() }

// Wait waits for a proc of a realm that is known here. It may become unknown meanwhile.
func (t *Table) Wait(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, u Until) (sigma.ProcInfo, error) {
	for {
		t.mu.Lock()
		p := t.core.Proc(realm, id)
		if p == nil {
			t.mu.Unlock()
			return sigma.ProcInfo{}, Unknown(id)
		}
		if u.is(p) {
			defer t.mu.Unlock()
			return p.ProcInfo, nil
		}
		own := t.procLocked(id)
		if own.wake == nil {
			own.wake = make(chan struct{})
		}
		ch := own.wake
		t.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return sigma.ProcInfo{}, sigma.Wrap("kernel.waitProc", "", ctx.Err())
		}
	}
}

// WaitEvict waits until a proc shall go. KindNotFound: it has ended, or there is none.
func (t *Table) WaitEvict(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) error {
	var ch chan struct{}
	t.Change(func(v View) schedd.Event {
		if p := v.Proc(realm, id); p == nil || p.Ended() {
			return nil
		}
		ch = t.procLocked(id).noticed()
		return schedd.WaitsEvict{ID: id, Delta: 1}
	})
	if ch == nil {
		return Unknown(id)
	}
	defer t.Step(schedd.WaitsEvict{ID: id, Delta: -1})
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return sigma.Wrap("kernel.WaitEvict", "", ctx.Err())
	}
}

// Unknown is the error for whoever names a proc that there is not.
func Unknown(id sigma.ProcID) error {
	return &sigma.Error{Op: "kernel", Kind: sigma.KindNotFound, Msg: "no proc " + string(id[:min(len(id), 64)]),
		Hint: "sigma ps -a lists the realm's procs"}
}

// IsID says whether id has the form that sigma.NewProcID gives it. Files of what procs print have
// it in their names.
func IsID(id sigma.ProcID) bool {
	return len(id) == 16 && strings.Trim(string(id), "abcdefghijklmnopqrstuvwxyz234567") == ""
}
