package schedd

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
)

// lcCore is a machine of 4 cores and 100 MiB.
func lcCore() *Core {
	c := NewCore("m1", 100*sigma.MiB)
	c.Step(time.Unix(1, 0), Cores{4000})
	return c
}

func spawnOf(c *Core, now time.Time, id sigma.ProcID, class sigma.Class, cpu sigma.MilliCPU,
	memory sigma.Bytes) []Effect {
	return c.Step(now, Spawned{By: sigma.Principal{Realm: "r"}, IDs: []sigma.ProcID{id},
		Ds: []sigma.Descriptor{{Program: "/bin/x", Class: class, CPU: cpu, Memory: memory}}})
}

// names are the effects that matter here, in short.
func names(fs []Effect) (out []string) {
	for _, f := range fs {
		switch f := f.(type) {
		case Start:
			out = append(out, "start "+string(f.Proc.ID))
		case Enqueue:
			out = append(out, "enqueue "+string(f.Proc.ID))
		case Unreserved:
			out = append(out, "over "+string(f.ID))
		case Unfit:
			out = append(out, "unfit "+string(f.ID))
		case Notice:
			out = append(out, "notice "+string(f.Proc.ID))
		case Take:
			out = append(out, "take "+string(f.ID))
		}
	}
	return out
}

