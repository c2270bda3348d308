//go:build system

package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// nobodyUID is the user of the host who has nothing but credentials.
const nobodyUID = 65534

// guests is a system of two machines and a user of the host who may use no admin socket.
type guests struct {
	*world
	command string // a copy of sigma where that user can run it
	probe   string // a program, likewise
}

// Goal: credentials that are made on one machine are good on another, for a user who is not root,
// and for what their role says; they outlast sigmad; sessions end, with a word that says so, when
// their credential is revoked elsewhere, expires, or its realm is removed, and begin no more.
// Method: the sigma command, run as that user; a watch is the session that is to end. Each refusal
// has a control, and a session of another realm goes on throughout.
func TestCredentials(t *testing.T) {
	c := testenv.NewCluster(t, testenv.ClusterOptions{Kind: testenv.Local, Machines: 2, Realms: []sigma.RealmID{"team",
		"other"}})
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	defer cancel()
	dir := filepath.Dir(c.Data()) // others may pass through it
	g := &guests{world: &world{t: t, ctx: ctx, m1: c.Machine(0), m2: c.Machine(1)},
		command: filepath.Join(dir, "sigma"), probe: filepath.Join(dir, "probe")}
	g.copied(filepath.Join(c.Bin(), "sigma"), g.command)
	g.copied(testenv.BuildC(t, t.TempDir(), "../machine/testdata/probe.c"), g.probe)

	viewer, developer, owner := g.credential("viewer", "team"), g.credential("developer", "team"),
		g.credential("owner", "team")
	strangers := g.credential("viewer", "other")
	proc := g.cli("--realm", "team", "run", "-d", g.probe, "ignore")
	g.tryRoles(viewer, developer, owner, proc)
	g.tryRealms(viewer, strangers)

	g.m2.Kill9(t, "sigmad")
	testenv.Eventually(t, "m2 takes credentials after kill -9 of its sigmad", func() error {
		return second(g.as(g.m2, viewer, "ls", "/"))
	})

	bystander := g.watch(strangers, "other")
	g.tryRevoked(viewer, developer, owner)
	g.tryExpired()
	g.tryRemovedRealm(developer)
	bystander.goesOn()
}

// copied copies a program for all users.
func (g *guests) copied(from, to string) {
	g.t.Helper()
	b, err := os.ReadFile(from)
	g.must(err)
	g.must(os.WriteFile(to, b, 0o755))
	g.must(os.Chmod(to, 0o755)) // whatever the umask is
}

// credential makes one as the provider, on m1.
func (g *guests) credential(role, realm string, flags ...string) string {
	g.t.Helper()
	return g.cli(append(append([]string{"realm", "credential", "create", "--role", role}, flags...), realm)...)
}

// prepare makes the command as nobody, at a machine.
func (g *guests) prepare(m *testenv.Machine, credential string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(g.ctx, g.command, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "SIGMA_DATA=" + m.DataDir, "SIGMA_CREDENTIAL=" + credential}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyUID, Gid: nobodyUID}}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// as runs the command as nobody and returns what it prints; what it complains of is the error.
func (g *guests) as(m *testenv.Machine, credential string, args ...string) (string, error) {
	cmd := g.prepare(m, credential, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("sigma %q: %w: %s", args, err, errs.String())
	}
	return out.String(), nil
}

// does is an attempt or a control of a command at m2.
func (g *guests) does(credential string, args ...string) func() error {
	return func() error { return second(g.as(g.m2, credential, args...)) }
}

// finds runs a command at m2 that must print want.
func (g *guests) finds(want, credential string, args ...string) {
	g.t.Helper()
	if out, err := g.as(g.m2, credential, args...); err != nil || !strings.Contains(out, want) {
		g.t.Errorf("sigma %q prints %q, %v; want %q", args, out, err, want)
	}
}

// tryRoles has each role do at m2 what it may, and try what it may not.
func (g *guests) tryRoles(viewer, developer, owner, proc string) {
	g.finds("arg hello", developer, "run", g.probe, "show", "hello")
	g.must(second(g.as(g.m2, developer, "mkdir", "/made")))
	g.finds("made", viewer, "ls", "/")
	g.finds(proc, viewer, "ps")
	testenv.Eventually(g.t, "a viewer is told what a proc uses, once it has started", func() error {
		list, err := g.as(g.m2, viewer, "ps", "--json")
		if err == nil && !strings.Contains(list, `"tasks": 1`) {
			err = errors.New(list)
		}
		return err
	})
	g.try("a viewer makes a directory", g.does(developer, "mkdir", "/more"), g.does(viewer, "mkdir", "/less"), "viewer")
	g.try("a viewer runs a program", g.does(developer, "run", g.probe, "exit", "0"), g.does(viewer, "run", g.probe,
		"exit", "0"), "viewer")
	g.try("a viewer kills a proc", g.does(viewer, "ps"), g.does(viewer, "kill", proc), "viewer")
	g.finds(proc, viewer, "ps")
	g.try("a developer lists credentials", g.does(owner, "realm", "credential", "ls", "team"),
		g.does(developer, "realm", "credential", "ls", "team"), "owner")
	g.try("an owner removes the realm", func() error {
		return nil
	}, g.does(owner, "realm", "rm", "--force", "team"), "")
	g.try("nobody at the admin socket", g.does(viewer, "ls", "/"), g.does("", "ls", "/"), "may not use")
}

