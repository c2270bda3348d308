package kernel

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/output"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// past keeps what is remembered of procs that have ended for the next sigmad: their statuses, and
// what they printed. It is kept for as long as it is remembered here.
//
// A machine that was away may have missed that a realm was removed and that another has its name.
// So a record says when its realm was made, and the next sigmad shows it to no other.
type past struct {
	archive *output.Archive
	due     chan struct{}  // holds a token when there is something to write
	told    []sigma.ProcID // of whose end the launcher tells once more; of Kernel.launchers
	// recalled says that what an earlier sigmad remembered is entered, or that it cannot be.
	recalled atomic.Bool

	mu    sync.Mutex
	ended []ended                     // mu; not written yet
	made  map[sigma.RealmID]time.Time // mu; when realms were
}

type ended struct {
	realm sigma.RealmID
	id    sigma.ProcID
}

const (
	pastEach  = 20 * time.Millisecond // between writes: what ended within it dies with sigmad
	pastBatch = 256                   // records of a write
)

func (k *Kernel) openPast() *past {
	x := &past{due: make(chan struct{}, 1), made: map[sigma.RealmID]time.Time{}}
	var err error
	if x.archive, err = output.OpenArchive(filepath.Join(k.cfg.Data, "ended")); err != nil {
		k.cfg.Log.Warn("procs that ended before are not remembered, or these will not be", "err", err)
	}
	return x
}

// note has a proc that has ended written down. It does not block.
func (x *past) note(realm sigma.RealmID, id sigma.ProcID) {
	x.archive.Expect(id)
	x.mu.Lock()
	x.ended = append(x.ended, ended{realm, id})
	x.mu.Unlock()
	select {
	case x.due <- struct{}{}:
	default:
	}
}

// keepPast writes until ctx ends, and then what is left.
func (k *Kernel) keepPast(ctx context.Context) {
	defer k.past.archive.Close()
	for said := false; ; {
		select {
		case <-ctx.Done():
			k.writePast()
			return
		case <-k.past.due:
		}
		select {
		case <-ctx.Done():
		case <-time.After(pastEach):
		}
		err := k.writePast()
		if err != nil && !said {
			k.cfg.Log.Warn("what procs printed that have ended will not outlive sigmad", "err", err)
		}
		said = err != nil
	}
}

