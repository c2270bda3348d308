//go:build system

package machine

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// registered waits until exactly one proc of a name runs, is the one that initd means, and is
// another than before; and gives its id. More than one is an error at any time.
func registered(t *testing.T, s *testenv.System, name, before string) (proc string) {
	t.Helper()
	testenv.Eventually(t, name+" runs", func() error {
		out, errs, code := s.CLI(t, "ps", "--json")
		var ps []report.Proc
		if code != 0 || json.Unmarshal([]byte(out), &ps) != nil {
			return fmt.Errorf("ps: %s%s", out, errs)
		}
		var live []string
		for _, p := range ps {
			if p.Name == name && p.State != "ended" {
				live = append(live, p.ID)
				if p.State != "running" {
					proc = ""
				}
			}
		}
		if len(live) > 1 {
			t.Fatalf("%d instances of %s at once: %v", len(live), name, live)
		}
		rs := registrations(t, s)
		if len(live) == 0 || live[0] == before || rs[name].Proc != live[0] {
			return fmt.Errorf("live %v, before %s, registered %+v", live, before, rs[name])
		}
		proc = live[0]
		return nil
	})
	return proc
}

func registrations(t *testing.T, s *testenv.System) map[string]report.Registration {
	t.Helper()
	out, _, code := s.CLI(t, "init", "ls", "--all", "--json")
	var rs []report.Registration
	if code != 0 || json.Unmarshal([]byte(out), &rs) != nil {
		return nil
	}
	of := map[string]report.Registration{}
	for _, r := range rs {
		of[r.Name] = r
	}
	return of
}

// 001 §3.4: procs that are registered with initd are started again when they end, and after a
// restart of the whole system; daemons that are killed meanwhile, the leader with initd among them,
// neither lose an instance nor make a second.
func TestPaperInitdStartsRegisteredProcsAgain(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	path := s.Install(ctx, t, c, shared.Program(t, "testdata/probe.c"))
	s.Must(t, "init", "add", "web", path, "leave")
	s.Must(t, "init", "add", "--restart", "on-failure", "once", path, "exit", "0")
	if _, errs, code := s.CLI(t, "init", "add", "web", path); code == 0 {
		t.Errorf("a name was registered twice: %s", errs)
	}
	first := registered(t, s, "web", "")
	s.Must(t, "kill", first)
	second := registered(t, s, "web", first)
	for _, daemon := range []string{"lcsched", "named", "sigmad", "besched"} {
		s.Kill9(t, daemon)
		if now := registered(t, s, "web", ""); now != second {
			t.Errorf("after kill -9 of %s another instance runs", daemon)
			second = now
		}
	}
	s.Kill9(t, "lcsched")
	s.Must(t, "kill", second) // nobody sees that for a while
	third := registered(t, s, "web", second)
	s.Down(t)
	s.Restart(t)
	fourth := registered(t, s, "web", third)
	testenv.Eventually(t, "the one that ended well stays ended", func() error {
		if r := registrations(t, s)["once"]; r.State != "ended" || r.Starts != 1 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	var log []report.Instance
	if err := json.Unmarshal([]byte(s.Must(t, "init", "log", "--json", "web")), &log); err != nil || len(log) < 4 {
		t.Errorf("log: %+v, %v", log, err)
	} else if last := log[len(log)-1]; last.Proc != fourth || last.Ended != nil {
		t.Errorf("the last in the log is %+v", last)
	}
	for _, again := range [][]string{{"init", "restart", "web"}, {"init", "add", "--replace", "web", path, "leave"}} {
		s.Must(t, again...)
		if fourth = registered(t, s, "web", fourth); registrations(t, s)["web"].State != "running" {
			t.Errorf("after %v: %+v", again, registrations(t, s)["web"])
		}
	}
	s.Must(t, "init", "rm", "web")
	s.Must(t, "init", "add", "web", path, "leave") // while the old one may still run
	fourth = registered(t, s, "web", fourth)
	s.Must(t, "init", "rm", "web", "once")
	testenv.Eventually(t, "the registrations are gone", func() error {
		if rs := registrations(t, s); len(rs) != 0 {
			return fmt.Errorf("%+v", rs)
		}
		return nil
	})
	if out, _, _ := s.CLI(t, "wait", fourth); !strings.Contains(out, "evicted") {
		t.Errorf("it was not asked to go: %s", out)
	}
}

// What a realm has registered goes with it, its procs with that; another realm of its name has none
// of it.
func TestInitGoesWithItsRealm(t *testing.T) {
	s := shared.Get(t)
	s.Must(t, "realm", "create", "keeper")
	t.Cleanup(func() { s.CLI(t, "realm", "rm", "--force", "keeper") })
	r := connect(t, "keeper")
	d := r.descriptor("probe.c", "leave")
	for i := range 3 {
		if err := r.Register(r.ctx, sigma.Registration{Name: fmt.Sprint("k", i), Descriptor: d}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Register(r.ctx, sigma.Registration{Name: "../x",
		Descriptor: d}); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("a name with a path: %v", err)
	}
	if err := r.Unregister(r.ctx, "../default/k0"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("another realm's: %v", err)
	}
	testenv.Eventually(t, "they run", func() error {
		for i := range 3 {
			if x := registrations(t, s)[fmt.Sprint("k", i)]; x.State != "running" {
				return fmt.Errorf("%+v", x)
			}
		}
		return nil
	})
	r.Close()
	s.Must(t, "realm", "rm", "--force", "keeper")
	if rs := registrations(t, s); rs["k0"].Name != "" {
		t.Errorf("registrations outlive their realm: %+v", rs)
	}
	s.Must(t, "realm", "create", "keeper")
	if out := s.Must(t, "-r", "keeper", "init", "ls", "--json"); out != "[]\n" {
		t.Errorf("the new realm has %s", out)
	}
}
