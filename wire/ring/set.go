package ring

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// SetMost is how many connections of a program have memory at a time; the machine allows no
	// more either. What a peer writes wrongly can make the reader pay for the pages of one
	// direction: 8 MiB for all.
	SetMost = 64
	// restEvery is how often connections with memory are looked at. One that was silent for a whole
	// such time goes back to its socket.
	restEvery = time.Second
	claimMost = 10 * time.Second
)

// Config says how a program gets memory. Claim and Release may be nil: then all stays on sockets.
type Config struct {
	// Claim asks the machine for the memory of the connection with this ticket. The file is the
	// caller's.
	Claim func(ctx context.Context, ticket []byte) (*os.File, error)
	// Release says that it is not used any more.
	Release func(ticket []byte)
	// Meter asks the machine for the program's meter, once, when it has its first connection. The
	// file is the caller's. nil: nobody counts.
	Meter func(ctx context.Context) (*os.File, error)
}

// Set is a program's connections. Safe for concurrent use.
type Set struct {
	cfg    Config
	wanted atomic.Uint32 // a Transport, of connections to come

	meter     atomic.Pointer[meter] // nil until it has come
	meterOnce sync.Once
	meterless atomic.Bool // there is none, and will be none

	mu        sync.Mutex
	holds     int            // mu; memories, those being asked for among them
	shared    map[*Conn]bool // mu
	resting   bool           // mu; a goroutine looks at them
	early     Carried        // mu; by connections that ended before the meter came
	unmetered map[*Conn]bool // mu; that wait for it
	over      chan struct{}
	once      sync.Once
	tasks     sync.WaitGroup
}

// NewSet makes an empty Set.
func NewSet(cfg Config) *Set {
	return &Set{cfg: cfg, shared: map[*Conn]bool{}, unmetered: map[*Conn]bool{}, over: make(chan struct{})}
}

// Use has connections that are made from now on use a transport; for debugging and measuring.
func (s *Set) Use(t Transport) { s.wanted.Store(uint32(t)) }

// Close ends what the Set does by itself. Connections live on, without asking for memory.
func (s *Set) Close() {
	s.once.Do(func() { close(s.over) })
	s.tasks.Wait()
}

// keep has memory at hand for when the traffic warrants it.
func (c *Conn) keep(f *os.File) {
	s := c.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds++; s.holds > SetMost {
		go s.spare(c, f)
		return
	}
	c.given, c.asked, c.enough = f, true, paceGiven
	s.watchLocked(c)
}

// spare gives memory back that was not mapped.
func (s *Set) spare(c *Conn, f *os.File) {
	f.Close()
	s.drop(c, true)
}

// takeGiven maps what is at hand, and reports whether there is anything.
func (c *Conn) takeGiven() bool {
	c.mu.Lock()
	f := c.given
	c.given = nil
	c.mu.Unlock()
	if f == nil {
		return false
	}
	c.attach(f)
	return true
}

// claim takes the memory that is at hand, or asks for it in the background, once.
func (c *Conn) claim() {
	if c.takeGiven() {
		return
	}
	if c.asks() {
		c.set.tasks.Go(c.ask)
	}
}

// claimNow is claim that waits, unless the question is already under way.
func (c *Conn) claimNow() {
	if !c.takeGiven() && c.asks() {
		c.ask()
	}
}

// asks reports whether to ask.
func (c *Conn) asks() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked || c.closed.Load() || c.set.cfg.Claim == nil {
		return false
	}
	c.asked = true
	s := c.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds >= SetMost {
		return false
	}
	s.holds++
	return true
}

// ask asks for memory and uses it, if it gets any.
func (c *Conn) ask() {
	s := c.set
	ctx, cancel := context.WithTimeout(context.Background(), claimMost)
	defer cancel()
	f, err := s.cfg.Claim(ctx, c.ticket)
	if err != nil {
		s.drop(c, false)
		return
	}
	c.attach(f)
}

// attach maps memory and begins to follow its phases.
func (c *Conn) attach(f *os.File) {
	s := c.set
	defer f.Close()
	m, err := mapFile(f)
	if err != nil {
		s.drop(c, true)
		return
	}
	c.mu.Lock()
	late := c.closed.Load()
	if !late {
		c.in.spin.able, c.out.spin.able = knowsProcessor(), knowsProcessor()
		c.mem.Store(m) // before the peer may switch
		m.directions[1-c.side].ready.Store(1)
	}
	c.mu.Unlock()
	if late {
		m.unmap()
		s.drop(c, true)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchLocked(c)
}

// watchLocked has a connection looked at now and then.
func (s *Set) watchLocked(c *Conn) {
	s.shared[c] = true
	select {
	case <-s.over:
		return
	default:
	}
	if !s.resting {
		s.resting = true
		s.tasks.Go(s.rest)
	}
}

// forget is called when c has unmapped its memory.
func (s *Set) forget(c *Conn) { s.drop(c, true) }

func (s *Set) drop(c *Conn, had bool) {
	s.mu.Lock()
	s.holds--
	delete(s.shared, c)
	s.mu.Unlock()
	if had && s.cfg.Release != nil {
		s.cfg.Release(c.ticket)
	}
}

// rest looks at connections with memory as long as there are any.
func (s *Set) rest() {
	tick := time.NewTicker(restEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.over:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		conns := make([]*Conn, 0, len(s.shared))
		for c := range s.shared {
			conns = append(conns, c)
		}
		if len(conns) == 0 {
			s.resting = false
		}
		s.mu.Unlock()
		if len(conns) == 0 {
			return
		}
		for _, c := range conns {
			c.rest()
		}
	}
}
