package kernel

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/wire/sigmap"
)

// founder is the first machine of a system, with a real machined whose state outlives it.
type founder struct {
	*machine
	t     *testing.T
	data  string
	judge *machines.Client
}

// foundSystem makes a system of one machine, m1, which takes others in.
func foundSystem(t *testing.T) *founder {
	authority, err := identity.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	root, err := memfs.New(memfs.Config{SizeMax: sigma.GiB}).Attach(t.Context(), sigma.Principal{System: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	d, err := machines.NewDaemon(machines.DaemonConfig{Self: "m1",
		Namespace: resolve.New(resolve.Config{Machine: "m1", Root: root}), Path: "/machines",
		Authority: func(bool) (*identity.Authority, error) { return authority, nil }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { d.Run(ctx) })
	t.Cleanup(func() { stop(); all.Wait() })
	f := &founder{t: t, data: t.TempDir()}
	f.start(d)
	caller, err := d.Attach(ctx, sigma.Principal{System: true, Machine: "m1"}, "")
	if err != nil {
		t.Fatal(err)
	}
	f.judge = machines.NewClient(caller.(sigma.Caller))
	return f
}

func (f *founder) start(d sigma.Tree) {
	ln := listenTCP(f.t)
	f.machine = bootAs(f.t, Config{Machine: "m1", Data: f.data, Listener: ln, Address: ln.Addr().String()},
		func(m *machine) {
			m.machined = d
		}, services.Named, services.Besched, services.S3, services.Machined)
}

func listenTCP(t *testing.T) net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func (f *founder) token(uses int) string {
	text, err := f.judge.Token(f.t.Context(), uses, time.Minute)
	if err != nil {
		f.t.Fatal(err)
	}
	return text
}

// join boots a machine that joins; a data directory that is given is that of a machine that has
// joined before, unless token is.
func (f *founder) join(name sigma.MachineID, token, data string, prepare func(*machine)) (*machine, error) {
	ln := listenTCP(f.t)
	cfg := Config{Machine: name, Data: data, Listener: ln, Address: ln.Addr().String()}
	if token != "" {
		cfg.Join = &Join{Address: f.k.cfg.Address, Token: token}
	}
	if prepare == nil {
		prepare = func(*machine) {}
	}
	m, err := tryBoot(f.t, cfg, prepare)
	if err != nil {
		ln.Close()
	}
	return m, err
}

func (m *machine) mustSee(t *testing.T, what string, is func([]identity.Member) bool) {
	t.Helper()
	eventually(t, what, func() bool { return is(m.k.cluster.Members()) })
}

// Goal: a machine that founds a system has an identity that only it can read, and is the same
// machine in a later life when it is started again.
func TestFoundAndStartAgain(t *testing.T) {
	f := foundSystem(t)
	first := f.k.cluster.Self()
	if first.Machine != "m1" || first.Incarnation == 0 || first.System == "" {
		t.Fatalf("the founder is %v", first)
	}
	info, err := os.Stat(filepath.Join(f.data, cluster.IdentityFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the identity: %v, %v", info, err)
	}
	if _, err := os.Stat(filepath.Join(f.data, cluster.PendingFile)); !os.IsNotExist(err) {
		t.Errorf("what only the founding needed is still there: %v", err)
	}
	d := f.machined
	f.end()
	f.start(d)
	again := f.k.cluster.Self()
	if again.System != first.System || again.Incarnation <= first.Incarnation || again.Key != first.Key {
		t.Errorf("%v was started again as %v", first, again)
	}
	f.mustSee(t, "the roster has the later life", func(ms []identity.Member) bool {
		return len(ms) == 1 && ms[0].Incarnation == again.Incarnation && !ms[0].Lost && ms[0].Control
	})
	if text, err := f.metrics(); err != nil || !strings.Contains(string(text),
		"sigma_identity_expiry_seconds{what=\"certificate\"} 4") {
		t.Errorf("the metrics do not tell of the certificate: %v", err)
	}
}

// Goal: a machine joins by a good token only, once, under a name of its own, and is told in words
// why not; it is a member for good then.
func TestJoin(t *testing.T) {
	f := foundSystem(t)
	other := foundSystem(t)
	token, data := f.token(1), t.TempDir()
	if err := os.WriteFile(filepath.Join(data, cluster.JoinFile), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	m2, err := f.join("m2", token, data, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(data, cluster.JoinFile)); !os.IsNotExist(err) {
		t.Errorf("the token was left behind: %v", err)
	}
	both := func(ms []identity.Member) bool { return len(ms) == 2 && !ms[0].Lost && !ms[1].Lost }
	f.mustSee(t, "the founder sees m2", both)
	m2.mustSee(t, "m2 sees the founder", both)
	life := m2.k.cluster.Self().Incarnation
	for _, c := range []struct {
		name  sigma.MachineID
		token string
		want  string
	}{
		{"m3", token, "used up"},
		{"m3", other.token(1), "not of the system that made the token"},
		{"m3", token[:len(token)-4], "not a whole token"},
		{"m2", f.token(1), "there is a machine m2"},
	} {
		if m, err := f.join(c.name, c.token, t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s joined as %v, %v; wanted %q", c.name, m, err, c.want)
		}
	}
	m2.end()
	if m2, err = f.join("m2", token, data, nil); err != nil { // as if the file had not been removed
		t.Fatal(err)
	}
	if now := m2.k.cluster.Self().Incarnation; now <= life {
		t.Errorf("started again, m2 is in life %d; before it was %d", now, life)
	}
	m2.end()
	if _, err := f.join("m4", "", data, nil); err == nil || !strings.Contains(err.Error(), "that of machine m2") {
		t.Errorf("m2's data were taken for m4's: %v", err)
	}
}

// Goal: a sigmad that is started again beside its procs goes on with the life they are of.
func TestLifeGoesOn(t *testing.T) {
	f := foundSystem(t)
	data := t.TempDir()
	m2, err := f.join("m2", f.token(1), data, nil)
	if err != nil {
		t.Fatal(err)
	}
	life := m2.k.cluster.Self().Incarnation
	m2.end()
	what := runner.Label{Info: sigma.ProcInfo{ID: sigma.NewProcID(), Realm: "default", Name: "old", Memory: sigma.MiB}}
	text, err := sigmap.Payload(what.Code)
	if err != nil {
		t.Fatal(err)
	}
	record := binary.LittleEndian.AppendUint64([]byte{25, 0, 1, 0}, 7)
	record = binary.LittleEndian.AppendUint32(record, 0)
	record = append(binary.LittleEndian.AppendUint16(record, uint16(len(text))), text...)
	m2, err = f.join("m2", "", data, func(m *machine) { m.adopt = [][]byte{record} })
	if err != nil {
		t.Fatal(err)
	}
	if now := m2.k.cluster.Self().Incarnation; now != life {
		t.Errorf("the life %d does not go on, but another, %d", life, now)
	}
	if n := m2.k.life.inherited; n != 1 {
		t.Errorf("%d procs were inherited", n)
	}
}

// Goal: a machine whose life was ended ends its procs, is registered in a new life, and serves
// again; one that was removed ends its procs and serves nothing.
func TestLifeEnds(t *testing.T) {
	f := foundSystem(t)
	m2, err := f.join("m2", f.token(1), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := m2.connect("default")
	var id sigma.ProcID
	for here := false; !here; {
		id = m2.spawn(c, sigma.Descriptor{})
		select {
		case <-m2.procs:
			here = true
		case <-f.procs: // where besched saw more room
		}
	}
	first := m2.k.cluster.Self()
	if _, _, err := link.Enrol(t.Context(),
		m2.enrolAgain(t, f)); err != nil { // somebody with its key and disk, as after a restart
		t.Fatal(err)
	}
	eventually(t, "m2 is in a third life", func() bool { return m2.k.cluster.Self().Incarnation > first.Incarnation+1 })
	if n := m2.k.cluster.LivesEnded(); n != 1 {
		t.Errorf("%d lives were ended", n)
	}
	if st := m2.status(c, id); st.Code != sigma.StatusLost {
		t.Errorf("the proc of a life that is over ended as %v", st)
	}
	m2.mustSee(t, "m2 is alive", func(ms []identity.Member) bool { return len(ms) == 2 && !ms[1].Lost })

	if err := f.judge.Remove(t.Context(), "m2", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "m2 knows", func() bool { return m2.k.cluster.Self().Incarnation == 0 })
	err = m2.k.realms.MayAttach("default")
	if kind := sigma.KindOf(err); err == nil || kind != sigma.KindUnavailable && kind != sigma.KindPermission {
		t.Errorf("a machine that was removed serves: %v", err)
	}
	eventually(t, "m2 says why", func() bool { return sigma.KindOf(m2.k.cluster.ShutOut()) == sigma.KindPermission })
}

// enrolAgain is what this machine would say to be registered anew.
func (m *machine) enrolAgain(t *testing.T, f *founder) link.Join {
	now := m.k.cluster.Kept()
	key, err := now.PrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return link.Join{Address: f.k.cfg.Address, Authority: now.Authority(), Key: key, Ask: m.k.cluster.Enrolment()}
}

// Goal: a cordon, and its end, is in force at the machine it is about when it has returned, if the
// machine answered; else soon.
func TestCordon(t *testing.T) {
	f := foundSystem(t)
	m2, err := f.join("m2", f.token(1), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	acted := 0
	for n := 0; n < 2 || acted == 0 && n < 20; n++ {
		on := n%2 == 0
		acts, err := f.judge.Cordon(t.Context(), "m2", on)
		if err != nil {
			t.Fatal(err)
		}
		if acts {
			acted++
			if m2.k.cluster.Cordoned() != on || m2.k.placing.Closed() != on {
				t.Fatalf("cordon %v returned before the machine acts by it", on)
			}
			parked, _ := m2.k.placing.Parked()
			if on && parked > 0 {
				t.Fatal("the cordon returned while a besched can give the machine procs")
			}
		}
		eventually(t, "the cordon is known", func() bool {
			return m2.k.cluster.Cordoned() == on && m2.k.placing.Closed() == on
		})
	}
	if acted == 0 {
		t.Error("the machine never answered in time")
	}
}

// Goal: a machine that a besched does not give its credit back to says of no cordon that it acts by
// it, until it does.
func TestCordonWithoutCredits(t *testing.T) {
	f := foundSystem(t)
	var returned, asked atomic.Bool
	_, err := f.join("m2", f.token(1), t.TempDir(), func(m *machine) {
		m.k.cluster.AwaitVacant(func(ctx context.Context) bool {
			if !m.k.placing.Closed() {
				return true
			}
			asked.Store(true)
			if !returned.Load() {
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
			return returned.Load()
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	acts, err := f.judge.Cordon(t.Context(), "m2", true)
	if err != nil || acts {
		t.Fatalf("the machine acts by the cordon: %v, %v", acts, err)
	}
	if !asked.Load() {
		t.Error("the machine does not ask whether its credits are back")
	}
	returned.Store(true)
	eventually(t, "the machine acts by the cordon", func() bool {
		acts, err := f.judge.Cordon(t.Context(), "m2", true)
		return err == nil && acts
	})
}

// Goal: while a control machine has not begun its own life it lets nobody in, and says so at once:
// else control machines that boot together would wait for each other.
func TestBootingControlMachinesDoNotWaitForEachOther(t *testing.T) {
	w := newWorld(t, part{name: "m1", control: true, services: []string{services.Named, services.Besched, services.S3,
		services.Machined}})
	k := w.machines["m1"].k
	refused := func() bool {
		_, err := k.cluster.Enroller().Challenge(t.Context())
		return err != nil && sigma.KindOf(err) == sigma.KindUnavailable &&
			strings.Contains(err.Error(), "is booting itself")
	}
	k.cluster.SetBetween(true)
	if !refused() {
		t.Error("it lets others in before it was registered")
	}
	k.cluster.SetBetween(false)
	k.cluster.Starts(false)
	if !refused() {
		t.Error("it lets others in before it has started its part of the control plane")
	}
}
