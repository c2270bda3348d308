package viewfs

import (
	"context"
	"os"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Limits of one proc that has a view. What it reaches beyond its machine's own places is reached by
// sigmad for it.
const (
	EnteredMost = 16   // trees behind endpoints that sigmad has entered for it
	readMost    = 1024 // endpoints that it has read and may dial; of more, all are forgotten and have to be read again
	enterMost   = 5 * time.Second
	HopsMost    = 40 // endpoints on one path, as for links
)

// Viewer is the session of a proc that does not see all of its realm: what decides about each of
// its requests (docs/reference/views.md). The files that it hands out are viewFiles, so that the
// rights of an entry go with whatever is reached by it. Of symlinks it tells the client, who goes
// on at the root of its own view; through trees behind endpoints it walks itself.
//
// A proc that sees all has none, and pays nothing for those that have.
type Viewer struct {
	cfg     Config
	entered resolve.Servers[*entered]

	mu   sync.Mutex
	read map[string]bool // mu; texts of stream endpoints
}

// entered is the tree behind an endpoint.
type entered struct {
	client *session.Client
	root   sigma.File
	id     sigma.FileID
	by     sigma.ProcID // who serves it; "" = the system
}

// Config says whose session it is and what it reaches. The functions are safe for concurrent use.
type Config struct {
	Who   sigma.Principal
	Table *view.Table    // what the session sees
	Kin   []sigma.ProcID // ancestors of the proc that have views
	// Role is that of the credential by which a program outside has the session; "" = it is a
	// proc's.
	Role string
	// Root gives the root of the realm. Its calls know of the view.
	Root func() sigma.File
	// Dial connects to an endpoint as the session's principal.
	Dial func(ctx context.Context, e sigma.Endpoint) (*os.File, error)
	// Holds reports whether the session was granted the lease.
	Holds func(id sigma.LeaseID) bool
}

// New makes the session's viewer. Release ends it.
func New(cfg Config) *Viewer {
	return &Viewer{cfg: cfg, read: map[string]bool{},
		entered: resolve.Servers[*entered]{Most: EnteredMost, Drop: func(e *entered) { e.client.Close() }}}
}

// Table is what the session sees.
func (v *Viewer) Table() *view.Table { return v.cfg.Table }

// Kin are the ancestors of the proc that have views.
func (v *Viewer) Kin() []sigma.ProcID { return v.cfg.Kin }

// Caps tells what the proc has come to by its view.
func (v *Viewer) Caps(c *sigmap.Caps) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c.Entered += uint32(v.entered.Len())
	for text := range v.read {
		if e, err := sigma.ParseEndpoint(text); err == nil {
			c.Read = append(c.Read, e)
		}
	}
}

// Root is what the proc's paths start at.
func (v *Viewer) Root() sigma.File {
	return v.hollow([]string{}, sigma.FileID{Kind: sigma.KindDir, Path: PathID("/")})
}

// note lets the proc dial an endpoint whose text it was told.
func (v *Viewer) note(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.read) >= readMost {
		clear(v.read)
	}
	v.read[text] = true
}

// knows reports whether the proc made the endpoint or was told of it by its view.
func (v *Viewer) knows(e sigma.Endpoint) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return e.Proc == v.cfg.Who.Proc || v.read[e.String()]
}

// MayDial says whether the proc may connect to an endpoint.
func (v *Viewer) MayDial(e sigma.Endpoint) error {
	const op = "kernel.Dial"
	switch {
	case e.Form == sigma.FormTree:
		return &sigma.Error{Op: op, Kind: sigma.KindPermission, Msg: "a proc with a view does not dial trees",
			Hint: "walk through the endpoint's file"}
	case !v.knows(e):
		return &sigma.Error{Op: op, Kind: sigma.KindPermission, Msg: "the endpoint was not read in this proc's view",
			Hint: "read its file first, also after a restart of sigmad"}
	}
	return nil
}

// enter gives the root of the tree behind an endpoint. Sessions are kept until they end, or the
// proc's does.
func (v *Viewer) enter(ctx context.Context, text string) (*entered, error) {
	ep, err := sigma.ParseEndpoint(text)
	if err != nil {
		return nil, err
	}
	return v.entered.Get(ctx, text, func(ctx context.Context) (*entered, <-chan struct{}, error) {
		c, root, id, err := v.attach(ctx, ep)
		if err != nil {
			return nil, nil, err
		}
		e := &entered{client: c, root: root, id: id}
		if ep.Realm != sigma.SystemRealm {
			e.by = ep.Proc
		}
		return e, c.Done(), nil
	})
}

// attach is what the proc would do itself if it could dial trees: it is who the server sees.
func (v *Viewer) attach(ctx context.Context, e sigma.Endpoint) (*session.Client, sigma.File, sigma.FileID, error) {
	ctx, cancel := context.WithTimeout(ctx, enterMost)
	defer cancel()
	fail := func(err error) (*session.Client, sigma.File, sigma.FileID, error) {
		if ctx.Err() == context.DeadlineExceeded {
			err = sigma.Errorf("kernel.view", sigma.KindUnavailable,
				"the server behind an endpoint of the path does not answer")
		}
		return nil, nil, sigma.FileID{}, err
	}
	socket, err := v.cfg.Dial(ctx, e)
	if err != nil {
		return fail(err)
	}
	conn, err := session.FromFile(socket)
	if err != nil {
		return fail(err)
	}
	c, err := session.Dial(ctx, conn)
	if err != nil {
		return fail(err)
	}
	root, err := c.Attach(ctx, "")
	if err == nil {
		var st sigma.Stat
		if st, err = root.Stat(ctx); err == nil {
			return c, root, st.ID, nil
		}
	}
	c.Close()
	return fail(err)
}

// Release ends what sigmad entered for the proc.
func (v *Viewer) Release() { v.entered.Close() }

// AllProcs are the rights that a view gives to all procs of the realm.
func (v *Viewer) AllProcs() sigma.Rights { return v.Table().Grants([]string{sigma.NameProc}) }

// PathID is the id of a computed file: the hash of its path, with a bit that inodes and named's
// numbers do not have.
func PathID(path string) uint64 {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(path) {
		h = (h ^ uint64(path[i])) * 1099511628211
	}
	return h | 1<<63
}
