//go:build system

package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// rounds is how often something is done: n, or as often as SIGMA_TEST_ROUNDS says.
func rounds(t *testing.T, n int) int {
	t.Helper()
	text := os.Getenv("SIGMA_TEST_ROUNDS")
	if text == "" {
		return n
	}
	k, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// trial is a realm with a coordinator.
type trial struct {
	t      *testing.T
	ctx    context.Context
	s      *testenv.System
	c      *sdk.Client
	fleets *fleet.Client
	name   string
}

// newTrial prepares a fleet of a name, which is removed at the end.
func newTrial(t *testing.T, name string) *trial {
	t.Helper()
	return newTrialOn(t, shared.Get(t), name)
}

// newTrialOn is newTrial of another system.
func newTrialOn(t *testing.T, s *testenv.System, name string) *trial {
	t.Helper()
	most := 4*time.Minute + time.Duration(rounds(t, 0))*5*time.Second
	ctx, cancel := context.WithTimeout(t.Context(), most*testenv.Slow())
	t.Cleanup(cancel)
	x := &trial{t: t, ctx: ctx, s: s, c: s.Connect(ctx, t, sigma.DefaultRealm), name: name}
	spec := filepath.Join(t.TempDir(), "first.toml")
	text := fmt.Sprintf("name = %q\nprogram = %q\nargs = [\"good\"]\nmost = 1\n", name, x.program("faulty"))
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Must(t, "fleet", "apply", spec) // starts the coordinator, too
	x.fleets = fleet.NewClient(x.c)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), time.Minute)
		defer cancel()
		if err := x.fleets.Remove(ctx, name); err != nil {
			t.Error(err)
		}
		for {
			if _, err := x.c.Lstat(ctx, fleet.Dir(name)); err != nil {
				break
			}
			<-time.After(50 * time.Millisecond) // looks again
		}
		x.fleets.Close()
	})
	return x
}

// program stores a program of testdata and gives its path in the realm.
func (x *trial) program(name string) string {
	x.t.Helper()
	return x.s.Install(x.ctx, x.t, x.c, shared.Program(x.t, "./testdata/"+name))
}

func (x *trial) example(name string) string {
	x.t.Helper()
	return x.s.Install(x.ctx, x.t, x.c, shared.Program(x.t, "../../examples/"+name))
}

func (x *trial) apply(s fleet.Spec) fleet.Record {
	x.t.Helper()
	s.Name = x.name
	r, err := x.fleets.Apply(x.ctx, fleet.ApplyArg{Spec: s})
	if err != nil {
		x.t.Fatal(err)
	}
	return r.Record
}

// await waits until the fleet is as done says.
func (x *trial) await(what string, done func(fleet.Status) bool) fleet.Status {
	x.t.Helper()
	for {
		s, err := x.fleets.Status(x.ctx, x.name)
		if err == nil && done(s) {
			return s
		}
		if x.ctx.Err() != nil {
			x.explain()
			x.t.Fatalf("%s: %v: %+v", what, err, s)
		}
		<-time.After(20 * time.Millisecond) // looks again
	}
}

func (x *trial) explain() {
	x.t.Helper()
	out, _, _ := x.s.CLI(x.t, "fleet", "explain", "--last", "50", x.name)
	x.t.Log(out)
	out, _, _ = x.s.CLI(x.t, "fleet", "status", x.name)
	x.t.Log(out)
}

// steady is a fleet with n members of the record's revision.
func steady(n int) func(fleet.Status) bool {
	return func(s fleet.Status) bool {
		return s.Phase == "steady" && s.Ready == n && s.Starting == 0 && s.Draining == 0
	}
}

func (x *trial) spawn(d sigma.Descriptor) sigma.ProcID {
	x.t.Helper()
	ids, err := x.c.Spawn(x.ctx, d)
	if err == nil {
		err = x.c.WaitStart(x.ctx, ids[0])
	}
	if err != nil {
		x.t.Fatal(err)
	}
	return ids[0]
}

// output waits for a proc and gives what it printed.
func (x *trial) output(id sigma.ProcID) string {
	x.t.Helper()
	st, err := x.c.WaitExit(x.ctx, id)
	if err != nil {
		x.t.Fatal(err)
	}
	out, _, err := x.c.Get(x.ctx, "/proc/"+string(id)+"/stdout")
	if err != nil {
		x.t.Fatal(err)
	}
	if !st.OK() {
		errs, _, _ := x.c.Get(x.ctx, "/proc/"+string(id)+"/stderr")
		x.t.Fatalf("%+v: %s%s", st, out, errs)
	}
	return string(out)
}

