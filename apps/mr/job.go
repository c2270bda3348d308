package mr

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// failuresMax is how many coordinators of one job may fail before Follow ends the job.
const failuresMax = 6

// Client submits jobs and follows them, from outside or from a proc.
type Client struct {
	Names sigma.Namespace
	Procs sigma.Procs
	Init  Registrar
	// Progress, if not nil, is called with the content of the job's progress file on changes, and
	// once at the end. It should not block.
	Progress func(Progress)
}

// Summary is how a job went.
type Summary struct {
	Job       string  `json:"job"`
	Output    string  `json:"output"`
	Files     int64   `json:"files"`
	Skipped   int64   `json:"skipped"` // links and devices of the input
	Bytes     int64   `json:"bytes"`   // of input
	Records   int64   `json:"records"` // that were emitted
	Keys      int64   `json:"keys"`    // different ones
	Maps      int64   `json:"maps"`
	MapsRun   int64   `json:"maps_run"`
	Reduces   int64   `json:"reduces"`
	Leaders   int64   `json:"leaders"` // coordinators that led; more than one if some were killed
	Seconds   float64 `json:"seconds"` // from its submission to its result
	BytesPerS float64 `json:"bytes_per_s"`
	Procs     int     `json:"procs"`        // of the job that the scheduler remembers
	StartP50  float64 `json:"start_p50_ms"` // from Spawn to the program's execution
	StartP99  float64 `json:"start_p99_ms"`
	Machines  []Work  `json:"machines"` // that worked, by name
}

// Work is what one machine did for a job.
type Work struct {
	Machine sigma.MachineID `json:"machine"`
	Maps    int64           `json:"maps"`
	Bytes   int64           `json:"bytes"` // of input
	Reduces int64           `json:"reduces"`
	Records int64           `json:"records"` // in its parts of the output
}

// works reads what each machine did.
func works(r record) (all []Work) {
	for _, key := range slices.Sorted(maps.Keys(r)) {
		m, ok := strings.CutPrefix(key, workKey)
		if !ok || m == "" {
			continue
		}
		w := Work{Machine: sigma.MachineID(m)}
		fmt.Sscan(r.text(key), &w.Maps, &w.Bytes, &w.Reduces, &w.Records)
		all = append(all, w)
	}
	return all
}

// Run submits a job and follows it. When ctx ends, so does the job.
func (c *Client) Run(ctx context.Context, id string, job Job) (Summary, error) {
	err := c.Submit(ctx, id, job)
	var s Summary
	if err == nil {
		s, err = c.Follow(ctx, id)
	}
	if ctx.Err() != nil && sigma.KindOf(err) != sigma.KindExists {
		c.End(context.WithoutCancel(ctx), id)
		return Summary{}, ctx.Err()
	}
	return s, err
}

// Submit begins a job, which then goes on by itself. The id names it in the realm.
func (c *Client) Submit(ctx context.Context, id string, job Job) error {
	if err := job.Check(); err != nil {
		return err
	}
	for _, p := range []*string{job.source(), &job.Output} { // the same on every machine
		abs, err := everywhere(ctx, c.Names, *p)
		if err != nil {
			return err
		}
		*p = abs
	}
	var err error
	if job.keepOutput, err = c.checkPaths(ctx, &job); err != nil {
		return err
	}
	dir := jobDir(jobsDir + id)
	if err := c.Names.MkdirAll(ctx, string(dir), 0o755); err != nil {
		return err
	}
	if _, err := c.Names.Put(ctx, dir.file("job"), job.encode(), sigma.PutOptions{MustMake: true}); err != nil {
		return sigma.Wrap("mr.Submit", string(dir), err)
	}
	if err := register(ctx, c.Init, dir, &job); err != nil {
		c.End(context.WithoutCancel(ctx), id)
		return err
	}
	return nil
}

