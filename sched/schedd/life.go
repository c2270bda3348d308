package schedd

import (
	"path"
	"slices"
	"time"

	"sigmaos.dev/sigma"
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
