package remote

import (
	"testing"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
)

// Goal: what another machine gives is looked at like what a program asks for.
func TestCheckArrived(t *testing.T) {
	id := sigma.NewProcID()
	good := schedd.Arrived{Info: sigma.ProcInfo{ID: id, Realm: "a"}, Descriptor: sigma.Descriptor{Program: "/bin/x"}}
	if err := checkArrived(id, &good); err != nil || !procs.IsID(id) {
		t.Errorf("%s: %v", id, err)
	}
	for name, spoil := range map[string]func(*schedd.Arrived){
		"another proc": func(e *schedd.Arrived) {
			e.Info.ID = sigma.NewProcID()
		}, "no realm": func(e *schedd.Arrived) { e.Info.Realm = "../a" },
		"no program": func(e *schedd.Arrived) {
			e.Descriptor.Program = ""
		}, "the provider's profile": func(e *schedd.Arrived) { e.Descriptor.Profile = "system" },
	} {
		e := good
		if spoil(&e); checkArrived(id, &e) == nil {
			t.Errorf("%s was taken", name)
		}
	}
	for _, id := range []sigma.ProcID{"", "../../identity.x", "aaaaaaaaaaaaaaaaa", "aaaaaaaa/aaaaaaa"} {
		if procs.IsID(id) {
			t.Errorf("%q names files", id)
		}
	}
}

// Goal: a request about a proc reaches its home at every second try at the latest, so that a proc
// whose machine was lost is not looked for there for ever.
func TestToTell(t *testing.T) {
	for _, runs := range []sigma.MachineID{"m1", "m2", "m3", ""} {
		at := Place{Home: "m1", Runs: runs}
		first, second := at.toTell("m3", false), at.toTell("m3", true)
		if second != "m1" {
			t.Errorf("%+v: the second try goes to %q", at, second)
		}
		if want := at.Runs; first != want && (want != "" && want != "m3" || first != "m1") {
			t.Errorf("%+v: the first try goes to %q", at, first)
		}
	}
}