// Goal: a service that is rolled again and again under load loses no request, whatever its
// protocol. Method: clients of unmodified libraries ask without a pause while the fleet is rolled.
func TestRollsLoseNothing(t *testing.T) {
	for _, x := range []struct {
		name, server string
		client       []string // program and arguments after the directory and the file
	}{{"http1", "httpserver", []string{"httpclient", "http1"}},
		{"http2", "httpserver", []string{"httpclient", "http2"}}, {"grpc", "grpcserver", []string{"grpcclient"}},
		{"call", "ledgerserver", []string{"ledgerload"}}} {
		t.Run(x.name, func(t *testing.T) {
			f := newTrial(t, "roll-"+x.name)
			f.apply(fleet.Spec{Program: f.example(x.server), Least: 3, Most: 3})
			f.await("at first", steady(3))
			until := "/stop-" + x.name
			client := f.spawn(sigma.Descriptor{Program: f.example(x.client[0]),
				Args: append([]string{fleet.Members(f.name), until}, x.client[1:]...)})
			for range rounds(t, 5) {
				if _, err := f.fleets.Roll(f.ctx, f.name); err != nil {
					t.Fatal(err)
				}
				f.await("a roll", steady(3))
			}
			if _, err := f.c.Put(f.ctx, until, nil, sigma.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			defer f.c.Remove(f.ctx, until)
			out := f.output(client)
			if strings.Contains(out, "failed at") {
				t.Errorf("requests failed:\n%s", out)
			}
			t.Log(strings.TrimSpace(out))
		})
	}
}

// Goal: a member that is new has its part of the requests of clients that keep their connections.
func TestNewMemberIsUsed(t *testing.T) {
	f := newTrial(t, "new")
	s := fleet.Spec{Program: f.example("httpserver"), Least: 1, Most: 1}
	f.apply(s)
	f.await("at first", steady(1))
	const until = "/stop-new"
	client := f.spawn(sigma.Descriptor{Program: f.example("httpclient"), Args: []string{fleet.Members(f.name), until}})
	used := func(s fleet.Status) bool {
		return !slices.ContainsFunc(s.Members, func(m fleet.Member) bool { return m.Load.Served < 100 })
	}
	f.await("requests", used)
	s.Least, s.Most = 2, 2
	f.apply(s)
	f.await("two members", steady(2))
	began := time.Now()
	f.await("requests of both", used)
	if took := time.Since(began); took > 10*time.Second*testenv.Slow() {
		t.Errorf("the new member had its requests after %v", took)
	}
	if _, err := f.c.Put(f.ctx, until, nil, sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	defer f.c.Remove(f.ctx, until)
	if out := f.output(client); strings.Contains(out, "failed at") {
		t.Errorf("requests failed:\n%s", out)
	}
}

// Goal: a bad version is undone by itself, within 5 s, and until then answers no more than its
// canaries' share.
func TestBadVersionIsUndone(t *testing.T) {
	for _, how := range []string{"crash", "sick", "errors"} {
		t.Run(how, func(t *testing.T) {
			f := newTrial(t, "bad-"+how)
			s := fleet.Spec{Program: f.program("faulty"), Args: []string{"good"}, Least: 4, Most: 4,
				Health: fleet.Health{Kind: "http"}, Update: fleet.Update{Canary: 0.25,
					Hold: fleet.Duration(4 * time.Second), Within: fleet.Duration(3 * time.Second)}}
			good := f.apply(s)
			f.await("at first", steady(4))
			asker := f.spawn(sigma.Descriptor{Program: f.program("asker"), Start: sigma.StartedByCall,
				Args: []string{fleet.Members(f.name), "200"}})
			s.Args = []string{how}
			began := time.Now()
			bad := f.apply(s)
			st := f.await("the undo", func(s fleet.Status) bool { return s.Revision < bad.Revision })
			if took := time.Since(began); took > 5*time.Second*testenv.Slow() {
				t.Errorf("it was undone after %v", took)
			} else {
				t.Logf("it was undone after %v", took.Round(time.Millisecond))
			}
			if st.Revision != good.Revision {
				t.Errorf("revision %d is in force, not %d", st.Revision, good.Revision)
			}
			f.await("the end", steady(4))
			f.checkAsker(asker, bad.Revision)
			if text := f.s.Must(t, "fleet", "explain", f.name); !strings.Contains(text, "was taken back") {
				t.Errorf("explain says\n%s", text)
			}
		})
	}
}

// checkAsker ends the client, and counts what the bad revision had.
func (x *trial) checkAsker(id sigma.ProcID, bad uint64) {
	x.t.Helper()
	if err := x.c.Evict(x.ctx, id, 30*time.Second); err != nil {
		x.t.Fatal(err)
	}
	var counts map[string]int
	if out := x.output(id); json.Unmarshal([]byte(out), &counts) != nil {
		x.t.Fatalf("the client printed %q", out)
	}
	total := 0
	for by, n := range counts {
		total += n
		if strings.HasPrefix(by, "failed") {
			x.t.Errorf("%d requests %s", n, by)
		}
	}
	if n := counts[strconv.FormatUint(bad, 10)] + counts["refused"]; float64(n) > 0.25*float64(total) {
		x.t.Errorf("the bad version had %d of %d requests", n, total)
	}
	x.t.Logf("requests by revision: %v", counts)
}

// Goal: whatever is killed at whatever moment, the fleet comes to rest with as many members as it
// should have, each once, and none of another revision. Method: seeded rounds of rolls and kills of
// members and of the coordinator.
func TestKills(t *testing.T) {
	f := newTrial(t, "kills")
	s := fleet.Spec{Program: f.program("faulty"), Args: []string{"good"}, Least: 4, Most: 4,
		Health: fleet.Health{Kind: "http"}}
	f.apply(s)
	f.await("at first", steady(4))
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for round := range rounds(t, 6) {
		last := f.act(r, &s)
		for range r.IntN(3) {
			<-time.After(time.Duration(r.IntN(120)) * time.Millisecond) // at a random moment of the act before
			f.act(r, &s)
		}
		st := f.await(fmt.Sprintf("round %d (%s)", round, last), steady(4))
		f.checkProcs(st.Revision)
		if round%4 == 3 { // else initd waits for up to 30 s before it starts the next coordinator
			f.s.Must(t, "init", "restart", "fleetd")
		}
	}
}

// Goal: the same while machines are killed, with members or the coordinator on them.
func TestMachinesKilled(t *testing.T) {
	t.Parallel()
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3, CPU: 2, Memory: 512 * sigma.MiB})
	f := newTrialOn(t, c.Machine(0).System, "machines")
	s := fleet.Spec{Program: f.program("faulty"), Args: []string{"good"}, Least: 4, Most: 4, Memory: "16MiB",
		Grace: fleet.Duration(time.Second)}
	f.apply(s)
	f.await("at first", steady(4))
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	for round := range rounds(t, 2) {
		victim := c.Machine(1 + r.IntN(2))
		if r.IntN(2) == 0 {
			f.act(r, &s)
		}
		<-time.After(time.Duration(r.IntN(120)) * time.Millisecond) // at a random moment of the act before
		if err := victim.Kill(); err != nil {
			t.Fatal(err)
		}
		if r.IntN(2) == 0 {
			f.act(r, &s)
		}
		st := f.await(fmt.Sprintf("round %d: %s was killed", round, victim.Name), func(s fleet.Status) bool {
			return steady(4)(s) && !slices.ContainsFunc(s.Members, func(m fleet.Member) bool {
				return m.Machine == victim.Name
			})
		})
		if err := victim.Restart(); err != nil {
			t.Fatal(err)
		}
		f.checkProcs(st.Revision)
		f.s.Must(t, "init", "restart", "fleetd") // see TestKills
	}
}

