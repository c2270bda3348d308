package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sched/lcsched"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/launch"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// machine is a Kernel whose launcher is this test: system services are goroutines that serve trees
// in memory, procs are sessions that the test talks through.
type machine struct {
	hangs       atomic.Bool // the launcher answers no start
	credentials keptCredentials
	t           *testing.T
	k           *Kernel
	keeper      *net.UnixConn // the keeper's end
	realms      *memRealms    // named's
	objects     *memRealms    // s3d's
	procs       chan *fakeProc
	leads       func() bool // whether its named answers; nil = it does
	down        context.CancelFunc
	over        chan error // closed when Run has returned
	end         func()     // ends Run, and returns when all is over
	machined    sigma.Tree // nil = there is none
	adopt       [][]byte   // records of what an earlier sigmad has started
	// dial connects to other machines of a world; nil = link's default
	dial func(ctx context.Context, address string) (net.Conn, error)

	mu      sync.Mutex
	control *net.UnixConn        // mu; of the launcher that lives
	sched   *besched.Service     // mu; of the besched that lives
	running map[uint64]*fakeProc // mu
	shares  map[string]uint32    // mu; of cgroups, as sigmad has told them
	yields  string               // mu; the groups of the last Yield
	quotas  map[string]uint32    // mu; likewise
	uids    map[uint32]uint64    // mu; of running procs, to the launch
}

// fakeProc is what one START asked for.
type fakeProc struct {
	m      *machine
	launch uint64
	uid    uint32
	name   string
	system *os.File // its file descriptor 3
	files  []*os.File
	signal chan syscall.Signal
	once   sync.Once
	client *session.Client
	root   sigma.File
}

// memRealms keeps a tree in memory for each realm.
type memRealms struct {
	mu      sync.Mutex
	trees   map[sigma.RealmID]*memfs.Tree       // mu
	created map[sigma.RealmID]time.Time         // mu
	shares  map[sigma.RealmID]uint32            // mu
	limits  map[sigma.RealmID]sigma.RealmLimits // mu
	auto    bool                                // realms appear with their first use, as s3d's do
	away    atomic.Bool                         // nobody is told which realms there are
}

func (r *memRealms) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	realm := p.Realm
	if p.System {
		of, owner := strings.CutSuffix(name, sigmap.AsOwner)
		realm, p.System = sigma.RealmID(of), !owner
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.trees[realm] == nil {
		if !r.auto {
			return nil, sigma.Errorf("test", sigma.KindNotFound, "no realm %s", realm)
		}
		r.trees[realm] = memfs.New(memfs.Config{SizeMax: sigma.GiB})
	}
	return r.trees[realm].Attach(ctx, p, "")
}

func (r *memRealms) Create(_ context.Context, id sigma.RealmID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.trees[id] != nil {
		return sigma.Errorf("test", sigma.KindExists, "there")
	}
	r.trees[id] = memfs.New(memfs.Config{})
	if r.created == nil {
		r.created = map[sigma.RealmID]time.Time{}
	}
	r.created[id] = time.Now()
	return nil
}

func (r *memRealms) Remove(_ context.Context, id sigma.RealmID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.trees[id] == nil {
		return sigma.Errorf("test", sigma.KindNotFound, "no realm %s", id)
	}
	r.trees[id].Close()
	delete(r.trees, id)
	return nil
}

func (r *memRealms) SetLimits(_ context.Context, id sigma.RealmID, l sigma.RealmLimits) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limits == nil {
		r.limits = map[sigma.RealmID]sigma.RealmLimits{}
	}
	r.limits[id] = r.limits[id].With(l)
	return nil
}

func (r *memRealms) SetShares(_ context.Context, id sigma.RealmID, shares uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shares == nil {
		r.shares = map[sigma.RealmID]uint32{}
	}
	r.shares[id] = shares
	return nil
}

