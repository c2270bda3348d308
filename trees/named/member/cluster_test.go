package member

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// testCluster is several members as processes, whose ways to each other can be cut.
type testCluster struct {
	t   testing.TB
	dir string

	mu       sync.Mutex
	heal     *sync.Cond
	cut      map[sigma.MachineID]bool            // mu
	cutWay   map[[2]sigma.MachineID]bool         // mu; from the first to the second only
	late     map[sigma.MachineID]bool            // mu; what is posted to it fails late
	running  map[sigma.MachineID]*exec.Cmd       // mu
	initials map[sigma.MachineID]string          // mu
	stdins   map[sigma.MachineID]io.Closer       // mu
	wires    map[[2]sigma.MachineID]net.Listener // mu
	closed   bool                                // mu
}

func newTestCluster(t testing.TB) *testCluster {
	dir, err := os.MkdirTemp("", "named-") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	c := &testCluster{t: t, dir: dir, cut: map[sigma.MachineID]bool{}, cutWay: map[[2]sigma.MachineID]bool{},
		late:    map[sigma.MachineID]bool{},
		running: map[sigma.MachineID]*exec.Cmd{}, initials: map[sigma.MachineID]string{},
		stdins: map[sigma.MachineID]io.Closer{},
		wires:  map[[2]sigma.MachineID]net.Listener{}}
	c.heal = sync.NewCond(&c.mu)
	t.Cleanup(func() {
		c.mu.Lock()
		c.closed = true
		c.heal.Broadcast()
		for _, l := range c.wires {
			l.Close()
		}
		var left []sigma.MachineID
		for m := range c.running {
			left = append(left, m)
		}
		c.mu.Unlock()
		for _, m := range left {
			c.kill(m)
		}
		os.RemoveAll(dir)
	})
	return c
}

func (c *testCluster) data(m sigma.MachineID) string { return filepath.Join(c.dir, "data-"+string(m)) }

// start runs a member, which has the argument of its first start again.
func (c *testCluster) start(m sigma.MachineID) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for other := range c.initials {
		c.wireLocked(m, other)
		c.wireLocked(other, m)
	}
	if _, known := c.initials[m]; !known {
		c.initials[m] = ""
	}
	args, _ := json.Marshal(memberArgs{Machine: m, Dir: c.data(m), Initial: c.initials[m], Switch: c.dir})
	if err := os.MkdirAll(c.data(m), 0o700); err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), memberEnv+"="+string(args))
	cmd.Stdout, cmd.Stderr = logWriter{c.t}, logWriter{c.t}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.running[m], c.stdins[m] = cmd, in
}

func (c *testCluster) end(m sigma.MachineID, sig syscall.Signal) {
	c.mu.Lock()
	cmd, in := c.running[m], c.stdins[m]
	delete(c.running, m)
	c.mu.Unlock()
	if cmd != nil {
		cmd.Process.Signal(sig)
		cmd.Wait()
		in.Close()
	}
}

func (c *testCluster) kill(m sigma.MachineID) { c.end(m, syscall.SIGKILL) }

// setCut makes the ways from and to a member carry nothing, without a word to those who use them.
func (c *testCluster) setCut(m sigma.MachineID, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut[m] = cut
	c.heal.Broadcast()
}

// setCutWay does that to what goes from one member to another, and not back.
func (c *testCluster) setCutWay(from, to sigma.MachineID, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cutWay[[2]sigma.MachineID{from, to}] = cut
	c.heal.Broadcast()
}

// pause stops a member's process where it stands; proceed lets it go on.
func (c *testCluster) pause(m sigma.MachineID)   { c.signal(m, syscall.SIGSTOP) }
func (c *testCluster) proceed(m sigma.MachineID) { c.signal(m, syscall.SIGCONT) }

func (c *testCluster) signal(m sigma.MachineID, sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cmd := c.running[m]; cmd != nil {
		cmd.Process.Signal(sig)
	}
}

