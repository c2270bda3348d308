package kernel

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/sessions"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// program is the least that is accepted as one.
func program() []byte {
	b := make([]byte, 64+56)
	copy(b, "\x7fELF\x02\x01\x01")
	machine := map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH]
	binary.LittleEndian.PutUint16(b[16:], 2)
	binary.LittleEndian.PutUint16(b[18:], machine)
	binary.LittleEndian.PutUint32(b[20:], 1)
	binary.LittleEndian.PutUint64(b[32:], 64)
	binary.LittleEndian.PutUint16(b[52:], 64)
	binary.LittleEndian.PutUint16(b[54:], 56)
	binary.LittleEndian.PutUint16(b[56:], 1)
	binary.LittleEndian.PutUint32(b[64:], 1) // a segment that is loaded, of no bytes
	return b
}

func (m *machine) connect(realm sigma.RealmID) *sdk.Client {
	m.t.Helper()
	c, err := sdk.Connect(m.t.Context(), filepath.Join(m.k.cfg.Data, adminSocket), realm)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(c.Close)
	return c
}

// metrics reads /sys/metrics.
func (m *machine) metrics() ([]byte, error) {
	text, _, err := m.connect(sigma.SystemRealm).Get(m.t.Context(), "/sys/metrics")
	return text, err
}

// spawn puts a program where d says and spawns it.
func (m *machine) spawn(c *sdk.Client, d sigma.Descriptor) sigma.ProcID {
	m.t.Helper()
	d.Program = "/bin/x"
	if _, err := c.Stat(m.t.Context(), d.Program); err != nil {
		if _, err := c.Put(m.t.Context(), d.Program, program(), sigma.PutOptions{}); err != nil {
			m.t.Fatal(err)
		}
	}
	ids, err := c.Spawn(m.t.Context(), d)
	if err != nil {
		m.t.Fatal(err)
	}
	return ids[0]
}

