package sdk

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/rawio"
	"sigmaos.dev/wire/ring"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Who dials the same endpoint again and again has connections made in advance, a batch with one
// call, and only says on a line to the listener which one begins (docs/adr/0029). So a dial is one
// write, and the listener's proc is woken by it.

const (
	poolAfter   = 3                // dials within poolWithin, and the next ones are made in advance
	poolWithin  = time.Second      // the same
	poolFirst   = 8                // that are made at first; twice as many each time that half of them are used up
	poolIdle    = 10 * time.Second // after the last dial those that are left are closed
	poolTick    = time.Second      // sigmad is told so often, at least, which have begun
	poolAgain   = time.Second      // after sigmad said no it is asked again
	poolNever   = 10 * time.Second // the same, if it said that there are none
	poolAsking  = 5 * time.Second
	dialledMost = 64 // endpoints whose dials are counted; with more, those that were not dialled lately are forgotten
)

// pools are a Client's.
type pools struct {
	mu   sync.Mutex
	of   map[sigma.Endpoint]*pool // mu
	over atomic.Bool
}

// pool is what there is for one endpoint.
type pool struct {
	c *Client
	e sigma.Endpoint

	mu      sync.Mutex
	began   time.Time       // mu; of counting
	count   int             // mu; dials since
	last    time.Time       // mu; dial
	not     time.Time       // mu; not asked before
	want    int             // mu
	asking  chan struct{}   // mu; closed when the batch that is being made is there; nil = none is
	awaited int             // mu; dials that wait for it
	line    *os.File        // mu; nil = none yet, or it has ended
	raw     syscall.RawConn // mu; of it
	had     bool            // mu; sigmad may know one that has ended, or whose answer was lost
	never   []uint64        // mu; connections of it that did not begin
	ready   []pooled        // mu
	untold  int             // mu; connections that have begun since sigmad was told
	tick    *time.Timer     // mu
}

// pooled is a connection that has not begun.
type pooled struct {
	file   *os.File
	number uint64
	ticket string
	memory *os.File // nil: it has none yet
}

// close ends one that will not begin.
func (m *pooled) close(c *Client) {
	m.file.Close()
	if m.memory != nil {
		m.memory.Close()
		c.releaseRing([]byte(m.ticket))
	}
}

// discard closes connections that nobody gets. Of their memory, which comes behind the sockets or
// was lost on the way, sigmad is told that it is not needed.
func (c *Client) discard(files []*os.File, tickets []string, lost bool) {
	session.CloseFiles(files)
	for _, t := range tickets {
		if t != "" && (lost || len(files) == 2*len(tickets)) {
			c.releaseRing([]byte(t))
		}
	}
}

// gone says that it has ended: it was taken back, or its peer is gone.
func (m *pooled) gone() bool {
	raw, err := m.file.SyscallConn()
	return err != nil || isGone(raw)
}

func isGone(socket syscall.RawConn) (gone bool) {
	return socket.Control(func(fd uintptr) { gone = rawio.Gone(int(fd)) }) != nil || gone
}

// begin gives a connection to e that was made in advance; nil if there is none.
func (c *Client) begin(ctx context.Context, e sigma.Endpoint) net.Conn {
	who := &c.info.Principal
	if e.Form != sigma.FormStream || who.Proc == "" || who.System || who.Realm != e.Realm || ctx.Err() != nil {
		return nil
	}
	p := c.pools.find(c, e)
	if p == nil {
		return nil
	}
	m, ok := p.await(ctx)
	if !ok {
		return nil
	}
	var conn net.Conn
	var err error
	if p.far() {
		conn, err = c.farStream(m.file, ring.Dialled, CallerAddr{*who}, EndpointAddr{e})
	} else {
		files := []*os.File{m.file}
		if m.memory != nil {
			files = append(files, m.memory)
		}
		conn, err = c.streamOf(e.Form, files, ring.Dialled, m.ticket, CallerAddr{*who}, EndpointAddr{e})
	}
	if err != nil {
		return nil
	}
	return conn
}

// farStream makes a connection of one that was made in advance with another machine.
func (c *Client) farStream(f *os.File, side ring.Side, local, remote net.Addr) (net.Conn, error) {
	sock := ring.FileStream(f)
	r, err := c.rings.New(sock, side, nil, nil)
	if err != nil {
		sock.Close()
		return nil, err
	}
	return &Conn{Conn: r, local: local, remote: remote}, nil
}

