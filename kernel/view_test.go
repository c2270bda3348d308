package kernel

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// prog is a proc as its own code sees sigmaOS.
type prog struct {
	*resolve.Tree
	p    *fakeProc
	root sigma.File
	id   sigma.ProcID
}

// startProg spawns a proc for which the test acts.
func (m *machine) startProg(d sigma.Descriptor) *prog {
	m.t.Helper()
	c := m.connect(sigma.DefaultRealm)
	id := m.spawn(c, d)
	return m.started(id)
}

// started connects as the proc that was launched last.
func (m *machine) started(id sigma.ProcID) *prog {
	m.t.Helper()
	p := <-m.procs
	if err := p.open(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	g := &prog{p: p, root: p.root, id: id}
	g.Tree = resolve.New(resolve.Config{Root: p.root, Machine: m.k.cfg.Machine, Dial: g.enter})
	return g
}

// dial asks sigmad for a connection.
func (g *prog) dial(ctx context.Context, e sigma.Endpoint) (*os.File, error) {
	_, files, err := sigmap.CallDial.AskFiles(ctx, endpointsOf{g.root}, sigmap.DialAsk{To: e})
	if err != nil {
		return nil, err
	}
	return files[0], nil
}

func (g *prog) enter(ctx context.Context, e sigma.Endpoint) (sigma.File, <-chan struct{}, error) {
	f, err := g.dial(ctx, e)
	if err != nil {
		return nil, nil, err
	}
	conn, err := session.FromFile(f)
	if err != nil {
		return nil, nil, err
	}
	c, err := session.Dial(ctx, conn)
	if err != nil {
		return nil, nil, err
	}
	root, err := c.Attach(ctx, "")
	return root, c.Done(), err
}

func (g *prog) listen(ctx context.Context, form sigma.ConnForm) (sigma.Endpoint, error) {
	return sigmap.CallListen.Ask(ctx, endpointsOf{g.root}, sigmap.ListenAsk{Form: form})
}

func (g *prog) spawn(ctx context.Context, d sigma.Descriptor) (ids []sigma.ProcID, err error) {
	ds := []sigma.Descriptor{d}
	reply, _, err := call(ctx, g.root, sigmap.FileProcs, sigmap.CallSpawn.Name,
		func(c *sigmap.Coder) { c.Descriptors(&ds) })
	if err == nil {
		err = sigmap.Parse(reply, func(c *sigmap.Coder) { c.ProcIDs(&ids) })
	}
	return ids, err
}

// about calls a method of /sys/procs about one proc.
func (g *prog) about(ctx context.Context, method string, id sigma.ProcID) error {
	_, _, err := call(ctx, g.root, sigmap.FileProcs, method, func(c *sigmap.Coder) {
		c.ProcID(&id)
		if grace := time.Duration(0); method == sigmap.CallEvict.Name {
			c.Duration(&grace)
		}
	})
	return err
}

func (g *prog) list(ctx context.Context) (ids []sigma.ProcID, err error) {
	all, at, after := true, "", uint64(0)
	reply, _, err := call(ctx, g.root, sigmap.FileProcs, sigmap.CallListProcs.Name, func(c *sigmap.Coder) {
		c.Bool(&all)
		c.Str(&at)
		c.U64(&after)
	})
	var infos []sigma.ProcInfo
	var more bool
	if err == nil {
		err = sigmap.Parse(reply, func(c *sigmap.Coder) {
			c.ProcInfos(&infos)
			c.Bool(&more)
			c.Str(&at)
			c.U64(&after)
		})
	}
	for _, i := range infos {
		ids = append(ids, i.ID)
	}
	return ids, err
}

// serveTree serves a tree as the proc, until the test is over.
func (g *prog) serveTree(t *testing.T, tree sigma.Tree) sigma.Endpoint {
	t.Helper()
	e, err := g.listen(t.Context(), sigma.FormTree)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			got, files, err := sigmap.CallAccept.AskFiles(t.Context(), endpointsOf{g.root}, sigmap.AcceptAsk{ID: e.ID})
			if err != nil {
				return
			}
			if conn, err := session.FromFile(files[0]); err == nil {
				go treeserver.Serve(t.Context(), conn, treeserver.Config{Tree: tree, Principal: got.From})
			}
		}
	}()
	return e
}

