package sdk

import (
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/fence"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/ring"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Dial implements sigma.Endpoints. The connection is a socket between the two procs, or memory that
// they share (ring.Conn); sigmad is not on its way. Of FormStream it is a *Conn. Who dials an
// endpoint often gets connections that were made in advance (pool.go).
func (c *Client) Dial(ctx context.Context, e sigma.Endpoint) (net.Conn, error) {
	if conn := c.begin(ctx, e); conn != nil {
		return conn, nil
	}
	shared, files, err := sigmap.CallDial.AskFiles(ctx, endpoints{c}, sigmap.DialAsk{To: e, Rings: true})
	if err != nil {
		return nil, err
	}
	return c.streamOf(e.Form, files, ring.Dialled, shared.Ticket, CallerAddr{c.info.Principal}, EndpointAddr{e})
}

// DialStream connects a service of the system to the service of the same name on another machine,
// where the connection arrives at the endpoint of FormStream that it listens at last.
func (c *Client) DialStream(ctx context.Context, machine sigma.MachineID, service string) (net.Conn, error) {
	_, files, err := sigmap.CallDialStream.AskFiles(ctx, endpoints{c}, sigmap.StreamAsk{Machine: machine,
		Service: service})
	if err != nil {
		return nil, err
	}
	return connOf(files, CallerAddr{c.info.Principal},
		EndpointAddr{sigma.Endpoint{Realm: sigma.SystemRealm, Machine: machine, Form: sigma.FormStream}})
}

// Etcd says in which etcd named keeps the names; nil: in one of its own. Only named may ask.
func (c *Client) Etcd(ctx context.Context) (*sigmap.Etcd, error) {
	return sigmap.CallEtcd.Ask(ctx, endpoints{c}, sigmap.None{})
}

// DialEtcd connects named to a member of that etcd.
func (c *Client) DialEtcd(ctx context.Context, name string) (net.Conn, error) {
	_, files, err := sigmap.CallDialEtcd.AskFiles(ctx, endpoints{c}, name)
	if err != nil {
		return nil, err
	}
	return connOf(files, CallerAddr{c.info.Principal},
		EndpointAddr{sigma.Endpoint{Realm: sigma.SystemRealm, Form: sigma.FormStream}})
}

// DialServer connects dbd to the server of a realm's database, of which the provider told sigmad.
func (c *Client) DialServer(ctx context.Context, realm sigma.RealmID, name string) (net.Conn, error) {
	_, files, err := sigmap.CallDialServer.AskFiles(ctx, endpoints{c}, sigmap.ServerName{Realm: realm, Name: name})
	if err != nil {
		return nil, err
	}
	return connOf(files, CallerAddr{c.info.Principal},
		EndpointAddr{sigma.Endpoint{Realm: sigma.SystemRealm, Form: sigma.FormStream}})
}

// DialStore connects s3d to the object store of a realm, of which the provider told sigmad; of the
// system's, to that of all that have none of their own.
func (c *Client) DialStore(ctx context.Context, realm sigma.RealmID) (net.Conn, error) {
	return c.DialServer(ctx, realm, "store")
}

// DialPath dials the endpoint in the file at path.
func (c *Client) DialPath(ctx context.Context, path string) (net.Conn, error) {
	text, err := c.ReadLink(ctx, path)
	if err != nil {
		return nil, err
	}
	e, err := sigma.ParseEndpoint(text)
	if err != nil {
		return nil, sigma.Wrap("sdk.DialPath", path, err)
	}
	return c.Dial(ctx, e)
}

// Revoke takes back an endpoint of this proc, or as the provider any: nobody dials it any more, and
// the connections that were made to it are ended, on this machine and with others. They have been
// when it returns.
func (c *Client) Revoke(ctx context.Context, e sigma.Endpoint) error {
	return sigmap.CallRevoke.Tell(ctx, endpoints{c}, e)
}

// ConnectionLog gives the latest things that happened to connections of this machine's procs, as
// JSON lines (report.ConnectionEvent).
func (c *Client) ConnectionLog(ctx context.Context) ([]byte, error) {
	return sigmap.CallLog.Ask(ctx, endpoints{c}, sigmap.None{})
}

// Publish writes e into the file at path, replacing what is there.
func (c *Client) Publish(ctx context.Context, path string, e sigma.Endpoint, lease sigma.LeaseID) error {
	_, err := c.Put(ctx, path, []byte(e.String()), sigma.PutOptions{Kind: sigma.KindEndpoint, Lease: lease})
	return err
}

func connOf(files []*os.File, local, remote net.Addr) (net.Conn, error) {
	socket, err := oneOf("sdk.Dial", files, nil)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	c, err := net.FileConn(socket)
	if err != nil {
		return nil, err
	}
	s, ok := c.(ring.Stream)
	if !ok {
		c.Close()
		return nil, sigma.Errorf("sdk.Dial", sigma.KindInvalid, "sigmad passed what is no socket of a connection")
	}
	return &conn{Stream: s, local: local, remote: remote}, nil
}

// Conn is a connection of FormStream, whose addresses are who is at its ends. Its transport is
// chosen underneath.
type Conn struct {
	*ring.Conn
	local, remote net.Addr
	member        atomic.Pointer[member] // that a Dialer counts it for; nil = none
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	if m := c.member.Swap(nil); m != nil {
		m.open.Add(-1)
	}
	return c.Conn.Close()
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// streamOf makes a connection of what sigmad passed: a socket, and with a ticket, which only a pair
// of this machine has, perhaps its memory.
func (c *Client) streamOf(form sigma.ConnForm, files []*os.File, side ring.Side, ticket string, local,
	remote net.Addr) (net.Conn, error) {
	var nc ring.Stream
	var memory *os.File
	if form == sigma.FormStream && ticket != "" && (len(files) == 1 || len(files) == 2) {
		if nc = ring.FileStream(files[0]); len(files) == 2 {
			memory = files[1]
		}
	} else {
		other, err := connOf(files, local, remote)
		if err != nil || form != sigma.FormStream {
			return other, err
		}
		nc = other.(*conn).Stream
	}
	r, err := c.rings.New(nc, side, []byte(ticket), memory)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &Conn{Conn: r, local: local, remote: remote}, nil
}

// UseTransport has connections that are made from now on use a transport: ring.Socket, ring.Shared,
// or ring.Automatic, what the traffic warrants. It is for debugging and measuring; (*Conn).Use does
// it for one.
func (c *Client) UseTransport(t ring.Transport) { c.rings.Use(t) }

// claimRing asks for the memory of a connection.
func (c *Client) claimRing(ctx context.Context, ticket []byte) (*os.File, error) {
	_, files, err := sigmap.CallRing.AskFiles(ctx, endpoints{c}, string(ticket))
	return oneOf("sdk.claimRing", files, err)
}

// claimMeter asks for the proc's meter. Of a program that is no proc nothing is counted.
func (c *Client) claimMeter(ctx context.Context) (*os.File, error) {
	if p := c.info.Principal; p.Proc == "" || p.Realm == sigma.SystemRealm {
		return nil, &sigma.Error{Op: "sdk.claimMeter", Kind: sigma.KindUnsupported,
			Msg: "only what procs of realms carry is counted"}
	}
	_, files, err := sigmap.CallMeter.AskFiles(ctx, endpoints{c}, sigmap.None{})
	return oneOf("sdk.claimMeter", files, err)
}

// oneOf is the file that an answer has.
func oneOf(op string, files []*os.File, err error) (*os.File, error) {
	if err == nil && len(files) != 1 {
		session.CloseFiles(files)
		err = sigma.Errorf(op, sigma.KindInvalid, "sigmad passed %d files, not one", len(files))
	}
	if err != nil {
		return nil, err
	}
	return files[0], nil
}

// releaseRing says that it is not used any more. If that does not reach sigmad, it finds out when
// the proc ends.
func (c *Client) releaseRing(ticket []byte) {
	t := string(ticket)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), drainMax)
		defer cancel()
		sigmap.CallEndRing.Tell(ctx, endpoints{c}, t)
	}()
}

