package main

import (
	"bytes"
	"context"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// fake is a system of which only the admin socket is real: each realm's tree is a memfs with the
// callable files of /sys in front, and a proc is what behave does.
type fake struct {
	t    *testing.T
	addr string

	mu  sync.Mutex
	run func(ctx context.Context,
		p *fakeProc) sigma.Status // mu; what procs do in place of a program; ctx ends when the proc is killed
	shares map[sigma.RealmID]uint32      // mu
	realms map[sigma.RealmID]*memfs.Tree // mu
	procs  []*fakeProc                   // mu
	down   bool                          // mu
	// mu; what the name service says instead of the list of realms; nil = it is there
	away    error
	members *fakeMembers             // mu; nil = the machine has not registered
	makers  map[string]string        // mu; credentials, and which one made each
	texts   map[string]func() string // mu; files of /sys that can be read, by name
}

// fakeProc is a proc of a fake.
type fakeProc struct {
	sigma.Descriptor
	info    sigma.ProcInfo // fake.mu
	asked   int            // fake.mu; how often its usage was
	write   func(stream, text string)
	notice  chan time.Duration // gets the grace of an Evict
	kill    context.CancelFunc
	started chan struct{}
	ended   chan struct{}
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, addr: filepath.Join(t.TempDir(), "admin.sock"), realms: map[sigma.RealmID]*memfs.Tree{}}
	f.behave(func(context.Context, *fakeProc) sigma.Status { return sigma.Status{Code: sigma.StatusOK} })
	f.makeRealm(sigma.DefaultRealm)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: f.addr, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			wg.Go(func() {
				p := sigma.Principal{Realm: sigma.SystemRealm, Machine: "m1", System: true}
				treeserver.Serve(ctx, session.NewPacketConn(c, true), treeserver.Config{Tree: f, Principal: p})
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		f.mu.Lock()
		for _, p := range f.procs {
			p.kill()
		}
		f.mu.Unlock()
		wg.Wait()
	})
	return f
}

// behave says what procs that are spawned from now on do.
func (f *fake) behave(run func(ctx context.Context, p *fakeProc) sigma.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.run = run
}

// spawned gives the procs so far.
func (f *fake) spawned() []*fakeProc {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.procs)
}

func (f *fake) makeRealm(id sigma.RealmID) {
	t := memfs.New(memfs.Config{})
	f.t.Cleanup(t.Close)
	f.realms[id] = t
	root, err := t.Attach(f.t.Context(), sigma.Principal{}, "")
	if err != nil {
		f.t.Fatal(err)
	}
	defer root.Close()
	for _, dir := range []string{"bin", "proc", "s3"} {
		if err := root.Mkdir(f.t.Context(), dir, 0o755); err != nil {
			f.t.Fatal(err)
		}
	}
}

// Attach implements sigma.Tree.
func (f *fake) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	realm := sigma.RealmID(name)
	f.mu.Lock()
	t := f.realms[realm]
	f.mu.Unlock()
	if t == nil && realm == sigma.SystemRealm {
		t = memfs.New(memfs.Config{})
	}
	if t == nil {
		return nil, sigma.Errorf("fake.Attach", sigma.KindNotFound, "no realm %s", realm)
	}
	root, err := t.Attach(ctx, p, "")
	return &fakeRoot{memFile: root.(memFile), f: f, realm: realm}, err
}

// revokeCredential takes one away, with those that it made.
func (f *fake) revokeCredential(payload []byte) ([]byte, error) {
	var name string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&name) }); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.makers[name]; !ok {
		return nil, sigma.Errorf("fake", sigma.KindNotFound, "no credential %q", name)
	}
	gone := []string{name}
	delete(f.makers, name)
	for _, k := range slices.Sorted(maps.Keys(f.makers)) {
		if f.makers[k] == name {
			gone = append(gone, k)
			delete(f.makers, k)
		}
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Strs(&gone) })
}

// memFile is what a memfs file can do, so that a wrapper can do it too.
type memFile interface {
	sigma.File
	sigma.Getter
	sigma.Putter
	sigma.Watcher
	sigma.Leaser
}

// fakeRoot is a realm's root with /sys in front.
type fakeRoot struct {
	memFile
	f     *fake
	realm sigma.RealmID
}

// Get implements sigma.Getter.
func (r *fakeRoot) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	if len(names) == 0 || names[0] != "sys" {
		return r.memFile.Get(ctx, names, offset, count)
	}
	file, _, err := r.Walk(ctx, names)
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	defer file.Close()
	return treeserver.Get(ctx, file, nil, offset, count)
}

