package mr

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// CoordinatorsMax is how often Run starts a coordinator of one job.
const CoordinatorsMax = 6

// Client runs jobs from outside or from a proc.
type Client struct {
	Names sigma.Namespace
	Procs sigma.Procs
	// Progress, if not nil, is called with what the job's progress file says when that changes, and
	// once at the end. It should not block.
	Progress func(Progress)
}

// Summary is how a job went.
type Summary struct {
	Job          string        `json:"job"`
	Output       string        `json:"output"`
	Files        int64         `json:"files"`
	Skipped      int64         `json:"skipped"` // links and devices of the input
	Bytes        int64         `json:"bytes"`   // of input
	Words        int64         `json:"words"`
	Different    int64         `json:"different_words"`
	Maps         int64         `json:"maps"`
	MapsRun      int64         `json:"maps_run"`
	Reduces      int64         `json:"reduces"`
	Coordinators int64         `json:"coordinators"` // more than one if some were killed
	Elapsed      time.Duration `json:"-"`
	Seconds      float64       `json:"seconds"`
	BytesPerS    float64       `json:"bytes_per_s"`
	Procs        int           `json:"procs"`        // of the job that the scheduler remembers
	StartP50     float64       `json:"start_p50_ms"` // from Spawn to the program's execution
	StartP99     float64       `json:"start_p99_ms"`
	Machines     []Work        `json:"machines"` // that worked, by name
}

// Work is what one machine did for a job.
type Work struct {
	Machine sigma.MachineID `json:"machine"`
	Maps    int64           `json:"maps"`
	Bytes   int64           `json:"bytes"` // of input
	Reduces int64           `json:"reduces"`
	Words   int64           `json:"words"` // of its parts of the output
}

// works reads who did what.
func works(r record) (all []Work) {
	for _, key := range slices.Sorted(maps.Keys(r)) {
		m, ok := strings.CutPrefix(key, workKey)
		if !ok || m == "" {
			continue
		}
		w := Work{Machine: sigma.MachineID(m)}
		fmt.Sscan(r.text(key), &w.Maps, &w.Bytes, &w.Reduces, &w.Words)
		all = append(all, w)
	}
	return all
}

// Run does a job to its end, starting its coordinator again if that is killed. id names the job in
// the realm. When ctx ends, the job's procs are killed and what it made is removed.
func (c *Client) Run(ctx context.Context, id string, job Job) (Summary, error) {
	const op = "mr.Run"
	if err := job.Check(); err != nil {
		return Summary{}, err
	}
	for _, p := range []*string{&job.Input, &job.Output} { // the same on every machine
		abs, err := everywhere(ctx, c.Names, *p)
		if err != nil {
			return Summary{}, err
		}
		*p = abs
	}
	outputWasThere, err := c.checkPaths(ctx, &job)
	if err != nil {
		return Summary{}, err
	}
	dir := jobDir("/mr/" + id)
	if err := c.Names.MkdirAll(ctx, string(dir), 0o755); err != nil {
		return Summary{}, err
	}
	begin := time.Now()
	if _, err := c.Names.Put(ctx, dir.file("job"), job.encode(), sigma.PutOptions{MustMake: true}); err != nil {
		return Summary{}, sigma.Wrap(op, string(dir), err)
	}
	s, err := c.drive(ctx, dir, &job, begin)
	if ctx.Err() != nil {
		c.abort(context.WithoutCancel(ctx), dir, job.Output)
		if !outputWasThere {
			c.Names.Remove(context.WithoutCancel(ctx), job.Output) // succeeds if it is empty again
		}
		return Summary{}, ctx.Err()
	}
	forgetting, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortWait)
	defer cancel()
	c.Names.RemoveAll(forgetting, string(dir)) // nobody else goes on with it
	s.Job, s.Output = id, job.Output
	return s, err
}

// everywhere makes a path that leads to one machine's storage, which depends on who asks, lead
// there from everywhere. What does not exist yet stays as it is but for that.
func everywhere(ctx context.Context, names sigma.Namespace, path string) (string, error) {
	parts, err := sigma.ParsePath(path)
	if err != nil || len(parts) < 2 || parts[0] != sigma.NameUX || parts[1] != sigma.LocalName &&
		parts[1] != sigma.AnyName {
		return path, err
	}
	root, err := names.AbsPath(ctx, sigma.JoinPath(parts[:2]...))
	if err != nil {
		return "", err
	}
	return root + strings.TrimSuffix(sigma.JoinPath(parts[2:]...), "/"), nil
}