// publish makes the file of an endpoint.
func publish(ctx context.Context, ns sigma.Namespace, path string, e sigma.Endpoint) error {
	_, err := ns.Put(ctx, path, []byte(e.String()), sigma.PutOptions{Kind: sigma.KindEndpoint})
	return err
}

// write fills a realm; paths that end in / are directories, those with -> symlinks.
func write(t *testing.T, ns sigma.Namespace, files ...string) {
	t.Helper()
	for _, f := range files {
		path, target, link := strings.Cut(f, "->")
		var err error
		switch {
		case link:
			err = ns.Symlink(t.Context(), target, path)
		case strings.HasSuffix(path, "/"):
			err = ns.MkdirAll(t.Context(), path, 0o777)
		default:
			_, err = ns.Put(t.Context(), path, []byte("it is "+path), sigma.PutOptions{})
		}
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
	}
}

func viewOf(words ...string) (out []sigma.ViewEntry) {
	out = []sigma.ViewEntry{}
	for _, w := range words {
		path, rest, _ := strings.Cut(w, "=")
		target, rights, _ := strings.Cut(rest, ":")
		r, _ := sigma.ParseRights(rights)
		out = append(out, sigma.ViewEntry{Path: path, Target: target, Rights: r})
	}
	return out
}

func entryNames(es []sigma.DirEntry) (out []string) {
	for _, e := range es {
		out = append(out, e.Name)
	}
	return out
}

// cgi is the machine of 000 §5.3: a web server's worker that has a directory of static files and
// its parent's pipe, among much else of the realm.
type cgi struct {
	m           *machine
	admin       sigma.Namespace
	parent      *prog // sees all
	pipe, other sigma.Endpoint
	tree        sigma.Endpoint
}