func (ps *pools) find(c *Client, e sigma.Endpoint) *pool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.of[e]
	if p != nil || ps.over.Load() {
		return p
	}
	if len(ps.of) >= dialledMost {
		for e, p := range ps.of {
			if p.idle() {
				delete(ps.of, e)
			}
		}
		if len(ps.of) >= dialledMost {
			return nil
		}
	}
	if ps.of == nil {
		ps.of = map[sigma.Endpoint]*pool{}
	}
	p = &pool{c: c, e: e, want: poolFirst}
	ps.of[e] = p
	return p
}

// idle says that nothing was dialled lately, and there is nothing to close.
func (p *pool) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.line == nil && p.asking == nil && time.Since(p.last) > poolWithin
}

// await is take that waits for the batch that is being made if nothing else is there: sigmad
// answers one question after another, so a connection of its own would come later. With another
// machine it would come sooner.
func (p *pool) await(ctx context.Context) (m pooled, ok bool) {
	m, batch, ok := p.take(time.Now())
	if ok || batch == nil {
		return m, ok
	}
	select {
	case <-batch:
	case <-ctx.Done():
		return m, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takeLocked()
}

// take has a connection begin, and more made if there are few left. If it has none, and should
// wait, batch is closed when those that are being made are there.
func (p *pool) take(now time.Time) (m pooled, batch <-chan struct{}, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.began) > poolWithin {
		p.began, p.count = now, 0
	}
	p.count++
	p.last = now
	m, ok = p.takeLocked()
	if p.count >= poolAfter && 2*len(p.ready) <= p.want && p.asking == nil && now.After(p.not) {
		p.asking = make(chan struct{})
		go p.ask()
	}
	if ok || p.asking == nil || p.far() || p.awaited >= poolFirst { // the batch may have no more
		return m, nil, ok
	}
	p.awaited++
	return m, p.asking, false
}

// takeLocked takes a connection that was made in advance and tells its listener that it begins. It
// drops those that are broken; ok is false if none is left.
func (p *pool) takeLocked() (m pooled, ok bool) {
	for !ok && len(p.ready) > 0 {
		m, p.ready = p.ready[0], p.ready[1:]
		if m.gone() {
			m.close(p.c)
			continue
		}
		if ok = !(p.far() && isGone(p.raw)) && p.sayLocked(m.number); !ok { // TCP takes what nobody reads any more
			m.close(p.c)
			p.dropLocked()
		}
	}
	if ok {
		p.untold++
	}
	return m, ok
}

// far says that the listener is on another machine.
func (p *pool) far() bool { return p.c != nil && p.e.Machine != p.c.info.Principal.Machine }

// sayLocked tells the listener that a connection begins.
func (p *pool) sayLocked(number uint64) (ok bool) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], number)
	return p.raw.Control(func(fd uintptr) {
		n, err := rawio.Write(int(fd), b[:])
		ok = n == len(b) && err == nil
	}) == nil && ok
}

// dropLocked closes what has not begun.
func (p *pool) dropLocked() {
	if p.line != nil {
		p.never = p.numbersLocked()
	}
	for _, m := range p.ready {
		m.close(p.c)
	}
	p.ready = nil
	if p.line != nil {
		p.raw.Control(func(fd uintptr) { syscall.Shutdown(int(fd), syscall.SHUT_RDWR) }) // sigmad has it, too
		p.line.Close()
		p.line, p.had = nil, true
	}
}

