package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/cmd/sigma/health"
	"sigmaos.dev/cmd/sigma/members"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// fakeMembers is what the fake answers as /sys/machines: machined's own service over a store that
// keeps nothing.
type fakeMembers struct {
	service *machines.Service
	about   machines.Membership // what sigmad says of itself
}

type noStore struct{}

func (noStore) Save(context.Context, []machines.Effect) error { return nil }

// found makes a system whose first machine, m1, has address.
func (f *fake) found(address string) *fakeMembers {
	f.t.Helper()
	authority, err := identity.NewAuthority(time.Now())
	if err != nil {
		f.t.Fatal(err)
	}
	m := &fakeMembers{about: machines.Membership{System: authority.System(), Incarnation: 2, Machines: 2, Alive: 2,
		Controls: 1, Voting: 1,
		Expiries: []identity.Expiry{{What: "certificate", At: time.Now().Add(10*time.Hour + time.Minute)}}}}
	if m.service, err = machines.NewService(time.Now(), machines.ServiceConfig{Authority: authority, Store: noStore{},
		Core: machines.Config{Self: "m1", Remote: true}}); err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { m.service.Run(ctx) })
	f.t.Cleanup(func() { cancel(); run.Wait() })
	m.do(f, machines.Found{Request: machines.Request{ID: "m1", Address: address, CPU: 2500, Memory: 4 * sigma.GiB,
		Version: "1"}})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = m
	return m
}

func (m *fakeMembers) do(f *fake, e machines.Event) {
	f.t.Helper()
	if err := m.service.Registry().Do(f.t.Context(), e); err != nil {
		f.t.Fatal(err)
	}
}

// join takes a machine in.
func (m *fakeMembers) join(f *fake, id sigma.MachineID) {
	f.t.Helper()
	m.do(f, machines.MakeToken{ID: identity.TokenID(id)})
	m.do(f, machines.Enrol{Request: machines.Request{ID: id, Key: identity.Fingerprint{id[1]},
		Address: string(id) + ":7700", CPU: 1000, Memory: sigma.GiB}, Token: identity.TokenID(id), ProvenToken: true})
}

// follows has a machine act by each roster, as its sigmad would.
func (m *fakeMembers) follows(f *fake, id sigma.MachineID) {
	f.t.Helper()
	root, err := m.service.Attach(f.t.Context(), sigma.Principal{Realm: sigma.SystemRealm, Machine: id, System: true},
		"")
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		c, epoch := machines.NewClient(root.(sigma.Caller)), uint64(0)
		for err := error(nil); err == nil; {
			epoch, _, err = c.Roster(ctx, epoch)
		}
	})
	f.t.Cleanup(func() { cancel(); run.Wait() })
}

func (m *fakeMembers) call(ctx context.Context, method string, payload []byte) ([]byte, error) {
	if m == nil {
		m = &fakeMembers{}
	}
	if method == machines.CallMembership.Name {
		return sigmap.Payload(func(c *sigmap.Coder) { machines.CallMembership.Reply(c, &m.about) })
	}
	root, err := m.service.Attach(ctx, sigma.Principal{Realm: sigma.SystemRealm, Machine: "m1", System: true}, "")
	if err != nil {
		return nil, err
	}
	reply, _, err := root.(sigma.Caller).Call(ctx, method, payload, nil)
	return reply, err
}

