package kernel

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

	"sigmaos.dev/atomicfile"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/link"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// dbd and s3d reach no network by themselves, as named does not (etcd.go): sigmad connects them to
// the servers of databases and to object stores. They do not ask for an address but for that of a
// realm's database or store, which the provider told sigmad, so that whoever takes over one of them
// reaches no other. What they and the servers say is between them.

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

// servers is where the servers of realms' databases and objects are.
type servers struct {
	k    *Kernel
	path string

	changing chan struct{} // who sets where a realm's objects are holds its token

	mu    sync.Mutex
	known places         // mu
	links map[string]int // mu; connections there are, by service
}

func newServers(k *Kernel) (*servers, error) {
	d := &servers{k: k, path: filepath.Join(k.cfg.Data, serversFile), known: places{}, links: map[string]int{},
		changing: make(chan struct{}, 1)}
	text, err := os.ReadFile(d.path)
	if os.IsNotExist(err) {
		return d, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d.known)
	}
	return d, sigma.Wrap("kernel.servers", d.path, err)
}

// setCall is the call server: realm, name, address ("" = none any more) of a database's. It is the
// provider's.
func (d *servers) setCall(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
	const op = "kernel.Server"
	var realm sigma.RealmID
	var name, address string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.RealmID(&realm)
		c.Str(&name)
		c.Str(&address)
	}); err != nil {
		return nil, nil, err
	}
	if name == "" || len(name) > serverNameMax {
		return nil, nil, sigma.Errorf(op, sigma.KindInvalid, "a server of a database has a name of at most %d bytes",
			serverNameMax)
	}
	if !d.k.services.HasDatabases() {
		return nil, nil, &sigma.Error{Op: op, Kind: sigma.KindUnsupported,
			Msg:  "this machine does not serve the databases",
			Hint: "ask on the first machine of the system: sigma machine ls shows them"}
	}
	var at []string
	if address != "" {
		at = []string{address}
	}
	_, err := d.note(op, services.DB, realm, name, at)
	return nil, nil, err
}

// note notes where a server is, and returns where it was. No address = it has none any more.
func (d *servers) note(op, service string, realm sigma.RealmID, name string, at []string) (was []string, err error) {
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
	return was, d.change(func(all places) error {
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
func (d *servers) change(do func(places) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := places{}
	for service, realms := range d.known {
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
		err = atomicfile.Write(d.path, text)
	}
	if err != nil {
		return sigma.Wrap("kernel.servers", serversFile, err)
	}
	d.known = changed
	return nil
}

// forgetRealm forgets where the servers of a realm are.
func (d *servers) forgetRealm(service string, realm sigma.RealmID) error {
	d.mu.Lock()
	none := len(d.known[service][realm]) == 0
	d.mu.Unlock()
	if none {
		return nil
	}
	return d.change(func(all places) error {
		delete(all[service], realm)
		return nil
	})
}

// removeRealm removes a realm's databases.
func (d *servers) removeRealm(ctx context.Context, r realms, realm sigma.RealmID) error {
	if d.k.services.Local(services.S3) != nil && !d.k.services.HasDatabases() { // dbd would be beside s3d
		return nil
	}
	if d.k.reach.Unused(ctx, realm) {
		return d.forgetRealm(services.DB, realm)
	}
	if _, err := r.admin(ctx, services.DatabaseService(realm), sigmap.CallRemove, realm); err != nil &&
		sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	return d.forgetRealm(services.DB, realm)
}

// dialServerCall is the call dial-server.
func (r *root) dialServerCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	const op = "kernel.DialServer"
	s := r.tree.k.services.Of(r.tree.principal)
	if s == nil || s.Realm == "" && s.Name != services.S3 {
		return nil, nil, sigma.Errorf(op, sigma.KindPermission, "only dbd and s3d may ask this")
	}
	var realm sigma.RealmID
	var name string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.RealmID(&realm); c.Str(&name) }); err != nil {
		return nil, nil, err
	}
	if s.Realm != "" && realm != s.Realm {
		return nil, nil, sigma.Errorf(op, sigma.KindPermission, "a dbd reaches the servers of its own realm only")
	}
	d, service := r.tree.k.servers, s.Program()
	d.mu.Lock()
	at, full := d.known[service][realm][name], d.links[service] >= serverLinksMax
	if !full {
		d.links[service]++
	}
	d.mu.Unlock()
	if full {
		return nil, nil, sigma.Errorf(op, sigma.KindBusy,
			"there are %d connections with servers outside, which is the limit", serverLinksMax)
	}
	done := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.links[service]--
	}
	if len(at) == 0 || d.k.cfg.Connect == nil {
		done()
		return nil, nil, sigma.Errorf(op, sigma.KindPermission, "the provider named no server %.80q of the realm %s",
			name, realm)
	}
	f, err := d.k.relayTo(ctx, op, at, serverDialMax, done)
	if err != nil {
		return nil, nil, err
	}
	return nil, []*os.File{f}, nil
}

// relayTo connects to the first of some addresses outside that answers, and gives the near end of a
// socket pair whose bytes are relayed. done is called when that is over.
func (k *Kernel) relayTo(ctx context.Context, op string, at []string, most time.Duration, done func()) (*os.File,
	error) {
	far, err := k.connectTo(ctx, at, most)
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
	k.sessions.Go(func() {
		defer done()
		defer far.Close()
		defer near.Close()
		link.Relay(k.ctx, far, near)
	})
	return theirs, nil
}

// connectTo tries addresses in turn, each for its share of the time.
func (k *Kernel) connectTo(ctx context.Context, at []string, most time.Duration) (far net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	end, _ := ctx.Deadline()
	for i, address := range at {
		soon, over := context.WithTimeout(ctx, time.Until(end)/time.Duration(len(at)-i))
		far, err = k.cfg.Connect(soon, address)
		over()
		if err == nil {
			return far, nil
		}
	}
	return nil, err
}
