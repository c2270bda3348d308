package procs

import (
	"path/filepath"

	"sigmaos.dev/kernel/proclog"
	"sigmaos.dev/sigma"
)

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
