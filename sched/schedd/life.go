package schedd

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
)

func (c *Core) spawned(now time.Time, e Spawned) []Effect {
	var out []Effect
	for i, d := range e.Ds {
		p := &Proc{Kin: e.Kin, Descriptor: d, bytes: sizeOf(d), ProcInfo: sigma.ProcInfo{ID: e.IDs[i],
			Realm: e.By.Realm, Name: d.Name, Program: d.Program, Args: shown(d.Args), Parent: e.By.Proc,
			Class: d.Class, CPU: d.CPU, Memory: memoryOf(d), Profile: profileOf(d), Times: sigma.Times{Spawned: now}},
			Near: d.Near}
		if e.Views != nil {
			p.View = e.Views[i]
			p.bytes += sigma.Bytes(p.View.Size())
		}
		if p.Name == "" {
			p.Name = path.Base(d.Program)
		}
		c.enter(p)
		if d.Class == sigma.BestEffort && (p.Near == "" || p.Near == c.machine) && c.locally(p.Realm, p.Memory) {
			if out = append(out, c.place(now, p)); c.limit > 0 {
				out = append(out, Room{})
			}
			continue
		}
		if d.Class != sigma.BestEffort {
			c.joinLine(p)
			continue
		}
		c.queued++
		out = append(out, c.enqueue(now, p))
	}
	return append(out, c.forget(now, e.By.Realm)...)
}

// enter makes a proc known that was not.
func (c *Core) enter(p *Proc) {
	r := c.realms[p.Realm]
	if r == nil {
		r = &realm{sent: int(c.seq)} // so that not all realms begin with the same besched
		c.realms[p.Realm] = r
	}
	c.seq++
	p.seq = c.seq
	c.procs[p.ID] = p
	if !p.Guest() {
		r.live++
	}
	r.waiting += p.bytes
	c.waiting += p.bytes
	r.order = append(r.order, p)
}

// waitsNoMore gives back what a proc occupied while it waited for its start.
func (c *Core) waitsNoMore(p *Proc) {
	c.realms[p.Realm].waiting -= p.bytes
	c.waiting -= p.bytes
	p.bytes = 0
}

// charge counts what a proc that is placed here takes.
func (c *Core) charge(p *Proc) {
	p.charged = true
	c.running++
	if p.Class == sigma.BestEffort { // else its reservation is
		c.add(p.Realm, p.Memory)
	}
}

// adopted enters a proc that runs. That it has been started is all that is known of its start.
func (c *Core) adopted(now time.Time, e Adopted) []Effect {
	if c.procs[e.Info.ID] != nil {
		return nil
	}
	if c.Over(e.Home) {
		e.Home = sigma.Life{}
	}
	p := &Proc{ProcInfo: e.Info, Launch: e.Launch, startedOK: true, exited: e.Said, View: e.View, Kin: e.Kin,
		Home: e.Home}
	p.State, p.Machine = sigma.ProcRunning, c.machine
	if p.Times.Started.IsZero() {
		p.Times.Started = now
	}
	c.enter(p)
	if p.Class == sigma.LatencyCritical {
		c.hold(&reservation{id: p.ID, realm: p.Realm, cpu: p.CPU, memory: p.Memory, begun: true})
	}
	c.charge(p)
	if p.exited != nil {
		return p.until(now.Add(LingerMax))
	}
	return nil
}

// shown cuts arguments for listings.
func shown(args []string) []string {
	room := ArgsShownMax
	for i, a := range args {
		if room -= len(a) + 1; room < 0 {
			return append(slices.Clone(args[:i]), "...")
		}
	}
	return args
}

// place charges a proc's memory and has it started.
func (c *Core) place(now time.Time, p *Proc) Effect {
	p.State, p.Times.Placed, p.Machine = sigma.ProcStarting, now, c.machine
	p.Timing[sigma.PhaseQueue] = since(now, p.Times.Spawned)
	c.charge(p)
	c.realms[p.Realm].placed = now
	return Start{p}
}

// since is how long a phase took; clocks of different processes may differ by a little.
func since(end, begin time.Time) time.Duration { return max(0, end.Sub(begin)) }

func (c *Core) launched(now time.Time, p *Proc, e Launched) []Effect {
	p.State, p.Times.Contained, p.Times.Executed = sigma.ProcRunning, e.Contained, e.Executed
	if p.asked {
		p.Timing[sigma.PhaseHandOver] = since(e.Cloned, p.askedAt)
		p.Timing[sigma.PhaseRestrict] = since(e.Contained, e.Cloned)
		p.Timing[sigma.PhaseExec] = since(e.Executed, e.Contained)
	}
	var out []Effect
	if p.killing {
		out = append(out, Kill{p})
	} else if p.grace != nil {
		out = append(out, c.evict(now, p, *p.grace)...)
	}
	mark := p.Descriptor.Start
	p.Descriptor = sigma.Descriptor{Start: mark}
	c.waitsNoMore(p)
	if mark == sigma.StartedByExec {
		return append(out, c.markStarted(now, p)...)
	}
	return append(append(out, p.time()...), Wake{p.ID})
}

