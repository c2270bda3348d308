package schedd

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

// Report is what a machine that runs a proc tells the proc's home.
type Report struct {
	Info    sigma.ProcInfo
	Started bool // WaitStart may return
	Kin     []sigma.ProcID
}

// seen is what of a guest the home is told when it changes.
type seen struct {
	state           sigma.ProcState
	started, frozen bool
}

// Over reports whether a machine's life is, as far as is known here. Nobody's is before there is a
// roster.
func (c *Core) Over(l sigma.Life) bool {
	if c.least == nil || l.Machine == "" {
		return false
	}
	least, member := c.least[l.Machine]
	return !member || l.Incarnation < least
}

// outdated reports whether a machine's life is over, or its sigmad was followed by another, and
// takes note of a new one.
func (c *Core) outdated(l sigma.Life, boot uint64) bool {
	if c.Over(l) || boot < c.boots[l] {
		return true
	}
	c.boots[l] = boot
	return false
}

// Report gives what the home of a guest is to be told, and whom; false if it is no guest.
func (c *Core) Report(id sigma.ProcID) (Report, sigma.Life, bool) {
	p := c.procs[id]
	if p == nil || !p.Guest() {
		return Report{}, sigma.Life{}, false
	}
	return Report{p.ProcInfo, p.startedOK, p.Kin}, p.Home, true
}

// Guests lists the guests of a home.
func (c *Core) Guests(home sigma.Life) (ids []sigma.ProcID) {
	for _, p := range c.sorted(func(p *Proc) bool { return p.Home == home }) {
		ids = append(ids, p.ID)
	}
	return ids
}

// Give gives a proc of this machine to the machine by, whose sigmad is its boot-th. It does so
// once: whoever else asks is refused, then and ever. The same sigmad may ask again, if the answer
// was lost. KindStale: the proc is not to be had any more.
func (c *Core) Give(now time.Time, id sigma.ProcID, by sigma.Life, boot uint64) (sigma.ProcInfo, sigma.Descriptor,
	error) {
	p := c.procs[id]
	refuse := func(why string) (sigma.ProcInfo, sigma.Descriptor, error) {
		return sigma.ProcInfo{}, sigma.Descriptor{}, sigma.Errorf("schedd.Give", sigma.KindStale, "proc %.64s %s", id,
			why)
	}
	switch {
	case p == nil:
		return refuse("is not known here")
	case c.outdated(by, boot):
		return refuse("is not given to a machine in a life that is over")
	case p.Ended() || p.Guest():
		return refuse("has ended")
	case p.Away() && (p.Runner != by || p.boot != boot || p.State != sigma.ProcStarting), !p.Away() &&
		p.State != sigma.ProcQueued:
		return refuse("was given to another machine")
	}
	if !p.Away() {
		c.leavesQueue(p)
		p.Runner, p.boot = by, boot
		p.State, p.Machine, p.Times.Placed = sigma.ProcStarting, by.Machine, now
		c.realms[p.Realm].placed = now
	}
	return p.ProcInfo, p.Descriptor, nil
}

// stepFar applies an event that concerns other machines.
func (c *Core) stepFar(now time.Time, e Event) []Effect {
	switch e := e.(type) {
	case Offered:
		return c.offered(now, e)
	case Arrived:
		return c.arrived(now, e)
	case NotTaken:
		if realm := c.expectedOf[e.ID]; c.unexpect(e.ID) {
			out := append(c.unreserve(e.ID), Room{})
			out = append(out, c.fill(now)...)
			return append(out, c.bring(now, realm)...)
		}
	case Told:
		if p := c.procs[e.ID]; p != nil && e.Ended {
			p.owed = false
		}
	case Reported:
		if c.outdated(e.From, e.Boot) {
			return nil
		}
		var out []Effect
		for i := range e.Procs {
			out = append(out, c.reported(now, e.From, e.Boot, &e.Procs[i])...)
		}
		return out
	case Resynced:
		if c.outdated(e.From, e.Boot) {
			return nil
		}
		return c.lose(now, fmt.Sprintf("the sigmad of machine %s was restarted, and the proc did not outlive it",
			e.From.Machine), func(p *Proc) bool {
			return p.Runner == e.From && p.boot != e.Boot
		})
	case Members:
		least := make(map[sigma.MachineID]sigma.Incarnation,
			len(e.Least)) // a copy, because an event that is kept would have to be on the heap, each of them
		maps.Copy(least, e.Least)
		return c.members(now, least)
	case Reborn:
		return c.reborn(now)
	case Drained:
		var out []Effect
		for _, p := range c.sorted(func(p *Proc) bool {
			return !p.Ended() && !p.Away() && (p.charged || e.Queued && p.State == sigma.ProcQueued)
		}) {
			p.why = e.Why
			out = append(out, c.evict(now, p, e.Grace)...)
		}
		return out
	}
	return nil
}