// writePast writes what was noted.
func (k *Kernel) writePast() (err error) {
	x := k.past
	x.mu.Lock()
	all := x.ended
	x.ended = nil
	x.mu.Unlock()
	for len(all) > 0 {
		n := min(len(all), pastBatch)
		var rs []output.Record
		for _, e := range all[:n] {
			if r, ok := k.pastRecord(e); ok {
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

// pastRecord is what is written of a proc; false if it is forgotten already, or nobody says when
// its realm was made.
func (k *Kernel) pastRecord(e ended) (output.Record, bool) {
	made, ok := k.realmMade(e.realm)
	if !ok {
		return output.Record{}, false
	}
	var p schedd.Past
	var l *procs.Logs
	k.procs.With(func(v procs.View) {
		p, ok = v.Past(e.id)
		l = v.Logs(e.id)
	})
	if !ok {
		return output.Record{}, false
	}
	c := sigmap.NewEncoder(nil)
	codePast(c, &made, &p)
	printed := l != nil
	if c.Bool(&printed); printed {
		l.Both.Code(c)
	}
	return output.Record{ID: e.id, Data: c.Bytes()}, c.Finish() == nil
}

func codePast(c *sigmap.Coder, made *time.Time, p *schedd.Past) {
	c.Time(made)
	c.ProcInfo(&p.Info)
	c.U64(&p.Launch)
	c.ProcIDs(&p.Kin)
	for _, l := range []*sigma.Life{&p.Home, &p.Runner} {
		c.Str((*string)(&l.Machine))
		c.U64((*uint64)(&l.Incarnation))
	}
}

// realmMade tells when a realm was made. It asks named once.
func (k *Kernel) realmMade(realm sigma.RealmID) (time.Time, bool) {
	x := k.past
	x.mu.Lock()
	made, ok := x.made[realm]
	x.mu.Unlock()
	if ok {
		return made, true
	}
	ctx, cancel := k.asked()
	defer cancel()
	all, err := realms{k, nil}.list(ctx) // what is remembered for readers of /sys may be older than the realm
	if err != nil {
		return time.Time{}, false
	}
	for _, i := range all {
		if i.ID == realm {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.made[realm] = i.Created
			return i.Created, true
		}
	}
	return time.Time{}, false
}

// forgetPast drops what is kept of a realm that is gone, on the disk too. Its procs are forgotten.
func (k *Kernel) forgetPast(realm sigma.RealmID) {
	k.past.mu.Lock()
	delete(k.past.made, realm)
	k.past.mu.Unlock()
	if err := k.past.archive.Compact(); err != nil {
		k.cfg.Log.Warn("what procs printed is still on the disk, though their realm is gone", "realm", realm, "err",
			err)
	}
}

// recall enters what a sigmad before this one remembered. If named does not answer soon it goes on
// trying, and returns.
func (k *Kernel) recall(ctx context.Context) {
	soon, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	if k.recallPast(soon) == nil {
		k.past.recalled.Store(true)
		return
	}
	k.sessions.Go(func() {
		if err := reach.Until(k.ctx, func() error { return k.recallPast(k.ctx) }); err != nil && k.ctx.Err() == nil {
			k.cfg.Log.Warn("procs that ended before are not remembered", "err", err)
		}
		k.past.recalled.Store(true)
	})
}

func (k *Kernel) recallPast(ctx context.Context) error {
	x := k.past
	if x.archive.Empty() {
		return nil
	}
	all, err := realms{k, nil}.list(ctx)
	if err != nil {
		return err
	}
	made := map[sigma.RealmID]time.Time{}
	for _, i := range all {
		made[i.ID] = i.Created
	}
	is := func(realm sigma.RealmID, was time.Time) bool {
		now, there := made[realm]
		return there && now.Equal(was)
	}
	var ps []schedd.Past
	err = x.archive.Each(func(r output.Record) {
		if p, ok := k.recallOne(r, is); ok {
			ps = append(ps, p)
			return
		}
		if _, known := k.procs.Find(r.ID); !known { // else it has ended since
			x.archive.Forget(r.ID)
		}
	})
	k.procs.Step(schedd.Remembered{Procs: ps})
	k.sweepLogs()
	return err
}

// recallTold enters those that ended just before this sigmad, so that the homes of guests are told
// before they hear that these are all.
func (k *Kernel) recallTold() {
	told := k.past.told
	if k.past.told = nil; len(told) == 0 {
		return
	}
	is := map[sigma.ProcID]bool{}
	for _, id := range told {
		is[id] = true
	}
	var ps []schedd.Past
	err := k.past.archive.Each(func(r output.Record) {
		if is[r.ID] {
			if p, ok := k.recallOne(r, func(sigma.RealmID, time.Time) bool { return true }); ok {
				ps = append(ps, p)
			}
		}
	})
	if err != nil {
		k.cfg.Log.Warn("procs that ended just now are not remembered", "err", err)
	}
	k.procs.Step(schedd.Remembered{Procs: ps})
}

// recallOne reads a record, and has what the proc printed at hand again. It is false if the realm,
// which was made at a time, is not the proc's any more.
func (k *Kernel) recallOne(r output.Record, is func(realm sigma.RealmID, was time.Time) bool) (p schedd.Past, ok bool) {
	var was time.Time
	var printed bool
	c := sigmap.NewDecoder(r.Data)
	codePast(c, &was, &p)
	c.Bool(&printed)
	if p.Info.ID != r.ID || !is(p.Info.Realm, was) {
		return p, false
	}
	p.Info.Status.Data = slices.Clone(p.Info.Status.Data) // the rest of the record goes
	if _, known := k.procs.Find(r.ID); known || !printed {
		return p, !known && c.Finish() == nil
	}
	l, _ := k.procs.Logs(p.Info.Realm, r.ID)
	l.Both.Code(c)
	if c.Finish() == nil {
		return p, true
	}
	k.procs.DropLogs(r.ID)
	return p, false
}
