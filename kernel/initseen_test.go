package kernel

import (
	"testing"
	"time"

	"sigmaos.dev/initd"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
)

// Goal: a machine that was taken for lost, and noted procs that others run as lost, does not have them started twice: who runs one knows better; where nobody does it is gone. What ended at another machine its home says.
func TestInitSeenOfLost(t *testing.T) {
	now := time.Unix(100, 0)
	k := &Kernel{core: schedd.NewCore("m1", 64*sigma.MiB)}
	by := sigma.Life{Machine: "m2", Incarnation: 1}
	q := func(id sigma.ProcID) initd.Question { return initd.Question{Realm: "r", Proc: id} }
	for _, id := range []sigma.ProcID{"runs", "ended"} {
		k.core.Step(now, schedd.Spawned{By: sigma.Principal{Realm: "r"}, IDs: []sigma.ProcID{id}, Ds: []sigma.Descriptor{{Program: "/bin/x"}}})
		if _, _, err := k.core.Give(now, id, by, 1); err != nil {
			t.Fatal(err)
		}
	}
	if s, home := k.initSeenLocked(q("runs")); s.Sight != initd.Alive || !home {
		t.Errorf("one that is away: %v, at home %v", s.Sight, home)
	}
	info := k.core.Proc("r", "ended").ProcInfo
	info.State, info.Times.Ended = sigma.ProcEnded, now
	info.Status = sigma.Status{Code: sigma.StatusError, ExitCode: 3}
	k.core.Step(now, schedd.Reported{From: by, Boot: 1, Procs: []schedd.Report{{Info: info}}})
	k.core.Step(now, schedd.Reborn{})
	s, home := k.initSeenLocked(q("runs"))
	if s.Sight != initd.Gone || home {
		t.Errorf("one that may run on: %v, at home %v", s.Sight, home)
	}
	if alive := (initd.Seen{Sight: initd.Alive}); better(s, alive).Sight != initd.Alive || better(alive, s).Sight != initd.Alive {
		t.Error("who runs it is not believed")
	}
	if s, home := k.initSeenLocked(q("ended")); s.Sight != initd.Ended || s.Status.ExitCode != 3 || !home {
		t.Errorf("one that has ended: %+v, at home %v", s, home)
	}
}

// Goal: a guest that has ended holds nothing up once its home was told.
func TestInitSeenOfGuest(t *testing.T) {
	now := time.Unix(100, 0)
	k := &Kernel{core: schedd.NewCore("m2", 64*sigma.MiB)}
	home := sigma.Life{Machine: "m1", Incarnation: 1}
	k.core.Step(now, schedd.Offered{ID: "g", Realm: "r", Memory: sigma.MiB, Home: home})
	k.core.Step(now, schedd.Arrived{Info: sigma.ProcInfo{ID: "g", Realm: "r", Memory: sigma.MiB}, Home: home})
	k.core.Step(now, schedd.NotLaunched{ID: "g", Err: errLauncherDied})
	seen := func() initd.Sight {
		s, _ := k.initSeenLocked(initd.Question{Realm: "r", Proc: "g"})
		return s.Sight
	}
	if s := seen(); s != initd.Ended {
		t.Errorf("before its home was told: %v", s)
	}
	k.core.Step(now, schedd.Told{ID: "g", Ended: true})
	if s := seen(); s != initd.Gone {
		t.Errorf("after its home was told: %v", s)
	}
}
