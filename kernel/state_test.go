package kernel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/kernel/procfs"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// getter is an SDK client or a proc.
type getter interface {
	Get(ctx context.Context, path string) ([]byte, sigma.FileID, error)
}

// objects reads a file of lines, each of which has the keys of T and no others.
func objects[T any](t *testing.T, g getter, path string) (out []T) {
	t.Helper()
	text, _, err := g.Get(t.Context(), path)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	for line := range bytes.Lines(text) {
		var v T
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&v); err != nil || line[len(line)-1] != '\n' {
			t.Fatalf("%s has a line %q: %v", path, line, err)
		}
		out = append(out, v)
	}
	return out
}

// worker spawns a proc in a realm, for which the test acts.
func (m *machine) worker(c *sdk.Client) *prog {
	m.t.Helper()
	g := m.started(m.spawn(c, sigma.Descriptor{Name: "worker", Args: []string{"a<b"}}))
	if err := c.WaitStart(m.t.Context(), g.id); err != nil {
		m.t.Fatal(err)
	}
	return g
}

// TestState: each file of /sys and of a proc consists of the lines that are documented. A tenant is
// told of its own realm; the provider, who is the control of each attempt, of both.
func TestState(t *testing.T) {
	m := boot(t)
	ctx := t.Context()
	admin := m.connect(sigma.DefaultRealm)
	if err := admin.Realms().Create(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	mine, theirs := m.worker(admin), m.worker(m.connect("other"))
	for _, g := range []*prog{mine, theirs} {
		if _, err := g.listen(ctx, sigma.FormStream); err != nil {
			t.Fatal(err)
		}
	}
	children, err := mine.spawn(ctx, sigma.Descriptor{Program: "/bin/x"})
	if err != nil {
		t.Fatal(err)
	}
	<-m.procs
	for who, g := range map[string]getter{"the tenant": mine, "the provider": admin} {
		both := g == getter(admin)
		if v := objects[report.Version](t, g, "/sys/version"); len(v) != 1 || v[0].Version != Version ||
			v[0].Machine != string(m.k.cfg.Machine) {
			t.Errorf("%s is told the version %+v", who, v)
		}
		var realms [][]string
		realms = append(realms, each(objects[report.Realm](t, g, "/sys/realms"), func(r report.Realm) string {
			return r.ID
		}))
		realms = append(realms, each(objects[report.Endpoint](t, g, "/sys/endpoints"), func(e report.Endpoint) string {
			if e.Proc != string(mine.id) && e.Proc != string(theirs.id) {
				return "" // of a service
			}
			return e.Realm
		}))
		realms = append(realms, each(objects[report.Limit](t, g, "/sys/limits"), func(l report.Limit) string {
			return l.Realm
		}))
		use, _, err := g.Get(ctx, "/sys/utilisation")
		if err != nil {
			t.Fatal(err)
		}
		lines := slices.Collect(strings.Lines(string(use)))
		if both {
			var of report.MachineUse
			if err := json.Unmarshal([]byte(lines[0]), &of); err != nil || of.Running != 3 || of.Capacity == 0 ||
				of.Free >= of.Capacity {
				t.Errorf("the machine's use is %q, %v", lines[0], err)
			}
			lines = lines[1:]
		}
		realms = append(realms, each(lines, func(line string) string {
			var u report.RealmUse
			if json.Unmarshal([]byte(line), &u) != nil || u.Running == 0 || u.Limit == 0 {
				t.Errorf("%s is told of the use %q", who, line)
			}
			return u.Realm
		}))
		for i, got := range realms {
			if want := map[bool]string{false: "default", true: "default other"}[both]; strings.Join(got, " ") != want {
				t.Errorf("%s, file %d: told of the realms %q, want %q", who, i, got, want)
			}
		}
		// Of a proc, in three files what inspect has in one.
		at := "/proc/" + string(mine.id) + "/"
		if d := objects[report.Descriptor](t, g, at+"descriptor"); len(d) != 1 || d[0].ID != string(mine.id) ||
			d[0].Name != "worker" || d[0].Args[0] != "a<b" || d[0].Memory == 0 {
			t.Errorf("%s: the descriptor is %+v", who, d)
		}
		if s := objects[report.ProcStatus](t, g, at+"status"); len(s) != 1 || s[0].State != "running" ||
			s[0].Machine != "m1" || s[0].Times.Started == nil {
			t.Errorf("%s: the status is %+v", who, s)
		}
		if u := objects[report.ProcUsage](t, g, at+"usage"); len(u) != 1 || u[0].Memory != 3000 ||
			u[0].UserSeconds != 0.001 || u[0].Tasks != 5 {
			t.Errorf("%s: the usage is %+v", who, u)
		}
		if text, _, err := g.Get(ctx, at+"children"); string(text) != string(children[0])+"\n" || err != nil {
			t.Errorf("%s: the children are %q, %v, want %v", who, text, err, children)
		}
		objects[report.Queue](t, g, "/sys/queues")
		objects[report.Machine](t, g, "/sys/machines") // a tenant's lines have some of the keys
	}
	var none report.Machine
	if got := objects[report.MachineSeen](t, mine, "/sys/machines"); len(got) != 1 || got[0].Name != "m1" ||
		!got[0].Self {
		t.Errorf("the tenant is told of the machines %+v", got)
	} else if got := objects[report.Machine](t, mine, "/sys/machines"); got[0].Address != none.Address ||
		got[0].Version != none.Version {
		t.Errorf("the tenant is told more: %+v", got)
	}
	for _, name := range procfs.Files() {
		path := "/proc/" + string(theirs.id) + "/" + name
		if _, _, err := theirs.Get(ctx, path); err != nil {
			t.Errorf("control: %s: %v", path, err)
		}
		if _, _, err := mine.Get(ctx, path); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("another realm's %s: %v", path, err)
		}
	}
}

