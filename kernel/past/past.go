// Package past keeps what is remembered of procs that have ended for the next sigmad of the
// machine: their statuses, and what they printed. It is kept for as long as it is remembered here.
//
// A machine that was away may have missed that a realm was removed and that another has its name.
// So a record says when its realm was made, and the next sigmad shows it to no other. Users:
// kernel.
//
// Locks: Past.mu, a leaf.
package past

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/kernel/proclog"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// Config is what a Past needs of its user.
type Config struct {
	Data    string // directory of what is written down
	LogsDir string // where logs are that are not in memory
	Log     *slog.Logger
	Procs   *procs.Table
	// Realms asks which realms there are.
	Realms func(ctx context.Context) ([]sigma.RealmInfo, error)
	Go     func(func()) // begins what is waited for before the program ends
}

// Past is the procs of one machine that have ended. Safe for concurrent use.
type Past struct {
	cfg     Config
	ctx     context.Context // set by Begin
	archive *proclog.Archive
	due     chan struct{}  // holds a token when there is something to write
	told    []sigma.ProcID // of whose end the launcher tells once more; of the launcher's goroutine
	// recalled says that what an earlier sigmad remembered is entered, or that it cannot be.
	recalled atomic.Bool

	mu      sync.Mutex
	ended   []ended                     // mu; not written yet
	created map[sigma.RealmID]time.Time // mu; when realms were
}

type ended struct {
	realm sigma.RealmID
	id    sigma.ProcID
}

const (
	pastEach  = 20 * time.Millisecond // between writes: what ended within it dies with sigmad
	pastBatch = 256                   // records of a write
)

func Open(cfg Config) *Past {
	x := &Past{cfg: cfg, due: make(chan struct{}, 1), created: map[sigma.RealmID]time.Time{}}
	var err error
	if x.archive, err = proclog.OpenArchive(filepath.Join(cfg.Data, "ended")); err != nil {
		cfg.Log.Warn("procs that ended before are not remembered, or these will not be", "err", err)
	}
	return x
}

// Begin sets the context of all that is asked. It is called before the rest.
func (x *Past) Begin(ctx context.Context) { x.ctx = ctx }

