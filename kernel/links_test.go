package kernel

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

var control = part{name: "m1", control: true, services: []string{services.Named, services.Besched, services.S3}}

// TestLinkRefusals: what a machine does not have, or not now, is refused in words, and a member
// cannot have too much of one thing.
func TestLinkRefusals(t *testing.T) {
	w := newWorld(t, control, part{name: "m2"})
	m1, m2 := w.machines["m1"], w.machines["m2"]
	ctx := t.Context()
	dial := func(from, to *machine, target link.Target, p sigma.Principal) error {
		l, err := from.k.cluster.Node().Dial(ctx, to.k.cfg.Machine, target, p)
		if err == nil {
			l.Close()
		}
		return err
	}
	own := m1.k.cluster.Provider()
	for _, c := range []struct {
		target link.Target
		kind   sigma.Kind
		words  string
	}{
		{link.Target{Kind: link.ToService, Name: services.Named}, sigma.KindNotFound, "machine m2 runs no named"},
		{link.Target{Kind: link.ToService, Name: "x"}, sigma.KindNotFound, "no service x"},
		{link.Target{Kind: link.ToEndpoint, Name: "x"}, sigma.KindInvalid, "not an endpoint"},
		{link.Target{Kind: link.ToEndpoint, Name: sigma.Endpoint{Realm: "a", Machine: "m1", Proc: "q",
			ID: "AAECAwQFBgcICQoLDA0ODw", Form: sigma.FormTree}.String()}, sigma.KindInvalid, "one of machine m1"},
		{link.Target{Kind: link.ToEndpoint, Name: sigma.Endpoint{Realm: "a", Machine: "m2", Proc: "q",
			ID: "AAECAwQFBgcICQoLDA0ODw", Form: sigma.FormTree}.String()}, sigma.KindUnavailable, "nobody listens"},
	} {
		if err := dial(m1, m2, c.target, own); sigma.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%v: got %v (%v)", c.target, err, sigma.KindOf(err))
		}
	}
	if err := dial(m2, m1, link.Target{Kind: link.ToStream, Name: services.Named},
		own); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("a service that takes no streams: got %v", err)
	}
	s := m1.k.services.Local(services.S3)
	s.Ending(s.Proc())
	if err := dial(m2, m1, link.Target{Kind: link.ToService, Name: services.S3},
		own); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("a service that is being started: got %v", err)
	}
	var open []*link.Link
	var err error
	for err == nil && len(open) <= reach.ServingFew {
		var l *link.Link
		if l, err = m2.k.cluster.Node().Dial(ctx, "m1", link.Target{Kind: link.ToService, Name: reach.TargetPeer},
			own); err == nil {
			open = append(open, l)
		}
	}
	if sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("%d peers: %v", len(open), err)
	}
	for _, l := range open {
		l.Close()
	}
	eventually(t, "what was closed is not counted", func() bool {
		return m1.served("m2", reach.TargetPeer) <= 1
	}) // m2 has one itself, to ask for the store
}

// served is how many links a machine has here to a service.
func (m *machine) served(from sigma.MachineID, name string) int {
	return m.k.reach.Serving(from, name)
}