// act does one thing to the fleet, and names it.
func (x *trial) act(r *rand.Rand, s *fleet.Spec) string {
	x.t.Helper()
	switch r.IntN(4) {
	case 0:
		x.killOne(r, func(p sigma.ProcInfo) bool { return p.Name == "fleetd" })
		return "the coordinator was killed"
	case 1:
		x.killOne(r, func(p sigma.ProcInfo) bool { return strings.HasPrefix(p.Name, x.name+"@") })
		return "a member was killed"
	case 2:
		if _, err := x.fleets.Roll(x.ctx, x.name); err != nil && sigma.KindOf(err) != sigma.KindLost {
			x.t.Fatal(err)
		}
		return "it was rolled"
	}
	s.Env = []string{fmt.Sprintf("ROUND=%d", r.Uint32())}
	s.Name = x.name
	if _, err := x.fleets.Apply(x.ctx, fleet.ApplyArg{Spec: *s}); err != nil && sigma.KindOf(err) != sigma.KindLost {
		x.t.Fatal(err)
	}
	return "it was changed"
}

func (x *trial) killOne(r *rand.Rand, which func(sigma.ProcInfo) bool) {
	x.t.Helper()
	var ids []sigma.ProcID
	for _, p := range x.procs() {
		if which(p) {
			ids = append(ids, p.ID)
		}
	}
	if len(ids) == 0 {
		return
	}
	within, cancel := context.WithTimeout(x.ctx, 15*time.Second*testenv.Slow())
	defer cancel()
	if err := x.c.Kill(within, ids[r.IntN(len(ids))]); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		x.t.Fatal(err)
	}
}

