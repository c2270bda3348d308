package mr

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// simProc is a proc of the simulation.
type simProc struct {
	id      taskID
	proc    sigma.ProcID
	running bool
	killed  bool
}

// TestCoreEnds runs the coordinator's decisions against a scheduler with room for few procs, maps
// and reduces that fail at random, and intermediate files that vanish. The goal: the job always
// ends, and no reducer is spawned while a map waits for room, so that a job cannot lock itself out.
func TestCoreEnds(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { simulate(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func simulate(t *testing.T, r *rand.Rand) {
	maps, reduces, room := 1+r.IntN(8), 1+r.IntN(4), 1+r.IntN(3)
	c := newCore(maps, reduces)
	now := time.Unix(1000, 0)
	var procs []*simProc
	failures := 3 // few enough that no task uses up its attempts
	apply := func(do effects) {
		for _, id := range do.kill {
			for _, p := range procs {
				p.killed = p.killed || p.proc == id
			}
		}
		for _, id := range do.spawn {
			if id.kind == reduceTask && !c.allStarted() {
				t.Fatalf("%v is spawned while a map waits", id)
			}
			p := &simProc{id: id, proc: sigma.NewProcID()}
			procs = append(procs, p)
			c.spawnedAs(now, id, p.proc)
		}
	}
	apply(c.step(now, event{what: tick}))
	for range 100_000 {
		now = now.Add(100 * time.Millisecond)
		apply(c.step(now, event{what: tick}))
		if c.finished {
			return
		}
		running := 0
		for _, p := range procs {
			if p.running {
				running++
			}
		}
		if len(procs) == 0 {
			continue
		}
		i := r.IntN(len(procs))
		p := procs[i]
		e := event{task: p.id, proc: p.proc, what: procEnded, status: sigma.Status{Code: sigma.StatusOK}}
		switch {
		case p.killed:
			e.status.Code = sigma.StatusEvicted
		case !p.running:
			if running >= room {
				continue
			}
			p.running = true
			apply(c.step(now, event{task: p.id, proc: p.proc, what: procStarted}))
			continue
		case failures > 0 && r.IntN(4) == 0:
			failures--
			e.status.Code = sigma.StatusCrashed
			if m := r.IntN(maps); p.id.kind == reduceTask && c.maps[m].state == done {
				e.status.Data = redo{Map: m, Target: string(p.proc)}.encode()
			}
		case p.id.kind == reduceTask && c.mapsDone < maps:
			continue // it waits for them and holds its room
		}
		procs = append(procs[:i], procs[i+1:]...)
		do := c.step(now, e)
		if do.err != nil {
			t.Fatal(do.err)
		}
		apply(do)
	}
	t.Fatalf("the job does not end: %+v", c)
}
