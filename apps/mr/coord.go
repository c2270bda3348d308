package mr

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sigma"
)

// tickEvery is how often the coordinator looks at the clock when nothing happens.
const tickEvery = 100 * time.Millisecond

// spawnBatch is how many procs one Spawn makes; their descriptors (some 200 bytes each) fit one
// message.
const spawnBatch = 128

// spawnErrorsMax is how often in a row Spawn may fail for a reason that may pass.
const spawnErrorsMax = 100

// coordinator is the shell around core: it reads and writes the realm and waits for procs.
type coordinator struct {
	names  sigma.Namespace
	procs  sigma.Procs
	mapper *Mapper
	dir    jobDir
	job    Job
	plan   plan
	near   []sigma.MachineID // by map, where its input is; "" = anywhere
	epoch  sigma.Epoch       // how many have led

	core    *core
	mapsRun int64
	failing int // Spawn errors in a row
	events  chan event
	waiters sync.WaitGroup
}

// plan is how a job was cut up.
type plan struct {
	maps, reduces  int
	files, skipped int64
	bytes          int64
}

func (p plan) encode() []byte {
	return encodeRecord("maps", p.maps, "reduces", p.reduces, "files", p.files, "skipped", p.skipped, "bytes", p.bytes)
}

func decodePlan(data []byte) plan {
	r := parseRecord(data)
	return plan{maps: int(r.number("maps")), reduces: int(r.number("reduces")), files: r.number("files"),
		skipped: r.number("skipped"), bytes: r.number("bytes")}
}

// work does the job, or goes on with it, records how it ended in its result file and tidies up. An
// error is one of the coordinator's own, after which another attempt makes sense.
func (c *coordinator) work(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer c.waiters.Wait()
	defer cancel()
	if _, _, err := c.names.Get(ctx, c.dir.file("result")); err != nil {
		if sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
		var result error
		if err = c.prepare(ctx); err == nil {
			result, err = c.run(ctx)
		} else if ctx.Err() == nil && lasting(err) {
			result, err = err, nil // the input is missing, for example
		}
		if err != nil {
			return err
		}
		if _, err := c.names.Put(ctx, c.dir.file("result"), c.result(result), sigma.PutOptions{}); err != nil {
			return err
		}
	}
	c.clean(ctx)
	return ctx.Err()
}

// prepare makes the plan, or finds the one of an earlier coordinator and what was done since.
func (c *coordinator) prepare(ctx context.Context) error {
	data, _, err := c.names.Get(ctx, c.dir.file("plan"))
	if err == nil {
		c.plan = decodePlan(data)
		c.core = newCore(c.plan.maps, c.plan.reduces)
		return c.recover(ctx)
	}
	if sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	dirs := make(chan error, 1)
	go func() {
		dirs <- inParallel(4, 4, func(i int) error {
			return c.names.MkdirAll(ctx, []string{c.dir.file("bins"), c.dir.file("out"), c.dir.file("done"),
				c.job.Output}[i], 0o755)
		})
	}()
	found, err := list(ctx, c.names, &c.job)
	if err = errors.Join(err, <-dirs); err != nil {
		return err
	}
	n := c.job.Maps
	if n == 0 {
		n = mapsFor(&found, c.job.Cores)
	}
	bins := cut(&found, n)
	for _, bin := range bins {
		c.near = append(c.near, machineOf(bin))
	}
	err = inParallel(16, len(bins), func(i int) error {
		_, err := c.names.Put(ctx, c.dir.bin(i), encodeBin(bins[i]), sigma.PutOptions{})
		return err
	})
	if err != nil {
		return err
	}
	c.plan = plan{maps: len(bins), reduces: c.job.Reduces, files: int64(len(found.files)),
		skipped: int64(found.skipped), bytes: found.bytes}
	if c.plan.reduces == 0 {
		c.plan.reduces = max(reducesFor(len(bins), c.job.Cores), 1)
	}
	c.core = newCore(c.plan.maps, c.plan.reduces)
	if c.mapper.Ordered {
		if err := c.writeCuts(ctx, &found); err != nil {
			return err
		}
	}
	_, err = c.names.Put(ctx, c.dir.file("plan"), c.plan.encode(), sigma.PutOptions{})
	return err
}