// TestServicesAcross: a machine that runs no service has names and objects, through the machine
// that has them, also after those were restarted.
func TestServicesAcross(t *testing.T) {
	w := newWorld(t, control, part{name: "m2"})
	m1, m2 := w.machines["m1"], w.machines["m2"]
	ctx := t.Context()
	c := m2.connect("default")
	if _, err := c.Put(ctx, "/x", []byte("there"), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	big := make([]byte, 200<<10)
	if _, err := c.Put(ctx, "/s3/bin/big", big, sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if b, _, err := m1.connect("default").Get(ctx, "/x"); err != nil || string(b) != "there" {
		t.Errorf("got %q, %v", b, err)
	}
	h, err := c.Open(ctx, "/bin/big", sigma.OpenRead)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.File(); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("a descriptor came over a link: %v", err)
	}
	if b, err := io.ReadAll(h); err != nil || len(b) != len(big) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	tree, err := m2.k.realms.Tree("default")
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{services.Named, services.S3} {
		s := m1.k.services.Local(service)
		over := s.Ended()
		m1.kill(service)
		<-over
		if err := lostOnce(func() error { _, err := tree.Stat(ctx, "/bin/big"); return err }); err != nil {
			t.Errorf("after a restart of %s: %v", service, err)
		}
	}
	if tree.Warm("/bin/big") {
		t.Error("what no board covers is remembered")
	}
	w.lose("m1")
	short, cancel := context.WithCancel(ctx)
	cancel()
	eventually(t, "its session has ended", func() bool {
		_, err = m2.k.realms.Named(short, "default")
		return err != nil
	})
	if !strings.Contains(err.Error(), "no control machine answers for named") || sigma.HintOf(err) == "" {
		t.Errorf("without a control machine: %v", err)
	}
}

// TestLeader: names are asked of the machine whose named leads, also by a machine whose own stands
// by, and of the next leader when that changes.
func TestLeader(t *testing.T) {
	var leader atomic.Value
	leader.Store(sigma.MachineID("m1"))
	var shared *memRealms
	prepare := func(m *machine) {
		if shared == nil {
			shared = m.realms
		}
		m.realms, m.leads = shared, func() bool { return leader.Load() == m.k.cfg.Machine }
	}
	w := newWorld(t, part{name: "m1", control: true, services: control.services, before: prepare},
		part{name: "m2", control: true, services: []string{services.Named, services.Besched}, before: prepare},
		part{name: "m3", before: prepare})
	ctx := t.Context()
	for i, l := range []sigma.MachineID{"m1", "m2", "m1"} {
		if old := leader.Swap(l).(sigma.MachineID); old != l {
			over := w.machines[old].k.services.Local(services.Named).Ended()
			w.machines[old].kill(services.Named) // as named does with the sessions of who asked it as the leader
			<-over
		}
		for name, m := range w.machines {
			path := fmt.Sprint("/", name, i)
			if err := lostOnce(func() error {
				n, err := m.k.realms.Named(ctx, "default")
				if err == nil {
					_, _, err = treeserver.Put(ctx, n, []string{path[1:]}, []byte("x"), sigma.PutOptions{})
				}
				return err
			}); err != nil {
				t.Errorf("%s, while %s leads: %v", name, l, err)
			}
		}
	}
}

// TestSilent: sessions with a control machine that does not answer are ended when there is another
// to ask, else kept.
func TestSilent(t *testing.T) {
	for _, others := range []int{0, 1} {
		parts := []part{control, {name: "m2"}}
		if others > 0 {
			parts = append(parts, part{name: "m3", control: true, services: []string{services.Besched}})
		}
		m2 := newWorld(t, parts...).machines["m2"]
		s, _, err := m2.k.reach.FindRoot(t.Context(), services.Named, "default")
		if err != nil {
			t.Fatal(err)
		}
		m2.k.cluster.Silent("m1", true)
		if others > 0 {
			<-s.Done()
			continue
		}
		if root, err := s.Attach(t.Context(), "default"); err != nil {
			t.Errorf("the only control machine's session has ended: %v", err)
		} else {
			root.Close()
		}
	}
}

// lostOnce does f again for as long as it goes to a service that is just ending.
func lostOnce(f func() error) error {
	for {
		err := f()
		if kind := sigma.KindOf(err); err == nil || kind != sigma.KindLost && kind != sigma.KindCanceled {
			return err
		}
	}
}

// TestScheduler: all machines attend at the bescheds of all control machines that live.
func TestScheduler(t *testing.T) {
	second := part{name: "m2", control: true, services: []string{services.Besched}}
	w := newWorld(t, control, second, part{name: "m3"})
	at := func(m sigma.MachineID, n int, froms ...sigma.MachineID) {
		t.Helper()
		for _, from := range froms {
			eventually(t, fmt.Sprintf("%s has %d sessions to the besched of %s", from, n, m), func() bool {
				return w.machines[m].served(from, services.Besched) == n
			})
		}
	}
	at("m1", 1, "m2", "m3")
	at("m2", 1, "m1", "m3")
	w.lose("m1")
	eventually(t, "the others do without it", func() bool {
		_, m2 := w.machines["m2"].k.placing.Parked()
		_, m3 := w.machines["m3"].k.placing.Parked()
		return m2 == 1 && m3 == 1
	})
	at("m2", 1, "m3")
	w.change(func(x *identity.Member) { x.Lost = false })
	at("m1", 1, "m2", "m3")
	at("m2", 1, "m1", "m3")
}

// TestPeers: sigmads call each other over one session, which is made again; what a machine shows of
// a realm is that, to its own principals.
func TestPeers(t *testing.T) {
	hold := make(chan struct{})
	w := newWorld(t, control, part{name: "m2", before: func(m *machine) {
		call := func(name string) sigmap.Method[[]byte, []byte] {
			return sigmap.Method[[]byte, []byte]{Name: name, Request: sigmap.Rest, Reply: sigmap.Rest}
		}
		m.k.reach.Answer(reach.From(call("who"), func(_ context.Context, from identity.Subject,
			payload []byte) ([]byte, error) {
			return fmt.Appendf(nil, "%s %d %s", from.Machine, from.Incarnation, payload), nil
		}), reach.On(call("hold"), func(ctx context.Context, _ []byte) ([]byte, error) {
			close(hold)
			<-ctx.Done()
			return nil, ctx.Err()
		}), reach.On(call("panic"), func(context.Context, []byte) ([]byte, error) { panic("a bug") }))
	}})
	m1, m2 := w.machines["m1"], w.machines["m2"]
	ctx := t.Context()
	ask := func(m *machine, to sigma.MachineID, method string) (string, error) {
		p, err := m.k.reach.Peer(ctx, to)
		if err != nil {
			return "", err
		}
		b, _, err := p.Call(ctx, method, []byte("asks"), nil)
		return string(b), err
	}
	for range 3 {
		if got, err := ask(m1, "m2", "who"); got != "m1 1 asks" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if got, err := ask(m2, "m2", "who"); got != "m2 2 asks" || err != nil {
		t.Errorf("itself: got %q, %v", got, err)
	}
	if _, err := ask(m1, "m2", "nothing"); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("got %v", err)
	}
	if _, err := ask(m1, "m2", "panic"); err == nil {
		t.Error("a panic was answered by nothing")
	}
	if n := m2.served("m1", reach.TargetPeer); n != 1 {
		t.Errorf("%d links for one session", n)
	}
	held := make(chan error, 1)
	go func() { _, err := ask(m1, "m2", "hold"); held <- err }()
	<-hold
	m1.k.cluster.Node().Drop("m2")
	if err := <-held; sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("a call whose machine was dropped: %v", err)
	}
	if got, err := ask(m1, "m2", "who"); got != "m1 1 asks" || err != nil {
		t.Errorf("after a loss: got %q, %v", got, err)
	}
	w.lose("m2")
	eventually(t, "a lost machine is not asked", func() bool { _, err := ask(m1, "m2", "who"); return err != nil })
}