// Cores is how many cores the system's machines offer to new procs, as /sys/roster tells;
// otherwise, where that does not.
func Cores(ctx context.Context, names sigma.Namespace, otherwise int) int {
	data, _, err := names.Get(ctx, "/sys/roster")
	if err != nil {
		return otherwise
	}
	sum := sigma.MilliCPU(0)
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[1] != sigma.MachineAlive.String() || slices.Contains(words, "cordoned") ||
			slices.Contains(words, "draining") {
			continue
		}
		for _, w := range words[2:] {
			if n, ok := strings.CutPrefix(w, "cpu="); ok {
				milli, _ := strconv.ParseUint(n, 10, 32)
				sum += sigma.MilliCPU(milli)
			}
		}
	}
	if sum == 0 {
		return otherwise
	}
	return int((sum + 999) / 1000)
}

// checkPaths gives the errors that people make, before anything is started, and tells whether there
// is an output directory.
func (c *Client) checkPaths(ctx context.Context, job *Job) (bool, error) {
	const op = "mr.Run"
	if _, err := c.Names.Stat(ctx, job.Input); err != nil {
		if sigma.KindOf(err) == sigma.KindNotFound {
			return false, &sigma.Error{Op: op, Path: job.Input, Kind: sigma.KindNotFound, Msg: "there is no such input",
				Hint: "store files with: sigma put -r DIR " + job.Input}
		}
		return false, err
	}
	entries, err := c.Names.ReadDir(ctx, job.Output)
	switch {
	case err != nil && sigma.KindOf(err) == sigma.KindNotFound:
		return false, nil
	case err != nil && sigma.KindOf(err) == sigma.KindNotDir:
		return false, &sigma.Error{Op: op, Path: job.Output, Kind: sigma.KindNotDir, Msg: "the output is a file",
			Hint: "give a directory that is missing or empty"}
	case err == nil && len(entries) > 0:
		return true, &sigma.Error{Op: op, Path: job.Output, Kind: sigma.KindNotEmpty,
			Msg:  "the output directory is not empty",
			Hint: "choose another one, or remove it with: sigma rm -r " + job.Output}
	}
	return true, err
}

// drive starts coordinators until one records a result.
func (c *Client) drive(ctx context.Context, dir jobDir, job *Job, begin time.Time) (Summary, error) {
	inner, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() { defer close(watched); c.watch(inner, dir) }()
	defer func() { cancel(); <-watched }()
	var last error
	for n := int64(1); n <= CoordinatorsMax; n++ {
		ids, err := c.Procs.Spawn(ctx, sigma.Descriptor{Program: job.Program, Name: "mr-coord",
			Memory: MemoryCoordinator, Start: sigma.StartedByCall, Env: oneCore,
			Args: []string{RoleCoordinate, string(dir)}})
		if err != nil {
			return Summary{}, err
		}
		data, status, err := c.wait(ctx, dir, ids[0])
		if err != nil {
			return Summary{}, err
		}
		if data == nil {
			last = statusError(ids[0], status)
			continue
		}
		elapsed := time.Since(begin)
		c.settle(ctx, ids[0])
		s, err := c.summary(ctx, dir, data)
		s.Coordinators, s.Elapsed, s.Seconds = n, elapsed, elapsed.Seconds()
		s.BytesPerS = float64(s.Bytes) / elapsed.Seconds()
		if c.Progress != nil && err == nil {
			c.Progress(Progress{Maps: s.Maps, MapsDone: s.Maps, MapsRun: s.MapsRun, Reduces: s.Reduces,
				ReducesDone: s.Reduces, Bytes: s.Bytes, BytesDone: s.Bytes})
		}
		return s, err
	}
	return Summary{}, last
}

func statusError(id sigma.ProcID, s sigma.Status) error {
	msg := s.Msg
	if msg == "" {
		msg = "it ended with status " + s.Code.String()
	}
	return &sigma.Error{Op: "mr.Run", Kind: s.Kind,
		Msg:  fmt.Sprintf("the coordinator failed %d times, the last one (%s): %s", CoordinatorsMax, id, msg),
		Hint: "see what it printed with: sigma logs " + string(id)}
}

