//go:build system

// Package isolation tries, from procs of one realm, on the same machine and on another, to reach
// what is another realm's or the host's: by endpoints, listeners, tickets and sockets, by what is
// said in a set-up message, by connections that machines make in advance, and while a realm is
// being removed. Each attempt has a control that shows that it would have succeeded with what is
// one's own. That a machine cannot be another is tried in test/identity. It needs root and
// /dev/net/tun.
package isolation

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

const testMax = 5 * time.Minute

const other sigma.RealmID = "other"

// suite is a system of two machines, with procs of two realms on the first.
type suite struct {
	t      *testing.T
	ctx    context.Context
	m1, m2 *testenv.Machine
	local  string // the program
	path   string // in each realm

	sibling, stranger   *held
	siblings, strangers *sdk.Client // of the attackers' realm and the other, by m1
	tried, succeeded    int
}

// held is what prober's World is.
type held struct {
	Realm   sigma.RealmID
	Proc    sigma.ProcID
	Machine sigma.MachineID
	Stream  string
	Tree    string
	Closed  string
	Ticket  []byte
}

type words struct{ What, Control, Err string }

// TestIsolation is all attempts, in one system.
func TestIsolation(t *testing.T) {
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 2})
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	defer cancel()
	s := &suite{t: t, ctx: ctx, m1: c.Machine(0), m2: c.Machine(1)}
	s.local = testenv.BuildGo(t, t.TempDir(), "testdata/prober")
	s.siblings = s.m1.Connect(ctx, t, sigma.DefaultRealm)
	s.must(s.siblings.Realms().Create(ctx, other))
	s.strangers = s.m1.Connect(ctx, t, other)
	s.path = s.m1.Install(ctx, t, s.siblings, s.local)
	s.m1.Install(ctx, t, s.strangers, s.local)
	s.sibling, s.stranger = s.hold(s.siblings), s.hold(s.strangers)
	s.tryProcs("", s.m1, true)
	s.tryProcs("from another machine: ", s.m2, false)
	s.trySockets()
	s.tryPort()
	s.tryEnded()
	s.tryRemoval()
	s.tryBatches()
	fmt.Printf("isolation: %d tried, %d succeeded\n", s.tried, s.succeeded)
	if s.tried < 140 {
		t.Errorf("only %d attempts were made", s.tried)
	}
}

// connect makes a TCP connection from where m2 is.
func (s *suite) connect(ctx context.Context, address string) (net.Conn, error) {
	return s.m2.Net.Dial(ctx, "tcp", address)
}

func (s *suite) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// said enters an attempt by the errors of its control and its own.
func (s *suite) said(what, control, attempt string) {
	s.t.Helper()
	if control != "" {
		s.t.Errorf("%s: the control fails too: %s", what, control)
	}
	if s.tried++; attempt == "" {
		s.succeeded++
		s.t.Errorf("%s: it SUCCEEDED", what)
	}
}

func (s *suite) try(what string, control, attempt func() error) {
	s.t.Helper()
	text := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	said := text(control())
	s.said(what, said, text(attempt()))
}

// start spawns a proc that stays, on m1, near which it is if that has room at once, and gives what
// it says.
func (s *suite) start(c *sdk.Client, args ...string) (sigma.ProcID, held) {
	s.t.Helper()
	for range placings {
		id, w := s.startNear(c, args...)
		if w.Machine == s.m1.Name {
			return id, w
		}
		s.must(c.Kill(s.ctx, id))
	}
	s.t.Fatal("no proc comes to m1")
	return "", held{}
}

// placings is how often a proc is started that does not come to the machine it is for.
const placings = 20

// startNear does so wherever there is room.
func (s *suite) startNear(c *sdk.Client, args ...string) (id sigma.ProcID, w held) {
	s.t.Helper()
	ids, err := c.Spawn(s.ctx, sigma.Descriptor{Program: s.path, Args: args, Start: sigma.StartedByCall,
		Near: s.m1.Name})
	if err == nil {
		err = c.WaitStart(s.ctx, ids[0])
	}
	s.must(err)
	testenv.Eventually(s.t, "the proc says what it has", func() error {
		b, _, err := c.Get(s.ctx, sigma.JoinPath("proc", string(ids[0]), "stdout"))
		if err == nil {
			err = json.Unmarshal(b, &w)
		}
		return err
	})
	return ids[0], w
}

