// Package outside connects services with servers outside of the system: named with an etcd that
// keeps the names, dbd with servers of databases, s3d with object stores. Services reach no network
// by themselves. They do not ask for an address but for that of a realm's database or store, which
// the provider told sigmad, so that whoever takes over one of them reaches no other. What they and
// the servers say is between them. Users: kernel.
//
// Locks: Outside.mu, a leaf, held while the file of servers is written.
package outside

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/atomicfile"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

const (
	serversFile    = "servers"
	serversMax     = 4096 // servers of all realms that are noted
	addressesMax   = 16   // of one server: those its name has
	serverDialMax  = 5 * time.Second
	serverNameMax  = 63
	serverLinksMax = 1024 // connections at once of each service: each has two sockets here
	// storeName is how the server of a realm's objects is noted; of the system's realm, those of
	// all that have no other.
	storeName = "store"
)

// places is where servers are: service, realm, name, and IP addresses with ports that are tried in
// turn.
type places map[string]map[sigma.RealmID]map[string][]string

// Config is what an Outside needs of its user.
type Config struct {
	Data     string       // directory of what is written down
	Etcd     *sigmap.Etcd // what the operator says where the names are; nil = nothing
	Services *services.Set
	Reach    *reach.Reach
	Go       func(func()) // begins what is waited for before the program ends
	// Connect makes a TCP connection to an IP address with a port; nil = nobody is connected.
	Connect func(ctx context.Context, address string) (net.Conn, error)
	// HasRealm is an error if there is no such realm, or nobody knows.
	HasRealm func(ctx context.Context, realm sigma.RealmID) error
}

// Outside is where servers outside of the system are. Safe for concurrent use.
type Outside struct {
	cfg  Config
	ctx  context.Context // set by Begin
	path string
	etcd *sigmap.Etcd // where named keeps the names; complete before named is started

	changing chan struct{} // who sets where a realm's objects are holds its token

	mu    sync.Mutex
	known places         // mu
	links map[string]int // mu; connections there are, by service
}

// New reads which servers there are.
func New(cfg Config) (*Outside, error) {
	d := &Outside{cfg: cfg, path: filepath.Join(cfg.Data, serversFile), etcd: cfg.Etcd, known: places{},
		links: map[string]int{}, changing: make(chan struct{}, 1)}
	text, err := os.ReadFile(d.path)
	if os.IsNotExist(err) {
		return d, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d.known)
	}
	return d, sigma.Wrap("kernel.servers", d.path, err)
}

// Begin sets the context of connections. It is called before there is one.
func (x *Outside) Begin(ctx context.Context) { x.ctx = ctx }

// SetServer notes where the server of a realm's database is. The provider says so.
func (x *Outside) SetServer(s sigmap.ServerAt) error {
	const op = "kernel.Server"
	if s.Name == "" || len(s.Name) > serverNameMax {
		return sigma.Errorf(op, sigma.KindInvalid, "a server of a database has a name of at most %d bytes", serverNameMax)
	}
	if !x.cfg.Services.HasDatabases() {
		return &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "this machine does not serve the databases",
			Hint: "ask on the first machine of the system: sigma machine ls shows them"}
	}
	var at []string
	if s.Address != "" {
		at = []string{s.Address}
	}
	_, err := x.note(op, services.DB, s.Realm, s.Name, at)
	return err
}

// note notes where a server is, and returns where it was. No address = it has none any more.
func (x *Outside) note(op, service string, realm sigma.RealmID, name string, at []string) (was []string, err error) {
	if err := realm.Check(); err != nil {
		return nil, err
	}
	if len(at) > addressesMax {
		return nil, sigma.Errorf(op, sigma.KindInvalid, "a server has at most %d addresses", addressesMax)
	}
	for _, a := range at {
		if _, err := netip.ParseAddrPort(a); err != nil {
			return nil, sigma.Errorf(op, sigma.KindInvalid, "a server has an IP address and a port")
		}
	}
	return was, x.change(func(all places) error {
		n := 0
		for _, realms := range all {
			for _, of := range realms {
				n += len(of)
			}
		}
		if n >= serversMax && len(at) > 0 {
			return sigma.Errorf(op, sigma.KindNoSpace, "there are %d servers, which is the limit", serversMax)
		}
		if all[service] == nil {
			all[service] = map[sigma.RealmID]map[string][]string{}
		}
		of := all[service][realm]
		if of == nil {
			of = map[string][]string{}
			all[service][realm] = of
		}
		was = of[name]
		if of[name] = at; len(at) == 0 {
			delete(of, name)
		}
		return nil
	})
}