func (x *trial) procs() []sigma.ProcInfo {
	x.t.Helper()
	all, err := x.c.List(x.ctx, false)
	if err != nil {
		x.t.Fatal(err)
	}
	return all
}

// checkProcs waits until the procs that run are four members of a revision. One that a coordinator
// asked for which was killed may come late, and is then one too many for a moment.
func (x *trial) checkProcs(want uint64) {
	x.t.Helper()
	late := time.After(10 * time.Second * testenv.Slow())
	for {
		n, other := 0, 0
		for _, p := range x.procs() {
			name, revision, ok := fleet.ParseMemberName(p.Name)
			switch {
			case !ok || name != x.name:
			case revision == want:
				n++
			default:
				other++
			}
		}
		if n == 4 && other == 0 {
			return
		}
		select {
		case <-late:
			x.explain()
			x.t.Fatalf("%d procs of revision %d and %d of others run", n, want, other)
		case <-time.After(20 * time.Millisecond): // looks again
		}
	}
}

// Goal: an empty fleet costs nobody a failure: the first dial starts a member and waits for it, and
// the member goes when nobody uses it.
func TestFromZero(t *testing.T) {
	f := newTrial(t, "zero")
	f.apply(fleet.Spec{Program: f.program("faulty"), Args: []string{"good"}, Most: 2,
		Idle: fleet.Duration(time.Second)})
	f.await("at first", steady(0))
	for range 2 {
		asker := f.spawn(sigma.Descriptor{Program: f.program("asker"), Start: sigma.StartedByCall,
			Args: []string{fleet.Members(f.name), "20"}})
		f.await("the first member", func(s fleet.Status) bool { return s.Ready > 0 })
		f.checkAsker(asker, 0)
		f.await("the end", steady(0))
	}
}

// Goal: bad input is refused in words, and changes nothing.
func TestBadInput(t *testing.T) {
	f := newTrial(t, "input")
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, want string }{
		"unknown key": {"name = \"x\"\nprogram = \"/bin/x\"\nmost = 1\ncolour = \"red\"", "colour"},
		"no TOML":     {"name = ", "hint"},
		"no program":  {"name = \"x\"\nprogram = \"/bin/nobody\"\nmost = 1", "no such program"},
		"bounds":      {"name = \"x\"\nprogram = \"/bin/x\"\nleast = 3\nmost = 1", "least is 3"},
		"bad name":    {"name = \"../x\"\nprogram = \"/bin/x\"\nmost = 1", "cannot be the name"},
		"huge": {"name = \"x\"\nprogram = \"/bin/x\"\nmost = 1\nargs = [\"" + strings.Repeat("x", 20000) + "\"]",
			"are allowed"},
		"bad duration": {"name = \"x\"\nprogram = \"/bin/x\"\nmost = 1\ngrace = \"soon\"", "no duration"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, "spec.toml")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			out, errs, code := f.s.CLI(t, "fleet", "apply", file)
			if code == 0 || !strings.Contains(errs, c.want) {
				t.Errorf("exit code %d, %q, %q; wanted %q", code, out, errs, c.want)
			}
		})
	}
	arg := fleet.ApplyArg{Spec: fleet.Spec{Name: f.name, Program: f.program("faulty"), Args: []string{"good"}, Most: 3},
		Generation: 99}
	if _, err := f.fleets.Apply(f.ctx, arg); sigma.KindOf(err) != sigma.KindVersion {
		t.Errorf("an apply to a generation that is not in force: %v", err)
	}
}