// A token is made, shown once, listed, found by its start, and revoked.
func TestToken(t *testing.T) {
	f := newFake(t)
	f.found("10.0.0.1:7700")
	got := f.sigma("token", "create", "--uses", "2", "--ttl", "10m")
	tok, err := identity.ParseToken(got.out)
	if got.code != 0 || err != nil || !strings.Contains(got.err,
		"good for 2 machines, for 10m0s; on a machine with sigmaOS installed: sudo sigma join 10.0.0.1:7700 --token "+
			strings.TrimSpace(got.out)) {
		t.Fatalf("got %+v, %v", got, err)
	}
	id := string(tok.ID())
	if got := f.ok("token", "ls"); !strings.Contains(got, id+"   good    2 ") || !strings.Contains(got, "in 9m") ||
		strings.Contains(got, "sigma-token") {
		t.Errorf("ls: %q", got)
	}
	var created members.TokenJSON
	if err := json.Unmarshal([]byte(f.ok("token", "create", "--json")), &created); err != nil ||
		created.State != "good" || created.Uses != 1 ||
		created.Join != "sigma join 10.0.0.1:7700 --token "+created.Token {
		t.Errorf("create --json: %+v, %v", created, err)
	}
	want(t, f.sigma("token", "revoke", id, "zzz"), 1, "", `there is no token "zzz"`)
	if got := f.ok("token", "revoke", id[:9], created.Token); got != id+"\n"+created.ID+"\n" {
		t.Errorf("revoke: %q", got)
	}
	var list []members.TokenJSON
	if err := json.Unmarshal([]byte(f.ok("token", "ls", "--json")), &list); err != nil || len(list) != 2 ||
		list[0].State != "revoked" || list[1].State != "revoked" || list[0].Token != "" {
		t.Errorf("ls --json: %+v, %v", list, err)
	}
	if got := strings.Fields(f.ok("token", "ls", "-q")); len(got) != 2 || !slices.Contains(got, id) {
		t.Errorf("ls -q: %q", got)
	}
	want(t, f.sigma("token", "create", "--uses", "0"), 2, "", "a token can be used 1 to 10000 times")
	want(t, f.sigma("token", "create", "--ttl", "1000h"), 2, "", "at most 720h")
}

// Where nobody could join, a token is not made and the way out is told.
func TestTokenWithoutAddress(t *testing.T) {
	f := newFake(t)
	f.found("")
	want(t, f.sigma("token", "create"), 1, "",
		"no machine can join: no machine of the system was started with an address")
	want(t, f.sigma("token", "create"), 1, "", "hint: restart it with one: sigma down; sigma up --address HOST:PORT")
}

// Machines are listed, described, labelled, cordoned, and made control machines.
func TestMachine(t *testing.T) {
	f := newFake(t)
	m := f.found("10.0.0.1:7700")
	m.join(f, "m2")
	if got, want := f.ok("machine", "ls"),
		"MACHINE   STATE   CONTROL   CPU   MEMORY   ADDRESS         VERSION   LABELS\nm1*       alive   yes       "+
			"2.5   4GiB     10.0.0.1:7700   1         -\nm2        alive   no        1     1GiB     m2:7700         "+
			"-         -\n"; got != want {
		t.Errorf("ls:\n%s\nwant\n%s", got, want)
	}
	want(t, f.sigma("machine", "cordon", "m2"), 0, "m2\n",
		"machine m2 does not answer: it does so as soon as it hears of it")
	m.follows(f, "m2")
	f.ok("machine", "uncordon", "m2")
	for _, args := range [][]string{{"label", "m2", "zone=a", "rack=7"}, {"label", "m2", "rack-", "row=1"},
		{"cordon", "m2"}, {"control", "m2", "on"}} {
		if got := f.ok(append([]string{"machine"}, args...)...); got != "m2\n" {
			t.Errorf("%q: %q", args, got)
		}
	}
	var list []report.Machine
	if err := json.Unmarshal([]byte(f.ok("machine", "ls", "--json")), &list); err != nil || len(list) != 2 ||
		!list[0].Self || list[1].Self || !list[1].Cordoned || !list[1].Control || len(list[1].Labels) != 2 ||
		list[1].Labels["zone"] != "a" || list[1].CPU != 1 {
		t.Errorf("ls --json: %+v, %v", list, err)
	}
	got := f.ok("machine", "inspect", "m2", "m1")
	for _, line := range []string{"name          m2\n", "state         alive,cordoned\n",
		"label         row=1\nlabel         zone=a\n", "incarnation   3\n", "\n\nname          m1\n"} {
		if !strings.Contains(got, line) {
			t.Errorf("inspect lacks %q:\n%s", line, got)
		}
	}
	f.ok("machine", "uncordon", "m2")
	f.ok("machine", "control", "m2", "off")
	if got := f.ok("machine", "ls", "-q"); got != "m1\nm2\n" {
		t.Errorf("ls -q: %q", got)
	}
	want(t, f.sigma("machine", "inspect", "m3"), 1, "", `there is no machine "m3"`)
	want(t, f.sigma("machine", "cordon", "m2", "m3"), 1, "", "hint: list machines with: sigma machine ls")
	want(t, f.sigma("machine", "label", "m2", "zone"), 2, "", "hint: set one with NAME=VALUE")
	want(t, f.sigma("machine", "label", "m2", "zo ne=a"), 1, "", "is no label")
	want(t, f.sigma("machine", "control", "m2", "maybe"), 2, "", "neither on nor off")
	want(t, f.sigma("machine", "control", "m1", "off"), 1, "", "the last control machine")
	want(t, f.sigma("machine", "rm", "m1"), 1, "", "hint: have it give that up first: sigma machine control")
	want(t, f.sigma("machine", "rm", "m2"), 1, "", "may run procs")
	f.ok("machine", "rm", "--force", "m2")
	want(t, f.sigma("machine", "inspect", "m2"), 1, "", "there is no machine")
}