func (r *memRealms) List(context.Context) (out []sigma.RealmInfo, err error) {
	if r.away.Load() {
		return nil, sigma.Errorf("test", sigma.KindUnavailable, "named is away")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.trees {
		out = append(out, sigma.RealmInfo{ID: id, Created: r.created[id], Shares: r.shares[id], Limits: r.limits[id]})
	}
	return out, nil
}

// boot starts a machine and waits until it is up.
func boot(t *testing.T) *machine {
	t.Helper()
	return bootAs(t, Config{Machine: "m1"}, func(*machine) {}, services.Named, services.Besched, services.S3)
}

// bootAs starts a machine of several, with some of the services. prepare is called before it runs.
func bootAs(t *testing.T, cfg Config, prepare func(*machine), services ...string) *machine {
	t.Helper()
	m, err := tryBoot(t, cfg, prepare, services...)
	if err != nil {
		t.Fatalf("Run returned %v", err)
	}
	return m
}

// tryBoot is bootAs for a machine that may say why it does not come up.
func tryBoot(t *testing.T, cfg Config, prepare func(*machine), services ...string) (*machine, error) {
	t.Helper()
	ours, theirs, err := session.FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, realms: &memRealms{trees: map[sigma.RealmID]*memfs.Tree{}},
		objects: &memRealms{trees: map[sigma.RealmID]*memfs.Tree{}, auto: true}, procs: make(chan *fakeProc, 1000),
		over: make(chan error, 1), running: map[uint64]*fakeProc{}, shares: map[string]uint32{},
		quotas: map[string]uint32{}, uids: map[uint32]uint64{}}
	keeper, err := session.UnixConn(ours)
	if err == nil {
		m.keeper, err = session.UnixConn(theirs)
	}
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	cfg.Keeper, cfg.Memory, cfg.Ready = launch.NewKeeper(keeper), sigma.GiB, func() { close(ready) }
	if cfg.Data == "" {
		cfg.Data = t.TempDir()
	}
	for _, name := range services {
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { null.Close() })
		cfg.Programs = append(cfg.Programs, Program{Name: name, File: null, Dir: null})
	}
	if m.k, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	prepare(m)
	m.launcher()
	ctx, down := context.WithCancel(context.Background())
	m.down = down
	go func() { m.over <- m.k.Run(ctx); close(m.over) }()
	m.end = sync.OnceFunc(func() {
		m.k.cluster.Hasten() // a test that ends waits for no proc
		down()
		<-m.over
		m.keeper.Close()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.control.Close()
	})
	t.Cleanup(m.end)
	select {
	case <-ready:
		return m, nil
	case err := <-m.over:
		return nil, err
	}
}

// launcher starts a launcher.
func (m *machine) launcher() {
	m.t.Helper()
	theirs, ours, err := session.FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		m.t.Fatal(err)
	}
	defer theirs.Close()
	control, err := session.UnixConn(ours)
	if err != nil {
		m.t.Fatal(err)
	}
	m.mu.Lock()
	m.control = control
	m.mu.Unlock()
	if _, _, err := m.keeper.WriteMsgUnix([]byte{32, 0, 1, 0}, syscall.UnixRights(int(theirs.Fd())), nil); err != nil {
		m.t.Fatal(err)
	}
	for _, r := range m.adopt {
		m.send(r)
	}
	m.send(append([]byte{26, 0, 1, 0}, make([]byte, 8)...)) // nothing else is there to be adopted
	go m.launch(control)
}

// die ends the launcher and what it runs, as kill -9 does.
func (m *machine) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.control.Close()
	for id, p := range m.running {
		delete(m.running, id)
		delete(m.uids, p.uid)
		go p.exit(9)
	}
}