// each gives what is different of all, without "".
func each[T any](all []T, of func(T) string) (out []string) {
	for _, v := range all {
		if s := of(v); s != "" {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestQueues: what waits at the scheduler is told by realm.
func TestQueues(t *testing.T) {
	m := boot(t)
	c := m.connect(sigma.DefaultRealm)
	p := m.worker(c)
	most := m.k.cfg.Memory
	ids := []sigma.ProcID{m.spawn(c, sigma.Descriptor{Memory: most}), m.spawn(c, sigma.Descriptor{Memory: most})}
	eventually(t, "both wait", func() bool {
		qs := objects[report.Queue](t, p, "/sys/queues")
		return len(qs) == 1 && qs[0] == report.Queue{Realm: "default", Waiting: 2, Memory: 2 * uint64(most), Shares: 1}
	})
	for _, id := range ids {
		if err := c.Kill(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

// TestManyChildren: a list that is longer than a page is read whole, in pieces of any size, forward
// and back, and costs a handle a page.
func TestManyChildren(t *testing.T) {
	m := boot(t)
	parent := m.startProg(sigma.Descriptor{})
	const many = 2*procfs.ChildrenScan + 100
	var want strings.Builder
	m.k.procs.With(func(v procs.View) {
		for i := range many {
			id := sigma.ProcID(fmt.Sprintf("child%d", i))
			by := sigma.Principal{Realm: sigma.DefaultRealm, Proc: parent.id}
			if i%3 == 0 {
				by.Proc = "another"
			} else {
				want.WriteString(string(id) + "\n")
			}
			v.Step(m.k.life.start, schedd.Spawned{By: by, IDs: []sigma.ProcID{id},
				Ds: []sigma.Descriptor{{Program: "/bin/x", Memory: m.k.cfg.Memory}}})
		}
	})
	f, err := parent.Open(t.Context(), "/proc/"+string(parent.id)+"/children", sigma.OpenRead)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	if err != nil || string(got) != want.String() {
		t.Errorf("read %d bytes, %v, want %d", len(got), err, want.Len())
	}
	for _, at := range []int{want.Len() - 50, 7, want.Len() / 2, want.Len()} {
		b := make([]byte, 50)
		n, err := f.ReadAt(b, int64(at))
		if rest := want.String()[at:]; string(b[:n]) != rest[:min(50, len(rest))] || err != nil && err != io.EOF {
			t.Errorf("at %d: %q, %v", at, b[:n], err)
		}
	}
}