// A drain waits for the procs of that machine, in all realms, and for no others.
func TestMachineDrain(t *testing.T) {
	f := newFake(t)
	m := f.found("10.0.0.1:7700")
	m.join(f, "m2")
	f.ok("realm", "create", "team")
	gone := make(chan struct{})
	f.behave(func(context.Context, *fakeProc) sigma.Status { <-gone; return sigma.Status{Code: sigma.StatusEvicted} })
	f.program("default")
	f.program("team")
	f.ok("run", "-d", "/bin/x")
	f.ok("--realm", "team", "run", "-d", "/bin/x")
	place := func(i int, id sigma.MachineID) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.procs[i].info.Machine = id
	}
	place(0, "m1")
	place(1, "m2")
	if got := f.ok("machine", "drain", "--detach", "m2"); got != "m2\n" {
		t.Errorf("got %q", got)
	}
	want(t, f.sigma("machine", "drain", "--timeout", "1ms", "m2"), 1, "", "which goes on draining")
	want(t, f.sigma("machine", "drain", "m3"), 1, "", "there is no machine")
	place(1, "m1")
	if got := f.ok("machine", "drain", "m2"); got != "m2\n" {
		t.Errorf("got %q", got)
	}
	if got := f.ok("machine", "ls"); !strings.Contains(got, "alive,draining") {
		t.Errorf("ls: %q", got)
	}
	f.ok("machine", "rm", "m2")
	close(gone)
}

// program makes the realm have a program.
func (f *fake) program(realm sigma.RealmID) {
	f.t.Helper()
	got := f.with([]byte("program"), "--realm", string(realm), "put", "-", "/bin/x")
	if got.code != 0 {
		f.t.Fatalf("put: %+v", got)
	}
}

// Status says how the machine stands with its system.
func TestMembership(t *testing.T) {
	f := newFake(t)
	m := f.found("")
	got := f.ok("status")
	for _, line := range []string{fmt.Sprintf("system %s: 2 of 2 machines alive, 1 of 1 control machine\n",
		m.about.System), "certificate good for 10h\n"} {
		if !strings.Contains(got, line) {
			t.Errorf("status lacks %q: %s", line, got)
		}
	}
	var st health.StatusJSON
	if err := json.Unmarshal([]byte(f.ok("status", "--json")), &st); err != nil || st.Member == nil ||
		!st.Member.Quorum || st.Member.Alive != 2 || len(st.Member.Expiries) != 1 {
		t.Errorf("status --json: %v %+v", err, st.Member)
	}
	if got := f.sigma("doctor").out; !strings.Contains(got,
		"of system "+string(m.about.System)+", life 2, 2 of 2 machines alive") {
		t.Errorf("doctor: %s", got)
	}
}

// The examples of the page about machines are commands that work, in that order, where m2 has
// joined.
func TestMachineExamples(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/machines.md")
	if err != nil {
		t.Fatal(err)
	}
	_, examples, _ := strings.Cut(string(page), "\n## EXAMPLES\n")
	examples, _, _ = strings.Cut(examples, "\n## ")
	f := newFake(t)
	f.found("10.0.0.1:7700").join(f, "m2")
	ran := 0
	for line := range strings.Lines(examples) {
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "sudo sigma ")
		if !ok {
			continue
		}
		command, _, _ = strings.Cut(command, " |")
		if got := f.sigma(strings.Fields(command)...); got.code != 0 || got.out == "" {
			t.Errorf("sigma %s: %+v", command, got)
		}
		ran++
	}
	if ran < 10 {
		t.Errorf("the page has %d examples", ran)
	}
}