// time completes the phases once the program executes and has started, whichever was known first.
func (p *Proc) time() []Effect {
	if !p.startedOK || p.Times.Executed.IsZero() || p.timed {
		return nil
	}
	p.timed = true
	first := p.Times.Started
	if p.Descriptor.Start == sigma.StartedByCall && !p.spoke.IsZero() {
		first = p.spoke
	}
	p.Timing[sigma.PhaseFirst] = since(first, p.Times.Executed)
	p.Timing[sigma.PhaseStarted] = since(p.Times.Started, first)
	return []Effect{Timed{p.Timing}}
}

func (c *Core) markStarted(now time.Time, p *Proc) []Effect {
	if p.startedOK {
		return nil
	}
	p.startedOK, p.Times.Started = true, now
	return append(p.time(), Wake{p.ID})
}

func (c *Core) end(now time.Time, p *Proc, s sigma.Status) []Effect {
	if p.State == sigma.ProcQueued {
		c.leavesQueue(p)
	}
	if p.charged {
		p.charged = false
		c.running--
		if p.Class == sigma.BestEffort {
			c.sub(p.Realm, p.Memory)
		}
	}
	over := c.unreserve(p.ID)
	p.State, p.Status, p.Times.Ended, p.Frozen = sigma.ProcEnded, s, now, false
	p.Descriptor, p.exited, p.View = sigma.Descriptor{}, nil, nil
	r := c.realms[p.Realm]
	if p.owed = p.Guest(); !p.owed {
		r.live--
	}
	c.waitsNoMore(p)
	r.results += resultOf(p)
	r.ended = append(r.ended, p)
	out := append(append([]Effect{Wake{p.ID}}, over...), Room{})
	out = append(out, c.fill(now)...)
	out = append(out, c.bring(now, p.Realm)...)
	return append(out, c.forget(now, p.Realm)...)
}

func resultOf(p *Proc) sigma.Bytes { return sigma.Bytes(len(p.Status.Msg) + len(p.Status.Data)) }

// sweepEvery is how often realms in which nothing happens are looked through for what is too old.
const sweepEvery = time.Minute

// forget drops what a realm has too much of, and what is too old.
func (c *Core) forget(now time.Time, realm sigma.RealmID) (out []Effect) {
	if now.Sub(c.swept) < sweepEvery {
		return c.forgetOf(now, realm, false)
	}
	c.swept = now
	for _, id := range slices.Sorted(maps.Keys(c.realms)) {
		out = append(out, c.forgetOf(now, id, false)...)
	}
	return out
}

func (c *Core) forgetOf(now time.Time, id sigma.RealmID, all bool) (out []Effect) {
	r := c.realms[id]
	var owed []*Proc // of a realm that is gone: their homes wait for them
	for len(r.ended) > 0 && (all || len(r.ended) > EndedMax || r.results > resultsMax ||
		now.Sub(r.ended[0].Times.Ended) >= EndedAge) {
		p := r.ended[0]
		if p.owed && !all {
			break // the home's waiters are not answered yet
		}
		r.ended[0] = nil
		r.ended = r.ended[1:]
		if p.owed {
			owed = append(owed, p)
			continue
		}
		r.results -= resultOf(p)
		r.forgotten++
		p.forgotten = true
		delete(c.procs, p.ID)
		out = append(out, Forget{p.ID})
	}
	if owed != nil { // nothing else is left of all
		r.ended = owed
	}
	if r.forgotten > len(r.order)/2 {
		r.order = slices.DeleteFunc(r.order, func(p *Proc) bool { return p.forgotten })
		r.forgotten = 0
	}
	if len(r.order) == 0 {
		delete(c.realms, id)
	}
	return out
}

// realmGone forgets the ended procs of a realm, but for guests whose homes have not heard of their
// end. Others, of which there are only those that a removal which is under way ends anyway, stay as
// they are; what is kept back goes on when it may, and with the realm's maximum.
func (c *Core) realmGone(now time.Time, id sigma.RealmID) []Effect {
	if c.realms[id] == nil {
		return nil
	}
	return c.forgetOf(now, id, true)
}

// Past is what the next sigmad is told of a proc that has ended.
type Past struct {
	Info         sigma.ProcInfo
	Launch       uint64
	Kin          []sigma.ProcID
	Home, Runner sigma.Life
}

// Past tells it; false of a proc that is not known or has not ended.
func (c *Core) Past(id sigma.ProcID) (Past, bool) {
	p := c.procs[id]
	if p == nil || !p.Ended() {
		return Past{}, false
	}
	return Past{p.ProcInfo, p.Launch, p.Kin, p.Home, p.Runner}, true
}