// recover enters what was done before this coordinator, and the procs that still work for the job.
func (c *coordinator) recover(ctx context.Context) error {
	data, _, err := c.names.Get(ctx, c.dir.file("maps_run"))
	if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	c.mapsRun, _ = strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	// First the procs, then what they have published: one that ends in between is met twice rather
	// than never.
	procs, err := c.procs.List(ctx, false)
	if err != nil {
		return err
	}
	links, err := c.names.ReadDir(ctx, c.dir.file("out"))
	if err != nil {
		return err
	}
	for _, e := range links {
		i, ok := taskIndex(e.Name, "m", c.plan.maps)
		if !ok {
			continue
		}
		data, _, err := c.names.Get(ctx, c.dir.out(i)+"/counters")
		if err != nil { // its machine has lost it
			c.names.Remove(ctx, c.dir.out(i))
			continue
		}
		c.core.maps[i].counted = decodeCounters(data)
		c.core.complete(taskID{mapTask, i})
	}
	finished, err := c.names.ReadDir(ctx, c.dir.file("done"))
	if err != nil {
		return err
	}
	for _, e := range finished {
		if i, ok := taskIndex(e.Name, "r", c.plan.reduces); ok {
			data, _, err := c.names.Get(ctx, c.dir.done(i))
			if err != nil {
				return err
			}
			c.core.reduces[i].reduced = decodeReduced(data)
			c.core.complete(taskID{reduceTask, i})
		}
	}
	c.adopt(ctx, procs)
	c.near = make([]sigma.MachineID, c.plan.maps)
	return inParallel(16, c.plan.maps, func(i int) error {
		if c.core.maps[i].state != waiting {
			return nil
		}
		data, _, err := c.names.Get(ctx, c.dir.bin(i))
		if err != nil {
			return err
		}
		bin, err := decodeBin(data)
		c.near[i] = machineOf(bin)
		return err
	})
}

// adopt takes over procs that an earlier coordinator spawned: a child outlives its parent.
func (c *coordinator) adopt(ctx context.Context, procs []sigma.ProcInfo) {
	for _, p := range procs {
		id, ok := c.taskOf(&p)
		if t := c.core; ok && t.task(id).state == waiting {
			t.adopt(time.Now(), id, p.ID)
			c.wait(ctx, id, p.ID)
		}
	}
}

// taskOf gives the task of this job that a proc works on.
func (c *coordinator) taskOf(p *sigma.ProcInfo) (taskID, bool) {
	if len(p.Args) < roleArgs || p.Args[1] != string(c.dir) || p.State == sigma.ProcEnded {
		return taskID{}, false
	}
	i, err := strconv.Atoi(p.Args[2])
	switch {
	case err != nil || i < 0:
		return taskID{}, false
	case p.Args[0] == RoleMap:
		return taskID{mapTask, i}, i < c.plan.maps
	case p.Args[0] == RoleReduce:
		return taskID{reduceTask, i}, i < c.plan.reduces
	}
	return taskID{}, false
}

