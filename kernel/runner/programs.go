package runner

import (
	"context"
	"sync"

	"sigmaos.dev/kernel/binfs"
	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// callPart asks another machine for bytes of a program. Any machine of the system may ask for any
// realm's: it may ask the object store too.
var callPart = sigmap.Method[part, []byte]{Name: "program", Request: codePart, Reply: sigmap.Rest}

// programsKey, which is no realm's name, keeps the session over which programs come apart from that
// of the other calls among sigmads: a megabyte on its way must not hold up a kill or a report.
const programsKey = "+programs"

// holdersMax bounds the programs of which it is remembered who has them; beyond it all is
// forgotten.
const holdersMax = 1024

// Holders is where programs can be had besides the store (binfs.Peers): at the home of a proc that
// came from another machine, since whoever spawned it there most likely starts it there too.
type Holders struct {
	machine  sigma.MachineID
	cluster  *cluster.Cluster
	reach    *reach.Reach
	programs *binfs.Cache // set by Keep

	mu    sync.Mutex
	homes map[held]sigma.MachineID // mu
}

type held struct {
	realm sigma.RealmID
	path  string
}

// NewHolders makes what knows of no other machine, and answers them.
func NewHolders(machine sigma.MachineID, c *cluster.Cluster, r *reach.Reach) *Holders {
	h := &Holders{machine: machine, cluster: c, reach: r, homes: map[held]sigma.MachineID{}}
	r.Answer(reach.On(callPart, h.give))
	return h
}

// Keep sets the programs that other machines are given. It is called before one asks.
func (h *Holders) Keep(programs *binfs.Cache) { h.programs = programs }

// Hint says that machine m most likely has the program at path.
func (h *Holders) Hint(realm sigma.RealmID, path string, m sigma.MachineID) {
	if m == "" || m == h.machine {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.homes) >= holdersMax {
		clear(h.homes)
	}
	h.homes[held{realm, path}] = m
}

// Candidates implements binfs.Peers.
func (h *Holders) Candidates(n binfs.Name) []sigma.MachineID {
	h.mu.Lock()
	m := h.homes[held{n.Realm, n.Path}]
	h.mu.Unlock()
	if known, ok := h.cluster.Member(m); !ok || known.Lost {
		return nil
	}
	return []sigma.MachineID{m}
}

// part is a range of a program.
type part struct {
	name   binfs.Name
	offset int64
	size   int
}

func codePart(c *sigmap.Coder, p *part) {
	n := &p.name
	all, at, count := uint64(n.Size), uint64(p.offset), uint32(p.size)
	c.RealmID(&n.Realm)
	c.Str(&n.Path)
	c.FileID(&n.ID)
	c.U64(&all)
	c.U64(&at)
	c.U32(&count)
	n.Size, p.offset, p.size = int64(min(all, 1<<62)), int64(min(at, 1<<62)), int(count)
}

// Part implements binfs.Peers.
func (h *Holders) Part(ctx context.Context, m sigma.MachineID, n binfs.Name, offset int64, size int) ([]byte, error) {
	c, err := h.reach.PeerBy(ctx, m, programsKey)
	if err != nil {
		return nil, err
	}
	return callPart.Ask(ctx, c, part{n, offset, size})
}

// give answers another machine.
func (h *Holders) give(_ context.Context, p part) ([]byte, error) {
	return h.programs.Part(p.name, p.offset, p.size)
}
