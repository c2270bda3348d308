package binfs

import (
	"context"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/digest"
)

// Other machines of the system are asked for a program's bytes before the store is. Nothing that
// they send is believed: a chunk is used only if it has the hash that the store tells, which is 32
// bytes instead of 256 KiB. So a machine that lies can at worst delay a chunk by peerMax. One is
// asked for each chunk, once; whatever goes wrong, the store follows.

// PartMax is how much of a program a machine is asked for at once: what one call answers.
const PartMax = 60 << 10

const (
	// for one chunk to come from a machine: far more than it takes, little for a start
	peerMax   = 300 * time.Millisecond
	peersMost = 2               // machines that are asked for one program until one has it
	peerAgain = 5 * time.Second // after which those that did not have it are asked once more
)

// Peers are the other machines' caches. Safe for concurrent use.
type Peers interface {
	// Candidates says which machines most likely have a program, best first.
	Candidates(n Name) []sigma.MachineID
	// Part asks machine m for up to PartMax bytes of a program as it is in its cache (Cache.Part).
	Part(ctx context.Context, m sigma.MachineID, n Name, offset int64, size int) ([]byte, error)
}

// asked is what a program knows of the machines that may have it. Guarded by program.mu.
type asked struct {
	machines []sigma.MachineID
	next     int       // of machines: the one to ask
	since    time.Time // when they were looked up
}

// peer gives the machine to ask for a chunk of p, "" for none.
func (p *program) peer() sigma.MachineID {
	ps := p.c.cfg.Peers
	if ps == nil {
		return ""
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.plain { // there are no hashes to check with
		return ""
	}
	a := &p.asked
	if a.since.IsZero() || a.next >= len(a.machines) && now.Sub(a.since) > peerAgain {
		ms := ps.Candidates(p.name)
		*a = asked{machines: ms[:min(len(ms), peersMost)], since: now}
	}
	if a.next >= len(a.machines) {
		return ""
	}
	return a.machines[a.next]
}

// peerFailed turns to the next machine, unless another chunk did already.
func (p *program) peerFailed(m sigma.MachineID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := &p.asked; a.next < len(a.machines) && a.machines[a.next] == m {
		a.next++
	}
}

// fromPeer fills data, a chunk, from machine m: all its parts at once. What it is worth, its hash
// says.
func (p *program) fromPeer(ctx context.Context, m sigma.MachineID, data []byte, offset int64) error {
	ctx, cancel := context.WithTimeout(ctx, peerMax)
	defer cancel()
	type part struct {
		at  int
		got []byte
		err error
	}
	count := (len(data) + PartMax - 1) / PartMax
	parts := make(chan part, count) // nobody waits for those that come late
	for i := range count {
		at, size := i*PartMax, min(PartMax, len(data)-i*PartMax)
		go func() {
			got, err := p.c.cfg.Peers.Part(ctx, m, p.name, offset+int64(at), size)
			if err == nil && len(got) != size {
				err = sigma.Errorf("binfs.fromPeer", sigma.KindOther, "machine %s sent %d bytes, not %d", m, len(got),
					size)
			}
			parts <- part{at, got, err}
		}()
	}
	for range count {
		select {
		case got := <-parts:
			if got.err != nil {
				return got.err
			}
			copy(data[got.at:], got.got)
		case <-ctx.Done():
			return sigma.Wrap("binfs.fromPeer", "", ctx.Err())
		}
	}
	return nil
}

// tryPeer gets a chunk from another machine, if one has it, and returns its hash. hash waits for
// what that should be.
func (p *program) tryPeer(ctx context.Context, data []byte, offset int64, hash func() (Hash, error)) (sum Hash,
	ok bool) {
	m := p.peer()
	if m == "" {
		return sum, false
	}
	if err := p.fromPeer(ctx, m, data, offset); err != nil {
		if ctx.Err() == nil {
			p.peerFailed(m)
			p.c.count.peerFailed.Add(1)
		}
		return sum, false
	}
	sum = digest.Of(data)
	want, err := hash()
	if err != nil {
		return sum, false
	}
	if sum != want {
		p.peerFailed(m)
		p.c.count.corruptPeer.Add(1)
		p.c.cfg.Log.Warn("a machine sent other bytes of a program than the store has", "machine", m, "realm",
			p.name.Realm, "path", p.name.Path)
		return sum, false
	}
	p.c.count.peerBytes.Add(uint64(len(data)))
	p.c.count.peerChunks.Add(1)
	return sum, true
}

// Part gives bytes of a program to another machine, if they are here and were found right in this
// life of the cache. KindNotFound otherwise.
func (c *Cache) Part(n Name, offset int64, size int) ([]byte, error) {
	const op = "binfs.Part"
	if offset < 0 || size <= 0 || size > PartMax || n.Size <= 0 || n.Size > int64(ProgramMax) ||
		offset > n.Size-int64(size) {
		return nil, sigma.Errorf(op, sigma.KindInvalid, "%d bytes at %d of a program of %d", size, offset, n.Size)
	}
	lacks := &sigma.Error{Op: op, Kind: sigma.KindNotFound, Msg: "this machine does not have that part of the program"}
	c.mu.Lock()
	p := c.known[key{n.Realm, n.Path, n.ID}]
	c.mu.Unlock()
	if p == nil || p.name.Size != n.Size {
		return nil, lacks
	}
	p.mu.Lock()
	r, here := p.r, true
	for i := offset / chunkSize; i <= (offset+int64(size)-1)/chunkSize; i++ {
		here = here && p.state[i] == chunkGood
	}
	p.mu.Unlock()
	if !here {
		return nil, lacks
	}
	b := make([]byte, size)
	if _, err := r.ReadAt(b, offset); err != nil {
		return nil, lacks // it was given up just now
	}
	c.count.givenBytes.Add(uint64(size))
	return b, nil
}