// TestShown: of a machine another is shown its scratch storage and procs, of one realm; nothing can
// be made there but files.
func TestShown(t *testing.T) {
	w := newWorld(t, control, part{name: "m2"})
	m1, m2 := w.machines["m1"], w.machines["m2"]
	ctx := t.Context()
	proc := sigma.Principal{Realm: "default", Proc: "p", Machine: "m2"}
	root, done, err := m2.k.reach.AttachAt(ctx, "m1", proc, "default")
	if err != nil {
		t.Fatal(err)
	}
	if again, _, err := m2.k.reach.AttachAt(ctx, "m1", proc, "default"); err != nil || again != root {
		t.Errorf("a session is not shared: %v", err)
	}
	if _, _, err := m2.k.reach.AttachAt(ctx, "m1", proc, "other"); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("another realm: %v", err)
	}
	d, _, err := root.Walk(ctx, []string{"ux", "m1"})
	if err != nil || d == nil {
		t.Fatal(err)
	}
	f, err := d.Create(ctx, "f", sigma.OpenWrite, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(ctx, []byte("bytes"), 0); err != nil {
		t.Error(err)
	}
	f.Close()
	if b, _, err := m1.connect("default").Get(ctx, "/ux/~local/f"); err != nil || string(b) != "bytes" {
		t.Errorf("got %q, %v", b, err)
	}
	for _, names := range [][]string{{"sys"}, {"sys", "procs"}, {"s3"}, {"ux", "m2"}, {"bin"}, {"x"}} {
		if f, ids, err := root.Walk(ctx, names); f != nil || err == nil && len(ids) == len(names) {
			t.Errorf("%v is shown", names)
		}
	}
	if _, err := root.Create(ctx, "x", sigma.OpenWrite, 0o644); err == nil {
		t.Error("a file was made in the root")
	}
	if l, ok := root.(sigma.Leaser); ok {
		if _, err := l.Lease(ctx, 1e9); err == nil {
			t.Error("a lease was made")
		}
	}
	c, err := session.Dial(ctx, rawLink(t, m2, "m1", link.Target{Kind: link.ToService, Name: reach.TargetSigmad},
		proc).Session())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Attach(ctx, "other"); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("another realm by name: %v", err)
	}
	m2.k.realms.Drop("default")
	<-done
}