func (m *machine) status(c *sdk.Client, id sigma.ProcID) sigma.Status {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), 10*time.Second)
	defer cancel()
	s, err := c.WaitExit(ctx, id)
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// Goal: a proc that is spawned starts, is known by its socket, ends with its status, and leaves
// nothing in sigmad's tables.
func TestLife(t *testing.T) {
	m := boot(t)
	c := m.connect("default")
	id := m.spawn(c, sigma.Descriptor{})
	p := <-m.procs
	if err := p.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	form := sigma.FormStream
	for range 3 {
		if _, _, err := call(t.Context(), p.root, sigmap.FileEndpoints, sigmap.CallListen.Name, func(c *sigmap.Coder) {
			c.Str((*string)(&form))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := call(t.Context(), p.root, sigmap.FileMachine, sigmap.CallDown.Name,
		nil); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("a proc may stop the machine: %v", err)
	}
	if _, err := p.root.(sigma.Leaser).Lease(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	s := sigma.Status{Code: sigma.StatusOK, Msg: "bye"}
	if _, _, err := call(t.Context(), p.root, sigmap.FileSelf, sigmap.CallExited.Name, func(c *sigmap.Coder) {
		c.Status(&s)
	}); err != nil {
		t.Fatal(err)
	}
	p.exit(0)
	if got := m.status(c, id); got.Code != sigma.StatusOK || got.Msg != "bye" {
		t.Errorf("got %+v", got)
	}
	eventually(t, "nothing is left", func() bool {
		timers, notices, waits := m.k.procs.Pending()
		launches, _ := m.k.launcher.Registered()
		// what is left are three services and the admin session
		return timers+notices+waits == 0 && launches == 3 && len(m.k.sessions.Open(all)) == 4
	})
}

// Goal: evict tells a proc that waits, signals one that does not, and kill ends one at once, in
// each state. What a running proc uses is the launcher's answer, for the provider only; one that
// nobody knows uses nothing.
func TestUsage(t *testing.T) {
	m := boot(t)
	c := m.connect(sigma.DefaultRealm)
	id := m.spawn(c, sigma.Descriptor{})
	p := <-m.procs
	if err := p.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitStart(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	us, err := c.Usage(t.Context(), id, "unknown")
	want := sigma.Usage{UserTime: time.Millisecond, SystemTime: 2 * time.Millisecond, Memory: 3000, MemoryPeak: 4000,
		Tasks: 5}
	if err != nil || len(us) != 2 || us[0] != want || us[1] != (sigma.Usage{}) {
		t.Errorf("got %+v, %v, want %+v and nothing", us, err, want)
	}
	if _, _, err := call(t.Context(), p.root, sigmap.FileProcs, sigmap.CallProcsUsage.Name, func(c *sigmap.Coder) {
		c.ProcIDs(&[]sigma.ProcID{id})
	}); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("a proc asked: got %v, want permission denied", err)
	}
	p.exit(0)
	if st := m.status(c, id); !st.OK() {
		t.Errorf("got %+v", st)
	}
	if us, err := c.Usage(t.Context(), id); err != nil || us[0].Memory != 0 || us[0].Tasks != 0 {
		t.Errorf("after the end: got %+v, %v", us, err)
	}
}

// A running proc is frozen and thawed, and says so; what does not run cannot be frozen, but thawing
// it is no error.
func TestFreeze(t *testing.T) {
	m := boot(t)
	c := m.connect(sigma.DefaultRealm)
	id := m.spawn(c, sigma.Descriptor{})
	p := <-m.procs
	if err := c.WaitStart(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for _, on := range []bool{true, true, false, false, true} {
		do := c.Thaw
		if on {
			do = c.Freeze
		}
		if err := do(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if ps, err := c.List(t.Context(), false); err != nil || len(ps) != 1 || ps[0].Frozen != on {
			t.Errorf("got %+v, %v, want frozen: %v", ps, err, on)
		}
	}
	p.exit(0)
	m.status(c, id)
	if err := c.Freeze(t.Context(), id); sigma.KindOf(err) != sigma.KindInvalid || sigma.HintOf(err) == "" {
		t.Errorf("an ended proc: got %v, %q", err, sigma.HintOf(err))
	}
	if err := c.Thaw(t.Context(), id); err != nil {
		t.Errorf("an ended proc: got %v", err)
	}
	if err := c.Freeze(t.Context(), "unknown"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("got %v", err)
	}
}

func TestEnding(t *testing.T) {
	m := boot(t)
	c := m.connect("default")
	waits := m.spawn(c, sigma.Descriptor{})
	p := <-m.procs
	if err := p.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	go func() {
		_, _, err := call(t.Context(), p.root, sigmap.FileSelf, sigmap.CallWaitEvict.Name, nil)
		told <- err
	}()
	eventually(t, "it waits", func() bool {
		_, notices, _ := m.k.procs.Pending()
		return notices == 1
	})
	for range 100 {
		if err := c.Evict(t.Context(), waits, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-told; err != nil {
		t.Error(err)
	}
	p.exit(0)
	if got := m.status(c, waits); got.Code != sigma.StatusEvicted {
		t.Errorf("got %+v", got)
	}
	deaf := m.spawn(c, sigma.Descriptor{})
	p = <-m.procs
	if err := c.WaitStart(t.Context(), deaf); err != nil {
		t.Fatal(err)
	}
	if err := c.Evict(t.Context(), deaf, 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if sig := <-p.signal; sig != syscall.SIGTERM {
		t.Errorf("got %v", sig)
	}
	if got := m.status(c, deaf); got.Code != sigma.StatusEvicted || got.ExitCode != 137 {
		t.Errorf("got %+v", got)
	}
	big := m.spawn(c, sigma.Descriptor{Memory: sigma.GiB})
	<-m.procs
	queued := m.spawn(c, sigma.Descriptor{})
	for _, id := range []sigma.ProcID{queued, big} {
		if err := c.Kill(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if got := m.status(c, id); got.Code != sigma.StatusEvicted {
			t.Errorf("got %+v", got)
		}
	}
}

// Goal: procs and calls at the same time, with services that are restarted under them: each proc
// ends with a status, and requests wait for the services.
func TestRestarts(t *testing.T) {
	m := boot(t)
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case p := <-m.procs:
				p.exit(0)
			case <-stop:
				return
			}
		}
	})
	first := m.connect("default")
	m.status(first, m.spawn(first, sigma.Descriptor{}))
	var spawners sync.WaitGroup
	for i := range 4 {
		c := m.connect("default")
		spawners.Go(func() {
			for n := range 30 {
				ids, err := c.Spawn(t.Context(), sigma.Descriptor{Program: "/bin/x"},
					sigma.Descriptor{Program: "/bin/x"})
				if err != nil {
					t.Error(err)
					return
				}
				if n%10 == 5 {
					m.kill([]string{services.Besched, services.Named, services.S3, services.Besched}[i])
				}
				for _, id := range ids {
					s, err := c.WaitExit(t.Context(), id)
					if err != nil || s.Code == sigma.StatusNone {
						t.Errorf("%v, %+v", err, s)
					}
				}
				if _, err := c.List(t.Context(), true); err != nil {
					t.Error(err)
				}
			}
		})
	}
	spawners.Wait()
	for _, s := range m.k.services.List() {
		if err := s.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	m.status(first, m.spawn(first, sigma.Descriptor{}))
	close(stop)
	others.Wait()
}

// Goal: the leases of a service end with its session, though the launcher has told before that the
// service is no more; else who stands for its election next waits until the lease of the dead
// expires.
func TestLeasesOfADeadService(t *testing.T) {
	m := bootAs(t, Config{Machine: "m1"}, func(*machine) {}, services.Named, services.Besched, services.S3,
		services.Lcsched)
	s := m.k.services.Local(services.Lcsched)
	incarnation := s.Proc
	id := incarnation()
	c, end := m.session(sigma.Principal{Realm: sigma.SystemRealm, Proc: id})
	root, err := c.Attach(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	lease, err := root.(sigma.Leaser).Lease(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := root.(sigma.Putter).Put(t.Context(), []string{"leader"}, nil,
		sigma.PutOptions{Lease: lease}); err != nil {
		t.Fatal(err)
	}
	m.kill(services.Lcsched)
	eventually(t, "the service is another", func() bool { return incarnation() != id })
	end()
	names, err := m.realms.Attach(t.Context(), sigma.Principal{Realm: sigma.SystemRealm}, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := names.Walk(t.Context(), []string{"leader"}); sigma.KindOf(err) != sigma.KindNotFound || err == nil {
		t.Errorf("its file is there: %v", err)
	}
}

// Goal: of a realm that is removed while procs are spawned in it nothing is left: no proc, no
// session, nothing a realm of the same name could see later.
func TestRemoveRealm(t *testing.T) {
	m := boot(t)
	ctx := t.Context()
	admin := m.connect("default")
	for round := range 3 {
		if err := admin.Realms().Create(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		c := m.connect("a")
		if old, err := c.List(ctx, true); err != nil || len(old) > 0 {
			t.Fatalf("round %d: a new realm has procs: %v, %v", round, old, err)
		}
		m.spawn(c, sigma.Descriptor{})
		<-m.procs
		if _, err := c.Put(ctx, "/ux/~local/secret", []byte("x"), sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		spawning := make(chan struct{})
		go func() {
			defer close(spawning)
			for {
				if _, err := c.Spawn(ctx, sigma.Descriptor{Program: "/bin/x"}); err != nil {
					return
				}
			}
		}()
		if err := admin.Realms().Remove(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		<-spawning
		<-c.Done()
		eventually(t, "sigmad has forgotten the realm", func() bool {
			return !m.k.realms.Holds("a") && m.k.procs.Live("a") == 0 && m.k.procs.Known() == 0
		})
		for len(m.procs) > 0 {
			<-m.procs
		}
	}
	if _, err := sdk.Connect(ctx, filepath.Join(m.k.cfg.Data, adminSocket),
		"a"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("got %v, want that there is no such realm", err)
	}
}

// Goal: a proc cannot make sigmad go through an endpoint of its own making to fetch a program, nor
// keep a session to the object store for each.
func TestMadeUpEndpoint(t *testing.T) {
	m := boot(t)
	ctx := t.Context()
	c := m.connect("default")
	m.status0(c)
	for i := range 3 {
		e := sigma.Endpoint{Realm: "system", Machine: "m1", Proc: sigma.NewProcID(), ID: "AAECAwQFBgcICQoLDA0ODw",
			Form: sigma.FormTree}
		path := fmt.Sprint("/e", i)
		if _, err := c.Put(ctx, path, []byte(e.String()), sigma.PutOptions{Kind: sigma.KindEndpoint}); err != nil {
			t.Fatal(err)
		}
		ids, err := c.Spawn(ctx, sigma.Descriptor{Program: path + "/bin/x"})
		if err != nil {
			t.Fatal(err)
		}
		if got := m.status(c, ids[0]); got.Kind != sigma.KindNoExec {
			t.Errorf("got %+v", got)
		}
	}
}

// Goal: a walk that met the link to the object store just before the store was restarted goes on to
// the store that is there then; the answer that it leads elsewhere, which is for good and kills a
// proc that waits for a page of its program, is given only for what never was the store, and not
// while that cannot be known.
func TestStoreRestartsUnderWalk(t *testing.T) {
	m := boot(t)
	ctx := t.Context()
	e, err := m.k.reach.StoreEndpoint(ctx, services.S3, false)
	if err != nil {
		t.Fatal(err)
	}
	over := m.k.services.Local(services.S3).Ended()
	m.kill(services.S3)
	<-over
	unknown := e
	unknown.ID = "AAECAwQFBgcICQoLDA0ODw"
	if _, _, err := m.k.realms.Mount(ctx, sigma.DefaultRealm, e); err != nil {
		t.Errorf("the endpoint that it had: %v", err)
	}
	if _, _, err := m.k.realms.Mount(ctx, sigma.DefaultRealm, unknown); sigma.KindOf(err) != sigma.KindNoExec {
		t.Errorf("one that it never had: %v", err)
	}
	m.end()
	given, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := m.k.realms.Mount(given, sigma.DefaultRealm, unknown); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("while the store is away: %v", err)
	}
}

// status0 runs one proc, so that the program and the way to it are there.
func (m *machine) status0(c *sdk.Client) {
	id := m.spawn(c, sigma.Descriptor{})
	(<-m.procs).exit(0)
	m.status(c, id)
}

// Goal: Run returns soon after it was told to, with procs, waits and sessions open, and none of its
// goroutines works on.
func TestShutdown(t *testing.T) {
	m := boot(t)
	c := m.connect("default")
	id := m.spawn(c, sigma.Descriptor{})
	<-m.procs
	waited := make(chan error, 1)
	go func() {
		_, err := c.WaitExit(t.Context(), id)
		waited <- err
	}()
	if err := c.Down(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if err := <-m.over; err != nil {
		t.Error(err)
	}
	if err := <-waited; err == nil {
		t.Error("a wait was answered by nothing")
	}
	if open := m.k.sessions.Open(all); len(open) != 0 {
		t.Errorf("%d sessions are open after Run", len(open))
	}
}

// all matches each session.
func all(*sessions.Session) bool { return true }

// Failure: a proc's connection is inherited by the next sigmad while no name server answers for
// longer than a request waits for one. The root is attached when one does, and the proc listens: a
// root that was refused would be lost to it for as long as it lives.
func TestInheritedRootsWaitForNames(t *testing.T) {
	away := atomic.Bool{}
	m := bootAs(t, Config{Machine: "m1"}, func(m *machine) { m.leads = func() bool { return !away.Load() } },
		services.Named, services.Besched, services.S3)
	id := m.spawn(m.connect(sigma.DefaultRealm), sigma.Descriptor{})
	<-m.procs
	away.Store(true)
	m.k.realms.Drop(sigma.DefaultRealm)
	theirs, ours, err := session.Pair()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	who := sigma.Principal{Realm: sigma.DefaultRealm, Proc: id, Machine: "m1"}
	go m.k.sessions.ServeProc(ctx, theirs, who, nil, nil, true)
	c, err := session.DialSystem(ctx, ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	refused := time.AfterFunc(services.ReconnectMax+time.Second, func() { away.Store(false) })
	t.Cleanup(func() { refused.Stop() })
	root, err := c.Attach(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sigmap.CallListen.Ask(ctx, endpointsOf{root}, sigmap.ListenAsk{Form: sigma.FormStream}); err != nil {
		t.Error(err)
	}
}
