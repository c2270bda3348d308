package machines

import (
	"fmt"
	"time"

	"sigmaos.dev/sigma"
)

// heardBy notes a beat that an observer heard some time ago.
func (c *Core) heardBy(now time.Time, e Evidence) []Effect {
	m := c.members[e.ID]
	switch {
	case m == nil || e.Incarnation > m.Incarnation || e.Age < 0:
		return nil // of nobody; links of those who were removed are closed elsewhere
	case m.Lost || e.Incarnation < m.Incarnation:
		return []Effect{Tell{e.ID, e.Incarnation}}
	}
	if at := now.Add(-e.Age); at.After(m.heard) {
		m.heard, m.grace = at, time.Time{}
	}
	if m.suspect && now.Sub(m.heard) < c.timing.Suspect {
		m.suspect = false
		return []Effect{Trust{m.ID}}
	}
	return nil
}

func (c *Core) report(now time.Time, e Report) (out []Effect) {
	m := c.members[e.By]
	if m == nil || m.Lost || !m.Control || e.By == c.self && !c.remote {
		return nil
	}
	c.reported[e.By] = now
	m.heard =
		// who reports lives, whatever became of its beats: else an heir would judge the judge by a
		// majority of which the judge's machine is one
		now
	for _, b := range e.Beat {
		out = append(out, c.heardBy(now, b)...)
	}
	return out
}

// tick judges.
func (c *Core) tick(now time.Time) (out []Effect) {
	c.pass(now)
	for _, m := range c.sorted() {
		if !m.Lost && m.ID != c.self {
			out = append(out, c.judge(now, m)...)
		}
	}
	return append(out, c.forgetTokens(now)...)
}

// pass lets time go by until now. What was not heard while the judge itself stood still may only
// not have been read yet, so such time is taken out of every account.
func (c *Core) pass(now time.Time) {
	gap := now.Sub(c.ticked)
	c.ticked = now
	if gap > c.timing.gapMax() || gap < 0 {
		c.skip(now, gap-c.timing.Tick)
	}
	c.countObservers(now)
}

// skip takes a time out of everybody's silence.
func (c *Core) skip(now time.Time, gap time.Duration) {
	later := func(t *time.Time) {
		if t.IsZero() {
			return
		}
		if *t = t.Add(gap); t.After(now) || gap < 0 {
			*t = now
		}
	}
	for _, m := range c.members {
		if !m.grace.IsZero() {
			m.grace = m.grace.Add(max(gap, 0))
		}
		later(&m.heard)
		later(&m.vouched)
		later(&m.probed)
	}
	for id, t := range c.reported {
		later(&t)
		c.reported[id] = t
	}
	later(&c.majority)
}

// countObservers finds whether the judge and those observers that report are a majority. Without
// one it may be the judge that is cut off.
func (c *Core) countObservers(now time.Time) {
	all, here := 0, 0
	for id, m := range c.members {
		if !m.Control {
			continue
		}
		all++
		if at, ok := c.reported[id]; id == c.self && !c.remote || ok && now.Sub(at) < c.timing.Report {
			here++
		}
	}
	switch {
	case 2*here <= all:
		c.majority = time.Time{}
	case c.majority.IsZero():
		c.majority = now
	}
}

// judge looks at one machine that counts as alive.
func (c *Core) judge(now time.Time, m *member) (out []Effect) {
	silent := now.Sub(m.heard)
	if now.Before(m.grace) {
		return nil
	}
	if silent < c.timing.Suspect {
		if m.suspect {
			m.suspect = false
			out = append(out, Trust{m.ID})
		}
		return out
	}
	if !m.suspect {
		m.suspect = true
		out = append(out, Suspect{m.ID})
	}
	why := ""
	switch unheard := silent >= c.timing.Lost; {
	case c.majority.IsZero() || now.Sub(c.majority) < c.timing.Suspect && !c.alone():
		// A majority that has only just come together may not have told everything.
	case silent >= c.timing.Vouched:
		why = fmt.Sprintf("no control machine has heard it for %v", c.timing.Vouched)
	case unheard && (m.vouched.IsZero() || now.Sub(m.vouched) >= c.timing.Lost):
		why = fmt.Sprintf("no machine has heard it for %v", c.timing.Lost)
	}
	if why != "" {
		return append(out, c.lose(m, why)...)
	}
	if now.Sub(m.probed) >= 2*c.timing.Interval {
		if helpers := c.helpers(m); len(helpers) > 0 {
			m.probed = now
			m.asked++
			out = append(out, Probe{m.ID, helpers})
		}
	}
	return out
}

// alone reports whether the judge is the only observer, whose majority needs no report.
func (c *Core) alone() bool {
	if c.remote {
		return false
	}
	for id, m := range c.members {
		if m.Control && id != c.self {
			return false
		}
	}
	return true
}

// helpers chooses machines to ask about m: such as are heard themselves and, each time, others.
func (c *Core) helpers(m *member) []sigma.MachineID {
	var able []sigma.MachineID
	for _, h := range c.sorted() {
		if h != m && h.ID != c.self && !h.Lost && !h.suspect {
			able = append(able, h.ID)
		}
	}
	if len(able) <= helpersMax {
		return able
	}
	from := (m.asked * helpersMax) % len(able)
	able = append(able[from:len(able):len(able)], able[:from]...)
	return able[:helpersMax]
}

// lose ends a life.
func (c *Core) lose(m *member, why string) []Effect {
	epoch, save := c.next()
	m.Lost, m.suspect, m.Fence = true, false, sigma.Epoch(epoch)
	delete(c.reported, m.ID)
	return []Effect{save, SaveMember{m.copy()}, Lost{m.ID, m.Incarnation, m.Fence, why}, c.publish()}
}