// run works until the job is done (nil, nil), has failed for good (result) or the coordinator
// cannot go on (err).
func (c *coordinator) run(ctx context.Context) (result, err error) {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	progress := c.publish(ctx)
	defer progress.stop()
	for e := (event{what: tick}); ; {
		do := c.core.step(time.Now(), e)
		progress.set(c.progress())
		if do.finish {
			if do.err != nil {
				c.killAll(ctx)
			}
			return do.err, nil
		}
		if err := c.carryOut(ctx, do); err != nil {
			return nil, err
		}
		select {
		case e = <-c.events:
		case <-ticker.C:
			e = event{what: tick}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *coordinator) carryOut(ctx context.Context, do effects) error {
	for _, id := range do.kill {
		if err := c.procs.Kill(ctx, id); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
	}
	for _, r := range do.remove {
		if target, err := c.names.ReadLink(ctx, c.dir.out(r.Map)); err == nil && target == r.Target {
			if err := c.names.Remove(ctx, c.dir.out(r.Map)); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
				return err
			}
		}
		if err := c.withdraw(ctx, r.Target); err != nil {
			return err
		}
	}
	if len(do.spawn) == 0 {
		return nil
	}
	maps := int64(0)
	for _, id := range do.spawn {
		if id.kind == mapTask {
			maps++
		}
	}
	if maps > 0 { // before they are spawned, so that the file is never too low
		c.mapsRun += maps
		if _, err := c.names.Put(ctx, c.dir.file("maps_run"), fmt.Appendln(nil, c.mapsRun),
			sigma.PutOptions{}); err != nil {
			return err
		}
	}
	for len(do.spawn) > 0 {
		n := min(len(do.spawn), spawnBatch)
		if err := c.spawn(ctx, do.spawn[:n]); err != nil {
			return err
		}
		do.spawn = do.spawn[n:]
	}
	return nil
}

// withdraw has all maps repeated whose output was on the same machine as target, if that is lost:
// reducers would find them one by one.
func (c *coordinator) withdraw(ctx context.Context, target string) error {
	names, err := sigma.ParsePath(target)
	if err != nil || len(names) < 2 || names[0] != sigma.NameUX {
		return nil
	}
	if _, err := c.names.Stat(ctx, sigma.JoinPath(names[:2]...)); err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	for _, i := range c.core.lose(time.Now(), sigma.MachineID(names[1])) {
		if target, err := c.names.ReadLink(ctx, c.dir.out(i)); err == nil {
			c.core.maps[i].withdrawn = target // reducers that say so later say nothing new
		}
		if err := c.names.Remove(ctx, c.dir.out(i)); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
	}
	return nil
}

func (c *coordinator) spawn(ctx context.Context, tasks []taskID) error {
	ds := make([]sigma.Descriptor, len(tasks))
	for i, id := range tasks {
		ds[i] = c.descriptor(id)
	}
	ids, err := c.procs.Spawn(ctx, ds...)
	now := time.Now()
	if err != nil {
		if c.failing++; !sigma.KindOf(err).Retryable() || c.failing >= spawnErrorsMax {
			return err
		}
		for _, id := range tasks {
			c.core.task(id).notYet = now.Add(retryWait)
		}
		return nil
	}
	c.failing = 0
	for i, id := range tasks {
		c.core.spawnedAs(now, id, ids[i])
		c.wait(ctx, id, ids[i])
	}
	return nil
}

func (c *coordinator) descriptor(id taskID) sigma.Descriptor {
	role, name, near := RoleMap, mapName(id.index), sigma.MachineID("")
	if id.kind == reduceTask {
		role, name = RoleReduce, reduceName(id.index)
	} else {
		near = c.near[id.index]
	}
	memory := c.core.task(id).memory
	return sigma.Descriptor{Program: c.job.Program, Name: "mr-" + name, Memory: memory, Start: sigma.StartedByCall,
		Env: oneCore, Near: near, Args: arguments(role, c.dir, id.index, memory, &c.job)}
}

// wait reports a proc's start and end as events.
func (c *coordinator) wait(ctx context.Context, id taskID, proc sigma.ProcID) {
	send := func(e event) {
		select {
		case c.events <- e:
		case <-ctx.Done():
		}
	}
	c.waiters.Go(func() {
		if c.procs.WaitStart(ctx, proc) == nil {
			send(event{task: id, proc: proc, what: procStarted})
		}
		status, err := c.procs.WaitExit(ctx, proc)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // the scheduler has forgotten it
			status = sigma.Status{Code: sigma.StatusLost, Kind: sigma.KindOf(err), Msg: err.Error()}
		}
		send(event{task: id, proc: proc, what: procEnded, status: status})
	})
}

// killAll ends the procs of a job that has failed.
func (c *coordinator) killAll(ctx context.Context) {
	for _, list := range [][]task{c.core.maps, c.core.reduces} {
		for i := range list {
			if t := &list[i]; t.state == spawned || t.state == started {
				c.procs.Kill(ctx, t.proc)
			}
		}
	}
}

// Progress is how far a job is.
type Progress struct {
	Maps        int64 `json:"maps"`
	MapsDone    int64 `json:"maps_done"`
	MapsRun     int64 `json:"maps_run"` // repeated ones too
	Reduces     int64 `json:"reduces"`
	ReducesDone int64 `json:"reduces_done"`
	Bytes       int64 `json:"bytes"`      // of input
	BytesDone   int64 `json:"bytes_done"` // of maps that are done
}

func (c *coordinator) progress() Progress {
	return Progress{Maps: int64(c.plan.maps), MapsDone: int64(c.core.mapsDone), MapsRun: c.mapsRun,
		Reduces: int64(c.plan.reduces), ReducesDone: int64(c.core.reducesDone),
		Bytes: c.plan.bytes, BytesDone: c.core.counters().Bytes}
}