func (c *Core) offered(now time.Time, e Offered) []Effect {
	switch {
	case c.procs[e.ID] != nil || c.expected[e.ID] != 0 || c.Over(e.Home) || e.Memory == 0:
		return c.unwanted(e.ID, e.Class)
	case e.Class == sigma.LatencyCritical:
		return c.reserve(now, reservation{id: e.ID, realm: e.Realm, cpu: e.CPU, memory: e.Memory, home: e.Home})
	case !c.may(e.Realm, e.Memory):
		return c.keepBackGuest(e)
	case e.Memory > c.Free():
		return []Effect{Decline{e.ID, e.Home}}
	}
	return []Effect{c.expect(e.ID, e.Realm, e.Memory, e.Home)}
}

func (c *Core) unexpect(id sigma.ProcID) bool {
	memory := c.expected[id]
	if memory == 0 {
		return false
	}
	realm := c.expectedOf[id]
	delete(c.expected, id)
	delete(c.expectedOf, id)
	c.running--
	if c.reserved.by[id] == nil {
		c.sub(realm, memory)
	}
	return true
}

// arrived enters a guest and has it started. If its home ended since it gave the proc, this is its
// home. One that is not expected was asked for in a life that is over.
func (c *Core) arrived(now time.Time, e Arrived) []Effect {
	memory, realm := c.expected[e.Info.ID], c.expectedOf[e.Info.ID]
	if !c.unexpect(e.Info.ID) {
		return nil
	}
	if p := c.procs[e.Info.ID]; p != nil {
		if !p.charged {
			return append(c.unreserve(p.ID), Room{})
		}
		return nil
	}
	if r := c.reserved.by[e.Info.ID]; e.Info.Memory != memory || e.Info.Realm != realm ||
		(r != nil) != (e.Info.Class == sigma.LatencyCritical) || r != nil &&
		r.cpu != e.Info.CPU { // there may be no room for that
		return append(c.unreserve(e.Info.ID), Room{})
	}
	if c.Over(e.Home) {
		e.Home = sigma.Life{}
	}
	p := &Proc{ProcInfo: e.Info, Descriptor: e.Descriptor, bytes: sizeOf(e.Descriptor) + sigma.Bytes(e.View.Size()),
		View: e.View, Kin: e.Kin, Home: e.Home}
	c.enter(p)
	return []Effect{c.place(now, p)}
}