func (r *fakeRoot) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 0 {
		file, ids, err := r.memFile.Walk(ctx, nil)
		return &fakeRoot{memFile: file.(memFile), f: r.f, realm: r.realm}, ids, err
	}
	if names[0] != "sys" {
		return r.memFile.Walk(ctx, names)
	}
	if len(names) != 2 {
		return nil, nil, sigma.PathError("fake", sigma.KindNotFound, "/sys")
	}
	r.f.mu.Lock()
	text := r.f.texts[names[1]]
	r.f.mu.Unlock()
	if text != nil {
		blob := &treeserver.Blob{Name: names[1], ID: sigma.FileID{Kind: sigma.KindDevice}, Perm: 0o444,
			Content: func(context.Context) ([]byte, error) { return []byte(text()), nil }}
		return blob, []sigma.FileID{{Kind: sigma.KindDir}, {Kind: sigma.KindDevice}}, nil
	}
	c := &treeserver.Callable{Name: names[1], Handle: func(ctx context.Context, method string, payload []byte) ([]byte,
		[]*os.File, error) {
		reply, err := r.call(ctx, names[1]+" "+method, payload)
		return reply, nil, err
	}}
	return c, []sigma.FileID{{Kind: sigma.KindDir}, {Kind: sigma.KindCallable}}, nil
}

func (r *fakeRoot) call(ctx context.Context, method string, payload []byte) ([]byte, error) {
	if of, ok := strings.CutPrefix(method, "machines "); ok {
		r.f.mu.Lock()
		m := r.f.members
		r.f.mu.Unlock()
		return m.call(ctx, of, payload)
	}
	var id sigma.ProcID
	var grace time.Duration
	switch method {
	case "self info":
		i := sigmap.Info{Principal: sigma.Principal{Realm: r.realm, Machine: "m1", System: true}, Version: "fake"}
		return sigmap.Payload(func(c *sigmap.Coder) { c.Info(&i) })
	case "machine status":
		ss := []sigmap.Service{{Name: "named", State: "running", Since: time.Now().Add(-time.Hour), Restarts: 1}}
		return sigmap.Payload(func(c *sigmap.Coder) { c.Services(&ss) })
	case "machine usage":
		us := []sigma.Usage{{Memory: 20 * sigma.MiB}}
		return sigmap.Payload(func(c *sigmap.Coder) { c.Usages(&us) })
	case "machine down":
		r.f.mu.Lock()
		defer r.f.mu.Unlock()
		r.f.down = true
		return nil, nil
	case "procs spawn":
		return r.spawn(ctx, payload)
	case "procs list":
		return r.list(payload)
	case "procs usage":
		return r.usage(payload)
	case "procs evict":
		sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcID(&id); c.Duration(&grace) })
	case "credentials credential-revoke":
		return r.f.revokeCredential(payload)
	case "realms create", "realms remove", "realms list", "realms set-shares":
		return r.f.realmCall(method, payload)
	default:
		sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcID(&id) })
	}
	p := r.f.proc(id)
	if p == nil {
		return nil, sigma.Errorf("fake", sigma.KindNotFound, "no proc %s", id)
	}
	switch method {
	case "procs wait-start":
		<-p.started
	case "procs wait-exit":
		select {
		case <-p.ended:
			return sigmap.Payload(func(c *sigmap.Coder) { c.Status(&p.info.Status) })
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "procs evict":
		p.notice <- grace
	case "procs kill":
		p.kill()
	case "procs freeze", "procs thaw":
		r.f.mu.Lock()
		defer r.f.mu.Unlock()
		p.info.Frozen = method == "procs freeze"
	}
	return nil, nil
}

func (f *fake) proc(id sigma.ProcID) *fakeProc {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.procs, func(p *fakeProc) bool { return p.info.ID == id })
	if i < 0 {
		return nil
	}
	return f.procs[i]
}

func (r *fakeRoot) spawn(ctx context.Context, payload []byte) ([]byte, error) {
	var ds []sigma.Descriptor
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Descriptors(&ds) }); err != nil {
		return nil, err
	}
	d := ds[0]
	p := &fakeProc{Descriptor: d, notice: make(chan time.Duration, 9), started: make(chan struct{}),
		ended: make(chan struct{})}
	p.info = sigma.ProcInfo{ID: sigma.NewProcID(), Realm: r.realm, Name: d.Name, Program: d.Program, Args: d.Args,
		Memory: d.Memory, State: sigma.ProcRunning, Times: sigma.Times{Spawned: time.Now()}}
	dir := []string{"proc", string(p.info.ID)}
	_, ids, err := r.memFile.Walk(ctx, dir[:1])
	if err != nil || len(ids) != 1 {
		return nil, err
	}
	procs, _, _ := r.memFile.Walk(ctx, dir[:1])
	if err := procs.Mkdir(ctx, dir[1], 0o755); err != nil {
		return nil, err
	}
	root, _, _ := r.memFile.Walk(context.Background(), nil)
	p.write = func(stream, text string) {
		if _, _, err := root.(sigma.Putter).Put(context.Background(), append(slices.Clone(dir), stream), []byte(text),
			sigma.PutOptions{Append: true, Perm: 0o644}); err != nil {
			r.f.t.Error(err)
		}
	}
	p.write("stdout", "")
	p.write("stderr", "")
	run, cancel := context.WithCancel(context.Background())
	p.kill = cancel
	r.f.mu.Lock()
	r.f.procs = append(r.f.procs, p)
	behave := r.f.run
	r.f.mu.Unlock()
	close(p.started)
	go func() {
		st := behave(run, p)
		r.f.mu.Lock()
		p.info.State, p.info.Status, p.info.Times.Ended = sigma.ProcEnded, st, time.Now()
		r.f.mu.Unlock()
		close(p.ended)
	}()
	id := []sigma.ProcID{p.info.ID}
	return sigmap.Payload(func(c *sigmap.Coder) { c.ProcIDs(&id) })
}

