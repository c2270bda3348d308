package mr

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

// The coordinator's decisions, without I/O: what happened goes in (step), what is to be done comes
// out. The shell around it is coord.go.
//
// Why no map waits forever. A map waits for memory. Memory is held by maps of this job, which end
// without waiting for another proc; by reducers of this job, which wait for maps; and by procs of
// other jobs, which the scheduler looks after. Reducers are spawned only when every map that is not
// done has started (allStarted), so none of the first attempts waits for one. Later a map may have
// to be repeated while reducers hold memory: if it has not started after startWait, all reducers
// are killed (makeRoom) and spawned again when every map has started. Hence in every state in which
// a map waits, either there is no reducer of ours or there is none after startWait.

// Times of the coordinator.
const (
	// how long a map may wait for a place before reducers make room; a start takes milliseconds
	// when there is one
	startWait = 2 * time.Second
	retryWait = 200 * time.Millisecond
)

// spawnedMax is how many maps are with the scheduler at once. It bounds the waits that are open;
// far fewer run.
const spawnedMax = 256

// taskKind tells maps from reduces.
type taskKind uint8

const (
	mapTask taskKind = iota
	reduceTask
)

// taskID names a map or reduce.
type taskID struct {
	kind  taskKind
	index int
}

func (id taskID) String() string {
	if id.kind == mapTask {
		return fmt.Sprintf("map %d", id.index)
	}
	return fmt.Sprintf("reduce %d", id.index)
}

// taskState is where a task is.
type taskState uint8

const (
	waiting taskState = iota // nobody works on it
	spawned                  // its proc waits for a place
	started                  // its proc runs
	done
)

type task struct {
	state    taskState
	proc     sigma.ProcID
	memory   sigma.Bytes
	attempts int       // that ended badly
	since    time.Time // of the state
	notYet   time.Time // do not spawn before
	unwanted bool      // we killed its proc

	withdrawn string   // target of the map's link that was found unreadable last
	counted   counters // of a map that is done
	reduced   reduced  // of a reduce that is done
}

// An event is what happened.
type event struct {
	task   taskID
	proc   sigma.ProcID
	what   eventKind
	status sigma.Status // of ended
}

type eventKind uint8

const (
	tick eventKind = iota
	procStarted
	procEnded
)

// Effects are what is to be done after a step.
type effects struct {
	spawn  []taskID
	kill   []sigma.ProcID
	remove []redo // links of maps to withdraw, before anything is spawned
	finish bool
	err    error // of finish
}

// core is the state of a job.
type core struct {
	maps, reduces []task
	mapsDone      int
	reducesDone   int
	finished      bool
}

// works adds up what each machine did.
func (c *core) works() []Work {
	by := map[sigma.MachineID]*Work{}
	of := func(m sigma.MachineID) *Work {
		if by[m] == nil {
			by[m] = &Work{Machine: m}
		}
		return by[m]
	}
	for i := range c.maps {
		w := of(c.maps[i].counted.Machine)
		w.Maps++
		w.Bytes += c.maps[i].counted.Bytes
	}
	for i := range c.reduces {
		w := of(c.reduces[i].reduced.Machine)
		w.Reduces++
		w.Records += c.reduces[i].reduced.Records
	}
	var all []Work
	for _, m := range slices.Sorted(maps.Keys(by)) {
		all = append(all, *by[m])
	}
	return all
}

// lose has the maps repeated whose output is gone with their machine, and returns them.
func (c *core) lose(now time.Time, m sigma.MachineID) (gone []int) {
	for i := range c.maps {
		if t := &c.maps[i]; t.state == done && t.counted.Machine == m {
			t.state, t.proc, t.since, t.counted = waiting, "", now, counters{}
			c.mapsDone--
			gone = append(gone, i)
		}
	}
	return gone
}

func newCore(maps, reduces int) *core {
	c := &core{maps: make([]task, maps), reduces: make([]task, reduces)}
	for _, list := range [][]task{c.maps, c.reduces} {
		for i := range list {
			list[i].memory = MemoryDefault
		}
	}
	return c
}

func (c *core) task(id taskID) *task {
	if id.kind == mapTask {
		return &c.maps[id.index]
	}
	return &c.reduces[id.index]
}

// adopt enters a proc of an earlier coordinator.
func (c *core) adopt(now time.Time, id taskID, proc sigma.ProcID) {
	if t := c.task(id); t.state == waiting {
		t.state, t.proc, t.since = spawned, proc, now
	}
}

// complete enters a task that is done.
func (c *core) complete(id taskID) {
	t := c.task(id)
	if t.state == done {
		return
	}
	t.state = done
	if id.kind == mapTask {
		c.mapsDone++
	} else {
		c.reducesDone++
	}
}

// counters adds up what the maps that are done have counted.
func (c *core) counters() (sum counters) {
	for i := range c.maps {
		sum.Add(c.maps[i].counted)
	}
	return sum
}