// reported takes over what the machine that runs a proc says of it. A proc that is not known was
// given to it by the sigmad before this one.
func (c *Core) reported(now time.Time, from sigma.Life, boot uint64, r *Report) []Effect {
	p := c.procs[r.Info.ID]
	if r.Info.State > sigma.ProcEnded || p == nil && (r.Info.Realm.Check() != nil ||
		c.Live(r.Info.Realm) >= QueuedMax) { // no machine says that unless it is out of its mind
		return nil
	}
	if p == nil {
		p = &Proc{Runner: from, Kin: r.Kin[:min(len(r.Kin), KinMax)]}
		p.ProcInfo = r.Info
		p.State = sigma.ProcStarting
		c.enter(p)
	}
	if p.Runner != from || p.Ended() || p.Realm != r.Info.Realm {
		return nil
	}
	before := p.seen()
	p.boot, p.startedOK = boot, p.startedOK || r.Started
	frozen := r.Info.Frozen
	state := max(p.State, r.Info.State)
	p.ProcInfo = r.Info
	p.State, p.Frozen, p.Machine = state, frozen, from.Machine
	if state >= sigma.ProcRunning {
		p.Descriptor, p.View = sigma.Descriptor{}, nil
		c.waitsNoMore(p)
	}
	switch {
	case state == sigma.ProcEnded:
		p.State = sigma.ProcRunning
		ended := r.Info.Times.Ended
		out := c.end(now, p, r.Info.Status)
		p.Times.Ended = ended
		return out
	case p.seen() != before:
		return []Effect{Wake{p.ID}}
	}
	return nil
}

// sorted lists procs in order of Spawn.
func (c *Core) sorted(is func(*Proc) bool) []*Proc { return sorted(c.procs, is) }

func sorted(among map[sigma.ProcID]*Proc, is func(*Proc) bool) (out []*Proc) {
	for _, p := range among {
		if is(p) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *Proc) int { return cmp.Compare(a.seq, b.seq) })
	return out
}

// lose ends procs that nobody will hear of any more.
func (c *Core) lose(now time.Time, why string, is func(*Proc) bool) (out []Effect) {
	for _, p := range c.sorted(func(p *Proc) bool { return !p.Ended() && is(p) }) {
		out = append(out, c.end(now, p, lost(why))...)
	}
	return out
}

func lost(why string) sigma.Status {
	return sigma.Status{Code: sigma.StatusLost, ExitCode: 125, Kind: sigma.KindLost, Msg: why}
}

// members ends what was given to lives that are over, makes this the home of guests whose home is
// one of them, and has what is queued sent again, as it may have been granted to one.
func (c *Core) members(now time.Time, least map[sigma.MachineID]sigma.Incarnation) (out []Effect) {
	c.least = least
	ended := false
	for l := range c.boots {
		if c.Over(l) {
			delete(c.boots, l)
			ended = true
		}
	}
	for _, p := range c.sorted(func(p *Proc) bool { return p.Away() && c.Over(p.Runner) && !p.Ended() }) {
		out = append(out, c.end(now, p, lost(fmt.Sprintf("machine %s was lost, and the proc with it",
			p.Runner.Machine)))...)
		ended = true
	}
	for _, p := range c.sorted(func(p *Proc) bool { return p.Guest() && c.Over(p.Home) }) {
		c.keepAsOwn(p)
	}
	if ended {
		out = append(out, c.requeue(now, now)...)
	}
	return out
}

// reborn begins a new life: what others took is theirs now, what was queued is lost, and what runs
// here is killed.
func (c *Core) reborn(now time.Time) (out []Effect) {
	c.leased = false
	clear(c.maxima.back)
	for _, id := range slices.Sorted(maps.Keys(c.expected)) {
		c.unexpect(id)
		out = append(out, c.unreserve(id)...)
	}
	out = append(out, c.dropPending()...)
	out = append(out, c.lose(now, "this machine was taken for lost; the proc may run on elsewhere", (*Proc).Away)...)
	out = append(out, c.lose(now, "this machine was taken for lost with the proc in its queue", func(p *Proc) bool {
		return p.State == sigma.ProcQueued
	})...)
	for _, p := range c.sorted(func(p *Proc) bool { return p.charged }) {
		p.doomed = true
		out = append(out, c.kill(now, p)...)
	}
	for _, p := range c.sorted((*Proc).Guest) {
		c.keepAsOwn(p)
	}
	return out
}

// keepAsOwn makes this machine the home of a guest.
func (c *Core) keepAsOwn(p *Proc) {
	p.Home, p.owed = sigma.Life{}, false
	if !p.Ended() {
		c.realms[p.Realm].live++
	}
}