func (c *testCluster) wireLocked(from, to sigma.MachineID) {
	if from == to || c.wires[[2]sigma.MachineID{from, to}] != nil {
		return
	}
	l, err := net.Listen("unix", wireSocket(c.dir, from, to))
	if err != nil {
		c.t.Fatal(err)
	}
	c.wires[[2]sigma.MachineID{from, to}] = l
	pass := func(route [2]sigma.MachineID) bool { // waits while the way is cut
		c.mu.Lock()
		defer c.mu.Unlock()
		for (c.cut[from] || c.cut[to] || c.cutWay[route]) && !c.closed {
			c.heal.Wait()
		}
		return !c.closed
	}
	there, back := [2]sigma.MachineID{from, to}, [2]sigma.MachineID{to, from}
	carry := func(route [2]sigma.MachineID, to, from net.Conn) {
		defer to.(interface{ CloseWrite() error }).CloseWrite()
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			if n == 0 || !pass(route) {
				return
			}
			if _, werr := to.Write(b[:n]); werr != nil || err != nil {
				return
			}
		}
	}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer near.Close()
				near, ok := c.postLate(near, to)
				if !ok || !pass(there) {
					return
				}
				far, err := net.Dial("unix", peerSocket(c.dir, to))
				if err != nil {
					return
				}
				defer far.Close()
				fmt.Fprintf(far, "%s\n", from)
				done := make(chan struct{})
				go func() { defer close(done); carry(back, near, far) }()
				carry(there, far, near)
				<-done
			}()
		}
	}()
}

// lateTime is longer than etcd needs to make its streams to a member that is starting.
const lateTime = 2 * time.Second

// postLate takes what is posted to a member and answers nothing for lateTime, if that is wanted; ok
// is for other connections.
func (c *testCluster) postLate(near net.Conn, to sigma.MachineID) (_ net.Conn, ok bool) {
	c.mu.Lock()
	late := c.late[to]
	c.mu.Unlock()
	if !late {
		return near, true
	}
	begin := bufio.NewReader(near)
	if method, _ := begin.Peek(len("POST")); string(method) != "POST" {
		return &peeked{near.(*net.UnixConn), begin}, true
	}
	over := time.NewTimer(lateTime)
	defer over.Stop()
	select {
	case <-over.C:
	case <-c.t.Context().Done():
	}
	return nil, false
}

// peeked is a connection of which the beginning was read.
type peeked struct {
	*net.UnixConn
	begin *bufio.Reader
}

func (c *peeked) Read(b []byte) (int, error) { return c.begin.Read(b) }

// testClient is a program that uses the names as sigmad does: it looks for the member that leads,
// and keeps the session.
type testClient struct {
	c       *testCluster
	session *session.Client
	root    sigma.File // the realm's
	admin   sigma.File
	machine sigma.MachineID
}

// attachTo attaches to one member.
func (c *testCluster) attachTo(ctx context.Context, m sigma.MachineID, name string) (*session.Client, sigma.File,
	error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: treeSocket(c.dir, m), Net: "unixpacket"})
	if err != nil {
		return nil, nil, err
	}
	s, err := session.Dial(ctx, session.NewPacketConn(conn, true))
	if err != nil {
		return nil, nil, err
	}
	f, err := s.Attach(ctx, name)
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, f, nil
}

func (x *testClient) close() {
	if x.session != nil {
		x.session.Close()
	}
	x.session, x.root, x.admin = nil, nil, nil
}

// connect finds the leader. It fails if none of the members is one now.
func (x *testClient) connect(ctx context.Context) error {
	if x.session != nil {
		return nil
	}
	x.c.mu.Lock()
	var ms []sigma.MachineID
	for m := range x.c.initials {
		ms = append(ms, m)
	}
	x.c.mu.Unlock()
	var last error
	for _, m := range ms {
		actx, cancel := context.WithTimeout(ctx, 2*time.Second)
		s, admin, err := x.c.attachTo(actx, m, "")
		if err == nil {
			if x.root, err = s.Attach(actx, string(testRealm)); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
				s.Close()
			} else {
				x.session, x.admin, x.machine, err = s, admin, m, nil
			}
		}
		cancel()
		if err == nil {
			return nil
		}
		last = errors.Join(last, err)
	}
	return last
}