// remembered enters procs that have ended. The home of a guest is told once more: it may not have
// been.
func (c *Core) remembered(now time.Time, all []Past) (out []Effect) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Past) int { return a.Info.Times.Spawned.Compare(b.Info.Times.Spawned) })
	touched := map[sigma.RealmID]bool{}
	for _, e := range all {
		if c.procs[e.Info.ID] != nil || e.Info.State != sigma.ProcEnded {
			continue
		}
		if c.Over(e.Home) {
			e.Home = sigma.Life{}
		}
		p := &Proc{ProcInfo: e.Info, Launch: e.Launch, startedOK: !e.Info.Times.Started.IsZero(), Kin: e.Kin,
			Home: e.Home, Runner: e.Runner}
		c.enter(p)
		r := c.realms[p.Realm]
		if p.owed = p.Guest(); p.owed {
			out = append(out, Owed{p.ID, p.Home})
		} else {
			r.live--
		}
		r.results += resultOf(p)
		r.ended = append(r.ended, p)
		touched[p.Realm] = true
	}
	for _, id := range slices.Sorted(maps.Keys(touched)) {
		slices.SortStableFunc(c.realms[id].ended, func(a, b *Proc) int { return a.Times.Ended.Compare(b.Times.Ended) })
		out = append(out, c.forgetOf(now, id, false)...)
	}
	return out
}

// statusOf reads how the main process ended. What the proc said by Exited stands, unless the system
// ended it before it could.
func statusOf(p *Proc, x launch.Exited) sigma.Status {
	code := x.Wait.ExitStatus()
	if x.Wait.Signaled() {
		code = 128 + int(x.Wait.Signal())
	}
	switch {
	case p.doomed:
		return lost("this machine was taken for lost, and its procs were ended")
	case p.exited != nil:
		s := *p.exited
		if s.ExitCode = max(code, 1); s.Code == sigma.StatusOK {
			s.ExitCode = 0
		}
		return s
	case x.OOM && code != 0:
		return sigma.Status{Code: sigma.StatusOOM, ExitCode: 137, Msg: fmt.Sprintf("exceeded its memory limit of %v",
			p.Memory)}
	case p.evicting || x.Killed: // the latter maybe by a sigmad before this one
		return evicted(p, sigma.Status{ExitCode: code, Msg: "evicted"})
	case x.Wait.Signaled():
		return sigma.Status{Code: sigma.StatusCrashed, ExitCode: code,
			Msg: "died of signal " + x.Wait.Signal().String()}
	case code != 0:
		return sigma.Status{Code: sigma.StatusError, ExitCode: code, Msg: fmt.Sprintf("exit code %d", code)}
	}
	return sigma.Status{Code: sigma.StatusOK}
}

func (c *Core) evict(now time.Time, p *Proc, grace time.Duration) []Effect {
	switch {
	case p.State == sigma.ProcQueued, p.State == sigma.ProcStarting && !p.asked:
		return c.kill(now, p)
	case p.State == sigma.ProcStarting:
		// its program may execute already, and have said so, before the launcher's word comes
		p.grace = &grace
		return nil
	}
	if grace <= 0 {
		grace = GraceDefault
	}
	p.evicting = true
	var out []Effect
	if !p.noticed { // once, whoever asks again
		p.noticed = true
		n := Notice{Proc: p}
		if p.evictable == 0 {
			n.Signal = syscall.SIGTERM
		}
		out = append(out, n)
	}
	return append(out, p.until(now.Add(min(grace, GraceMax)))...)
}

// until has the proc killed at a time, if it is not to be killed before that anyway.
func (p *Proc) until(at time.Time) []Effect {
	if !p.deadline.IsZero() && !at.Before(p.deadline) {
		return nil
	}
	p.deadline = at
	return []Effect{Timer{p.ID, at}}
}

// unstarted is the status of a proc that was ended before there was a process of it.
func unstarted(p *Proc) sigma.Status {
	return evicted(p, sigma.Status{ExitCode: 137, Msg: "evicted before it was started"})
}

// evicted completes the status of a proc that was asked to go. KindUnavailable: its machine was the
// reason, not the proc.
func evicted(p *Proc, s sigma.Status) sigma.Status {
	s.Code = sigma.StatusEvicted
	if p.why != "" {
		s.Kind, s.Msg = sigma.KindUnavailable, p.why
	}
	return s
}

func (c *Core) kill(now time.Time, p *Proc) []Effect {
	p.evicting = p.evicting || p.exited == nil
	switch p.State {
	case sigma.ProcQueued:
		if p.Class == sigma.LatencyCritical && c.reserved.sent[p.ID] == nil { // no scheduler knows of it
			return c.end(now, p, unstarted(p))
		}
		return append([]Effect{Dequeue{p.ID, p.Class, p.Shard}}, c.end(now, p, unstarted(p))...)
	case sigma.ProcStarting:
		if !p.asked && !p.killing { // its program may be long in coming
			p.killing = true
			return []Effect{Abandon{p.ID}}
		}
	case sigma.ProcRunning:
		if !p.killing { // once, however often it is asked for
			p.killing = true
			return []Effect{Kill{p}}
		}
	}
	p.killing = true
	return nil
}

func (p *Proc) seen() seen { return seen{p.State, p.startedOK, p.Frozen} }
