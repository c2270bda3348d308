// Package procs holds the procs of one machine: schedd's core, which decides what becomes of them,
// and beside it what sigmad itself has of each: who waits for it, its timer, its logs. The Table
// applies events to the core and carries out those effects that concern nothing else; the others
// are its user's (Config.Carry). Users: kernel.
//
// Locks: Table.mu. Config.Carry and Config.MaySpawn are called with it held, so they must not
// block and must not call the Table.
package procs

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/kernel/proclog"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
)

// fetchLimit bounds the start of a proc, for which its program's bytes may have to be fetched.
const fetchLimit = time.Minute

// Config is what a Table needs of its user.
type Config struct {
	Machine sigma.MachineID
	Memory  sigma.Bytes // that procs may have together
	LogsDir string      // where logs are that are not in memory
	// Carry carries out an effect as far as it concerns anything outside of the Table. It is called
	// for each effect, in order, before the Table does its own part.
	Carry func(core *schedd.Core, f schedd.Effect)
	// MaySpawn says why nothing can be spawned in a realm now; nil = something can.
	MaySpawn func(realm sigma.RealmID) error
	// Launch begins to start a proc that was placed here. It returns before the proc runs.
	Launch func(s Start)
}

// Table is the procs of one machine. Safe for concurrent use.
type Table struct {
	cfg Config
	ctx context.Context // of starts; set by Begin

	mu      sync.Mutex
	core    *schedd.Core
	of      map[sigma.ProcID]*Proc
	budgets map[sigma.RealmID]*proclog.Budget // mu; of logs
	closed  map[sigma.RealmID]bool            // mu; realms that are being removed
	starts  []Start                           // mu; procs that were placed and are to be started by who has mu
}

// Proc is what sigmad has of one proc beside schedd's facts. It is there from the first need of it
// until schedd forgets the proc. All of it is guarded by Table.mu.
type Proc struct {
	wake     chan struct{}      // closed at the next change of the proc; nil = nobody waits
	notice   chan struct{}      // closed when the proc shall go; nil = nobody has asked, and it need not
	fetching context.CancelFunc // ends a start that has not come to the launcher's answer; nil = there is none
	timer    *time.Timer        // kills the proc; nil = none is set
	logs     Logs               // what it prints; Out is nil before there are logs
}

// Start is a proc that was placed here and is to be started.
type Start struct {
	Ctx  context.Context // ends when the proc need not be started any more
	Proc schedd.Proc
	Logs *Logs
}

// NewTable makes the table of a machine without procs.
func NewTable(cfg Config) *Table {
	return &Table{cfg: cfg, core: schedd.NewCore(cfg.Machine, cfg.Memory), of: map[sigma.ProcID]*Proc{},
		budgets: map[sigma.RealmID]*proclog.Budget{}, closed: map[sigma.RealmID]bool{}}
}

// Begin sets the context of starts. It is called before the first Step.
func (t *Table) Begin(ctx context.Context) { t.ctx = ctx }

// Step applies an event and carries out its effects.
func (t *Table) Step(e schedd.Event) {
	t.mu.Lock()
	t.stepLocked(e)
	t.unlock()
}

// Change applies the event that f returns, which may look at the procs before; nil = none.
func (t *Table) Change(f func(v View) schedd.Event) {
	t.mu.Lock()
	if e := f(View{t.core, t}); e != nil {
		t.stepLocked(e)
	}
	t.unlock()
}

// Spawn applies an event by which procs of a realm are spawned, if the realm may have them. Procs
// of which the first is known already are not spawned again. What is to be started now is the
// caller's task.
func (t *Table) Spawn(realm sigma.RealmID, e schedd.Spawned) ([]Start, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.cfg.MaySpawn(realm)
	if err == nil && t.closed[realm] {
		err = beingRemoved(realm)
	}
	if err == nil {
		err = t.core.CanSpawn(realm, e.Ds)
	}
	if err != nil || len(e.IDs) > 0 && t.core.Find(e.IDs[0]) != nil {
		return nil, err
	}
	t.stepLocked(e)
	return t.takeStartsLocked(), nil
}

// End applies the event by which a proc ends, calls also with what is known of the proc then, and
// drops what only a proc that has not ended needs.
func (t *Table) End(realm sigma.RealmID, id sigma.ProcID, e schedd.Event, also func(p *schedd.Proc)) {
	t.mu.Lock()
	t.stepLocked(e)
	if p := t.core.Proc(realm, id); p != nil {
		also(p)
	}
	if p := t.of[id]; p != nil {
		if p.timer != nil {
			p.timer.Stop()
			p.timer = nil
		}
		p.notice = nil
	}
	t.unlock()
}

// Answered says that the start of a proc has come to the launcher's answer, or has failed.
func (t *Table) Answered(id sigma.ProcID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.of[id]; p != nil && p.fetching != nil {
		p.fetching()
		p.fetching = nil
	}
}

// unlock releases mu and has those procs started that were placed while it was held.
func (t *Table) unlock() {
	starts := t.takeStartsLocked()
	t.mu.Unlock()
	for _, s := range starts {
		t.cfg.Launch(s)
	}
}

func (t *Table) takeStartsLocked() []Start {
	starts := t.starts
	t.starts = nil
	return starts
}

func (t *Table) stepLocked(e schedd.Event) {
	for _, f := range t.core.Step(time.Now(), e) {
		t.cfg.Carry(t.core, f)
		t.applyLocked(f)
	}
}