// tryRealms uses a credential of one realm for another.
func (g *guests) tryRealms(viewer, strangers string) {
	g.cli("--realm", "other", "mkdir", "/theirs")
	g.finds("theirs", strangers, "ls", "/")
	if out, err := g.as(g.m2, viewer, "ls", "/"); err != nil || strings.Contains(out, "theirs") {
		g.t.Errorf("a viewer of team lists %q, %v", out, err)
	}
	g.try("to name another realm", g.does(viewer, "--realm", "team", "ls", "/"), g.does(viewer, "--realm", "other",
		"ls", "/"), "is of realm team, not of other")
	g.try("a session of another realm, without the command's own check", g.attach(viewer, "team"),
		g.attach(viewer, "other"), "")
	g.try("a credential with another realm's name in it", g.does(strangers, "ls", "/"),
		g.does(strings.Replace(viewer, ".team.", ".other.", 1), "ls", "/"), "the credential is not good")
}

// attach opens a realm with a credential, whichever that is of.
func (g *guests) attach(credential, realm string) func() error {
	return func() error {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(g.m2.DataDir, "realm.sock"),
			Net: "unixpacket"})
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write(sigmap.Greeting(credential)); err != nil {
			return err
		}
		answer := make([]byte, sigmap.GreetingMax+1)
		n, err := conn.Read(answer)
		if err == nil {
			err = sigmap.ParseWelcome(answer[:n])
		}
		if err != nil {
			g.t.Errorf("the greeting of a good credential: %v", err)
			return err
		}
		s, err := session.Dial(g.ctx, session.NewPacketConn(conn, true))
		if err != nil {
			return err
		}
		defer s.Close()
		root, err := s.Attach(g.ctx, realm)
		if err == nil {
			root.Close()
		}
		return err
	}
}

// tryRevoked revokes the viewer's credential on m1 while it holds a session on m2.
func (g *guests) tryRevoked(viewer, developer, owner string) {
	watched, stays := g.watch(viewer, "team"), g.watch(developer, "team")
	if _, err := g.as(g.m1, owner, "realm", "credential", "revoke", "team", "viewer-1"); err != nil {
		g.t.Fatal(err)
	}
	g.try("to connect with a credential that was revoked on another machine", g.does(developer, "ls", "/"),
		g.does(viewer, "ls", "/"), "it was revoked")
	watched.ends()
	stays.goesOn()
	stays.stop()
}

// tryExpired holds a session for longer than its credential is good.
func (g *guests) tryExpired() {
	for age := 3 * time.Second; ; age *= 4 { // on a slow host it may expire before there is a session
		brief := g.credential("viewer", "team", "--name", fmt.Sprint("brief-", int(age.Seconds())), "--expires",
			age.String())
		w := g.watch(brief, "team")
		if !w.seen() && age < 30*time.Second {
			continue
		}
		w.ends()
		g.try("to connect with a credential that expired", func() error {
			return nil
		}, g.does(brief, "ls", "/"), "has expired")
		return
	}
}

// tryRemovedRealm removes the realm while a session of it is open.
func (g *guests) tryRemovedRealm(developer string) {
	w := g.watch(developer, "team")
	g.cli("realm", "rm", "--force", "team")
	w.ends()
	g.try("to connect with a credential of a realm that was removed", func() error {
		return nil
	}, g.does(developer, "ls", "/"), "its realm removed")
	g.cli("realm", "create", "team")
	g.try("to use it when the realm is made anew", g.does(g.credential("developer", "team"), "ls", "/"),
		g.does(developer, "ls", "/"), "the credential is not good")
}

// watching is sigma watch at m2, by nobody.
type watching struct {
	g     *guests
	realm string
	cmd   *exec.Cmd
	out   lines
	errs  bytes.Buffer // read it after over
	over  chan struct{}
	err   error // read it after over
}

// lines is what a command has printed so far.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer // mu
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Len()
}

// watch begins one, and returns when it has told of a change or is over.
func (g *guests) watch(credential, realm string) *watching {
	g.t.Helper()
	w := &watching{g: g, realm: realm, cmd: g.prepare(g.m2, credential, "watch", "/changing"),
		over: make(chan struct{})}
	w.cmd.Stdout, w.cmd.Stderr = &w.out, &w.errs
	g.must(w.cmd.Start())
	go func() {
		w.err = w.cmd.Wait()
		close(w.over)
	}()
	g.t.Cleanup(w.stop)
	w.hears()
	return w
}

// hears makes changes on m1 until the watch tells of one or is over.
func (w *watching) hears() {
	w.g.t.Helper()
	before := w.out.len()
	testenv.Eventually(w.g.t, "a watch tells of a change", func() error {
		select {
		case <-w.over:
			return nil
		default:
		}
		if w.out.len() > before {
			return nil
		}
		cmd := w.g.m1.Command(w.g.ctx, "--realm", w.realm, "put", "-", "/changing")
		cmd.Stdin = strings.NewReader(time.Now().String())
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("put: %w: %s", err, out)
		}
		return errors.New("it has said nothing")
	})
}

func (w *watching) seen() bool { return w.out.len() > 0 }

// goesOn tests that the session lives.
func (w *watching) goesOn() {
	w.g.t.Helper()
	w.hears()
	select {
	case <-w.over:
		w.g.t.Errorf("a session ended that nothing should end: %v, %s", w.err, w.errs.String())
	default:
	}
}

// ends waits for the end of the session, of which the command says so.
func (w *watching) ends() {
	w.g.t.Helper()
	if !w.seen() {
		w.g.t.Error("a session that was to end has never been")
	}
	testenv.Eventually(w.g.t, "the session ends", func() error {
		select {
		case <-w.over:
			return nil
		default:
			return errors.New("it goes on")
		}
	})
	if said := w.errs.String(); w.err == nil || !strings.Contains(said, "the session with sigmaOS has ended") {
		w.g.t.Errorf("a watch whose session was ended ends with %v, %q", w.err, said)
	}
}

// stop ends the command.
func (w *watching) stop() {
	w.cmd.Process.Kill()
	<-w.over
}
