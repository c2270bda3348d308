package schedd

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// Goal: a realm at its maximum of memory starts no more here, by besched or by a lease, while
// another realm does; when one of its procs ends the next goes on, at once if nobody waits at
// besched, else by its turn there; more memory lets more go on.
func TestMaximumOfRealm(t *testing.T) {
	now := time.Unix(100, 0)
	c := lcCore()
	of := func(realm sigma.RealmID, id sigma.ProcID) []Effect {
		return c.Step(now, Spawned{By: sigma.Principal{Realm: realm}, IDs: []sigma.ProcID{id},
			Ds: []sigma.Descriptor{{Program: "/bin/x", Memory: 20 * sigma.MiB}}})
	}
	c.Step(now, Maxima{map[sigma.RealmID]sigma.Bytes{"r": 40 * sigma.MiB}})
	c.Step(now, Leased{On: true})
	wantEffects(t, "first", of("r", "a"), "start a")
	wantEffects(t, "second", of("r", "b"), "start b")
	wantEffects(t, "third", of("r", "c"), "enqueue c")
	wantEffects(t, "granted", c.Step(now, Assigned{"c"}))
	wantEffects(t, "granted again", c.Step(now, Assigned{"c"}))
	if c.KeptBack("r") != 1 || c.Queued() != 0 {
		t.Errorf("%d kept back, %d queued", c.KeptBack("r"), c.Queued())
	}
	if !c.Holds("b") || c.Holds("c") || c.Holds("none") {
		t.Error("what is kept back holds memory, or what runs holds none")
	}
	wantEffects(t, "another realm", of("s", "d"), "start d")
	wantEffects(t, "an end", c.Step(now, Gone{ID: "a"}), "start c")
	home := sigma.Life{Machine: "m2", Incarnation: 1}
	guest := Offered{ID: "g", Realm: "r", Memory: 20 * sigma.MiB, Home: home}
	wantEffects(t, "a guest", c.Step(now, guest))
	wantEffects(t, "the guest again", c.Step(now, guest))
	if c.KeptBack("r") != 1 {
		t.Errorf("%d kept back", c.KeptBack("r"))
	}
	wantEffects(t, "an end of another realm", c.Step(now, Gone{ID: "d"}))
	if c.Holds("g") {
		t.Error("a guest that is kept back holds memory")
	}
	wantEffects(t, "a place for the guest", c.Step(now, Gone{ID: "b"}), "take g")
	if !c.Holds("g") || c.Holds("b") {
		t.Error("a guest that is on its way holds none, or what has ended does")
	}
	c.Step(now, Leased{On: false}) // somebody waits
	c.Step(now, Assigned{"none"})
	of("r", "e")
	wantEffects(t, "fifth", c.Step(now, Assigned{"e"}))
	wantEffects(t, "not taken", c.Step(now, NotTaken{"g"}), "enqueue e")
	wantEffects(t, "its turn", c.Step(now, Assigned{"e"}), "start e")
	of("r", "f")
	wantEffects(t, "sixth", c.Step(now, Assigned{"f"}))
	wantEffects(t, "more", c.Step(now, Maxima{}), "enqueue f")
	wantEffects(t, "a killed one", c.Step(now, Killed{"f"}))
	if p := c.Find("f"); !p.Ended() || c.Queued() != 0 {
		t.Errorf("%+v, %d queued", p, c.Queued())
	}
}