// ask has sigmad make connections. It is run once at a time.
func (p *pool) ask() {
	ask, over, never := p.asks()
	ctx, cancel := context.WithTimeout(context.Background(), poolAsking)
	defer cancel()
	if over { // sigmad knows a line that has ended
		p.tell(ctx, &sigmap.PoolAsk{Endpoint: p.e, Over: true, Unused: never})
	}
	grant, files, err := sigmap.CallPool.AskFiles(ctx, endpoints{p.c}, ask)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.askedLocked()
	if err == nil && grant.Line && len(files) > 0 {
		p.dropLocked()
		err = p.beginLocked(files[0])
		files = files[1:]
	}
	n := len(grant.Tickets)
	if err != nil || p.line == nil || n == 0 || len(files) != n && len(files) != 2*n {
		p.c.discard(files, grant.Tickets, false)
		p.not = time.Now().Add(poolAgain)
		if sigma.KindOf(err) == sigma.KindUnsupported {
			p.not = time.Now().Add(poolNever)
		}
		p.had = p.had || p.line == nil // sigmad may have made a line of which the answer did not come
		return
	}
	for i, f := range files[:n] {
		m := pooled{file: f, number: grant.First + uint64(i), ticket: grant.Tickets[i]}
		if len(files) > n { // their memory is behind the sockets
			m.memory = files[n+i]
		}
		p.ready = append(p.ready, m)
	}
	p.want = min(2*p.want, sigmap.PoolMost)
	if p.tick == nil {
		p.tick = time.AfterFunc(poolTick, p.look)
	}
	if p.c.pools.over.Load() {
		p.dropLocked()
	}
}

// askedLocked notes that no batch is being made.
func (p *pool) askedLocked() {
	close(p.asking)
	p.asking, p.awaited = nil, 0
}

// beginLocked begins to use a line. That of a listener here nobody waits at, and is in no poller:
// it would tell of each number that the listener has read, and wake a thread of this proc in vain
// with every dial.
func (p *pool) beginLocked(line *os.File) (err error) {
	if !p.far() {
		defer line.Close()
		fd, e := duplicate(line)
		if e != nil {
			return e
		}
		if line, err = rawio.Unpolled(fd, "line"); err != nil {
			return err
		}
	}
	p.line = line
	if p.raw, err = line.SyscallConn(); err == nil && p.far() {
		go p.follow(line)
	}
	return err
}

// follow waits for the end of a line to another machine, where the listener waits for ours when it
// closes.
func (p *pool) follow(line *os.File) {
	var b [1]byte
	line.Read(b[:]) // nothing is said
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line == line {
		p.dropLocked()
	}
}

// asks is what to ask for; over says that sigmad may know a line that has ended, of which the
// connections in never did not begin.
func (p *pool) asks() (ask sigmap.PoolAsk, over bool, never []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ask = sigmap.PoolAsk{Endpoint: p.e, Unused: p.numbersLocked(), Count: uint32(max(p.want-len(p.ready), 1))}
	p.untold = 0
	over, never = p.had && p.line == nil, p.never
	p.had, p.never = false, nil
	return ask, over, never
}

func (p *pool) numbersLocked() (unused []uint64) {
	for _, m := range p.ready {
		unused = append(unused, m.number)
	}
	return unused
}

// tell is a call that gives nothing.
func (p *pool) tell(ctx context.Context, ask *sigmap.PoolAsk) {
	sigmap.CallPool.Tell(ctx, endpoints{p.c}, *ask)
}

// look tells sigmad what has begun, and closes what is not needed any more, or has ended.
func (p *pool) look() {
	p.mu.Lock()
	p.ready = slices.DeleteFunc(p.ready, func(m pooled) bool {
		gone := m.gone()
		if gone {
			m.close(p.c)
			p.untold++
		}
		return gone
	})
	ask := sigmap.PoolAsk{Endpoint: p.e}
	tell := p.untold > 0
	if ask.Over = p.line == nil || isGone(p.raw) || time.Since(p.last) > poolIdle; ask.Over {
		p.dropLocked()
		ask.Unused = p.never
		p.want, p.tick, tell = poolFirst, nil, true
		if p.asking == nil { // or ask tells it later
			p.had, p.never = false, nil
		}
	} else {
		ask.Unused = p.numbersLocked()
		p.tick.Reset(poolTick)
	}
	p.untold = 0
	busy := p.asking != nil
	p.mu.Unlock()
	if tell && !busy {
		ctx, cancel := context.WithTimeout(context.Background(), poolAsking)
		defer cancel()
		p.tell(ctx, &ask)
	}
}

// close ends them all. What has begun goes on.
func (ps *pools) close() {
	ps.over.Store(true)
	ps.mu.Lock()
	of := ps.of
	ps.of = nil
	ps.mu.Unlock()
	for _, p := range of {
		p.mu.Lock()
		p.dropLocked()
		if p.tick != nil {
			p.tick.Stop()
		}
		p.mu.Unlock()
	}
}