// applyLocked carries out the Table's part of an effect; nothing in it blocks. Procs that are to be
// started are noted in starts.
func (t *Table) applyLocked(f schedd.Effect) {
	switch f := f.(type) {
	case schedd.Start:
		ctx, cancel := context.WithTimeout(t.ctx, fetchLimit)
		p := t.procLocked(f.Proc.ID)
		p.fetching = cancel
		t.starts = append(t.starts, Start{ctx, *f.Proc, t.logsLocked(f.Proc.Realm, f.Proc.ID)})
	case schedd.Abandon:
		if p := t.of[f.ID]; p != nil && p.fetching != nil {
			p.fetching()
		}
	case schedd.Notice:
		ch := t.procLocked(f.Proc.ID).noticed() // stays closed, so that a later WaitEvict returns at once
		select {
		case <-ch:
		default:
			close(ch)
		}
	case schedd.Wake:
		if p := t.of[f.ID]; p != nil && p.wake != nil {
			close(p.wake)
			p.wake = nil
		}
	case schedd.Timer:
		p := t.procLocked(f.ID)
		if p.timer != nil {
			p.timer.Reset(time.Until(f.At))
			break
		}
		p.timer = time.AfterFunc(time.Until(f.At), func() { t.Step(schedd.TimerFired{ID: f.ID}) })
	case schedd.Forget:
		t.forgetLocked(f.ID)
	}
}

// procLocked is what is known of a proc, made if need be.
func (t *Table) procLocked(id sigma.ProcID) *Proc {
	p := t.of[id]
	if p == nil {
		p = &Proc{}
		t.of[id] = p
	}
	return p
}

// noticed is closed when the proc shall go.
func (p *Proc) noticed() chan struct{} {
	if p.notice == nil {
		p.notice = make(chan struct{})
	}
	return p.notice
}

// forgetLocked drops what is known of a proc that schedd has forgotten.
func (t *Table) forgetLocked(id sigma.ProcID) {
	p := t.of[id]
	if p == nil {
		return
	}
	delete(t.of, id)
	switch l := &p.logs; {
	case l.Out == nil:
	case l.Out.InMemory() && l.Err.InMemory():
		l.Remove()
	default:
		go l.Remove()
	}
}

// Close keeps everybody from spawning in a realm until open is called. It says false if somebody
// else has closed the realm.
func (t *Table) Close(realm sigma.RealmID) (open func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed[realm] {
		return nil, false
	}
	t.closed[realm] = true
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.closed, realm)
	}, true
}

// Closed is the error for whoever comes to a realm that is closed; nil if it is not.
func (t *Table) Closed(realm sigma.RealmID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed[realm] {
		return beingRemoved(realm)
	}
	return nil
}

func beingRemoved(realm sigma.RealmID) error {
	return sigma.Errorf("kernel.realms", sigma.KindBusy, "the realm %s is being removed", realm)
}

// ForgetRealm forgets the procs of a realm that is gone, and what they printed.
func (t *Table) ForgetRealm(realm sigma.RealmID) {
	t.mu.Lock()
	t.stepLocked(schedd.RealmGone{Realm: realm})
	delete(t.budgets, realm)
	t.unlock()
}

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

// Logs are what a proc prints: each stream, and both in the order of writing.
type Logs struct {
	Out, Err *proclog.Log
	Both     *proclog.Merged
}

// Remove drops what was printed, on the disk too.
func (l *Logs) Remove() {
	l.Out.Remove()
	l.Err.Remove()
	l.Both.Remove()
}

// End says that the proc never printed anything and never will.
func (l *Logs) End() {
	l.Out.End()
	l.Err.End()
}

// logsLocked are a proc's logs, made now unless somebody who looked early made them.
func (t *Table) logsLocked(realm sigma.RealmID, id sigma.ProcID) *Logs {
	l := &t.procLocked(id).logs
	if l.Out != nil {
		return l
	}
	b := t.budgets[realm]
	if b == nil {
		b = new(proclog.Budget)
		t.budgets[realm] = b
	}
	l.Out = proclog.New(filepath.Join(t.cfg.LogsDir, string(id)+".out"), b)
	l.Err = proclog.New(filepath.Join(t.cfg.LogsDir, string(id)+".err"), b)
	l.Both = proclog.Merge(l.Out, l.Err)
	return l
}

// Logs are a proc's logs, made now unless there are some. known says whether schedd knows the proc.
func (t *Table) Logs(realm sigma.RealmID, id sigma.ProcID) (l *Logs, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.logsLocked(realm, id), t.core.Find(id) != nil
}

// LogsOf are the logs of a proc of a realm that is known here. If it has not started yet, the same
// logs are used then. If it has ended without, it has printed nothing, and these say so.
func (t *Table) LogsOf(realm sigma.RealmID, id sigma.ProcID) (*Logs, error) {
	t.mu.Lock()
	p := t.core.Proc(realm, id)
	if p == nil {
		t.mu.Unlock()
		return nil, Unknown(id)
	}
	l := t.logsLocked(realm, id)
	neverRan := p.Ended() && p.Launch == 0
	t.mu.Unlock()
	if neverRan {
		l.End()
	}
	return l, nil
}

// DropLogs drops the logs of a proc that schedd does not know.
func (t *Table) DropLogs(id sigma.ProcID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked(id)
}

// HasLogs reports whether a proc has logs.
func (t *Table) HasLogs(id sigma.ProcID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.of[id]
	return p != nil && p.logs.Out != nil
}