func rawLink(t *testing.T, m *machine, to sigma.MachineID, target link.Target, p sigma.Principal) *link.Link {
	t.Helper()
	l, err := m.k.cluster.Node().Dial(t.Context(), to, target, p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// listen makes an endpoint of a program.
func listen(t *testing.T, root sigma.File, form sigma.ConnForm) sigma.Endpoint {
	t.Helper()
	e, err := sigmap.CallListen.Ask(t.Context(), endpointsOf{root}, sigmap.ListenAsk{Form: form})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func dialTo(ctx context.Context, root sigma.File, e sigma.Endpoint) (net.Conn, error) {
	_, files, err := sigmap.CallDial.AskFiles(ctx, endpointsOf{root}, sigmap.DialAsk{To: e})
	if err != nil {
		return nil, err
	}
	return streamOf(files[0])
}

// streamOf is a passed socket, whatever it is.
func streamOf(f *os.File) (stream, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(stream), nil
}

type stream interface {
	net.Conn
	CloseWrite() error
}

func accept(t *testing.T, root sigma.File, e sigma.Endpoint) (*os.File, sigma.Principal) {
	t.Helper()
	got, files, err := sigmap.CallAccept.AskFiles(t.Context(), endpointsOf{root}, sigmap.AcceptAsk{ID: e.ID})
	if err != nil {
		t.Fatal(err)
	}
	return files[0], got.From
}

// TestDialAcross: a proc reaches an endpoint of its realm on another machine, bytes go both ways,
// an end of one direction is passed on, and both ends close when the machine is lost. A proc of
// another realm gets nowhere, whether its own sigmad keeps it back or not.
func TestDialAcross(t *testing.T) {
	t.Run("direct", func(t *testing.T) { testDialAcross(t, part{name: "m2"}) })
	t.Run("encrypted", func(t *testing.T) { testDialAcross(t, part{name: "m2", encrypt: true}) })
}

func testDialAcross(t *testing.T, second part) {
	w := newWorld(t, control, second)
	m1, m2 := w.machines["m1"], w.machines["m2"]
	ctx := t.Context()
	if err := m1.connect("default").Realms().Create(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	server := m1.proc(sigma.Principal{Realm: "default", Proc: "server"})
	client, stranger := m2.proc(sigma.Principal{Realm: "default", Proc: "client"}),
		m2.proc(sigma.Principal{Realm: "other", Proc: "stranger"})
	e := listen(t, server, sigma.FormStream)

	conn, err := dialTo(ctx, client, e)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	file, from := accept(t, server, e)
	if want := (sigma.Principal{Realm: "default", Proc: "client", Machine: "m2"}); from != want {
		t.Errorf("it dialled as %+v", from)
	}
	there, err := streamOf(file)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if _, direct := conn.(*net.TCPConn); direct == second.encrypt {
		t.Errorf("the transport is %T", conn)
	}
	conn.Write([]byte("question"))
	conn.(stream).CloseWrite()
	if b, err := io.ReadAll(there); err != nil || string(b) != "question" {
		t.Errorf("got %q, %v", b, err)
	}
	there.Write([]byte("answer"))
	there.Close()
	if b, err := io.ReadAll(conn); err != nil || string(b) != "answer" {
		t.Errorf("got %q, %v", b, err)
	}
	eventually(t, "nothing is relayed any more", func() bool {
		connections, realms := m2.k.connect.Relayed()
		return connections == 0 && realms == 0
	})

	// Isolation.
	if _, err := dialTo(ctx, stranger, e); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("another realm: %v", err)
	}
	lie := e
	lie.Realm = "other"
	for name, target := range map[string]sigma.Endpoint{"as it is": e, "under its own realm": lie} {
		if l, err := m2.k.cluster.Node().Dial(ctx, "m1", link.Target{Kind: link.ToEndpoint, Name: target.String()},
			sigma.Principal{Realm: "other", Proc: "stranger"}); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("another realm, past its own sigmad, the endpoint %s: %v", name, err)
			l.Close()
		}
		if second.encrypt {
			continue
		}
		if c, err := m2.k.cluster.Node().DialDirect(ctx, "m1", link.Target{Kind: link.ToEndpoint,
			Name: target.String()},
			sigma.Principal{Realm: "other", Proc: "stranger"}); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("another realm, past its own sigmad, directly, the endpoint %s: %v", name, err)
			c.Close()
		}
	}
	if l, err := m2.k.cluster.Node().Dial(ctx, "m1", link.Target{Kind: link.ToEndpoint, Name: e.String()},
		sigma.Principal{Realm: "default", Proc: "client"}); err != nil { // positive control
		t.Errorf("its own realm: %v", err)
	} else {
		l.Close()
		f, _ := accept(t, server, e)
		f.Close()
	}

	testEndsAcross(t, w, second, server, client, e)
}

// testEndsAcross: a listener that closes ends what waits there; a machine that is lost ends what is
// open.
func testEndsAcross(t *testing.T, w *world, second part, server, client sigma.File, e sigma.Endpoint) {
	ctx, m1 := t.Context(), w.machines["m1"]
	waiting, err := dialTo(ctx, client, e)
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	m1.k.proxy.CloseProc("server")
	if _, err := waiting.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a connection to a listener that closed: %v", err)
	}
	if _, err := dialTo(ctx, client, e); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("nobody listens: %v", err)
	}
	e = listen(t, server, sigma.FormStream)
	open, err := dialTo(ctx, client, e)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	f, _ := accept(t, server, e)
	defer f.Close()
	w.machines["m1"].launched("server", 7)
	w.machines["m2"].launched("client", 7)
	if second.encrypt {
		w.lose("m1")
	} else { // both are the same process here, so that one of the two is not to hear of it
		other := w.machines["m2"].k
		other.connect.Shut(ctx, other.proxy.Revoke("cut", func(c *dialproxy.Connection) bool {
			return c.Other.Machine == "m1"
		}))
	}
	for name, c := range map[string]io.Reader{"the dialler": open, "the listener": f} {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s still has a connection: %v", name, err)
		}
	}
}