// change changes what is noted, here and on disk.
func (x *Outside) change(do func(places) error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	changed := places{}
	for service, realms := range x.known {
		changed[service] = map[sigma.RealmID]map[string][]string{}
		for realm, of := range realms {
			changed[service][realm] = maps.Clone(of)
		}
	}
	if err := do(changed); err != nil {
		return err
	}
	text, err := json.Marshal(changed)
	if err == nil {
		err = atomicfile.Write(x.path, text)
	}
	if err != nil {
		return sigma.Wrap("kernel.servers", serversFile, err)
	}
	x.known = changed
	return nil
}

// ForgetRealm forgets where the servers of a realm are.
func (x *Outside) ForgetRealm(service string, realm sigma.RealmID) error {
	x.mu.Lock()
	none := len(x.known[service][realm]) == 0
	x.mu.Unlock()
	if none {
		return nil
	}
	return x.change(func(all places) error {
		delete(all[service], realm)
		return nil
	})
}

// RemoveRealm removes a realm's databases.
func (x *Outside) RemoveRealm(ctx context.Context, realm sigma.RealmID) error {
	if x.cfg.Services.Local(services.S3) != nil && !x.cfg.Services.HasDatabases() { // dbd would be beside s3d
		return nil
	}
	if x.cfg.Reach.Unused(ctx, realm) {
		return x.ForgetRealm(services.DB, realm)
	}
	root := x.cfg.Reach.Root(services.DatabaseService(realm))
	if err := sigmap.CallRemoveRealm.Tell(ctx, root, realm); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	return x.ForgetRealm(services.DB, realm)
}

// DialServer connects a service to a server.
func (x *Outside) DialServer(ctx context.Context, s *services.Service, to sigmap.ServerName) (*os.File, error) {
	const op = "kernel.DialServer"
	if s == nil || s.Realm == "" && s.Name != services.S3 {
		return nil, sigma.Errorf(op, sigma.KindPermission, "only dbd and s3d may ask this")
	}
	if s.Realm != "" && to.Realm != s.Realm {
		return nil, sigma.Errorf(op, sigma.KindPermission, "a dbd reaches the servers of its own realm only")
	}
	service := s.Program()
	x.mu.Lock()
	at, full := x.known[service][to.Realm][to.Name], x.links[service] >= serverLinksMax
	if !full {
		x.links[service]++
	}
	x.mu.Unlock()
	if full {
		return nil, sigma.Errorf(op, sigma.KindBusy,
			"there are %d connections with servers outside, which is the limit", serverLinksMax)
	}
	done := func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.links[service]--
	}
	if len(at) == 0 || x.cfg.Connect == nil {
		done()
		return nil, sigma.Errorf(op, sigma.KindPermission, "the provider named no server %.80q of the realm %s",
			to.Name, to.Realm)
	}
	return x.relayTo(ctx, op, at, serverDialMax, done)
}

// relayTo connects to the first of some addresses outside that answers, and gives the near end of a
// socket pair whose bytes are relayed. done is called when that is over.
func (x *Outside) relayTo(ctx context.Context, op string, at []string, most time.Duration, done func()) (*os.File,
	error) {
	far, err := x.connectTo(ctx, at, most)
	if err != nil {
		done()
		e := &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: "nobody answers there", Err: err}
		var errno syscall.Errno
		if errors.As(err, &errno) {
			e.Msg += " (" + errno.Error() + ")"
		}
		return nil, e
	}
	ours, theirs, err := session.FilePair(syscall.SOCK_STREAM)
	if err != nil {
		done()
		far.Close()
		return nil, sigma.Wrap(op, "", err)
	}
	near, err := session.UnixConn(ours)
	if err != nil {
		done()
		far.Close()
		theirs.Close()
		return nil, sigma.Wrap(op, "", err)
	}
	x.cfg.Go(func() {
		defer done()
		defer far.Close()
		defer near.Close()
		link.Relay(x.ctx, far, near)
	})
	return theirs, nil
}

// connectTo tries addresses in turn, each for its share of the time.
func (x *Outside) connectTo(ctx context.Context, at []string, most time.Duration) (far net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	end, _ := ctx.Deadline()
	for i, address := range at {
		soon, over := context.WithTimeout(ctx, time.Until(end)/time.Duration(len(at)-i))
		far, err = x.cfg.Connect(soon, address)
		over()
		if err == nil {
			return far, nil
		}
	}
	return nil, err
}
