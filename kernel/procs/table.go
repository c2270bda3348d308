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
	// Launch starts a proc that was placed here. It does not wait for the end of that.
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