// Follow waits for the result of a job that was submitted, returns it and removes its record.
func (c *Client) Follow(ctx context.Context, id string) (Summary, error) {
	dir := jobDir(jobsDir + id)
	data, _, err := c.Names.Get(ctx, dir.file("job"))
	if err != nil {
		if sigma.KindOf(err) == sigma.KindNotFound {
			err = &sigma.Error{Op: "mr.Follow", Path: string(dir), Kind: sigma.KindNotFound,
				Msg: "there is no such job", Hint: "sigma mr ls lists them"}
		}
		return Summary{}, err
	}
	inner, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() { defer close(watched); c.watch(inner, dir) }()
	result, err := c.wait(ctx, dir)
	cancel()
	<-watched
	if err != nil {
		return Summary{}, err
	}
	s, err := c.summary(ctx, dir, result)
	s.Job, s.Output = id, decodeJob(data).Output
	if c.Progress != nil && err == nil {
		c.Progress(Progress{Maps: s.Maps, MapsDone: s.Maps, MapsRun: s.MapsRun, Reduces: s.Reduces,
			ReducesDone: s.Reduces, Bytes: s.Bytes, BytesDone: s.Bytes})
	}
	settling, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	c.settle(settling, dir, nil)
	c.Names.RemoveAll(settling, string(dir)) // what is left if this fails, `mr ls` shows
	return s, err
}

// everywhere makes a path into the storage of the caller's machine (/ux/~local) one that leads
// there from every machine (/ux/MACHINE). What does not exist yet stays as it is but for that.
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
	const op = "mr.Submit"
	input := *job.source()
	if job.Prefix != "" {
		input = input[:max(strings.LastIndexByte(input, '/'), 1)]
	}
	if _, err := c.Names.Stat(ctx, input); err != nil {
		if sigma.KindOf(err) == sigma.KindNotFound {
			return false, &sigma.Error{Op: op, Path: input, Kind: sigma.KindNotFound, Msg: "there is no such input",
				Hint: "store files with: sigma put -r DIR " + input}
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

// lookEvery is how often Follow checks whether coordinators fail.
const lookEvery = time.Second

// wait returns the result when there is one. It ends a job whose coordinators fail again and again.
func (c *Client) wait(ctx context.Context, dir jobDir) ([]byte, error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	found := make(chan error, 1)
	go func() { found <- c.Names.WaitFor(inner, dir.file("result")) }()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case err := <-found:
			if err != nil {
				return nil, err
			}
			data, _, err := c.Names.Get(ctx, dir.file("result"))
			return data, err
		case <-look.C:
		}
		if _, err := c.Names.Stat(ctx, dir.file("job")); err != nil && sigma.KindOf(err) == sigma.KindNotFound {
			return nil, sigma.Errorf("mr.Follow", sigma.KindCanceled, "somebody has ended the job")
		}
		if err := c.failure(ctx, dir); err != nil {
			c.End(context.WithoutCancel(ctx), strings.TrimPrefix(string(dir), jobsDir))
			return nil, err
		}
	}
}

// failure is an error if too many coordinators have failed, other than with their machines.
func (c *Client) failure(ctx context.Context, dir jobDir) error {
	procs, err := c.jobProcs(ctx, dir, true)
	if err != nil {
		return nil // which it can say next time
	}
	failed := slices.DeleteFunc(procs, func(p sigma.ProcInfo) bool {
		s := p.Status.Code
		return p.Args[0] != RoleCoordinate || p.State != sigma.ProcEnded || s != sigma.StatusError &&
			s != sigma.StatusCrashed && s != sigma.StatusOOM
	})
	if len(failed) < failuresMax {
		return nil
	}
	last := &failed[len(failed)-1]
	msg := last.Status.Msg
	if msg == "" {
		msg = "it ended with status " + last.Status.Code.String()
	}
	return &sigma.Error{Op: "mr.Follow", Kind: last.Status.Kind,
		Msg:  fmt.Sprintf("the coordinators failed %d times, the last one (%s): %s", len(failed), last.ID, msg),
		Hint: "see what it printed with: sigma logs " + string(last.ID)}
}

// settleWait bounds how long Follow waits for coordinators to tidy up, looking each settleEvery.
const (
	settleWait  = 30 * time.Second
	settleEvery = 20 * time.Millisecond
)

// settle waits until initd has forgotten the coordinators of a job and there is no proc of it. It
// calls end, if not nil, with those there are.
func (c *Client) settle(ctx context.Context, dir jobDir, end func([]sigma.ProcInfo)) {
	for {
		registered := c.registered(ctx, dir) // first, since initd may yet spawn a proc of one that is
		procs, err := c.jobProcs(ctx, dir, false)
		if err != nil || len(procs) == 0 && !registered {
			return
		}
		if end != nil {
			end(procs)
		}
		for _, p := range procs {
			c.Procs.WaitExit(ctx, p.ID)
		}
		if !retry.Pause(ctx, settleEvery) {
			return
		}
	}
}