// Goal: what is kept back goes on when there is room for its realm, or no maximum any more, also if
// the realm's ended procs were forgotten meanwhile, as they are when it is removed.
func TestKeptBackOutlivesForgetting(t *testing.T) {
	now := time.Unix(100, 0)
	c := lcCore()
	c.Step(now, Maxima{map[sigma.RealmID]sigma.Bytes{"r": 40 * sigma.MiB}})
	c.Step(now, Leased{On: true})
	for _, id := range []sigma.ProcID{"a", "b", "c", "d"} {
		c.Step(now, Spawned{By: sigma.Principal{Realm: "r"}, IDs: []sigma.ProcID{id},
			Ds: []sigma.Descriptor{{Program: "/bin/x", Memory: 20 * sigma.MiB}}})
		if id == "c" || id == "d" {
			c.Step(now, Assigned{id})
		}
	}
	c.Step(now, Offered{ID: "g", Realm: "r", Memory: 20 * sigma.MiB, Home: sigma.Life{Machine: "m2", Incarnation: 1}})
	c.Step(now, RealmGone{"r"})
	if c.KeptBack("r") != 3 {
		t.Errorf("%d are kept back", c.KeptBack("r"))
	}
	wantEffects(t, "an end", c.Step(now, Gone{ID: "a"}), "start c")
	wantEffects(t, "another", c.Step(now, Gone{ID: "b"}), "start d")
	wantEffects(t, "the realm is gone, with its maximum", c.Step(now, Maxima{}), "take g")
	if c.KeptBack("r") != 0 || len(c.maxima.back) != 0 {
		t.Errorf("%d are kept back", c.KeptBack("r"))
	}
}

// Goal: a reservation counts for its realm's maximum too and comes before its best-effort procs;
// one that would not fit alone is given back.
func TestMaximumAndReservations(t *testing.T) {
	now := time.Unix(100, 0)
	c := lcCore()
	c.Step(now, Maxima{map[sigma.RealmID]sigma.Bytes{"r": 40 * sigma.MiB}})
	c.Step(now, Leased{On: true})
	spawnOf(c, now, "a", sigma.BestEffort, 0, 20*sigma.MiB)
	spawnOf(c, now.Add(1), "b", sigma.BestEffort, 0, 20*sigma.MiB)
	for _, id := range []sigma.ProcID{"a", "b"} {
		c.Step(now, LaunchAsked{id, 1})
		c.Step(now, Launched{ID: id})
	}
	spawnOf(c, now, "large", sigma.LatencyCritical, 1000, 50*sigma.MiB)
	wantEffects(t, "larger than the maximum", c.Step(now, Assigned{"large"}), "unfit large")
	spawnOf(c, now, "lc", sigma.LatencyCritical, 1000, 10*sigma.MiB)
	wantEffects(t, "a reservation", c.Step(now, Assigned{"lc"}), "notice b")
	if c.ReservedBy("r") != 1000 || c.ReservedBy("s") != 0 {
		t.Errorf("%d reserved", c.ReservedBy("r"))
	}
	wantEffects(t, "there is room", c.Step(now, Gone{ID: "b"}), "start lc")
	if most, held := c.Most("r"); most != 40*sigma.MiB || held != 30*sigma.MiB {
		t.Errorf("%v of %v", held, most)
	}
}

// Goal: a reservation that waits for room is given back when its realm may not have as much any
// more, and no other.
func TestMaximumBelowPending(t *testing.T) {
	now := time.Unix(100, 0)
	c := lcCore()
	c.Step(now, Leased{On: true})
	spawnOf(c, now, "a", sigma.BestEffort, 0, 80*sigma.MiB)
	c.Step(now, LaunchAsked{"a", 1})
	c.Step(now, Launched{ID: "a"})
	for id, memory := range map[sigma.ProcID]sigma.Bytes{"large": 50 * sigma.MiB, "small": 30 * sigma.MiB} {
		spawnOf(c, now, id, sigma.LatencyCritical, 1000, memory)
		c.Step(now, Assigned{id})
	}
	wantEffects(t, "a lower maximum", c.Step(now, Maxima{map[sigma.RealmID]sigma.Bytes{"r": 40 * sigma.MiB}}),
		"unfit large")
	if c.Reserved("large") || !c.Reserved("small") || c.ReservedCPU() != 1000 || c.QueuedLC() != 2 {
		t.Errorf("%v reserved, %d queued", c.ReservedCPU(), c.QueuedLC())
	}
	wantEffects(t, "there is room", c.Step(now, Gone{ID: "a"}), "start small")
	wantEffects(t, "a higher one", c.Step(now, Maxima{}))
	wantEffects(t, "granted again", c.Step(now, Assigned{"large"}), "start large")
}

