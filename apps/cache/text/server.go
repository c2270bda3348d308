package text

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/apps/cache/op"
	"sigmaos.dev/apps/cache/store"
	"sigmaos.dev/sigma"
)

// Backend is the cache behind the protocols. Safe for concurrent use.
type Backend interface {
	op.Keys
	// Flush removes all items, those of other members too.
	Flush(ctx context.Context) error
	// Store is this member's.
	Store() *store.Store
}

// Config says what a server is. The zero value of all but Backend is good.
type Config struct {
	Backend Backend
	// ConnsMax bounds connections, so that as many half-open ones take about 100 MiB. More get an
	// error. 0 = 10,000, as of Redis, or filesSpare less than the process may have files if that is
	// less.
	ConnsMax int
	// LongMax bounds the bytes of commands and values of more than 64 KiB that are on their way, of
	// all connections together. 0 = 64 MiB.
	LongMax int64
}

const (
	connsDefault = 10_000
	filesSpare   = 1024
	longDefault  = 64 << 20

	bufferFirst = 4 << 10  // of a connection that is silent
	longLeast   = 64 << 10 // a command or value of more counts for LongMax
	flushAt     = 64 << 10 // bytes of answers that are gathered
	// stallMax is how long a client may take to go on with a command, or to read what it was sent.
	stallMax = 30 * time.Second
	// paceBytes is after how many bytes of a command or answer that time begins again.
	paceBytes = 1 << 20
	// drainMax is how long a server that ends waits for clients to send the rest of commands.
	drainMax = time.Second
)

// Server serves connections. Safe for concurrent use.
type Server struct {
	cfg   Config
	began time.Time
	// commands is how many RESP has. The table itself cannot be used by what it refers to.
	commands int
	long     atomic.Int64 // bytes of long commands
	count    atomic.Int64 // commands

	mu      sync.Mutex
	conns   map[*conn]bool // mu
	served  int64          // mu; connections, those that have ended too
	leaving bool           // mu
	tasks   sync.WaitGroup // one for each of conns
}

// New makes a server. It starts nothing.
func New(cfg Config) (*Server, error) {
	if cfg.Backend == nil {
		return nil, sigma.Errorf("text.New", sigma.KindInvalid, "there is no backend")
	}
	if cfg.ConnsMax == 0 {
		cfg.ConnsMax = connsDefault
		var files unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil && files.Cur < connsDefault+filesSpare {
			cfg.ConnsMax = max(1, int(files.Cur)-filesSpare)
		}
	}
	if cfg.LongMax == 0 {
		cfg.LongMax = longDefault
	}
	return &Server{cfg: cfg, began: time.Now(), commands: len(respCommands), conns: map[*conn]bool{}}, nil
}

// ConnsMax is how many connections there may be.
func (s *Server) ConnsMax() int { return s.cfg.ConnsMax }

// Serve serves all who connect to l until it is closed, and gives its error. Connections go on.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	for {
		nc, err := l.Accept()
		if err != nil {
			return err
		}
		go s.ServeConn(ctx, nc, nil) // Shutdown waits for it
	}
}

// ServeConn serves a connection until it or ctx ends. first is what was read of it.
func (s *Server) ServeConn(ctx context.Context, nc net.Conn, first []byte) {
	defer nc.Close()
	c := &conn{server: s, nc: nc, ctx: ctx, fd: -1, in: make([]byte, max(bufferFirst, 2*len(first)))}
	c.w = copy(c.in, first)
	if err := s.add(c); err != nil {
		nc.SetWriteDeadline(time.Now().Add(time.Second))
		fmt.Fprintf(nc, "-ERR %s\r\n", says(err))
		return
	}
	defer s.remove(c)
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	c.run()
}

func (s *Server) add(c *conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.leaving:
		return sigma.Errorf("text.Server", sigma.KindUnavailable, "this member is leaving; connect again")
	case len(s.conns) >= s.cfg.ConnsMax:
		return sigma.Errorf("text.Server", sigma.KindBusy, "max number of clients reached")
	}
	s.served++
	c.id = s.served
	s.conns[c] = true
	s.tasks.Add(1)
	return nil
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.long.Add(-c.inLong - c.valueLong)
	s.tasks.Done()
}

// Shutdown ends all connections, each when the commands that were read are answered, and returns
// when they have ended. Those that are not by the time that ctx ends, or for a second, are cut.
func (s *Server) Shutdown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainMax)
	defer cancel()
	s.mu.Lock()
	s.leaving = true
	for c := range s.conns {
		c.nc.SetReadDeadline(time.Unix(1, 0))
	}
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			c.nc.Close()
		}
	})
	defer stop()
	s.tasks.Wait()
}

// clients counts connections: now, and in all.
func (s *Server) clients() (now int, all int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns), s.served
}