// registered reports whether initd has a coordinator of the job.
func (c *Client) registered(ctx context.Context, dir jobDir) bool {
	lines, _, err := c.Names.Get(ctx, "/sys/init")
	for i := range Coordinators {
		if err == nil && bytes.Contains(lines, fmt.Appendf(nil, "\"name\":%q", dir.registration(i))) {
			return true
		}
	}
	return false
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
		Records: r.number("records"), Keys: r.number("keys"), Leaders: r.number("leaders"),
		Maps: r.number("maps"), MapsRun: r.number("maps_run"), Reduces: r.number("reduces"), Machines: works(r)}
	if r.text("state") != "ok" {
		return s, &sigma.Error{Op: "mr.Follow", Kind: sigma.Kind(r.number("kind")), Msg: r.text("error"),
			Hint: r.text("hint")}
	}
	begun, err := c.Names.Stat(ctx, dir.file("job"))
	if err != nil {
		return s, err
	}
	ended, err := c.Names.Stat(ctx, dir.file("result"))
	if err != nil {
		return s, err
	}
	s.Seconds = ended.Modified.Sub(begun.Modified).Seconds()
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
	s.BytesPerS = float64(s.Bytes) / max(s.Seconds, 1e-3)
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

// endWait bounds the time in which End removes what a job left.
const endWait = 20 * time.Second

// End ends a job at any time. Nothing of it is left, and no output.
func (c *Client) End(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, endWait)
	defer cancel()
	dir := jobDir(jobsDir + id)
	data, _, err := c.Names.Get(ctx, dir.file("job"))
	if err != nil {
		return err
	}
	job := decodeJob(data)
	c.Names.Remove(ctx, dir.file("job")) // coordinators that start from now on find nothing to do
	err = unregister(ctx, c.Init, dir, 0)
	c.settle(ctx, dir, func(procs []sigma.ProcInfo) { // the coordinators first, so that they spawn no more
		slices.SortStableFunc(procs, func(a, b sigma.ProcInfo) int { return rank(a) - rank(b) })
		for _, p := range procs {
			c.Procs.Kill(ctx, p.ID)
		}
	})
	entries, _ := c.Names.ReadDir(ctx, job.Output)
	for _, e := range entries {
		if strings.HasPrefix(e.Name, "part-") {
			c.Names.Remove(ctx, job.Output+"/"+e.Name)
		}
	}
	if !job.keepOutput {
		c.Names.Remove(ctx, job.Output) // succeeds if it is empty again
	}
	removeScratch(ctx, c.Names, dir)
	return errors.Join(err, c.Names.RemoveAll(ctx, string(dir)))
}

func rank(p sigma.ProcInfo) int {
	if p.Args[0] == RoleCoordinate {
		return 0
	}
	return 1
}

// JobInfo is what is known of a job that was submitted.
type JobInfo struct {
	ID       string    `json:"id"`
	State    string    `json:"state"` // running, ok or failed
	Begun    time.Time `json:"begun"`
	Job      Job       `json:"job"`
	Progress Progress  `json:"progress"`
}

// Jobs lists the jobs that run, and those whose result was not read yet.
func (c *Client) Jobs(ctx context.Context) (out []JobInfo, err error) {
	entries, err := c.Names.ReadDir(ctx, strings.TrimSuffix(jobsDir, "/"))
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		return nil, nil
	}
	for _, e := range entries {
		dir := jobDir(jobsDir + e.Name)
		data, _, err := c.Names.Get(ctx, dir.file("job"))
		if err != nil { // it has just ended
			continue
		}
		j := JobInfo{ID: e.Name, Job: decodeJob(data), State: "running"}
		if st, err := c.Names.Stat(ctx, dir.file("job")); err == nil {
			j.Begun = st.Modified
		}
		if data, _, err := c.Names.Get(ctx, dir.file("progress")); err == nil {
			j.Progress = decodeProgress(data)
		}
		if data, _, err := c.Names.Get(ctx, dir.file("result")); err == nil {
			j.State = parseRecord(data).text("state")
		}
		out = append(out, j)
	}
	return out, err
}