// conn is a passed socket whose addresses are who is at its ends. It keeps what sockets have
// besides net.Conn: CloseRead and CloseWrite.
type conn struct {
	ring.Stream
	local, remote net.Addr
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// EndpointAddr is the address of the side of a connection that listens.
type EndpointAddr struct{ sigma.Endpoint }

// Network implements net.Addr.
func (EndpointAddr) Network() string { return "sigma" }

// String implements net.Addr.
func (a EndpointAddr) String() string { return string(a.Proc) + "/" + string(a.ID) }

// CallerAddr is the address of the side that dialled: RemoteAddr of a connection that was accepted
// tells so who called, as its machine says.
type CallerAddr struct{ sigma.Principal }

// Network implements net.Addr.
func (CallerAddr) Network() string { return "sigma" }

// String implements net.Addr.
func (a CallerAddr) String() string {
	if a.Proc == "" {
		return string(a.Machine) + "/outside"
	}
	return string(a.Machine) + "/" + string(a.Proc)
}

// mount attaches to the tree behind an endpoint, for the namespace.
func (c *Client) mount(ctx context.Context, e sigma.Endpoint) (sigma.File, <-chan struct{}, error) {
	s, err := c.DialTree(ctx, e)
	if err != nil {
		return nil, nil, err
	}
	name := ""
	if c.info.Principal.System && e.Realm == sigma.SystemRealm {
		name =
			string(
				// the provider's servers have a tree for each realm; an outside program acts for
				// the one it connected to
				c.info.Principal.Realm)
	}
	root, err := s.Attach(ctx, name)
	if err == nil && !c.keep(s) {
		err = sigma.Errorf("sdk.Client", sigma.KindUnavailable, "the client is closed")
	}
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return root, s.Done(), nil
}

// keep notes a session that Close has to end, and forgets those that have ended. It reports whether
// the client is open.
func (c *Client) keep(s *session.Client) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mounts == nil {
		return false
	}
	for m := range c.mounts {
		select {
		case <-m.Done():
			delete(c.mounts, m)
		default:
		}
	}
	c.mounts[s] = true
	return true
}

