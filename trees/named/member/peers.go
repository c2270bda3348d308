package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.uber.org/zap"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// etcd's members reach each other over streams that somebody else makes (sigmad's authenticated
// links), and etcd itself opens no port. It insists on dialling URLs, so the URL of machine m2 is
// unix://m2:1, which it dials as the socket file "m2:1" in the working directory of the process; a
// goroutine here takes each connection and joins it to a stream. What comes in needs no socket at
// all: its streams are handed to an HTTP server with etcd's own handler.

// Peers is how the members of the store reach each other. Safe for concurrent use.
type Peers interface {
	// Dial connects to the named of another machine.
	Dial(ctx context.Context, m sigma.MachineID) (net.Conn, error)
	// Listen begins to take connections from others. It is called once a second member is known,
	// not before, and at most once.
	Listen(ctx context.Context) (sigma.Listener, error)
}

const (
	peerPort = ":1" // etcd wants one in a URL
	// peerSilence ends a connection over which nothing came. etcd says something on each of its
	// lasting ones every 1.7 s, but sets no limit itself when it dials a socket file, and a link
	// that was cut may never tell.
	peerSilence = 4 * time.Second
	peerDialMax = 3 * time.Second
	peerChunk   = 64 << 10
	socketDir   = "peers" // of the data directory; the working directory of the process
	// staleAfter is the age at which a connection to a member that etcd holds for unconnected is
	// stale. It is above etcdserver.HealthInterval, for which a member must have been connected.
	staleAfter = etcdserver.HealthInterval + time.Second
)

func peerURL(m sigma.MachineID) url.URL { return url.URL{Scheme: "unix", Host: string(m) + peerPort} }

// machineOfURL is the machine that a member's URL means; "" if none.
func machineOfURL(text string) sigma.MachineID {
	host, ours := strings.CutPrefix(text, "unix://")
	host, whole := strings.CutSuffix(host, peerPort)
	if !ours || !whole {
		return ""
	}
	return sigma.MachineID(host)
}

// EnterSocketDir makes the directory of the peers' sockets below the data directory and makes it
// the working directory of this process, where etcd looks for them.
func EnterSocketDir(data string) error {
	dir := filepath.Join(data, socketDir)
	if err := os.RemoveAll(dir); err != nil { // the sockets that a named left which was killed
		return sigma.Wrap("named.EnterSocketDir", dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return sigma.Wrap("named.EnterSocketDir", dir, err)
	}
	return sigma.Wrap("named.EnterSocketDir", dir, os.Chdir(dir))
}

// network carries etcd's traffic with other members.
type network struct {
	self  sigma.MachineID
	peers Peers
	log   *slog.Logger
	ctx   context.Context // of all goroutines
	stop  context.CancelFunc
	work  sync.WaitGroup

	mu       sync.Mutex
	sockets  map[sigma.MachineID]net.Listener // mu
	dialled  map[net.Conn]time.Time           // mu; etcd's connections to others, and since when
	heard    map[sigma.MachineID]time.Time    // mu
	listener sigma.Listener                   // mu
	arrivals *arrivals                        // mu
}

func newNetwork(self sigma.MachineID, peers Peers, log *slog.Logger) *network {
	ctx, stop := context.WithCancel(context.Background())
	return &network{self: self, peers: peers, log: log, ctx: ctx, stop: stop,
		sockets: map[sigma.MachineID]net.Listener{}, dialled: map[net.Conn]time.Time{},
		heard: map[sigma.MachineID]time.Time{}}
}

func (n *network) close() {
	n.stop()
	n.mu.Lock()
	for _, s := range n.sockets {
		s.Close()
	}
	clear(n.sockets)
	l, a := n.listener, n.arrivals
	n.mu.Unlock()
	if l != nil {
		l.Close()
		a.Close()
	}
	n.work.Wait()
}

// reach makes the sockets of exactly these other machines.
func (n *network) reach(machines []sigma.MachineID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	wanted := map[sigma.MachineID]bool{}
	for _, m := range machines {
		if m == n.self || m == "" || m.Check() != nil {
			continue
		}
		wanted[m] = true
		if n.sockets[m] != nil || n.ctx.Err() != nil {
			continue
		}
		name := string(m) + peerPort
		os.Remove(name) // of a process before
		l, err := net.Listen("unix", name)
		if err != nil {
			return sigma.Wrap("named.reach", name, err)
		}
		n.sockets[m] = l
		n.work.Go(func() { n.forward(l, m) })
	}
	for m, l := range n.sockets {
		if !wanted[m] {
			l.Close()
			delete(n.sockets, m)
		}
	}
	return nil
}

// forward joins what etcd dials to streams.
func (n *network) forward(l net.Listener, m sigma.MachineID) {
	for {
		near, err := l.Accept()
		if err != nil {
			return
		}
		n.work.Go(func() {
			ctx, cancel := context.WithTimeout(n.ctx, peerDialMax)
			far, err := n.peers.Dial(ctx, m)
			cancel()
			if err != nil {
				near.Close()
				return
			}
			n.setDialled(near, true)
			defer n.setDialled(near, false)
			n.join(near, n.listening(far, m))
		})
	}
}

func (n *network) setDialled(c net.Conn, is bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if is {
		n.dialled[c] = time.Now()
	} else {
		delete(n.dialled, c)
	}
}

// renew ends the connections that etcd has made to other members for longer than staleAfter. It is
// called when etcd refuses a change because it is not connected. etcd holds a member for
// unconnected if one message could not be posted to it, as while the member starts, and takes that
// back only when it dials the member again, which it does not do while its streams last. The
// streams are made anew within 0.1 s.
func (n *network) renew() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c, since := range n.dialled {
		if time.Since(since) > staleAfter {
			c.Close()
		}
	}
}

