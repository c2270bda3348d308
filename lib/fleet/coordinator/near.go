package coordinator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/lib/fleet/core"
	"sigmaos.dev/lib/fleet/traffic"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// How often the realm's traffic is looked at. Machines look at their procs' sockets for it, so it
// is asked for rarely, and for one part in nearPart of the time at most.
const (
	nearEvery  = 2 * time.Second
	aloneEvery = 10 * time.Second // while there is one machine
	nearPart   = 50
	nameMost   = 2 // names of what members talk with
)

// talks is what the realm's procs talked with one another lately.
type talks struct {
	rates []traffic.Rate
	names map[sigma.ProcID]string
	cores map[sigma.MachineID]int // of the machines that there are
}

// watchTraffic tells the fleets what their members talk with, until ctx ends.
func (c *Coordinator) watchTraffic(ctx context.Context) {
	var meter traffic.Meter
	names := map[sigma.ProcID]string{}
	for pause := nearEvery; ; {
		if !retry.Pause(ctx, pause) {
			return
		}
		began := time.Now()
		t, err := c.talks(ctx, &meter, names)
		if err != nil && ctx.Err() == nil {
			c.cfg.Log.Debug("what members talk with is not known", "err", err)
		}
		if t != nil {
			names = t.names
			for _, k := range c.kept() {
				select {
				case k.todo <- func() { k.step(core.Talked{Peers: k.peers(t)}) }:
				case <-k.ended:
				case <-ctx.Done():
				}
			}
		}
		pause = max(nearEvery, nearPart*time.Since(began))
		if t == nil {
			pause = max(pause, aloneEvery)
		}
	}
}

func (c *Coordinator) kept() []*keeper {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.keepers))
}

// talks reads who talks with whom; nil if there are no fleets, or no choice of machines.
func (c *Coordinator) talks(ctx context.Context, meter *traffic.Meter, names map[sigma.ProcID]string) (*talks, error) {
	if len(c.kept()) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cores, err := c.machines(ctx)
	if err != nil || len(cores) < 2 {
		return nil, err
	}
	text, _, err := c.c.Get(ctx, traffic.File)
	if err != nil {
		return nil, err
	}
	pairs, _, err := traffic.Parse(text) // of a machine that is away nothing is known
	if err != nil {
		return nil, err
	}
	meter.Add(pairs)
	t := &talks{rates: meter.Rates(), names: names, cores: cores}
	for _, r := range t.rates {
		if t.unknown(r.From) || t.unknown(r.To) {
			return t, t.learn(ctx, c)
		}
	}
	return t, nil
}

func (t *talks) unknown(id sigma.ProcID) bool { return id != "" && t.names[id] == "" }

// learn finds what procs are called: those of a fleet by its name. It forgets the names of procs
// that are gone.
func (t *talks) learn(ctx context.Context, c *Coordinator) error {
	all, err := c.c.List(ctx, false)
	if err != nil {
		return err
	}
	t.names = make(map[sigma.ProcID]string, len(all))
	for _, p := range all {
		name, _, ok := fleet.ParseMemberName(p.Name)
		if !ok {
			name = cmp.Or(p.Name, string(p.ID))
		}
		t.names[p.ID] = name
	}
	for _, r := range t.rates { // of those that have ended meanwhile
		for _, id := range []sigma.ProcID{r.From, r.To} {
			t.names[id] = cmp.Or(t.names[id], string(id))
		}
	}
	return nil
}

// machines are those that are alive and take procs, and their cores.
func (c *Coordinator) machines(ctx context.Context) (map[sigma.MachineID]int, error) {
	text, _, err := c.c.Get(ctx, "/sys/machines")
	if err != nil {
		return nil, err
	}
	cores := map[sigma.MachineID]int{}
	for line := range bytes.Lines(text) {
		var m struct {
			Name     sigma.MachineID `json:"name"`
			State    string          `json:"state"`
			Cordoned bool            `json:"cordoned"`
			Draining bool            `json:"draining"`
			CPU      float64         `json:"cpu"`
		}
		if json.Unmarshal(line, &m) == nil && m.State == "alive" && !m.Cordoned && !m.Draining {
			cores[m.Name] = max(1, int(m.CPU))
		}
	}
	return cores, nil
}

// peers are what the members talk with, by machine. What members say to one another, and to the
// coordinator, is left out.
func (k *keeper) peers(t *talks) []core.Peer {
	self := sigma.ProcID(k.self())
	of := map[sigma.MachineID]*core.Peer{}
	with := map[sigma.MachineID][]string{}
	for _, r := range t.rates { // the fastest first
		_, from := k.members[r.From]
		_, to := k.members[r.To]
		machine, id := r.FromOn, r.From
		if from {
			machine, id = r.On, r.To
		}
		if from == to || id == self || t.cores[machine] == 0 {
			continue
		}
		if of[machine] == nil {
			of[machine] = &core.Peer{Machine: machine, Most: t.cores[machine]}
		}
		of[machine].Rate += r.Both()
		name := "a program outside"
		if id != "" {
			name = t.names[id]
		}
		if !slices.Contains(with[machine], name) {
			with[machine] = append(with[machine], name)
		}
	}
	peers := make([]core.Peer, 0, len(of))
	for m, p := range of {
		p.With = named(with[m])
		peers = append(peers, *p)
	}
	return peers
}

// named lists the first of some names.
func named(names []string) string {
	switch n := len(names); {
	case n > nameMost:
		return names[0] + " and others"
	case n == nameMost:
		return names[0] + " and " + names[1]
	case n == 1:
		return names[0]
	}
	return "nobody"
}