func newCGI(t *testing.T) *cgi {
	c := &cgi{m: boot(t)}
	c.admin = c.m.connect(sigma.DefaultRealm)
	write(t, c.admin, "/www/static/sub/", "/www/static/a.html", "/www/static/sub/b.html", "/secret/", "/secret/key",
		"/workdir/", "/workdir/mine", "/pipes/", "/svc/", "/s3/data/", "/s3/data/in", "/s3/other/", "/s3/other/x",
		"/www/static/out->/secret/key", "/www/static/outdir->/secret", "/www/static/home->/static/a.html",
		"/www/static/sub/rel->b.html", "/link->/www/static")
	c.parent = c.m.startProg(sigma.Descriptor{})
	var err error
	for _, e := range []*sigma.Endpoint{&c.pipe, &c.other} {
		if *e, err = c.parent.listen(t.Context(), sigma.FormStream); err != nil {
			t.Fatal(err)
		}
	}
	shop := memfs.New(memfs.Config{})
	t.Cleanup(shop.Close)
	root, err := shop.Attach(t.Context(), sigma.Principal{System: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	write(t, resolve.New(resolve.Config{Root: root}), "/goods/", "/goods/1", "/cellar/", "/cellar/wine",
		"/goods/more->/secret/key")
	c.tree = c.parent.serveTree(t, shop)
	for path, e := range map[string]sigma.Endpoint{"/pipes/1": c.pipe, "/pipes/2": c.other, "/svc/shop": c.tree} {
		if err := publish(t.Context(), c.admin, path, e); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// Goal: a child spawned with a directory of static files, its parent's pipe and little else reaches
// that (000 §5.3).
func TestViewShows(t *testing.T) {
	c := newCGI(t)
	ctx := t.Context()
	child := c.m.startProg(sigma.Descriptor{View: viewOf("/static=/link:ro", "/pipe=/pipes/1:ro",
		"/workdir=/workdir:rw", "/deep/er/out=/workdir/out:rw", "/shop=/svc/shop/goods:ro", "/store=/s3/data:rw",
		"/workdir/none=/:none", "/members=/later/on/members:rw", "/read/later=/later/read:ro")})
	for path, want := range map[string]string{"/static/a.html": "/www/static/a.html",
		"/static/sub/b.html": "/www/static/sub/b.html", "/static/home": "/www/static/a.html",
		"/static/sub/rel": "/www/static/sub/b.html",
		"/workdir/mine":   "/workdir/mine", "/shop/1": "/goods/1", "/store/in": "/s3/data/in"} {
		if got, _, err := child.Get(ctx, path); string(got) != "it is "+want &&
			string(got) != "it is "+strings.TrimPrefix(want, "/s3") || err != nil {
			t.Errorf("%s is %q, %v", path, got, err)
		}
		h, err := child.Open(ctx, path, sigma.OpenRead)
		if err != nil {
			t.Errorf("%s does not open: %v", path, err)
			continue
		}
		if n, _ := h.ReadAt(make([]byte, 100), 0); n < 8 {
			t.Errorf("%s gives %d bytes", path, n)
		}
		h.Close()
	}
	for path, want := range map[string]string{"/": "deep members pipe proc read shop static store sys workdir",
		"/deep": "er", "/deep/er": "out", "/static": "a.html home out outdir sub", "/shop": "1 more",
		"/workdir": "mine", "/sys": "endpoints procs self version",
		"/proc": string(child.id), "/proc/" +
			string(child.id): "children descriptor log status stderr stdout times usage"} {
		es, err := child.ReadDir(ctx, path)
		got := entryNames(es)
		slices.Sort(got)
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("%s has %q, %v; want %q", path, got, err, want)
		}
	}
	text, err := child.ReadLink(ctx, "/pipe")
	if err != nil || text != c.pipe.String() {
		t.Fatalf("the pipe is %q, %v", text, err)
	}
	f, err := child.dial(ctx, c.pipe)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	// What it may change, it changes.
	for _, path := range []string{"/workdir/new", "/deep/er/out", "/store/new"} {
		if _, err := child.Put(ctx, path, []byte("x"), sigma.PutOptions{}); err != nil {
			t.Errorf("Put %s: %v", path, err)
		}
	}
	if err := child.Remove(ctx, "/workdir/out"); err != nil {
		t.Error(err)
	}
	h, err := child.Create(ctx, "/deep/er/out", sigma.OpenExclusive, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	h.Write([]byte("made"))
	h.Close()
	if err := child.Rename(ctx, "/workdir/new", "/workdir/new2"); err != nil {
		t.Error(err)
	}
	if got, _, err := c.admin.Get(ctx, "/workdir/out"); string(got) != "made" || err != nil {
		t.Errorf("what it made is %q, %v", got, err)
	}
	if err := child.Mkdir(ctx, "/workdir/d", 0o700); err != nil {
		t.Error(err)
	}
	if st, err := child.Stat(ctx, "/static/a.html"); st.Perm&0o222 != 0 || err != nil {
		t.Errorf("a file for reading only has mode %o, %v", st.Perm, err)
	}
	own, err := child.listen(ctx, sigma.FormStream)
	if err == nil {
		err = publish(ctx, child, "/workdir/own", own)
	}
	if err != nil {
		t.Errorf("it cannot publish an endpoint of its own: %v", err)
	}
	// Where an entry leads there need not be anything yet: a directory that it lets be changed is
	// made with what leads to it.
	if err := child.MkdirAll(ctx, "/members", 0o755); err != nil {
		t.Errorf("it cannot make the directory of an entry: %v", err)
	}
	if err := publish(ctx, child, "/members/own", own); err != nil {
		t.Errorf("it cannot publish in it: %v", err)
	}
	if st, err := c.admin.Lstat(ctx, "/later/on/members/own"); err != nil || st.ID.Kind != sigma.KindEndpoint {
		t.Errorf("what it published is %+v, %v", st, err)
	}
	if err := child.Mkdir(ctx, "/members", 0o755); sigma.KindOf(err) != sigma.KindExists {
		t.Errorf("it makes it again: %v", err)
	}
	child.MkdirAll(ctx, "/read/later", 0o755)
	if _, err := c.admin.Stat(ctx, "/later/read"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("an entry for reading was made: %v", err)
	}
	seesChildren(t, child)
}

// seesChildren: the children of a proc with a view see what it sees, and it sees them.
func seesChildren(t *testing.T, child *prog) {
	t.Helper()
	ctx := t.Context()
	ids, err := child.spawn(ctx, sigma.Descriptor{Program: "/static/a.html"})
	if err != nil {
		t.Fatal(err) // no executable, so that it ends as soon as it is started
	}
	if err := child.about(ctx, sigmap.CallWaitExit.Name, ids[0]); err != nil {
		t.Errorf("it does not hear of its child: %v", err)
	}
	if got, err := child.list(ctx); !slices.Equal(got, []sigma.ProcID{child.id, ids[0]}) || err != nil {
		t.Errorf("it lists %v, %v", got, err)
	}
}

// attempt is what a confined proc tries, and one that sees all succeeds with.
type attempt = func(*prog) error

func get(ctx context.Context, path string) attempt {
	return func(g *prog) error { _, _, err := g.Get(ctx, path); return err }
}

// raw walks as a client that follows nothing itself.
func raw(ctx context.Context, names ...string) attempt {
	return func(g *prog) error {
		f, ids, err := g.root.Walk(ctx, names)
		if err == nil && (f == nil || len(ids) < len(names)) {
			err = sigma.Errorf("test", sigma.KindNotFound, "walked %d of %d", len(ids), len(names))
		}
		return err
	}
}

// reading are ways to see what a view does not show. turn makes names that nobody has used.
func (c *cgi) reading(ctx context.Context, turn *string) map[string]attempt {
	return map[string]attempt{
		"get a secret": get(ctx, "/secret/key"),
		"walk to it":   raw(ctx, "secret", "key"),
		"open it": func(g *prog) error {
			_, err := g.Open(ctx, "/secret/key", sigma.OpenRead)
			return err
		},
		"stat it":                         func(g *prog) error { _, err := g.Stat(ctx, "/secret/key"); return err },
		"list a directory":                func(g *prog) error { _, err := g.ReadDir(ctx, "/secret"); return err },
		"watch it":                        func(g *prog) error { _, err := g.Watch(ctx, "/secret", 0); return err },
		"follow a symlink out":            get(ctx, "/www/static/out"),
		"follow its link out":             get(ctx, "/static/out"),
		"walk through a directory's link": get(ctx, "/static/outdir/key"),
		"follow a link made by itself": func(g *prog) error {
			g.Symlink(ctx, "/secret/key", "/workdir/l"+*turn)
			return get(ctx, "/workdir/l"+*turn)(g)
		},
		"follow a link in a tree": get(ctx, "/shop/goods/more"),
		"what an entry hides":     func(g *prog) error { _, err := g.Stat(ctx, "/www/static"); return err },
	}
}

// changing are ways to change what it shows for reading, or the view itself.
func (c *cgi) changing(ctx context.Context, turn *string) map[string]attempt {
	return map[string]attempt{
		"write what is for reading": func(g *prog) error {
			_, err := g.Put(ctx, "/static/a.html", nil, sigma.PutOptions{})
			return err
		},
		"open it for writing": func(g *prog) error {
			_, err := g.Open(ctx, "/static/a.html", sigma.OpenWrite)
			return err
		},
		"truncate it": func(g *prog) error {
			_, err := g.Open(ctx, "/static/a.html", sigma.OpenTruncate|sigma.OpenReadWrite)
			return err
		},
		"create there": func(g *prog) error {
			_, err := g.Create(ctx, "/static/n"+*turn, 0, 0o644)
			return err
		},
		"make a directory there": func(g *prog) error { return g.Mkdir(ctx, "/static/d"+*turn, 0o755) },
		"make a link there":      func(g *prog) error { return g.Symlink(ctx, "/x", "/static/s"+*turn) },
		"change its mode": func(g *prog) error {
			p := uint32(0o777)
			return g.SetStat(ctx, "/static/a.html", sigma.StatChange{Perm: &p})
		},
		"write in the tree": func(g *prog) error {
			_, err := g.Put(ctx, "/shop/goods/2", nil, sigma.PutOptions{})
			return err
		},
		"remove": func(g *prog) error { return g.Remove(ctx, "/static/sub/b.html") },
		"rename out of what is for reading": func(g *prog) error {
			return g.Rename(ctx, "/static/home", "/workdir/home")
		},
		"rename into it": func(g *prog) error {
			return g.Rename(ctx, "/workdir/mine", "/static/mine")
		},
		"remove what an entry leads to": func(g *prog) error { return g.Remove(ctx, "/pipe") },
		"hide an entry by a rename":     func(g *prog) error { return g.Rename(ctx, "/workdir", "/pipe2") },
		"make an entry":                 func(g *prog) error { return g.Mkdir(ctx, "/new"+*turn, 0o755) },
	}
}

// reaching are ways to other procs: to dial them, see them, act on them, or to have a child that
// can.
func (c *cgi) reaching(t *testing.T, ctx context.Context, turn *string, victim *prog,
	lease sigma.LeaseID) map[string]attempt {
	return map[string]attempt{
		"dial an endpoint by its text":  func(g *prog) error { _, err := g.dial(ctx, c.other); return err },
		"dial a pipe that was not read": func(g *prog) error { _, err := g.dial(ctx, c.pipe); return err },
		"dial a tree":                   func(g *prog) error { _, err := g.dial(ctx, c.tree); return err },
		"publish another's endpoint, dial": func(g *prog) error {
			publish(ctx, g, "/workdir/e"+*turn, c.other)
			_, err := g.ReadLink(ctx, "/workdir/e"+*turn)
			return err
		},
		"read another's endpoint in a tree": func(g *prog) error { return c.launder(t, g, *turn) },
		"the object store":                  get(ctx, "/s3/data/in"),
		"another's scratch files":           func(g *prog) error { _, err := g.ReadDir(ctx, "/ux/~local"); return err },
		"a program it does not see": func(g *prog) error {
			_, err := g.spawn(ctx, sigma.Descriptor{Program: "/bin/x"})
			return err
		},
		"a program behind its own link": func(g *prog) error {
			g.Symlink(ctx, "/bin/x", "/workdir/p"+*turn)
			_, err := g.spawn(ctx, sigma.Descriptor{Program: "/workdir/p" + *turn})
			return err
		},
		"a child that sees more": func(g *prog) error {
			_, err := g.spawn(ctx, sigma.Descriptor{Program: "/static/a.html", View: viewOf("/s=/secret:ro")})
			return err
		},
		"a child that may more": func(g *prog) error {
			_, err := g.spawn(ctx, sigma.Descriptor{Program: "/static/a.html", View: viewOf("/s=/static:rw")})
			return err
		},
		"a child with a link to more": func(g *prog) error {
			g.Symlink(ctx, "/secret", "/workdir/k"+*turn)
			_, err := g.spawn(ctx, sigma.Descriptor{Program: "/static/a.html",
				View: viewOf("/s=/workdir/k" + *turn + ":ro")})
			return err
		},
		"a child that sees all procs": func(g *prog) error {
			_, err := g.spawn(ctx, sigma.Descriptor{Program: "/static/a.html", View: viewOf("/proc=/proc:ro")})
			return err
		},
		"another proc's status": get(ctx, "/proc/"+string(victim.id)+"/status"),
		"another proc's output": raw(ctx, "proc", string(victim.id), "stdout"),
		"wait for another proc": func(g *prog) error { return g.about(ctx, sigmap.CallWaitStart.Name, victim.id) },
		"freeze another proc":   func(g *prog) error { return g.about(ctx, sigmap.CallFreeze.Name, victim.id) },
		"evict another proc":    func(g *prog) error { return g.about(ctx, sigmap.CallEvict.Name, victim.id) },
		"list others":           func(g *prog) error { return sees(ctx, g, victim.id) },
		"kill another proc":     func(g *prog) error { return g.about(ctx, sigmap.CallKill.Name, victim.id) },
		"the roster":            get(ctx, "/sys/roster"),
		"the machines":          get(ctx, "/sys/machines"),
		"the realm":             get(ctx, "/sys/realms"),
		"the realm's queue":     get(ctx, "/sys/queues"),
		"what the realm runs":   get(ctx, "/sys/utilisation"),
		"the realm's limits":    get(ctx, "/sys/limits"),
		"another proc's use":    get(ctx, "/proc/"+string(victim.id)+"/usage"),
		"another proc's child":  get(ctx, "/proc/"+string(victim.id)+"/children"),
		"what was asked for it": get(ctx, "/proc/"+string(victim.id)+"/descriptor"),
		"the machine's state":   raw(ctx, "sys", "machine"),
		"renew another's lease": func(g *prog) error { return g.root.(sigma.Leaser).Renew(ctx, lease) },
		"make a file of another's lease": func(g *prog) error {
			_, err := g.Put(ctx, "/workdir/of"+*turn, nil, sigma.PutOptions{Lease: lease})
			return err
		},
		"revoke another's lease":             func(g *prog) error { return g.root.(sigma.Leaser).Revoke(ctx, lease) },
		"a path with dots":                   raw(ctx, "static", "..", "secret", "key"),
		"a fence of a file it may not write": func(g *prog) error { return fenced(ctx, g, "/secret/epoch") },
	}
}

// Goal: nothing else, whatever it tries. Each attempt is made by a proc without a view too, who
// succeeds.
func TestViewHides(t *testing.T) {
	c := newCGI(t)
	ctx := t.Context()
	free := c.m.startProg(sigma.Descriptor{})
	victim := c.m.startProg(sigma.Descriptor{})
	child := c.m.startProg(sigma.Descriptor{View: viewOf("/static=/www/static:ro", "/pipe=/pipes/1:ro",
		"/workdir=/workdir:rw", "/shop=/svc/shop:ro", "/www/hole=/:none")})
	lease, err := c.parent.root.(sigma.Leaser).Lease(ctx, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	turn := ""
	attempts := c.reading(ctx, &turn)
	maps.Copy(attempts, c.changing(ctx, &turn))
	maps.Copy(attempts, c.reaching(t, ctx, &turn, victim, lease))
	// The places where the free proc does the same, where the child's are of its view alone.
	write(t, c.admin, "/static->/www/static", "/pipe", "/shop->/svc/shop")
	impossible := []string{"a path with dots", "what an entry hides",
		"read another's endpoint in a tree"} // by anybody, or shown below
	for _, name := range slices.Sorted(maps.Keys(attempts)) {
		turn = "1"
		err := attempts[name](child)
		if kind := sigma.KindOf(err); err == nil || kind != sigma.KindPermission && kind != sigma.KindNotFound &&
			kind != sigma.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	order := slices.Sorted(maps.Keys(attempts))
	slices.SortStableFunc(order, func(a, b string) int {
		return rank(a) - rank(b)
	}) // what ends or moves something comes last
	for _, name := range order {
		if turn = "2"; slices.Contains(impossible, name) {
			continue
		}
		if err := attempts[name](free); err != nil {
			t.Errorf("control, %s: %v", name, err)
		}
	}
	t.Logf("%d attempts", len(attempts))
}

// rank orders controls so that none takes away what another needs.
func rank(name string) int {
	for i, words := range []string{"rename out", "rename into", "hide an entry", "remove", "revoke", "kill"} {
		if strings.HasPrefix(name, words) {
			return i + 1
		}
	}
	return 0
}

func sees(ctx context.Context, g *prog, id sigma.ProcID) error {
	ids, err := g.list(ctx)
	if err == nil && !slices.Contains(ids, id) {
		err = sigma.Errorf("test", sigma.KindNotFound, "it is not listed")
	}
	return err
}

func fenced(ctx context.Context, g *prog, name string) error {
	_, err := g.Put(sigma.WithFence(ctx, sigma.Fence{Name: name, Epoch: 1}), "/workdir/mine", nil, sigma.PutOptions{})
	return err
}

// lying is a tree with one file, an endpoint.
type lying struct {
	treeserver.Base
	text string
}

func (l *lying) Attach(context.Context, sigma.Principal, string) (sigma.File, error) { return l, nil }
func (l *lying) Stat(context.Context) (sigma.Stat, error) {
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir, Path: 1}}, nil
}
func (l *lying) ReadLink(context.Context) (string, error) { return l.text, nil }
func (l *lying) Walk(_ context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	ids := make([]sigma.FileID, len(names))
	for i := range ids {
		ids[i] = sigma.FileID{Kind: sigma.KindEndpoint, Path: 2}
	}
	if len(ids) > 1 {
		return nil, ids[:1], nil
	}
	return l, ids, nil
}

// launder lets a proc serve itself a tree in which it reads an endpoint that it was not told by its
// view, and dial that.
func (c *cgi) launder(t *testing.T, g *prog, turn string) error {
	e := g.serveTree(t, &lying{text: c.other.String()})
	if err := publish(t.Context(), g, "/workdir/tree"+turn, e); err != nil {
		t.Error(err)
	}
	if text, err := g.ReadLink(t.Context(), "/workdir/tree"+turn+"/x"); err != nil || text != c.other.String() {
		t.Errorf("its own tree tells it %q, %v", text, err)
	}
	_, err := g.dial(t.Context(), c.other)
	return err
}

// Goal: within a view too ~any is the first member of a directory of trees that lives and has the
// name, another when that one has ended, and nothing that the view does not show.
func TestViewUnion(t *testing.T) {
	c := newCGI(t)
	ctx := t.Context()
	if err := c.admin.MkdirAll(ctx, "/shops", 0o755); err != nil {
		t.Fatal(err)
	}
	serve := func(name string, files ...string) *prog {
		t.Helper()
		tree := memfs.New(memfs.Config{})
		t.Cleanup(tree.Close)
		root, err := tree.Attach(ctx, sigma.Principal{System: true}, "")
		if err != nil {
			t.Fatal(err)
		}
		write(t, resolve.New(resolve.Config{Root: root}), files...)
		g := c.m.startProg(sigma.Descriptor{})
		if err := publish(ctx, c.admin, "/shops/"+name, g.serveTree(t, tree)); err != nil {
			t.Fatal(err)
		}
		return g
	}
	first := serve("a", "/one", "/both")
	serve("b", "/two", "/both", "/cellar/", "/cellar/wine")
	if err := publish(ctx, c.admin, "/shops/0", sigma.Endpoint{Realm: "default", Machine: "m1", Proc: sigma.NewProcID(),
		ID: "AAAAAAAAAAAAAAAAAAAAAA", Form: sigma.FormTree}); err != nil { // nobody's
		t.Fatal(err)
	}
	child := c.m.startProg(sigma.Descriptor{View: viewOf("/shops=/shops:ro", "/shops/b/cellar=/:none")})
	for path, want := range map[string]string{"/shops/~any/one": "/one", "/shops/~any/both": "/both",
		"/shops/~any/two": "/two"} {
		if got, _, err := child.Get(ctx, path); string(got) != "it is "+want || err != nil {
			t.Errorf("%s is %q, %v", path, got, err)
		}
		if st, err := child.Stat(ctx, path); err != nil || st.ID.Kind != sigma.KindFile {
			t.Errorf("%s is %+v, %v", path, st, err)
		}
	}
	if got, _, err := child.Get(ctx, "/shops/~any/cellar/wine"); err == nil {
		t.Errorf("what the view hides is %q", got)
	}
	if _, err := child.Put(ctx, "/shops/~any/new", nil, sigma.PutOptions{}); err == nil {
		t.Error("a put through a view that is for reading")
	}
	first.p.exit(0)
	if got, _, err := child.Get(ctx, "/shops/~any/both"); string(got) != "it is /both" || err != nil {
		t.Errorf("with the first member gone: %q, %v", got, err)
	}
}