func (p Progress) encode() []byte {
	return encodeRecord("maps", p.Maps, "maps_done", p.MapsDone, "maps_run", p.MapsRun, "reduces", p.Reduces,
		"reduces_done", p.ReducesDone, "bytes", p.Bytes, "bytes_done", p.BytesDone)
}

func decodeProgress(data []byte) Progress {
	r := parseRecord(data)
	return Progress{Maps: r.number("maps"), MapsDone: r.number("maps_done"), MapsRun: r.number("maps_run"),
		Reduces:     r.number("reduces"),
		ReducesDone: r.number("reduces_done"), Bytes: r.number("bytes"), BytesDone: r.number("bytes_done")}
}

// publishEvery is the least time between two writes of the progress file; people cannot read
// faster.
const publishEvery = 200 * time.Millisecond

// publisher writes the progress file without delaying the coordinator.
type publisher struct {
	latest chan Progress // holds at most one
	quit   chan struct{}
	ended  chan struct{}
}

func (c *coordinator) publish(ctx context.Context) *publisher {
	p := &publisher{latest: make(chan Progress, 1), quit: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		for {
			select {
			case v := <-p.latest:
				c.names.Put(ctx, c.dir.file("progress"), v.encode(),
					sigma.PutOptions{}) // an error is no loss: the next one follows
			case <-p.quit:
				return
			}
			select {
			case <-time.After(publishEvery):
			case <-p.quit:
				return
			}
		}
	}()
	return p
}

// set replaces what is to be written next. It is called by one goroutine.
func (p *publisher) set(v Progress) {
	select {
	case <-p.latest:
	default:
	}
	p.latest <- v
}

func (p *publisher) stop() {
	close(p.quit)
	<-p.ended
}

// result is the content of the result file.
func (c *coordinator) result(failure error) []byte {
	if failure != nil {
		return encodeRecord("state", "failed", "kind", uint16(sigma.KindOf(failure)), "error", failure.Error(), "hint",
			sigma.HintOf(failure), "maps_run", c.mapsRun, "leaders", c.epoch)
	}
	n := c.core.counters()
	var r reduced
	for i := range c.core.reduces {
		r.Keys += c.core.reduces[i].reduced.Keys
		r.Records += c.core.reduces[i].reduced.Records
	}
	pairs := []any{"state", "ok", "files", c.plan.files, "skipped", c.plan.skipped, "bytes", n.Bytes,
		"records", r.Records, "keys", r.Keys, "maps", c.plan.maps, "maps_run", c.mapsRun,
		"reduces", c.plan.reduces, "leaders", c.epoch}
	for _, w := range c.core.works() {
		pairs = append(pairs, workKey+string(w.Machine), fmt.Sprint(w.Maps, w.Bytes, w.Reduces, w.Records))
	}
	return encodeRecord(pairs...)
}

// workKey begins the keys of a result that tell what one machine did: maps, bytes of input,
// reduces, records of output.
const workKey = "on."

// removeScratch removes what a job has in the scratch storage of machines. One that is lost keeps
// it.
func removeScratch(ctx context.Context, names sigma.Namespace, dir jobDir) {
	machines, err := names.ReadDir(ctx, "/"+sigma.NameUX)
	if err != nil {
		machines = []sigma.DirEntry{{Name: sigma.LocalName}}
	}
	inParallel(requestsMax, len(machines), func(i int) error {
		names.RemoveAll(ctx, sigma.JoinPath(sigma.NameUX, machines[i].Name)+string(dir))
		return nil
	})
}

// clean removes intermediate files and what killed reducers left in the output. What cannot be
// removed is no reason to fail: the result is there.
func (c *coordinator) clean(ctx context.Context) {
	entries, _ := c.names.ReadDir(ctx, c.job.Output)
	for _, e := range entries {
		if strings.HasSuffix(e.Name, "~") && strings.HasPrefix(e.Name, "part-") {
			c.names.Remove(ctx, c.job.Output+"/"+e.Name)
		}
	}
	removeScratch(ctx, c.names, c.dir)
	inParallel(3, 3, func(i int) error {
		return c.names.RemoveAll(ctx, c.dir.file([]string{"out", "bins", "done"}[i]))
	})
}
