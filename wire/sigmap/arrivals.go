package sigmap

import "sigmaos.dev/sigma"

// What a listener's socket brings, and the call by which connections are made in advance
// (docs/adr/0029).

// PoolMost is how many connections of one proc to one endpoint are made and not begun.
const PoolMost = 32

// ArrivalMax bounds an Arrival's bytes.
const ArrivalMax = 16 << 10

// Arrival is a record on the socket of a listener: somebody has dialled, and the socket comes with
// it, and perhaps memory; or, if Pool is not 0, somebody has connections that were made in advance,
// whose sockets come with it, behind that of the line on which he says which begin, if it has no
// line yet.
type Arrival struct {
	Pool    uint64
	From    sigma.Principal // as sigmad knows it
	First   uint64          // of a pool: number of the first connection; the others follow
	Line    bool            // of a pool: the first socket is its line
	Tickets []string        // one for each connection; "" if it can have no memory
}

// Arrival is its layout.
func (c *Coder) Arrival(a *Arrival) {
	c.U64(&a.Pool)
	c.Principal(&a.From)
	c.U64(&a.First)
	c.Bool(&a.Line)
	c.poolStrs(&a.Tickets)
}

// PoolAsk asks for connections to be made in advance.
type PoolAsk struct {
	Endpoint sigma.Endpoint
	Unused   []uint64 // those of before that have not begun
	Count    uint32   // wanted besides; 0 = none
	Over     bool     // nor is the pool wanted any more
}

// PoolAsk is its layout.
func (c *Coder) PoolAsk(a *PoolAsk) {
	c.Endpoint(&a.Endpoint)
	n := len(a.Unused)
	if c.Count(&n, 8); n > PoolMost {
		c.Fail("more unused connections than a pool has")
		return
	}
	if c.decoding {
		a.Unused = make([]uint64, n)
	}
	for i := range a.Unused {
		c.U64(&a.Unused[i])
	}
	c.U32(&a.Count)
	c.Bool(&a.Over)
}

// PoolGrant answers it, with the sockets: first that of the line, if Line, then of each connection,
// and behind those the memory of each, or none.
type PoolGrant struct {
	Line    bool
	First   uint64
	Tickets []string
}

// PoolGrant is its layout.
func (c *Coder) PoolGrant(g *PoolGrant) {
	c.Bool(&g.Line)
	c.U64(&g.First)
	c.poolStrs(&g.Tickets)
}

// poolStrs are strings, PoolMost at most.
func (c *Coder) poolStrs(v *[]string) {
	n := len(*v)
	if c.Count(&n, 2); n > PoolMost {
		c.Fail("more connections than a pool has")
		return
	}
	if c.decoding {
		*v = make([]string, n)
	}
	for i := range *v {
		c.Str(&(*v)[i])
	}
}