// hold starts a proc that is to be attacked, and another with a connection to it.
func (s *suite) hold(c *sdk.Client) *held {
	s.t.Helper()
	_, w := s.start(c, "hold")
	_, of := s.start(c, "client", w.Stream)
	w.Ticket = of.Ticket
	return &w
}

// run runs the program to its end as a proc on m, and gives the lines it says.
func (s *suite) run(m *testenv.Machine, env []string, args ...string) (out []words) {
	s.t.Helper()
	c := m.Connect(s.ctx, s.t, sigma.DefaultRealm)
	var ids []sigma.ProcID
	var st sigma.Status
	var err error
	for range placings {
		ids, err = c.Spawn(s.ctx, sigma.Descriptor{Program: s.path, Args: args,
			Env: append(env, "MACHINE="+string(m.Name)), Near: m.Name})
		s.must(err)
		st, err = c.WaitExit(s.ctx, ids[0])
		if s.must(err); st.ExitCode != elsewhere {
			break
		}
	}
	b, _, err := c.Get(s.ctx, sigma.JoinPath("proc", string(ids[0]), "stdout"))
	s.must(err)
	if !st.OK() {
		e, _, _ := c.Get(s.ctx, sigma.JoinPath("proc", string(ids[0]), "stderr"))
		s.t.Errorf("%q on %s: %+v\n%s", args, m.Name, st, e)
	}
	return s.lines(b)
}

// elsewhere is how prober ends on another machine than MACHINE.
const elsewhere = 77

func (s *suite) lines(b []byte) (out []words) {
	s.t.Helper()
	for line := range strings.Lines(string(b)) {
		var w words
		s.must(json.Unmarshal([]byte(line), &w))
		out = append(out, w)
	}
	return out
}

// tryProcs has a proc of the default realm try to reach the other's.
func (s *suite) tryProcs(where string, m *testenv.Machine, here bool) {
	world, err := json.Marshal(map[string]any{"Sibling": s.sibling, "Other": s.stranger, "Here": here})
	s.must(err)
	lines := s.run(m, []string{"WORLD=" + string(world)}, "try")
	for _, w := range lines {
		s.said(where+w.What, w.Control, w.Err)
	}
	if least := 28; len(lines) < least {
		s.t.Errorf("%smade %d attempts, not %d", where, len(lines), least)
	}
}

// trySockets has a proc misuse a connection; the controls are made outside, by an ordinary process.
func (s *suite) trySockets() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	etcd, err := filepath.Glob(filepath.Join(s.m1.DataDir, "named", "*"))
	if s.must(err); len(etcd) == 0 {
		s.t.Fatal("named has no files")
	}
	dir := s.t.TempDir() // a path of a socket has room for 107 bytes
	s.must(os.Symlink(filepath.Dir(s.m1.Socket()), filepath.Join(dir, "s")))
	env := []string{"ADMIN=" + filepath.Join(dir, "s", "admin.sock"),
		"PORT=" + fmt.Sprint(l.Addr().(*net.TCPAddr).Port), "FILE=" + etcd[0]}
	attempts := s.run(s.m1, env, "socket")
	cmd := exec.Command(s.local, "socket", "outside")
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	s.must(err)
	controls := s.lines(out)
	if len(attempts) != len(controls) || len(attempts) < 20 {
		s.t.Fatalf("%d attempts with sockets and %d controls", len(attempts), len(controls))
	}
	for i, w := range attempts {
		s.said("with a socket: "+w.What, controls[i].Err, w.Err)
	}
}

// tryPort says to the port for other machines what a connection between two procs begins with. The
// control is such a connection, made by their sigmads.
func (s *suite) tryPort() {
	e, err := sigma.ParseEndpoint(s.sibling.Stream)
	s.must(err)
	control := func() error {
		c := s.m2.Connect(s.ctx, s.t, sigma.DefaultRealm)
		conn, err := c.Dial(s.ctx, e)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
		return err
	}
	random := make([]byte, 512)
	rand.Read(random)
	for what, text := range map[string][]byte{
		"a connection by a key that was never made":  slices.Concat([]byte("SGD1"), random[:16], random[100:300]),
		"a connection by a key of zeros":             slices.Concat([]byte("SGD1"), make([]byte, 200)),
		"a connection in the clear to an endpoint":   slices.Concat([]byte("SGD1"), []byte(s.stranger.Stream)),
		"half a beginning, and nothing more":         []byte("SGD"),
		"a connection whose beginning is four bytes": []byte("SGD1"),
	} {
		s.try(what, control, func() error {
			conn, err := s.m2.Net.Dial(s.ctx, "tcp", s.m1.Address())
			if err != nil {
				return err
			}
			defer conn.Close()
			conn.Write(text)
			conn.(*net.TCPConn).CloseWrite()
			conn.SetDeadline(time.Now().Add(30 * time.Second))
			got, err := io.ReadAll(io.LimitReader(conn, 1<<16))
			if strings.Contains(string(got), "default") ||
				strings.Contains(string(got), "other") { // the prober says whom it takes the caller for
				return nil
			}
			return fmt.Errorf("closed after %d bytes, %v", len(got), err)
		})
	}
}