// join copies both ways until one side ends, both are silent for too long, or the network is
// closed.
func (n *network) join(near, far net.Conn) {
	stop := context.AfterFunc(n.ctx, func() { near.Close(); far.Close() })
	defer stop()
	silent := time.AfterFunc(peerSilence, func() { near.Close(); far.Close() })
	defer silent.Stop()
	var both sync.WaitGroup
	for _, route := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			b := make([]byte, peerChunk)
			for {
				k, err := route[0].Read(b)
				if k > 0 {
					silent.Reset(peerSilence)
					if _, werr := route[1].Write(b[:k]); werr != nil {
						break
					}
				}
				if err != nil {
					break
				}
			}
			if half, ok := route[1].(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
				route[1].Close()
			}
		})
	}
	both.Wait()
	near.Close()
	far.Close()
}

// heardConn notes when something came from a machine.
type heardConn struct {
	net.Conn
	n *network
	m sigma.MachineID
}

func (c *heardConn) Read(b []byte) (int, error) {
	k, err := c.Conn.Read(b)
	if k > 0 {
		c.n.mu.Lock()
		c.n.heard[c.m] = time.Now()
		c.n.mu.Unlock()
	}
	return k, err
}

func (c *heardConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}

func (n *network) listening(c net.Conn, m sigma.MachineID) net.Conn { return &heardConn{c, n, m} }

// lastHeard is when something came from a machine last; zero if never.
func (n *network) lastHeard(m sigma.MachineID) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.heard[m]
}

// serve begins to take streams of other members, if that was not begun before.
func (n *network) serve(ctx context.Context, s *etcdserver.EtcdServer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listener != nil || n.ctx.Err() != nil {
		return nil
	}
	l, err := n.peers.Listen(ctx)
	if err != nil {
		return err
	}
	a := &arrivals{conns: make(chan net.Conn), closed: make(chan struct{})}
	n.listener, n.arrivals = l, a
	srv := &http.Server{Handler: etcdhttp.NewPeerHandler(zap.New(slogCore{log: n.log}), s),
		ReadHeaderTimeout: peerSilence, IdleTimeout: peerSilence, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	n.work.Go(func() { srv.Serve(a) })
	n.work.Go(func() { <-n.ctx.Done(); srv.Close() })
	n.work.Go(func() {
		for {
			c, p, err := l.AcceptFrom(n.ctx)
			switch {
			case err == nil && p.System: // sigmad lets nobody else in; were it otherwise, nobody else shall reach etcd
				a.add(n.listening(c, p.Machine))
			case err == nil:
				c.Close()
			case n.ctx.Err() != nil:
				return
			default:
				n.log.Warn("the other members' streams cannot be taken", "err", err)
				retry.Pause(n.ctx, time.Second)
			}
		}
	})
	return nil
}

// arrivals is a net.Listener of connections that came otherwise.
type arrivals struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (a *arrivals) add(c net.Conn) {
	select {
	case a.conns <- c:
	case <-a.closed:
		c.Close()
	}
}

func (a *arrivals) Accept() (net.Conn, error) {
	select {
	case c := <-a.conns:
		return c, nil
	case <-a.closed:
		return nil, net.ErrClosed
	}
}

func (a *arrivals) Close() error {
	a.once.Do(func() { close(a.closed) })
	return nil
}

func (a *arrivals) Addr() net.Addr { return &net.UnixAddr{Name: "peers", Net: "unix"} }

// remoteMember is what a member tells of another.
type remoteMember struct {
	ID        uint64   `json:"id"`
	PeerURLs  []string `json:"peerURLs"`
	IsLearner bool     `json:"isLearner"`
}

// remoteMembersMax bounds what another member says.
const remoteMembersMax = 64 << 10

// members asks another machine's named who the members are.
func (n *network) members(ctx context.Context, m sigma.MachineID) (ms []remoteMember, err error) {
	ctx, cancel := context.WithTimeout(ctx, peerDialMax)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return n.peers.Dial(ctx, m)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+string(m)+peerPort+"/members", nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("machine %s answers %s", m, res.Status)
	}
	err = json.NewDecoder(io.LimitReader(res.Body, remoteMembersMax)).Decode(&ms)
	if err == nil && len(ms) > 2*membersMax {
		err = errors.New("too many members")
	}
	return ms, err
}
