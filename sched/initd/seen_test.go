package initd

import (
	"testing"
	"time"

	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
)

// Goal: a machine that was taken for lost, and noted procs that others run as lost, does not have
// them started twice: who runs one knows better; where nobody does it is gone. What ended at
// another machine its home says.
func TestSeenOfLost(t *testing.T) {
	now := time.Unix(100, 0)
	c := schedd.NewCore("m1", 64*sigma.MiB)
	by := sigma.Life{Machine: "m2", Incarnation: 1}
	q := func(id sigma.ProcID) Question { return Question{Realm: "r", Proc: id} }
	for _, id := range []sigma.ProcID{"runs", "ended"} {
		c.Step(now, schedd.Spawned{By: sigma.Principal{Realm: "r"}, IDs: []sigma.ProcID{id},
			Ds: []sigma.Descriptor{{Program: "/bin/x"}}})
		if _, _, err := c.Give(now, id, by, 1); err != nil {
			t.Fatal(err)
		}
	}
	if s, home := SeenAt(c, q("runs"), now); s.Sight != Alive || !home {
		t.Errorf("one that is away: %v, at home %v", s.Sight, home)
	}
	info := c.Proc("r", "ended").ProcInfo
	info.State, info.Times.Ended = sigma.ProcEnded, now
	info.Status = sigma.Status{Code: sigma.StatusError, ExitCode: 3}
	c.Step(now, schedd.Reported{From: by, Boot: 1, Procs: []schedd.Report{{Info: info}}})
	c.Step(now, schedd.Reborn{})
	s, home := SeenAt(c, q("runs"), now)
	if s.Sight != Gone || home {
		t.Errorf("one that may run on: %v, at home %v", s.Sight, home)
	}
	if alive := (Seen{Sight: Alive}); Better(s, alive).Sight != Alive || Better(alive, s).Sight != Alive {
		t.Error("who runs it is not believed")
	}
	if s, home := SeenAt(c, q("ended"), now); s.Sight != Ended || s.Status.ExitCode != 3 || !home {
		t.Errorf("one that has ended: %+v, at home %v", s, home)
	}
}

// Goal: a guest that has ended holds nothing up once its home was told.
func TestSeenOfGuest(t *testing.T) {
	now := time.Unix(100, 0)
	c := schedd.NewCore("m2", 64*sigma.MiB)
	home := sigma.Life{Machine: "m1", Incarnation: 1}
	c.Step(now, schedd.Offered{ID: "g", Realm: "r", Memory: sigma.MiB, Home: home})
	c.Step(now, schedd.Arrived{Info: sigma.ProcInfo{ID: "g", Realm: "r", Memory: sigma.MiB}, Home: home})
	c.Step(now, schedd.NotLaunched{ID: "g", Err: sigma.Errorf("test", sigma.KindLost, "the launcher died")})
	seen := func() Sight {
		s, _ := SeenAt(c, Question{Realm: "r", Proc: "g"}, now)
		return s.Sight
	}
	if s := seen(); s != Unsure {
		t.Errorf("before its home was told: %v", s)
	}
	c.Step(now, schedd.Told{ID: "g", Ended: true})
	if s := seen(); s != Gone {
		t.Errorf("after its home was told: %v", s)
	}
}