// launch answers sigmad until it closes the control socket.
func (m *machine) launch(control *net.UnixConn) {
	buf, oob := make([]byte, 64<<10), make([]byte, 1024)
	for {
		n, oobn, _, _, err := control.ReadMsgUnix(buf, oob)
		if errors.Is(err, net.ErrClosed) { // it died
			return
		}
		if err != nil || n == 0 {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, p := range m.running {
				go p.exit(9)
			}
			return
		}
		b := buf[:n]
		switch binary.LittleEndian.Uint16(b) {
		case 1:
			if m.hangs.Load() {
				cmsgs, _ := syscall.ParseSocketControlMessage(oob[:oobn])
				fds, _ := syscall.ParseUnixRights(&cmsgs[0])
				for _, fd := range fds {
					syscall.Close(fd)
				}
				continue
			}
			m.start(b, oob[:oobn])
		case 4, 5: // freeze, thaw
			m.mu.Lock()
			errno := uint32(syscall.ESRCH)
			if m.running[binary.LittleEndian.Uint64(b[4:])] != nil {
				errno = 0
			}
			m.mu.Unlock()
			m.send(binary.LittleEndian.AppendUint32(append([]byte{16 + b[0], 0, 1, 0}, b[4:12]...), errno))
		case 10:
			m.mu.Lock()
			m.shares[string(b[18:])] = binary.LittleEndian.Uint32(b[4:])
			m.quotas[string(b[18:])] = binary.LittleEndian.Uint32(b[8:])
			m.mu.Unlock()
		case 13:
			m.mu.Lock()
			delete(m.shares, string(b[6:]))
			m.mu.Unlock()
		case 12:
			first := 6 + int(b[4])
			m.mu.Lock()
			m.yields = string(b[6:first]) + " " + string(b[first+2:])
			m.mu.Unlock()
		case 11: // the procs of these tests are in this process
			m.send(sockets(b))
		case 8:
			metered := append([]byte{24, 0, 1, 0}, b[4:12]...)
			for n := range uint64(4) {
				metered = binary.LittleEndian.AppendUint64(metered, 1000*(n+1))
			}
			m.send(binary.LittleEndian.AppendUint32(metered, 5))
		case 2, 3:
			sig := syscall.SIGKILL
			if len(b) > 12 {
				sig = syscall.Signal(binary.LittleEndian.Uint32(b[12:]))
			}
			m.mu.Lock()
			p := m.running[binary.LittleEndian.Uint64(b[4:])]
			m.mu.Unlock()
			if p == nil {
				continue
			}
			if sig == syscall.SIGKILL {
				p.exit(9)
			} else {
				p.signal <- sig
			}
		}
	}
}