// do repeats f until it succeeds, or answers an error that another try would answer too.
func (x *testClient) do(ctx context.Context, f func(ctx context.Context) error) error {
	for {
		tctx, cancel := context.WithTimeout(ctx, 8*time.Second)
		err := x.connect(tctx)
		asked := err == nil
		if asked {
			err = f(tctx)
		}
		cancel()
		switch kind := sigma.KindOf(err); {
		case err == nil, ctx.Err() != nil:
			return err
		case asked && (kind == sigma.KindExists || kind == sigma.KindInvalid || kind == sigma.KindNotFound):
			return err
		}
		x.close()
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (x *testClient) ask(ctx context.Context, method string, encode, decode func(*sigmap.Coder)) error {
	return x.do(ctx, func(ctx context.Context) error { return askFile(ctx, x.admin, method, encode, decode) })
}

func (x *testClient) members(ctx context.Context, t testing.TB) (ms []sigmap.NamesMember) {
	if err := x.ask(ctx, sigmap.CallMembers.Name, nil, func(c *sigmap.Coder) { c.NamesMembers(&ms) }); err != nil {
		t.Fatal(err)
	}
	return ms
}

// until asks again and again, since members change by themselves.
func (x *testClient) until(ctx context.Context, t testing.TB, what string, is func(ms []sigmap.NamesMember) bool) {
	t.Helper()
	for !is(x.members(ctx, t)) {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s; %+v", what, x.members(context.Background(), t))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// add makes a further member and waits until it is a full one.
func (c *testCluster) add(ctx context.Context, x *testClient, m sigma.MachineID) {
	c.t.Helper()
	var text string
	if err := x.ask(ctx, sigmap.CallMemberAdd.Name, machineArg(m), textOf(&text)); err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.initials[m] = text
	c.mu.Unlock()
	c.start(m)
}

func voters(ms []sigmap.NamesMember) (n int) {
	for _, m := range ms {
		if !m.Learner {
			n++
		}
	}
	return n
}

// standsBy waits until a member that does not lead takes part again.
func (c *testCluster) standsBy(ctx context.Context, m sigma.MachineID) {
	c.t.Helper()
	for {
		s, _, err := c.attachTo(ctx, m, "")
		if err == nil {
			s.Close()
			return
		}
		if strings.Contains(err.Error(), " leads") {
			return
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("machine %s does not come back: %v", m, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// writer makes names that nobody else makes, and tries for names that all others want too.
type writer struct {
	id    int
	x     *testClient
	acked atomic.Int64
	mu    sync.Mutex
	own   int             // mu; names below it are acknowledged
	won   map[string]bool // mu; contested names that it was told are its
}

// make1 makes a name exclusively; mine says whether it is this writer's. An answer that was lost is
// found out by looking.
func (w *writer) make1(ctx context.Context, name string) (mine bool, err error) {
	text := []byte(fmt.Sprintf("%s of %d", name, w.id))
	err = w.x.do(ctx, func(ctx context.Context) error {
		_, _, err := w.x.root.(sigma.Putter).Put(ctx, []string{name}, text, sigma.PutOptions{MustMake: true})
		return err
	})
	if sigma.KindOf(err) == sigma.KindExists && err != nil {
		err = w.x.do(ctx, func(ctx context.Context) error {
			r, _, err := w.x.root.(sigma.Getter).Get(ctx, []string{name}, 0, 1000)
			mine = bytes.Equal(r.Data, text)
			return err
		})
		return mine, err
	}
	return err == nil, err
}

func (w *writer) run(ctx context.Context, t testing.TB) {
	defer w.x.close()
	for i := 0; ctx.Err() == nil; i++ {
		mine, err := w.make1(ctx, fmt.Sprintf("own-%d-%d", w.id, i))
		if ctx.Err() != nil {
			return
		}
		if err != nil || !mine {
			t.Errorf("writer %d: %v, mine %v", w.id, err, mine)
			return
		}
		contested := fmt.Sprintf("shared-%d", i)
		w.mu.Lock()
		w.own = i + 1
		w.mu.Unlock()
		w.acked.Add(1)
		if mine, err = w.make1(ctx, contested); err == nil && mine {
			w.mu.Lock()
			w.won[contested] = true
			w.mu.Unlock()
		}
	}
}

// trial is three members under a write load.
type trial struct {
	*testCluster
	ctx     context.Context
	x       *testClient
	writers []*writer
	endLoad context.CancelFunc
	load    sync.WaitGroup
}

// newTrial grows a store from one member to three while clients write.
func newTrial(ctx context.Context, t *testing.T) *trial {
	r := &trial{testCluster: newTestCluster(t), ctx: ctx, writers: make([]*writer, 4)}
	r.start("m1")
	r.x = &testClient{c: r.testCluster}
	if err := r.x.ask(ctx, sigmap.CallCreateRealm.Name, func(d *sigmap.Coder) {
		r := testRealm
		d.RealmID(&r)
	}, nil); err != nil {
		t.Fatal(err)
	}
	loadCtx, end := context.WithCancel(ctx)
	r.endLoad = end
	t.Cleanup(func() { end(); r.load.Wait(); r.x.close() })
	for i := range r.writers {
		r.writers[i] = &writer{id: i, x: &testClient{c: r.testCluster}, won: map[string]bool{}}
		r.load.Go(func() { r.writers[i].run(loadCtx, t) })
	}
	r.progress()
	began := time.Now()
	r.add(ctx, r.x, "m2")
	r.add(ctx, r.x, "m3")
	r.x.until(ctx, t, "three full members", func(ms []sigmap.NamesMember) bool { return voters(ms) == 3 })
	t.Logf("grown from 1 to 3 under load in %v", time.Since(began).Round(time.Millisecond))
	r.progress()
	return r
}

// progress returns when each writer was told of two more names.
func (r *trial) progress() {
	r.t.Helper()
	for _, w := range r.writers {
		for want := w.acked.Load() + 2; w.acked.Load() < want; {
			select {
			case <-r.ctx.Done():
				r.t.Fatalf("writer %d stands still", w.id)
			case <-time.After(time.Millisecond):
			}
		}
	}
}

func (r *trial) leader() sigma.MachineID {
	r.t.Helper()
	r.x.close()
	if err := r.x.do(r.ctx, func(context.Context) error { return nil }); err != nil {
		r.t.Fatal(err)
	}
	return r.x.machine
}

// lose does something to a member, and undoes it when all writers went on.
func (r *trial) lose(m sigma.MachineID, how string, do, undo func()) {
	r.t.Helper()
	leads := ""
	if r.leader() == m {
		leads = ", which led"
	}
	r.x.close()
	at := time.Now()
	do()
	r.progress()
	r.t.Logf("machine %s%s %s: writes go on after %v", m, leads, how, time.Since(at).Round(time.Millisecond))
	undo()
	r.standsBy(r.ctx, m)
	r.progress()
}

// backUp takes a snapshot meanwhile. before is how many names of each writer were acknowledged when
// it began.
func (r *trial) backUp() (before []int, text <-chan []byte) {
	for _, w := range r.writers {
		w.mu.Lock()
		before = append(before, w.own)
		w.mu.Unlock()
	}
	done := make(chan []byte, 1)
	go func() {
		b := &testClient{c: r.testCluster}
		defer b.close()
		var text []byte
		if err := b.do(r.ctx, func(ctx context.Context) (err error) {
			text, err = snapshotOf(ctx, b.admin)
			return err
		}); err != nil {
			r.t.Error(err)
		}
		done <- text
	}()
	return before, done
}

// shrink removes members, the leader first, until one is left.
func (r *trial) shrink() {
	for _, m := range []sigma.MachineID{r.leader(), "m1", "m2",
		"m3"} { // the last of which there is, or which is gone already
		if ms := r.x.members(r.ctx, r.t); len(ms) > 1 {
			if err := r.x.ask(r.ctx, sigmap.CallMemberRemove.Name, machineArg(m), nil); err != nil {
				r.t.Fatalf("removing %s of %+v: %v", m, ms, err)
			}
			r.kill(m)
			r.progress()
		}
	}
	if ms := r.x.members(r.ctx, r.t); len(ms) != 1 || !ms[0].Leads {
		r.t.Errorf("after the removal of all others: %+v", ms)
	}
}

// Three members under a write load from several clients, any of which is killed or cut off in turn,
// the leader too: nothing that was acknowledged is lost, no name is made twice, and a backup taken
// meanwhile has everything that was acknowledged before it began.
func TestMembersSurviveLosses(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs three processes and kills them in turn")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	r := newTrial(ctx, t)
	for _, m := range []sigma.MachineID{r.leader(), "m1", "m2", "m3"} {
		r.lose(m, "is killed", func() { r.kill(m) }, func() { r.start(m) })
	}
	before, backup := r.backUp()
	m := r.leader()
	r.lose(m, "is cut off", func() { r.setCut(m, true) }, func() { r.setCut(m, false) })
	m = r.leader()
	r.lose(m, "is stopped in an orderly way", func() { r.end(m, syscall.SIGTERM) }, func() { r.start(m) })
	text := <-backup
	r.quorumLost(ctx, r.x)
	r.progress()
	r.shrink()
	r.endLoad()
	r.load.Wait()
	checkNames(ctx, t, r.x, r.writers)
	checkBackup(t, text, before)
}

// quorumLost cuts all members from each other: what they are asked is refused in words, and goes on
// afterwards.
func (c *testCluster) quorumLost(ctx context.Context, x *testClient) {
	c.t.Helper()
	x.close()
	if err := x.do(ctx, func(context.Context) error { return nil }); err != nil {
		c.t.Fatal(err)
	}
	all := []sigma.MachineID{"m1", "m2", "m3"}
	for _, m := range all {
		c.setCut(m, true)
	}
	read := func() error {
		_, err := x.root.Stat(ctx)
		return err
	}
	write := func() error {
		_, _, err := x.root.(sigma.Putter).Put(ctx, []string{"without-quorum"}, nil, sigma.PutOptions{})
		return err
	}
	for _, f := range []func() error{read, write} {
		for { // while the leader's lease lasts it may answer, and a change on its way has an outcome that nobody knows
			if err := f(); err != nil && sigma.KindOf(err) == sigma.KindUnavailable {
				if !strings.Contains(err.Error(), "quorum is lost") {
					c.t.Errorf("without quorum: %v", err)
				}
				break
			} else if err != nil && sigma.KindOf(err) != sigma.KindLost {
				c.t.Errorf("without quorum: %v", err)
				break
			}
			if ctx.Err() != nil {
				c.t.Fatal("requests are answered without quorum")
			}
		}
	}
	for _, m := range all {
		c.setCut(m, false)
	}
	began := time.Now()
	if err := x.do(ctx, func(ctx context.Context) error { _, err := x.root.Stat(ctx); return err }); err != nil {
		c.t.Fatal(err)
	}
	c.t.Logf("quorum came back: reads go on after %v", time.Since(began).Round(time.Millisecond))
}

// checkNames compares what the writers were told with what is there.
func checkNames(ctx context.Context, t *testing.T, x *testClient, writers []*writer) {
	t.Helper()
	x.close()
	there := func(name string) (text string) {
		if err := x.do(ctx, func(ctx context.Context) error {
			r, _, err := x.root.(sigma.Getter).Get(ctx, []string{name}, 0, 1000)
			text = string(r.Data)
			return err
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return text
	}
	owner, total := map[string]int{}, 0
	for _, w := range writers {
		for i := range w.own {
			name := fmt.Sprintf("own-%d-%d", w.id, i)
			if got := there(name); got != fmt.Sprintf("%s of %d", name, w.id) {
				t.Errorf("%s, acknowledged, has %q", name, got)
			}
			total++
		}
		for name := range w.won {
			if other, twice := owner[name]; twice {
				t.Errorf("%s was made by %d and by %d", name, other, w.id)
			}
			owner[name] = w.id
			if got := there(name); got != fmt.Sprintf("%s of %d", name, w.id) {
				t.Errorf("%s, won by %d, has %q", name, w.id, got)
			}
		}
	}
	t.Logf("%d names of one writer and %d contested ones are there, each once", total, len(owner))
}

// checkBackup restores a snapshot and looks for what was acknowledged before it began.
func checkBackup(t *testing.T, text []byte, before []int) {
	t.Helper()
	dir := t.TempDir()
	keys, err := Restore(t.Context(), Config{Dir: dir}, bytes.NewReader(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	m, _ := alone(t, dir)
	root, err := m.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for id, own := range before {
		for i := range own {
			name := fmt.Sprintf("own-%d-%d", id, i)
			if got := get(t, root.(file), name); got != fmt.Sprintf("%s of %d", name, id) {
				t.Errorf("the backup has %q in %s", got, name)
			}
			count++
		}
	}
	for _, name := range list(t, root.(file), 1000) {
		if got := get(t, root.(file), name); !strings.HasPrefix(got, name+" of ") {
			t.Errorf("the backup has %q in %s", got, name)
		}
	}
	t.Logf("a backup of %d keys, %d bytes, has the %d names that were acknowledged before it", keys, len(text), count)
}