// spawnedAs enters the proc that was made for a task.
func (c *core) spawnedAs(now time.Time, id taskID, proc sigma.ProcID) {
	t := c.task(id)
	t.state, t.proc, t.since = spawned, proc, now
}

// step takes an event and returns what is to be done.
func (c *core) step(now time.Time, e event) (do effects) {
	if c.finished {
		return do
	}
	if e.what != tick {
		if t := c.task(e.task); t.proc != e.proc || t.state == waiting || t.state == done {
			return do // news of an attempt that does not matter any more
		}
	}
	switch e.what {
	case procStarted:
		if t := c.task(e.task); t.state == spawned {
			t.state, t.since = started, now
		}
	case procEnded:
		c.ended(now, e, &do)
	}
	if do.finish {
		c.finished = true
		return do
	}
	c.makeRoom(now, &do)
	c.choose(now, &do)
	if c.mapsDone == len(c.maps) && c.reducesDone == len(c.reduces) {
		c.finished, do.finish = true, true
	}
	return do
}

// ended handles the end of a task's proc.
func (c *core) ended(now time.Time, e event, do *effects) {
	t := c.task(e.task)
	if e.status.OK() {
		if e.task.kind == mapTask {
			t.counted = decodeCounters(e.status.Data)
		} else {
			t.reduced = decodeReduced(e.status.Data)
		}
		c.complete(e.task)
		return
	}
	t.state, t.proc, t.since = waiting, "", now
	if t.unwanted {
		t.unwanted = false
		return
	}
	t.notYet = now.Add(retryWait)
	failed := t
	if r, ok := decodeRedo(e.status.Data); ok && e.task.kind == reduceTask && r.Map >= 0 && r.Map < len(c.maps) {
		failed = &c.maps[r.Map]
		if failed.state != done || failed.withdrawn == r.Target {
			return // another reducer said so before
		}
		do.remove = append(do.remove, r)
		failed.state, failed.since, failed.withdrawn = waiting, now, r.Target
		failed.counted = counters{}
		c.mapsDone--
	}
	failed.attempts++
	if e.status.Code == sigma.StatusOOM {
		if failed.memory *= 2; failed.memory > MemoryMost {
			failed.attempts, failed.memory = AttemptsMax, MemoryMost
		}
	}
	if string(e.status.Data) == permanent || failed.attempts >= AttemptsMax {
		do.finish, do.err = true, taskError(e, failed.attempts)
	}
}

// taskError is why the job failed.
func taskError(e event, attempts int) error {
	msg := e.status.Msg
	if msg == "" {
		msg = "ended with status " + e.status.Code.String()
	}
	if string(e.status.Data) != permanent {
		msg = fmt.Sprintf("%s (after %d attempts; the last proc was %s)", msg, attempts, e.proc)
	}
	kind := e.status.Kind
	err := &sigma.Error{Op: "mr.coordinate", Kind: kind, Msg: e.task.String() + ": " + msg}
	if e.status.Code == sigma.StatusOOM {
		err.Hint = "a record of the input is longer than a proc's memory allows"
	} else if string(e.status.Data) != permanent {
		err.Hint = "see what it printed with: sigma logs " + string(e.proc)
	}
	return err
}

// allStarted reports whether no map waits for a place.
func (c *core) allStarted() bool {
	for i := range c.maps {
		if s := c.maps[i].state; s == waiting || s == spawned {
			return false
		}
	}
	return true
}

// makeRoom kills the reducers if a map waits for a place for long.
func (c *core) makeRoom(now time.Time, do *effects) {
	stuck := false
	for i := range c.maps {
		t := &c.maps[i]
		stuck = stuck || t.state == spawned && now.Sub(t.since) >= startWait
	}
	if !stuck {
		return
	}
	for i := range c.reduces {
		if t := &c.reduces[i]; (t.state == spawned || t.state == started) && !t.unwanted {
			t.unwanted = true
			do.kill = append(do.kill, t.proc)
		}
	}
}

// choose selects the tasks to spawn: all maps within a window; reducers once an output is there and
// no map waits.
func (c *core) choose(now time.Time, do *effects) {
	ready := func(t *task) bool { return t.state == waiting && !now.Before(t.notYet) }
	pending := 0
	for i := range c.maps {
		if s := c.maps[i].state; s == spawned || s == started {
			pending++
		}
	}
	for i := range c.maps {
		if pending >= spawnedMax {
			break
		}
		if ready(&c.maps[i]) {
			do.spawn = append(do.spawn, taskID{mapTask, i})
			pending++
		}
	}
	if !c.allStarted() || c.mapsDone == 0 && len(c.maps) > 0 {
		return
	}
	for i := range c.reduces {
		if ready(&c.reduces[i]) {
			do.spawn = append(do.spawn, taskID{reduceTask, i})
		}
	}
}