func wantEffects(t *testing.T, what string, fs []Effect, want ...string) {
	t.Helper()
	if got := names(fs); !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// 001 §4.3: LC and BE memory are one account: a reservation takes room from best effort, whose
// youngest procs are asked to go, and begins when there is room.
func TestReservationMakesRoom(t *testing.T) {
	now := time.Unix(100, 0)
	c := lcCore()
	for i, id := range []sigma.ProcID{"b1", "b2", "b3"} {
		at := now.Add(time.Duration(i) * time.Second)
		spawnOf(c, at, id, sigma.BestEffort, 0, 30*sigma.MiB)
		c.Step(at, Assigned{id})
		c.Step(at, LaunchAsked{id, uint64(i + 1)})
		c.Step(at, Launched{ID: id})
	}
	now = now.Add(10 * time.Second)
	wantEffects(t, "spawn", spawnOf(c, now, "l", sigma.LatencyCritical, 1000, 60*sigma.MiB), "enqueue l")
	wantEffects(t, "grant", c.Step(now, Assigned{"l"}), "notice b3", "notice b2")
	if c.Free() != 0 || c.Lent() != 90*sigma.MiB || c.ReservedMemory() != 60*sigma.MiB {
		t.Errorf("free %v, lent %v, reserved %v", c.Free(), c.Lent(), c.ReservedMemory())
	}
	wantEffects(t, "a second grant", c.Step(now, Assigned{"l"}))
	wantEffects(t, "too early", c.Step(now, Gone{ID: "b3"}))
	wantEffects(t, "room", c.Step(now, Gone{ID: "b2"}), "start l")
	wantEffects(t, "the end", c.Step(now, Gone{ID: "l", Exit: launch.Exited{}}), "over l")
	if c.Free() != 70*sigma.MiB || c.ReservedCPU() != 0 || len(c.Reservations()) != 0 {
		t.Errorf("free %v, %v cores reserved", c.Free(), c.ReservedCPU())
	}
}

// What reservations alone leave no room for is declined; what is not wanted any more is given back.
func TestReservationDeclined(t *testing.T) {
	now := time.Unix(100, 0)
	c := lcCore()
	home := sigma.Life{Machine: "m2", Incarnation: 1}
	lc := func(id sigma.ProcID, cpu sigma.MilliCPU, memory sigma.Bytes) []Effect {
		return c.Step(now, Offered{ID: id, Realm: "r", Class: sigma.LatencyCritical, CPU: cpu, Memory: memory,
			Home: home})
	}
	wantEffects(t, "the first", lc("a", 3000, 60*sigma.MiB), "take a")
	wantEffects(t, "memory", lc("b", 100, 41*sigma.MiB), "unfit b")
	wantEffects(t, "cores", lc("c", 1001, sigma.MiB), "unfit c")
	if realm, cpu, _ := c.Reservation("a"); realm != "r" || cpu != 3000 {
		t.Errorf("before the proc is here %q has %v", realm, cpu)
	}
	wantEffects(t, "its home has it no more", c.Step(now, NotTaken{"a"}), "over a")
	wantEffects(t, "now there is room", lc("b", 100, 41*sigma.MiB), "take b")
	wantEffects(t, "one that nobody knows", c.Step(now, Assigned{"x"}), "over x")
	spawnOf(c, now, "k", sigma.LatencyCritical, 100, sigma.MiB)
	c.Step(now, Killed{"k"})
	wantEffects(t, "one that was killed", c.Step(now, Assigned{"k"}), "over k")
	spawnOf(c, now, "n", sigma.LatencyCritical, 100, sigma.MiB)
	c.Step(now, Refused{"n", "there is no machine with zone=b"})
	if p := c.Find("n"); p.Status.Kind != sigma.KindTooBig || p.Status.Msg != "there is no machine with zone=b" ||
		c.QueuedLC() != 0 {
		t.Errorf("refused: %+v, %d queued", p.Status, c.QueuedLC())
	}
}

// A sigmad that was restarted has the reservations of what runs.
func TestReservationAdopted(t *testing.T) {
	c := lcCore()
	c.Step(time.Unix(5, 0), Adopted{Info: sigma.ProcInfo{ID: "a", Realm: "r", Class: sigma.LatencyCritical, CPU: 500,
		Memory: 10 * sigma.MiB}, Launch: 1})
	if realm, cpu, memory := c.Reservation("a"); realm != "r" || cpu != 500 || memory != 10*sigma.MiB ||
		c.Free() != 90*sigma.MiB {
		t.Errorf("reserved %v, %v; free %v", cpu, memory, c.Free())
	}
}

// Goal: whatever is granted, ends, is killed or lost in whatever order, what runs never exceeds the
// machine, reservations never exceed it, and nothing is left when all have ended.
func TestReservationsRandom(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 21))
		c, now := lcCore(), time.Unix(1000, 0)
		running, gone := map[sigma.ProcID]bool{}, []sigma.ProcID{}
		var step func(e Event)
		step = func(e Event) {
			for _, f := range c.Step(now, e) {
				switch f := f.(type) {
				case Start:
					running[f.Proc.ID] = true
					step(LaunchAsked{f.Proc.ID, 1})
					step(Launched{ID: f.Proc.ID})
				case Kill:
					gone = append(gone, f.Proc.ID)
				case Take:
					if r.IntN(2) == 0 {
						step(NotTaken{f.ID})
					} else {
						_, cpu, memory := c.Reservation(f.ID)
						step(Arrived{Info: sigma.ProcInfo{ID: f.ID, Realm: "r", Class: sigma.LatencyCritical, CPU: cpu,
							Memory: memory}, Home: f.Home})
					}
				}
			}
			var runs sigma.Bytes
			for _, p := range c.procs {
				if p.charged {
					runs += p.Memory
				}
			}
			if runs > c.capacity || c.reserved.memory > c.capacity || c.reserved.cpu > 4000 ||
				c.used < c.reserved.memory {
				t.Fatalf("seed %d: %v runs of %v, reserved %v and %v", seed, runs, c.capacity, c.reserved.memory,
					c.reserved.cpu)
			}
		}
		for i := range 400 {
			now = now.Add(time.Second)
			id := sigma.ProcID(fmt.Sprint("p", i))
			cpu, memory := sigma.MilliCPU(1+r.IntN(2000)), sigma.Bytes(4+r.IntN(60))*sigma.MiB
			switch n := r.IntN(10); {
			case n < 3:
				step(Spawned{By: sigma.Principal{Realm: "r"}, IDs: []sigma.ProcID{id},
					Ds: []sigma.Descriptor{{Program: "/bin/x", Memory: memory}}})
				step(Assigned{id})
			case n < 5:
				step(Spawned{By: sigma.Principal{Realm: "r"}, IDs: []sigma.ProcID{id},
					Ds: []sigma.Descriptor{{Program: "/bin/x", Class: sigma.LatencyCritical, CPU: cpu,
						Memory: memory}}})
				step(Assigned{id})
			case n < 6:
				step(Offered{ID: id, Realm: "r", Class: sigma.LatencyCritical, CPU: cpu, Memory: memory,
					Home: sigma.Life{Machine: "m2", Incarnation: 1}})
			case n < 7:
				step(Killed{sigma.ProcID(fmt.Sprint("p", r.IntN(i+1)))})
			case n < 8 && i%97 == 0:
				step(Reborn{})
			default:
				for id := range running {
					delete(running, id)
					step(Gone{ID: id})
					break
				}
				for _, id := range gone {
					delete(running, id)
					step(Gone{ID: id})
				}
				gone = nil
			}
		}
		for _, p := range c.sorted(func(p *Proc) bool { return !p.Ended() }) {
			step(Killed{p.ID})
			step(Gone{ID: p.ID})
		}
		for _, p := range c.sorted(func(p *Proc) bool { return !p.Ended() }) {
			step(Gone{ID: p.ID})
		}
		if c.used != 0 || c.running != 0 || c.queued != 0 || c.reserved.queued != 0 || len(c.reserved.by) != 0 ||
			len(c.reserved.pending) != 0 || c.reserved.waits != 0 || c.reserved.cpu != 0 {
			t.Errorf("seed %d: used %v, %d run, %d+%d queued, reserved %+v", seed, c.used, c.running, c.queued,
				c.reserved.queued, c.reserved)
		}
	}
}