// Note has a proc that has ended written down. It does not block.
func (x *Past) Note(realm sigma.RealmID, id sigma.ProcID) {
	x.archive.Expect(id)
	x.mu.Lock()
	x.ended = append(x.ended, ended{realm, id})
	x.mu.Unlock()
	select {
	case x.due <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends, and then what is left.
func (x *Past) Run(ctx context.Context) {
	defer x.archive.Close()
	for said := false; ; {
		select {
		case <-ctx.Done():
			x.write()
			return
		case <-x.due:
		}
		retry.Pause(ctx, pastEach)
		err := x.write()
		if err != nil && !said {
			x.cfg.Log.Warn("what procs printed that have ended will not outlive sigmad", "err", err)
		}
		said = err != nil
	}
}

// write writes what was noted.
func (x *Past) write() (err error) {
	x.mu.Lock()
	all := x.ended
	x.ended = nil
	x.mu.Unlock()
	for len(all) > 0 {
		n := min(len(all), pastBatch)
		var rs []proclog.Record
		for _, e := range all[:n] {
			if r, ok := x.record(e); ok {
				rs = append(rs, r)
			} else {
				x.archive.Forget(e.id)
			}
		}
		all = all[n:]
		if e := x.archive.Add(rs); e != nil {
			err = e
			for _, r := range rs {
				x.archive.Forget(r.ID)
			}
		}
	}
	return err
}

// record is what is written of a proc; false if it is forgotten already, or nobody says when
// its realm was made.
func (x *Past) record(e ended) (proclog.Record, bool) {
	created, ok := x.realmMade(e.realm)
	if !ok {
		return proclog.Record{}, false
	}
	var p schedd.Past
	var l *procs.Logs
	x.cfg.Procs.With(func(v procs.View) {
		p, ok = v.Past(e.id)
		l = v.Logs(e.id)
	})
	if !ok {
		return proclog.Record{}, false
	}
	c := sigmap.NewEncoder(nil)
	code(c, &created, &p)
	printed := l != nil
	if c.Bool(&printed); printed {
		l.Both.Code(c)
	}
	return proclog.Record{ID: e.id, Data: c.Bytes()}, c.Finish() == nil
}

func code(c *sigmap.Coder, created *time.Time, p *schedd.Past) {
	c.Time(created)
	c.ProcInfo(&p.Info)
	c.U64(&p.Launch)
	c.ProcIDs(&p.Kin)
	for _, l := range []*sigma.Life{&p.Home, &p.Runner} {
		c.Str((*string)(&l.Machine))
		c.U64((*uint64)(&l.Incarnation))
	}
}

// realmMade tells when a realm was made. It asks named once.
func (x *Past) realmMade(realm sigma.RealmID) (time.Time, bool) {
	x.mu.Lock()
	created, ok := x.created[realm]
	x.mu.Unlock()
	if ok {
		return created, true
	}
	ctx, cancel := context.WithTimeout(x.ctx, reach.AnswerMax)
	defer cancel()
	all, err := x.cfg.Realms(ctx) // what is remembered for readers of /sys may be older than the realm
	if err != nil {
		return time.Time{}, false
	}
	for _, i := range all {
		if i.ID == realm {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.created[realm] = i.Created
			return i.Created, true
		}
	}
	return time.Time{}, false
}

// ForgetRealm drops what is kept of a realm that is gone, on the disk too. Its procs are forgotten.
func (x *Past) ForgetRealm(realm sigma.RealmID) {
	x.mu.Lock()
	delete(x.created, realm)
	x.mu.Unlock()
	if err := x.archive.Compact(); err != nil {
		x.cfg.Log.Warn("what procs printed is still on the disk, though their realm is gone", "realm", realm, "err",
			err)
	}
}

// Recall enters what a sigmad before this one remembered. If named does not answer soon it goes on
// trying, and returns.
func (x *Past) Recall(ctx context.Context) {
	soon, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	if x.recall(soon) == nil {
		x.recalled.Store(true)
		return
	}
	x.cfg.Go(func() {
		if err := reach.Until(x.ctx, func() error { return x.recall(x.ctx) }); err != nil && x.ctx.Err() == nil {
			x.cfg.Log.Warn("procs that ended before are not remembered", "err", err)
		}
		x.recalled.Store(true)
	})
}

func (x *Past) recall(ctx context.Context) error {
	if x.archive.Empty() {
		return nil
	}
	all, err := x.cfg.Realms(ctx)
	if err != nil {
		return err
	}
	created := map[sigma.RealmID]time.Time{}
	for _, i := range all {
		created[i.ID] = i.Created
	}
	is := func(realm sigma.RealmID, was time.Time) bool {
		now, there := created[realm]
		return there && now.Equal(was)
	}
	var ps []schedd.Past
	err = x.archive.Each(func(r proclog.Record) {
		if p, ok := x.recallOne(r, is); ok {
			ps = append(ps, p)
			return
		}
		if _, known := x.cfg.Procs.Find(r.ID); !known { // else it has ended since
			x.archive.Forget(r.ID)
		}
	})
	x.cfg.Procs.Step(schedd.Remembered{Procs: ps})
	x.SweepLogs()
	return err
}

// RecallEnded enters those that ended just before this sigmad, so that the homes of guests are told
// before they hear that these are all.
func (x *Past) RecallEnded() {
	told := x.told
	if x.told = nil; len(told) == 0 {
		return
	}
	is := map[sigma.ProcID]bool{}
	for _, id := range told {
		is[id] = true
	}
	var ps []schedd.Past
	err := x.archive.Each(func(r proclog.Record) {
		if is[r.ID] {
			if p, ok := x.recallOne(r, func(sigma.RealmID, time.Time) bool { return true }); ok {
				ps = append(ps, p)
			}
		}
	})
	if err != nil {
		x.cfg.Log.Warn("procs that ended just now are not remembered", "err", err)
	}
	x.cfg.Procs.Step(schedd.Remembered{Procs: ps})
}

// recallOne reads a record, and has what the proc printed at hand again. It is false if the realm,
// which was made at a time, is not the proc's any more.
func (x *Past) recallOne(r proclog.Record, is func(realm sigma.RealmID, was time.Time) bool) (p schedd.Past, ok bool) {
	var was time.Time
	var printed bool
	c := sigmap.NewDecoder(r.Data)
	code(c, &was, &p)
	c.Bool(&printed)
	if p.Info.ID != r.ID || !is(p.Info.Realm, was) {
		return p, false
	}
	p.Info.Status.Data = slices.Clone(p.Info.Status.Data) // the rest of the record goes
	if _, known := x.cfg.Procs.Find(r.ID); known || !printed {
		return p, !known && c.Finish() == nil
	}
	l, _ := x.cfg.Procs.Logs(p.Info.Realm, r.ID)
	l.Both.Code(c)
	if c.Finish() == nil {
		return p, true
	}
	x.cfg.Procs.DropLogs(r.ID)
	return p, false
}

// SweepLogs removes the logs of procs that nobody remembers.
func (x *Past) SweepLogs() {
	files, err := os.ReadDir(x.cfg.LogsDir)
	if err != nil && !os.IsNotExist(err) {
		x.cfg.Log.Warn("logs of former procs are not removed", "err", err)
	}
	for _, f := range files {
		id, _, _ := strings.Cut(f.Name(), ".")
		if !x.cfg.Procs.HasLogs(sigma.ProcID(id)) && !x.archive.Has(sigma.ProcID(id)) {
			os.Remove(filepath.Join(x.cfg.LogsDir, f.Name()))
		}
	}
}

// Has says whether anything is kept of a proc.
func (x *Past) Has(id sigma.ProcID) bool { return x.archive.Has(id) }

// Drop forgets a proc.
func (x *Past) Drop(id sigma.ProcID) { x.archive.Forget(id) }

// EndsAgain notes that the launcher will tell once more of the end of a proc of which something is
// kept. It is called by the launcher's goroutine.
func (x *Past) EndsAgain(id sigma.ProcID) { x.told = append(x.told, id) }

// IsRecalled says whether what an earlier sigmad remembered is entered.
func (x *Past) IsRecalled() bool { return x.recalled.Load() }