func (r *fakeRoot) list(payload []byte) ([]byte, error) {
	var all, more bool
	var at string
	var after uint64
	sigmap.Parse(payload, func(c *sigmap.Coder) { c.Bool(&all); c.Str(&at); c.U64(&after) })
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	var infos []sigma.ProcInfo // all are on the first page
	for _, p := range r.f.procs {
		if p.info.Realm == r.realm && (all || p.info.State != sigma.ProcEnded) {
			infos = append(infos, p.info)
		}
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.ProcInfos(&infos); c.Bool(&more); c.Str(&at); c.U64(&after) })
}

// usage says what each proc of the fake uses: a second more processor time with each question, so
// that the second one finds 100 % or more.
func (r *fakeRoot) usage(payload []byte) ([]byte, error) {
	var ids []sigma.ProcID
	sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcIDs(&ids) })
	us := make([]sigma.Usage, len(ids))
	for i, id := range ids {
		if p := r.f.proc(id); p != nil {
			r.f.mu.Lock()
			p.asked++
			us[i] = sigma.Usage{UserTime: time.Duration(p.asked) * time.Second, Memory: 3 * sigma.MiB,
				MemoryPeak: 5 * sigma.MiB, Tasks: 7, Output: 11}
			r.f.mu.Unlock()
		}
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Usages(&us) })
}

func (f *fake) realmCall(method string, payload []byte) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var id sigma.RealmID
	var shares uint32
	if method != "realms list" {
		sigmap.Parse(payload, func(c *sigmap.Coder) {
			if c.RealmID(&id); method == "realms set-shares" {
				c.U32(&shares)
			}
		})
	}
	switch method {
	case "realms set-shares":
		if f.shares == nil {
			f.shares = map[sigma.RealmID]uint32{}
		}
		f.shares[id] = shares
		return nil, nil
	case "realms create":
		if f.realms[id] != nil {
			return nil, sigma.Errorf("fake", sigma.KindExists, "exists")
		}
		f.makeRealm(id)
		return nil, nil
	case "realms remove":
		delete(f.realms, id)
		return nil, nil
	}
	if f.away != nil {
		return nil, f.away
	}
	var infos []sigma.RealmInfo
	for id := range f.realms {
		n := 0
		for _, p := range f.procs {
			if p.info.Realm == id && p.info.State != sigma.ProcEnded {
				n++
			}
		}
		infos = append(infos, sigma.RealmInfo{ID: id, Created: time.Unix(1e9, 0), Procs: n, Shares: f.shares[id]})
	}
	slices.SortFunc(infos, func(a, b sigma.RealmInfo) int { return bytes.Compare([]byte(a.ID), []byte(b.ID)) })
	return sigmap.Payload(func(c *sigmap.Coder) { c.RealmInfos(&infos) })
}

// result is what a command line did.
type result struct {
	code     int
	out, err string
}

// sigma runs a command line against the fake.
func (f *fake) sigma(args ...string) result { return f.with(nil, args...) }

func (f *fake) with(in []byte, args ...string) result {
	return command(in, map[string]string{"SIGMA_ADDR": f.addr, "SIGMA_DATA": "/nonexistent/sigma"}, args...)
}

func command(in []byte, env map[string]string, args ...string) result {
	var out, errs lockedBuffer
	a := &cli.App{Groups: groups, In: bytes.NewReader(in), Out: &out, Err: &errs,
		Getenv: func(k string) string { return env[k] }}
	code := a.Execute(context.Background(), args)
	return result{code, out.String(), errs.String()}
}

// lockedBuffer is a bytes.Buffer for several writers.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// interrupt sends a signal to this process, which run looks after while it waits.
func interrupt(t *testing.T, s syscall.Signal) {
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		t.Error(err)
	}
}