// TestTreeAcross: a tree that a proc serves is walked from another machine; files that would come
// along are refused, and requests that bring some lose them.
func TestTreeAcross(t *testing.T) {
	w := newWorld(t, control, part{name: "m2"})
	m1, m2 := w.machines["m1"], w.machines["m2"]
	ctx := t.Context()
	server, client := m1.proc(sigma.Principal{Realm: "default", Proc: "server"}),
		m2.proc(sigma.Principal{Realm: "default", Proc: "client"})
	e := listen(t, server, sigma.FormTree)
	passed := func() *os.File {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	go func() {
		f, from := accept(t, server, e)
		conn, err := session.FromFile(f)
		if err != nil {
			t.Error(err)
			return
		}
		treeserver.Serve(ctx, conn, treeserver.Config{Tree: callables{func(method string, files int) ([]byte,
			[]*os.File, error) {
			if method == "pass" {
				return nil, []*os.File{passed()}, nil
			}
			return fmt.Append(nil, method, " ", files), nil, nil
		}}, Principal: from, KeepFiles: true})
	}()
	_, files, err := sigmap.CallDial.AskFiles(ctx, endpointsOf{client}, sigmap.DialAsk{To: e})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := session.FromFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	c, err := session.Dial(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	root, err := c.Attach(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	caller := root.(sigma.Caller)
	if b, _, err := caller.Call(ctx, "hello", nil, nil); err != nil || string(b) != "hello 0" {
		t.Errorf("got %q, %v", b, err)
	}
	f := passed()
	defer f.Close()
	if b, _, err := caller.Call(ctx, "bring", nil, []*os.File{f}); err != nil || string(b) != "bring 0" {
		t.Errorf("a request with a file: got %q, %v", b, err)
	}
	if _, _, err := caller.Call(ctx, "pass", nil, nil); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("an answer with a file: %v", err)
	}
	if b, _, err := caller.Call(ctx, "bye", nil, nil); err != nil || string(b) != "bye 0" {
		t.Errorf("got %q, %v", b, err)
	}
}

// callables is a tree of one callable file.
type callables struct {
	f func(method string, files int) ([]byte, []*os.File, error)
}

func (c callables) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return &caller{Callable: treeserver.Callable{Name: "x", ID: 1}, f: c.f}, nil
}

type caller struct {
	treeserver.Callable
	f func(method string, files int) ([]byte, []*os.File, error)
}

func (c *caller) Walk(context.Context, []string) (sigma.File, []sigma.FileID, error) {
	return c, nil, nil
}

func (c *caller) Call(_ context.Context, method string, _ []byte, files []*os.File) ([]byte, []*os.File, error) {
	session.CloseFiles(files)
	return c.f(method, len(files))
}

// TestStreamsAcross: a service reaches itself on another machine by bytes; nobody else does.
func TestStreamsAcross(t *testing.T) {
	w := newWorld(t, control, part{name: "m2", control: true, services: []string{services.Named}})
	m1, m2 := w.machines["m1"], w.machines["m2"]
	ctx := t.Context()
	stream := func(root sigma.File, m sigma.MachineID, name string) (*os.File, error) {
		_, files, err := call(ctx, root, sigmap.FileEndpoints, sigmap.CallDialStream.Name, func(c *sigmap.Coder) {
			c.MachineID(&m)
			c.Str(&name)
		})
		if err != nil {
			return nil, err
		}
		return files[0], nil
	}
	there, here := m1.service(services.Named), m2.service(services.Named)
	if _, err := stream(here, "m1", services.Named); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("nobody takes streams: %v", err)
	}
	e := listen(t, there, sigma.FormStream)
	for _, from := range []struct {
		root sigma.File
		me   sigma.MachineID
	}{{here, "m2"}, {there, "m1"}} {
		f, err := stream(from.root, "m1", services.Named)
		if err != nil {
			t.Fatal(err)
		}
		a, p := accept(t, there, e)
		if p.Machine != from.me || !p.System {
			t.Errorf("it came from %+v", p)
		}
		f.Write([]byte("etcd"))
		b := make([]byte, 4)
		if _, err := io.ReadFull(a, b); err != nil || string(b) != "etcd" {
			t.Errorf("got %q, %v", b, err)
		}
		f.Close()
		a.Close()
	}
	if _, err := stream(here, "m1", services.S3); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("to another service: %v", err)
	}
	if _, err := stream(m2.proc(sigma.Principal{Realm: "default", Proc: "p"}), "m1",
		services.Named); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("of a tenant: %v", err)
	}
	if _, err := m1.connect("default").List(ctx, true); err != nil { // its sessions still go where they went
		t.Error(err)
	}
}