// DialTree dials an endpoint of FormTree and starts a session.
func (c *Client) DialTree(ctx context.Context, e sigma.Endpoint) (*session.Client, error) {
	_, files, err := sigmap.CallDial.AskFiles(ctx, endpoints{c}, sigmap.DialAsk{To: e})
	socket, err := oneOf("sdk.DialTree", files, err)
	if err != nil {
		return nil, err
	}
	conn, err := session.FromFile(socket)
	if err != nil {
		return nil, err
	}
	return session.Dial(ctx, conn)
}

// sessionsMax bounds what one proc may have open at one tree. A session costs the server a file
// descriptor and about 70 KiB, and a proc needs one.
const sessionsMax = 16

// Gate is what a tree may be besides: it is asked about each session, which lasts no longer than
// the context that it answers. done is called when the session has ended.
type Gate interface {
	Session(ctx context.Context, p sigma.Principal) (_ context.Context, done func(), err error)
}

// ServeTree serves tree to everybody who dials l, a listener of FormTree, until ctx ends or the
// listener is closed. A slow or silent client delays nobody, and one that opens sessions without
// end has the later ones closed. Requests of deposed leaders are refused (AdvanceEpoch), as long as
// ServeTree has not been called anew.
func (c *Client) ServeTree(ctx context.Context, l sigma.Listener, tree sigma.Tree) error {
	var sessions sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer sessions.Wait()
	defer cancel()
	var mu sync.Mutex
	open := map[sigma.ProcID]int{} // mu
	fences := map[sigma.RealmID]*fence.Table{}
	var turns *treeserver.Turns
	if c.info.Principal.Realm == sigma.SystemRealm { // a service, which works for realms
		turns = treeserver.NewTurns()
		sessions.Go(func() { c.tellWork(ctx, turns) })
	}
	for {
		nc, p, err := l.AcceptFrom(ctx)
		if err != nil {
			return err
		}
		var packets *net.UnixConn
		passed, ok := nc.(*conn)
		if ok {
			packets, ok = passed.Stream.(*net.UnixConn)
		}
		if !ok {
			nc.Close()
			return sigma.Errorf("sdk.ServeTree", sigma.KindInvalid, "the listener is not one of this SDK")
		}
		mu.Lock()
		full := open[p.Proc] >= sessionsMax && !p.System
		if !full {
			open[p.Proc]++
		}
		mu.Unlock()
		if full {
			nc.Close()
			continue
		}
		if fences[p.Realm] == nil {
			fences[p.Realm] = fence.NewTable(fence.Config{})
		}
		serve := treeserver.Config{Tree: tree, Principal: p, Fences: fences[p.Realm], Turns: turns, ForRealms: p.System}
		if p.System { // it speaks for many realms, and only with services that look after fences themselves
			serve.Fences = nil
		}
		sessions.Go(func() {
			serveSession(ctx, packets, serve)
			mu.Lock()
			defer mu.Unlock()
			if open[p.Proc]--; open[p.Proc] == 0 {
				delete(open, p.Proc)
			}
		})
	}
}

func serveSession(ctx context.Context, c *net.UnixConn, cfg treeserver.Config) {
	if g, ok := cfg.Tree.(Gate); ok {
		of, done, err := g.Session(ctx, cfg.Principal)
		if err != nil {
			c.Close()
			return
		}
		defer done()
		ctx = of
	}
	treeserver.Serve(ctx, session.NewPacketConn(c, false), cfg)
}