// tryEnded uses what was good once: the endpoint of a proc that has ended.
func (s *suite) tryEnded() {
	id, w := s.start(s.siblings, "hold")
	dial := func(c *sdk.Client) func() error {
		return func() error {
			e, err := sigma.ParseEndpoint(w.Stream)
			if err != nil {
				return err
			}
			conn, err := c.Dial(s.ctx, e)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Read(make([]byte, 1))
			return err
		}
	}
	here, far := dial(s.siblings), dial(s.m2.Connect(s.ctx, s.t, sigma.DefaultRealm))
	before := errors.Join(here(), far())
	s.must(s.siblings.Kill(s.ctx, id))
	_, err := s.siblings.WaitExit(s.ctx, id)
	s.must(err)
	for what, attempt := range map[string]func() error{"": here, ", from another machine": far} {
		s.try("dial the endpoint of a proc that has ended"+what, func() error { return before }, attempt)
	}
}

// tryRemoval uses a realm while it is being removed, and after that, when there is another of its
// name.
func (s *suite) tryRemoval() {
	const doomed sigma.RealmID = "doomed"
	s.must(s.siblings.Realms().Create(s.ctx, doomed))
	inside := s.m1.Connect(s.ctx, s.t, doomed)
	s.m1.Install(s.ctx, s.t, inside, s.local)
	id, w := s.start(inside, "hold")
	e, err := sigma.ParseEndpoint(w.Stream)
	s.must(err)
	conn, err := inside.Dial(s.ctx, e)
	s.must(err)
	defer conn.Close()
	first := make([]byte, 1)
	_, err = conn.Read(first)
	s.must(err)
	_, err = inside.Put(s.ctx, "/kept", []byte("secret"), sigma.PutOptions{})
	s.must(err)
	dial := func() error {
		conn, err := inside.Dial(s.ctx, e)
		if err == nil {
			conn.Close()
		}
		return err
	}
	spawn := func() error {
		_, err := inside.Spawn(s.ctx, sigma.Descriptor{Program: s.path, Args: []string{"hold"}})
		return err
	}
	read := func() error { _, _, err := inside.Get(s.ctx, "/kept"); return err }
	acts := map[string]func() error{"dial its endpoint": dial, "spawn in it": spawn, "read its names": read}
	before := map[string]error{}
	for what, f := range acts {
		before[what] = f()
	}
	racing, stop := context.WithCancel(s.ctx)
	var racers sync.WaitGroup
	for _, f := range acts {
		for range 2 {
			racers.Go(func() {
				for racing.Err() == nil {
					f()
				}
			})
		}
	}
	err = s.siblings.Realms().Remove(s.ctx, doomed)
	s.must(err)
	for what, f := range acts { // while others still try
		s.try(what+" after its removal", func() error { return before[what] }, f)
	}
	stop()
	racers.Wait()
	s.try("go on with a connection to a proc of a realm that was removed", func() error { return nil }, func() error {
		conn.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.Copy(io.Discard, conn); err != nil {
			return err
		}
		return io.EOF // it has ended
	})
	s.must(s.siblings.Realms().Create(s.ctx, doomed))
	anew := s.m1.Connect(s.ctx, s.t, doomed)
	s.try("read the old realm's names in a new one of its name", func() error {
		return before["read its names"]
	}, func() error { _, _, err := anew.Get(s.ctx, "/kept"); return err })
	s.try("dial the old realm's endpoint from a new one of its name", func() error {
		return before["dial its endpoint"]
	}, func() error {
		conn, err := anew.Dial(s.ctx, e)
		if err == nil {
			conn.Close()
		}
		return err
	})
	s.try("see the old realm's procs in a new one of its name", func() error { return nil }, func() error {
		ps, err := anew.List(s.ctx, true)
		if err == nil && !slices.ContainsFunc(ps, func(p sigma.ProcInfo) bool { return p.ID == id }) {
			err = errors.New("they are not there")
		}
		return err
	})
}