// TestHostileMember: whatever a member's sigmad sends after it was let in, the others are served,
// and nothing of it is left when it goes.
func TestHostileMember(t *testing.T) {
	w := newWorld(t, control, part{name: "m2"}, part{name: "m3"})
	m1, m2 := w.machines["m1"], w.machines["m2"]
	ctx := t.Context()
	server := m1.proc(sigma.Principal{Realm: "default", Proc: "server"})
	tree, stream := listen(t, server, sigma.FormTree), listen(t, server, sigma.FormStream)
	own := m2.k.cluster.Provider()
	targets := []link.Target{{Kind: link.ToEndpoint, Name: tree.String()},
		{Kind: link.ToEndpoint, Name: stream.String()}, {Kind: link.ToBeat, Name: "beat"}}
	for _, name := range []string{services.Named, services.Besched, services.S3, reach.TargetPeer, reach.TargetSigmad} {
		targets = append(targets, link.Target{Kind: link.ToService, Name: name})
	}
	r := rand.New(rand.NewPCG(3, 4))
	version, err := sigmap.Encode(nil, sigmap.NoTag, &sigmap.Tversion{Msize: sigmap.MessageMax,
		Version: sigmap.VersionSigma})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m2.k.reach.Peer(ctx, "m1"); err != nil { // so that it is there before the count
		t.Fatal(err)
	}
	eventually(t, "it has its session to besched", func() bool { return m1.served("m2", services.Besched) == 1 })
	before := m1.k.cluster.Node().Count()["m2"]
	for _, target := range targets {
		for i := range 12 {
			l := rawLink(t, m2, "m1", target, own)
			b := make([]byte, 7+r.IntN(300))
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			switch i % 4 {
			case 0: // a message that claims to be long, and is not
				b = []byte{0xff, 0xff, 0, 0, 100, 0, 0}
			case 1: // rubbish
			case 2: // rubbish in a frame
				binary.LittleEndian.PutUint32(b, uint32(len(b)))
			case 3: // the same, within a session
				binary.LittleEndian.PutUint32(b, uint32(len(b)))
				b = append(version, b...)
			}
			l.Write(b)
			l.Close()
		}
	}
	m1.k.proxy.CloseProc("server") // until it accepts, what was said to it waits there, as it does on one machine
	eventually(t, "its links are gone", func() bool { return m1.k.cluster.Node().Count()["m2"] <= before })
	if _, err := w.machines["m3"].connect("default").Put(ctx, "/x", []byte("x"), sigma.PutOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := m2.connect("default").Put(ctx, "/s3/bin/y", []byte("y"), sigma.PutOptions{}); err != nil {
		t.Error(err)
	}
	text, err := m1.metrics()
	if err != nil || !strings.Contains(string(text), "sigma_link_relays 0\n") {
		t.Errorf("got %s, %v", text, err)
	}
}