// sockets answers which sockets this process has, and shuts them down if that is wanted.
func sockets(b []byte) []byte {
	wanted, out, n := map[uint64]bool{}, []byte{}, 0
	for at := 26; at < len(b); at += 8 {
		wanted[binary.LittleEndian.Uint64(b[at:])] = true
	}
	for fd := range 4096 {
		var st syscall.Stat_t
		if syscall.Fstat(fd, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFSOCK || !wanted[st.Ino] {
			continue
		}
		if b[20] == 1 {
			syscall.Shutdown(fd, syscall.SHUT_RDWR)
		}
		delete(wanted, st.Ino)
		n++
		out = binary.LittleEndian.AppendUint64(out, st.Ino)
		out = append(out, make([]byte, 16)...)
	}
	return append(binary.LittleEndian.AppendUint16(append([]byte{27, 0, 1, 0}, b[12:20]...), uint16(n)), out...)
}

func (m *machine) start(b, oob []byte) {
	u16 := func(at int) int { return int(binary.LittleEndian.Uint16(b[at:])) }
	p := &fakeProc{m: m, launch: binary.LittleEndian.Uint64(b[8:]), uid: binary.LittleEndian.Uint32(b[20:]),
		signal: make(chan syscall.Signal, 10)}
	system := binary.LittleEndian.Uint32(b[16:]) == 1
	argc, nfds, group, subdir := u16(48), u16(52), u16(54), u16(56)
	at := 58 + 4*nfds + group + subdir
	if argc > 0 {
		n := int(binary.LittleEndian.Uint32(b[at:]))
		p.name = string(b[at+4 : at+4+n])
	}
	cmsgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil || len(cmsgs) != 1 {
		m.t.Errorf("START came with %d control messages, %v", len(cmsgs), err)
		return
	}
	fds, err := syscall.ParseUnixRights(&cmsgs[0])
	if err != nil {
		m.t.Error(err)
		return
	}
	for i, fd := range fds {
		syscall.CloseOnExec(fd)
		if i == len(fds)-1 {
			syscall.SetNonblock(fd, true)
			p.system = os.NewFile(uintptr(fd), "system")
		} else {
			p.files = append(p.files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	m.mu.Lock()
	if other, taken := m.uids[p.uid]; taken && p.uid != 0 { // 0 leaves the choice to the launcher
		m.t.Errorf("uid %d was given to launch %d while launch %d has it", p.uid, p.launch, other)
	}
	m.uids[p.uid] = p.launch
	m.running[p.launch] = p
	m.mu.Unlock()
	r := binary.LittleEndian.AppendUint64([]byte{16, 0, 1, 0}, p.launch)
	m.send(append(r, make([]byte, 36)...))
	if system {
		go p.serve()
		return
	}
	m.procs <- p
}

func (m *machine) send(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.control.Write(b)
}

// exit ends the proc, once.
func (p *fakeProc) exit(status uint32) {
	p.once.Do(func() {
		p.m.mu.Lock()
		delete(p.m.running, p.launch)
		delete(p.m.uids, p.uid)
		c := p.client
		p.m.mu.Unlock()
		if c != nil {
			c.Close()
		} else {
			p.system.Close()
		}
		for _, f := range p.files {
			f.Close()
		}
		r := binary.LittleEndian.AppendUint64([]byte{18, 0, 1, 0}, p.launch)
		r = binary.LittleEndian.AppendUint32(r, status)
		p.m.send(append(r, make([]byte, 28)...))
	})
}

// open connects the proc.
func (p *fakeProc) open(ctx context.Context) error {
	conn, err := session.FromFile(p.system)
	if err != nil {
		return err
	}
	c, err := session.Dial(ctx, conn)
	if err != nil {
		return err
	}
	p.m.mu.Lock()
	p.client = c
	p.m.mu.Unlock()
	p.root, err = c.Attach(ctx, "")
	return err
}

// endpointsOf is /sys/endpoints of a tree, to be called.
type endpointsOf struct{ root sigma.File }

func (e endpointsOf) Call(ctx context.Context, method string, payload []byte, _ []*os.File) ([]byte, []*os.File,
	error) {
	return call(ctx, e.root, sigmap.FileEndpoints, method, func(c *sigmap.Coder) { sigmap.Rest(c, &payload) })
}

// call runs a system call of a program.
func call(ctx context.Context, root sigma.File, file, method string, encode func(*sigmap.Coder)) ([]byte, []*os.File,
	error) {
	f, _, err := root.Walk(ctx, []string{sigma.NameSys, file})
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	var payload []byte
	if encode != nil {
		if payload, err = sigmap.Payload(encode); err != nil {
			return nil, nil, err
		}
	}
	return f.(sigma.Caller).Call(ctx, method, payload, nil)
}

// serve is a service of the boot set, until it gets a signal.
func (p *fakeProc) serve() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-p.signal
		p.exit(0)
		cancel()
	}()
	var tree sigma.Tree
	switch p.name {
	case services.Named:
		tree = withCredentials{standby{treeserver.Admin{Tree: p.m.realms, Realms: p.m.realms}, p.m}, &p.m.credentials}
	case services.S3:
		tree = treeserver.Admin{Tree: p.m.objects, Realms: p.m.objects}
	case services.Machined:
		tree = p.m.machined
	case services.Lcsched:
		tree = lcsched.NewService() // which nobody elects
	case services.Besched:
		s := besched.NewService()
		p.m.mu.Lock()
		p.m.sched = s
		p.m.mu.Unlock()
		tree = s
	}
	if err := p.open(ctx); err != nil {
		return // killed early
	}
	e, err := sigmap.CallListen.Ask(ctx, endpointsOf{p.root}, sigmap.ListenAsk{Form: sigma.FormTree})
	if err == nil {
		_, _, err = call(ctx, p.root, sigmap.FileSelf, sigmap.CallStarted.Name, nil)
	}
	for err == nil {
		var got sigmap.Accepted
		var files []*os.File
		got, files, err = sigmap.CallAccept.AskFiles(ctx, endpointsOf{p.root}, sigmap.AcceptAsk{ID: e.ID})
		if err != nil {
			break
		}
		from := got.From
		conn, err := session.FromFile(files[0])
		if err != nil {
			continue
		}
		go treeserver.Serve(ctx, conn, treeserver.Config{Tree: tree, Principal: from})
	}
	p.exit(9)
}

// kill ends the running incarnation of a service.
func (m *machine) kill(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.running {
		if p.name == name {
			go func() { p.signal <- syscall.SIGTERM }()
		}
	}
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	look, late := time.NewTicker(time.Millisecond), time.After(10*time.Second)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("it does not become so: %s", what)
		}
	}
}