// Goal: whatever comes, what realms hold is what their procs, expected ones and reservations have;
// no realm gets beyond its maximum; nothing is kept back for ever, and nothing is left at the end.
func TestMaximaRandom(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 8))
		c, now := lcCore(), time.Unix(1000, 0)
		realms := []sigma.RealmID{"r", "s"}
		home := sigma.Life{Machine: "m2", Incarnation: 1}
		memory := map[sigma.ProcID]sigma.Bytes{}
		var step func(e Event)
		step = func(e Event) {
			before := map[sigma.RealmID]sigma.Bytes{}
			for _, realm := range realms {
				_, before[realm] = c.Most(realm)
			}
			fs := c.Step(now, e)
			held := map[sigma.RealmID]sigma.Bytes{}
			for _, p := range c.procs {
				if p.charged && p.Class == sigma.BestEffort {
					held[p.Realm] += p.Memory
				}
			}
			for id, m := range c.expected {
				if c.reserved.by[id] == nil {
					held[c.expectedOf[id]] += m
				}
			}
			var reserved sigma.Bytes
			for _, v := range c.reserved.by {
				held[v.realm] += v.memory
				reserved += v.memory
			}
			for _, realm := range realms {
				most, has := c.Most(realm)
				if has != held[realm] || reserved == 0 && most > 0 && has > max(most, before[realm]) {
					t.Fatalf("seed %d: after %T %s has %v of %v, not %v", seed, e, realm, has, most, held[realm])
				}
			}
			for _, f := range fs {
				switch f := f.(type) {
				case Start:
					step(LaunchAsked{f.Proc.ID, 1})
					step(Launched{ID: f.Proc.ID})
				case Enqueue:
					if r.IntN(2) == 0 {
						step(Assigned{f.Proc.ID})
					}
				case Take:
					if r.IntN(2) == 0 {
						step(NotTaken{f.ID})
					} else {
						step(Arrived{Info: sigma.ProcInfo{ID: f.ID, Realm: c.expectedOf[f.ID], Memory: memory[f.ID]},
							Home: f.Home})
					}
				}
			}
		}
		for i := range 300 {
			now = now.Add(time.Second)
			id, realm := sigma.ProcID(fmt.Sprint("p", i)), realms[r.IntN(2)]
			memory[id] = sigma.Bytes(4+r.IntN(30)) * sigma.MiB
			switch n := r.IntN(12); {
			case n < 4:
				one := sigma.Descriptor{Program: "/bin/x", Memory: memory[id]}
				step(Spawned{By: sigma.Principal{Realm: realm}, IDs: []sigma.ProcID{id}, Ds: []sigma.Descriptor{one}})
			case n < 6:
				step(Offered{ID: id, Realm: realm, Memory: memory[id], Home: home})
			case n < 7:
				step(Spawned{By: sigma.Principal{Realm: realm}, IDs: []sigma.ProcID{id},
					Ds: []sigma.Descriptor{{Program: "/bin/x", Class: sigma.LatencyCritical, CPU: 500,
						Memory: memory[id]}}})
				step(Assigned{id})
			case n < 8:
				step(Maxima{map[sigma.RealmID]sigma.Bytes{"r": sigma.Bytes(10+r.IntN(60)) * sigma.MiB}})
			case n < 9:
				step(Leased{On: r.IntN(2) == 0, Limit: r.IntN(3)})
			case n < 10:
				step(Killed{sigma.ProcID(fmt.Sprint("p", r.IntN(i+1)))})
			default:
				for _, p := range c.sorted(func(p *Proc) bool { return p.State == sigma.ProcRunning && !p.Away() }) {
					if r.IntN(2) == 0 {
						step(Gone{ID: p.ID})
					}
				}
			}
		}
		step(Maxima{})
		if len(c.maxima.back) != 0 {
			t.Errorf("seed %d: kept back without a maximum: %v", seed, c.maxima.back)
		}
		for range 2 {
			for _, p := range c.sorted(func(p *Proc) bool { return !p.Ended() }) {
				step(Killed{p.ID})
				step(Gone{ID: p.ID})
			}
		}
		if c.used != 0 || len(c.maxima.held)+c.queued+len(c.reserved.of)+len(c.expectedOf) != 0 {
			t.Errorf("seed %d: %v used, %v held, %d queued, %v reserved", seed, c.used, c.maxima.held, c.queued,
				c.reserved.of)
		}
	}
}