// wait returns the result when there is one, or nil and the coordinator's status if that ended
// without.
func (c *Client) wait(ctx context.Context, dir jobDir, coord sigma.ProcID) ([]byte, sigma.Status, error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	found := make(chan error, 1)
	go func() { found <- c.Names.WaitFor(inner, dir.file("result")) }()
	ended := make(chan sigma.Status, 1)
	go func() {
		s, err := c.Procs.WaitExit(inner, coord)
		if err != nil {
			s = sigma.Status{Code: sigma.StatusLost, Kind: sigma.KindOf(err), Msg: err.Error()}
		}
		ended <- s
	}()
	var status sigma.Status
	select {
	case err := <-found:
		if err != nil {
			return nil, status, err
		}
	case status = <-ended:
	}
	if err := ctx.Err(); err != nil {
		return nil, status, err
	}
	data, _, err := c.Names.Get(ctx, dir.file("result"))
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		return nil, status, nil
	}
	return data, status, err
}

// settleWait bounds how long Run waits for a coordinator to tidy up.
const settleWait = 30 * time.Second

func (c *Client) settle(ctx context.Context, coord sigma.ProcID) {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	c.Procs.WaitExit(ctx, coord)
}

// watch tells the caller about progress until ctx ends.
func (c *Client) watch(ctx context.Context, dir jobDir) {
	if c.Progress == nil || c.Names.WaitFor(ctx, dir.file("progress")) != nil {
		return
	}
	for ctx.Err() == nil {
		data, id, err := c.Names.Get(ctx, dir.file("progress"))
		if err != nil {
			return
		}
		c.Progress(decodeProgress(data))
		if _, err = c.Names.Watch(ctx, dir.file("progress"), id.Version); err != nil {
			return // progress is a courtesy; the result is waited for elsewhere
		}
	}
}

// summary reads the result file and asks the scheduler how the job's procs started.
func (c *Client) summary(ctx context.Context, dir jobDir, result []byte) (Summary, error) {
	r := parseRecord(result)
	s := Summary{Files: r.number("files"), Skipped: r.number("skipped"), Bytes: r.number("bytes"),
		Words: r.number("words"), Different: r.number("different"),
		Maps: r.number("maps"), MapsRun: r.number("maps_run"), Reduces: r.number("reduces"), Machines: works(r)}
	if r.text("state") != "ok" {
		return s, &sigma.Error{Op: "mr.Run", Kind: sigma.Kind(r.number("kind")), Msg: r.text("error"),
			Hint: r.text("hint")}
	}
	procs, err := c.jobProcs(ctx, dir, true)
	if err != nil {
		return s, err
	}
	var starts []time.Duration
	for _, p := range procs {
		if !p.Times.Executed.IsZero() && !p.Times.Spawned.IsZero() {
			starts = append(starts, p.Times.Executed.Sub(p.Times.Spawned))
		}
	}
	s.Procs = len(procs)
	if slices.Sort(starts); len(starts) > 0 {
		ms := func(q int) float64 {
			return float64(starts[min(len(starts)*q/100, len(starts)-1)].Microseconds()) / 1000
		}
		s.StartP50, s.StartP99 = ms(50), ms(99)
	}
	return s, nil
}

// jobProcs lists the procs of a job.
func (c *Client) jobProcs(ctx context.Context, dir jobDir, all bool) ([]sigma.ProcInfo, error) {
	procs, err := c.Procs.List(ctx, all)
	return slices.DeleteFunc(procs, func(p sigma.ProcInfo) bool {
		return len(p.Args) < 2 || p.Args[1] != string(dir)
	}), err
}

// abortWait bounds the tidying after an interrupt.
const abortWait = 20 * time.Second

// abort kills a job's procs, the coordinator first so that it makes no new ones, and removes what
// the job made.
func (c *Client) abort(ctx context.Context, dir jobDir, output string) {
	ctx, cancel := context.WithTimeout(ctx, abortWait)
	defer cancel()
	for range 3 { // procs that were being spawned while we looked
		procs, err := c.jobProcs(ctx, dir, false)
		if err != nil || len(procs) == 0 {
			break
		}
		slices.SortStableFunc(procs, func(a, b sigma.ProcInfo) int { return rank(a) - rank(b) })
		for _, p := range procs {
			c.Procs.Kill(ctx, p.ID)
		}
		for _, p := range procs {
			c.Procs.WaitExit(ctx, p.ID)
		}
	}
	entries, _ := c.Names.ReadDir(ctx, output)
	for _, e := range entries {
		if len(e.Name) > 5 && e.Name[:5] == "part-" {
			c.Names.Remove(ctx, output+"/"+e.Name)
		}
	}
	removeScratch(ctx, c.Names, dir)
	c.Names.RemoveAll(ctx, string(dir))
}

func rank(p sigma.ProcInfo) int {
	if p.Args[0] == RoleCoordinate {
		return 0
	}
	return 1
}
