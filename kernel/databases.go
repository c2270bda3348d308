package kernel

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/link"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// dbd reaches no network by itself, as named does not (etcd.go): sigmad connects it to the servers of databases. It does not ask for an address but for that of a realm's database, which the provider told sigmad, so that whoever takes over dbd
// reaches no other. What dbd and the server say is between them.

const (
	serversFile    = "databases"
	serversMax     = 4096 // servers of all realms that are noted
	serverDialMax  = 5 * time.Second
	serverNameMax  = 63
	serverLinksMax = 1024 // connections at once: each has two sockets here
)

// databases is where the servers of realms' databases are: realm, name of the database, IP address and port.
type databases struct {
	k    *Kernel
	path string

	mu      sync.Mutex
	servers map[sigma.RealmID]map[string]string // mu
	links   int                                 // mu; connections there are
}

func newDatabases(k *Kernel) (*databases, error) {
	d := &databases{k: k, path: filepath.Join(k.cfg.Data, serversFile), servers: map[sigma.RealmID]map[string]string{}}
	text, err := os.ReadFile(d.path)
	if os.IsNotExist(err) {
		return d, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d.servers)
	}
	return d, sigma.Wrap("kernel.databases", d.path, err)
}

// setCall is the call server: realm, name, address ("" = none any more). It is the provider's.
func (d *databases) setCall(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
	const op = "kernel.Server"
	var realm sigma.RealmID
	var name, address string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.RealmID(&realm); c.Str(&name); c.Str(&address) }); err != nil {
		return nil, nil, err
	}
	if err := realm.Check(); err != nil {
		return nil, nil, err
	}
	if _, err := netip.ParseAddrPort(address); address != "" && err != nil || name == "" || len(name) > serverNameMax {
		return nil, nil, sigma.Errorf(op, sigma.KindInvalid, "a server of a database has a name, an IP address and a port")
	}
	if d.k.local(serviceDB) == nil {
		return nil, nil, &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "this machine does not serve the databases", Hint: "ask on the first machine of the system: sigma machine ls shows them"}
	}
	return nil, nil, d.change(func(servers map[sigma.RealmID]map[string]string) error {
		n := 0
		for _, of := range servers {
			n += len(of)
		}
		if n >= serversMax && address != "" {
			return sigma.Errorf(op, sigma.KindNoSpace, "there are %d servers of databases, which is the limit", serversMax)
		}
		if servers[realm] == nil {
			servers[realm] = map[string]string{}
		}
		if servers[realm][name] = address; address == "" {
			delete(servers[realm], name)
		}
		return nil
	})
}

// change changes what is noted, here and on disk.
func (d *databases) change(do func(map[sigma.RealmID]map[string]string) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := map[sigma.RealmID]map[string]string{}
	for realm, of := range d.servers {
		changed[realm] = map[string]string{}
		for name, address := range of {
			changed[realm][name] = address
		}
	}
	if err := do(changed); err != nil {
		return err
	}
	text, err := json.Marshal(changed)
	if err == nil {
		err = os.WriteFile(d.path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(d.path+".new", d.path)
	}
	if err != nil {
		return sigma.Wrap("kernel.databases", serversFile, err)
	}
	d.servers = changed
	return nil
}

// removeRealm removes a realm's databases.
func (d *databases) removeRealm(ctx context.Context, r realms, realm sigma.RealmID) error {
	if d.k.local(serviceS3) != nil && d.k.local(serviceDB) == nil { // dbd would be beside s3d
		return nil
	}
	if _, err := r.admin(ctx, serviceDB, sigmap.CallRemove, realm); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	if d.k.local(serviceDB) == nil {
		return nil
	}
	return d.change(func(servers map[sigma.RealmID]map[string]string) error {
		delete(servers, realm)
		return nil
	})
}

// dialServerCall is the call dial-server.
func (r *root) dialServerCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	const op = "kernel.DialServer"
	if s := r.tree.k.service(r.tree.principal); s == nil || s.name != serviceDB {
		return nil, nil, sigma.Errorf(op, sigma.KindPermission, "only dbd may ask this")
	}
	var realm sigma.RealmID
	var name string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.RealmID(&realm); c.Str(&name) }); err != nil {
		return nil, nil, err
	}
	d := r.tree.k.databases
	d.mu.Lock()
	address, full := d.servers[realm][name], d.links >= serverLinksMax
	if !full {
		d.links++
	}
	d.mu.Unlock()
	if full {
		return nil, nil, sigma.Errorf(op, sigma.KindBusy, "there are %d connections with servers of databases, which is the limit", serverLinksMax)
	}
	done := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.links--
	}
	if address == "" || d.k.cfg.Connect == nil {
		done()
		return nil, nil, sigma.Errorf(op, sigma.KindPermission, "the provider named no server of the database %.80q", name)
	}
	f, err := d.k.relayTo(ctx, op, address, serverDialMax, done)
	if err != nil {
		return nil, nil, err
	}
	return nil, []*os.File{f}, nil
}

// relayTo connects to an address outside, and gives the near end of a socket pair whose bytes are relayed. done is called when that is over.
func (k *Kernel) relayTo(ctx context.Context, op, address string, most time.Duration, done func()) (*os.File, error) {
	soon, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	far, err := k.cfg.Connect(soon, address)
	if err != nil {
		done()
		return nil, &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: "nobody answers there", Err: err}
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
