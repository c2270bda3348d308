package procs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sort"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/tail"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/proclog"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func newLogsCommand(a *app) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs [-f] [-t] [--stdout | --stderr] [--previous] [--tail N] [--since TIME] PROC",
		Short: "Show what a proc wrote",
		Long: `Show what a proc wrote to its standard output and standard error, on the same streams
here, also after it has ended. ` + procArgument + `
Of several with one name it is the newest, with --previous the one before.`,
		Example: `  sudo sigma logs hello
  sudo sigma logs --previous --tail 20 hello
  sudo sigma logs -f --stderr 3kq`,
		Args: cli.Between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("tail") {
				o.tail = -1
			} else if o.tail < 0 {
				return cli.UsageError(cmd, "", "--tail %d: give the number of lines, 0 or more", o.tail)
			}
			if o.since < 0 {
				return cli.UsageError(cmd, "", "--since %v: give a time that is not negative, such as 5m", o.since)
			}
			return a.logs(cmd.Context(), o, args[0])
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on until the proc has ended")
	f.BoolVar(&o.stdout, "stdout", false, "standard output only")
	f.BoolVar(&o.stderr, "stderr", false, "standard error only")
	f.BoolVarP(&o.times, "times", "t", false, "begin each line with the time at which it came")
	f.BoolVar(&o.previous, "previous", false, "the proc of that name before the newest")
	f.IntVar(&o.tail, "tail", 0, "begin with the last `N` lines of each stream (default: all)")
	f.DurationVar(&o.since, "since", 0, "begin with what came in the last `TIME`, such as 5m (default: all)")
	return cmd
}

type logsOptions struct {
	follow, stdout, stderr, times, previous bool
	tail                                    int // lines; -1 = all
	since                                   time.Duration
}

func (a *app) logs(ctx context.Context, o logsOptions, word string) error {
	if o.stdout == o.stderr {
		o.stdout, o.stderr = true, true
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	procs, err := c.List(ctx, true)
	if err != nil {
		return err
	}
	id, err := procOrNewest(procs, word, o.previous)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	if o.follow {
		go func() {
			defer close(ended)
			c.WaitExit(ctx, id)
		}()
	} else {
		close(ended)
	}
	var tails []*logTail
	if o.stdout {
		tails = append(tails, o.open(c, id, "stdout", term.Raw(a.Out)))
	}
	if o.stderr {
		tails = append(tails, o.open(c, id, "stderr", term.Raw(a.Err)))
	}
	errs := make(chan error, len(tails))
	for _, t := range tails {
		go func() { errs <- t.Follow(ctx, ended, t.copy) }()
	}
	for range tails {
		if e := <-errs; e != nil && err == nil {
			err = e
		}
	}
	var w tail.WriteError
	if errors.As(err, &w) {
		return w.Err
	}
	return err
}

// open makes the tail of one stream.
func (o logsOptions) open(c *sdk.Client, id sigma.ProcID, name string, to io.Writer) *logTail {
	t := &logTail{Tail: tail.Tail{Tree: c, Path: procFile(id, name), To: to}, stream: name, lines: o.tail}
	if o.times || o.since > 0 {
		t.times = procFile(id, "times")
	}
	if o.times {
		t.line = &bytes.Buffer{}
	}
	if o.since > 0 {
		t.since = time.Now().Add(-o.since)
	}
	return t
}

// CopyLog copies what a proc writes to a stream, from its last lines on (-1 = all), until ended is
// closed.
func CopyLog(ctx context.Context, c *sdk.Client, id sigma.ProcID, stream string, lines int, to io.Writer,
	ended <-chan struct{}) error {
	t := logsOptions{tail: lines}.open(c, id, stream, to)
	return t.Follow(ctx, ended, t.copy)
}

// procOrNewest gives the proc that a person means by word: as findProc, but of several with one
// name the newest, or the one before it.
func procOrNewest(procs []sigma.ProcInfo, word string, previous bool) (sigma.ProcID, error) {
	named := func(name string) []sigma.ProcInfo {
		all := slices.DeleteFunc(slices.Clone(procs), func(p sigma.ProcInfo) bool {
			return name == "" || p.Name != name
		})
		slices.SortFunc(all, func(a, b sigma.ProcInfo) int { return a.Times.Spawned.Compare(b.Times.Spawned) })
		return all
	}
	all := named(word)
	if len(all) > 0 && !previous {
		return all[len(all)-1].ID, nil
	}
	if len(all) == 0 {
		id, err := findProc(procs, word)
		if err != nil || !previous {
			return id, err
		}
		i := slices.IndexFunc(procs, func(p sigma.ProcInfo) bool { return p.ID == id })
		all = named(procs[i].Name)
		all = all[:slices.IndexFunc(all, func(p sigma.ProcInfo) bool { return p.ID == id })+1]
	}
	if len(all) < 2 {
		return "", &sigma.Error{Op: "sigma.procOrNewest", Kind: sigma.KindNotFound,
			Msg:  fmt.Sprintf("no proc before this one is remembered by the name of %.80q", word),
			Hint: "list procs with: sigma ps -a"}
	}
	return all[len(all)-2].ID, nil
}

// logTail copies a log that grows. Its offset counts all that the proc wrote, also what is missing
// in the middle.
type logTail struct {
	tail.Tail
	stream string
	begun  bool
	lines  int       // to begin with; -1 = all
	since  time.Time // to begin with; zero = all
	times  string    // path of the times; "" = they are not needed

	stamps []report.Printed
	line   *bytes.Buffer // what is printed of a line; nil = lines are not told apart
}

// Copy writes up to what is the end of the log when it begins, and tells the log's version then.
func (t *logTail) copy(ctx context.Context) (version sigma.Version, err error) {
	end := int64(-1)
	for end < 0 || t.Offset < end {
		was := t.Offset
		w, err := lookAt(ctx, t.Tree, t.Path)
		if err != nil {
			return 0, err
		}
		if end < 0 {
			end, version = w.end(), w.version
			if err = t.begin(ctx, w); err != nil {
				w.Close()
				return 0, err
			}
		}
		err = t.copySeen(w, end)
		w.Close()
		if err != nil && (sigma.KindOf(err) != sigma.KindUnavailable || t.Offset == was) {
			return 0, err
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	return version, nil
}

// copySeen writes what this look at the log shows; an error of kind unavailable if what comes next
// went missing meanwhile.
func (t *logTail) copySeen(w *logWindow, end int64) error {
	buf := make([]byte, 256<<10)
	for t.Offset < end {
		if gone := w.head() + w.missing - t.Offset; w.missing > 0 && t.Offset >= w.head() && gone > 0 {
			if err := t.put([]byte(proclog.Mark(uint64(gone)))); err != nil {
				return err
			}
			t.Offset += gone
			continue
		}
		n, err := w.read(buf[:min(int64(len(buf)), end-t.Offset)], t.Offset)
		if n > 0 {
			if err := t.put(buf[:n]); err != nil {
				return err
			}
			t.Offset += int64(n)
		} else if err == nil || err == io.EOF {
			return nil
		}
		if err != nil && err != io.EOF {
			return err
		}
	}
	return nil
}

// begin chooses where to begin, once, and learns the times that are new.
func (t *logTail) begin(ctx context.Context, w *logWindow) error {
	if t.times != "" {
		if err := t.learn(ctx); err != nil {
			return err
		}
	}
	if t.begun {
		return nil
	}
	t.begun = true
	if !t.since.IsZero() {
		t.Offset = w.end()
		if i := slices.IndexFunc(t.stamps, func(s report.Printed) bool { return !s.Time.Before(t.since) }); i >= 0 {
			t.Offset = int64(t.stamps[i].Offset)
		}
	}
	if t.lines >= 0 {
		from, err := w.lastLines(t.lines)
		if err != nil {
			return err
		}
		t.Offset = max(t.Offset, from)
	}
	return nil
}

// learn reads when the stream's bytes came.
func (t *logTail) learn(ctx context.Context) error {
	h, err := t.Tree.Open(ctx, t.times, sigma.OpenRead)
	if err != nil {
		return err
	}
	defer h.Close()
	t.stamps = t.stamps[:0]
	for d := json.NewDecoder(bufio.NewReader(h)); ; {
		var s report.Printed
		if err := d.Decode(&s); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if s.Stream == t.stream {
			t.stamps = append(t.stamps, s)
		}
	}
}

// put prints bytes that begin at the offset.
func (t *logTail) put(p []byte) error {
	if t.line == nil {
		return t.print(p)
	}
	at := uint64(t.Offset)
	for line := range bytes.Lines(p) {
		if t.line.Len() == 0 {
			fmt.Fprintf(t.line, "%s ", t.timeOf(at))
			if err := t.print(t.line.Bytes()); err != nil {
				return err
			}
		}
		if err := t.print(line); err != nil {
			return err
		}
		if at += uint64(len(line)); line[len(line)-1] == '\n' {
			t.line.Reset()
		}
	}
	return nil
}

func (t *logTail) print(p []byte) error {
	if _, err := t.To.Write(p); err != nil {
		return tail.WriteError{Err: err}
	}
	return nil
}

// timeOf tells when the bytes at an offset came.
func (t *logTail) timeOf(at uint64) string {
	i := sort.Search(len(t.stamps), func(i int) bool { return t.stamps[i].Offset > at })
	if i == 0 {
		return "-"
	}
	return t.stamps[i-1].Time.UTC().Format("2006-01-02T15:04:05.000Z")
}

// logWindow is one look at a log. Places are those of the stream: what is missing counts.
type logWindow struct {
	sigma.Handle
	size, missing int64
	version       sigma.Version
}

func lookAt(ctx context.Context, tree sigma.Namespace, path string) (*logWindow, error) {
	h, err := tree.Open(ctx, path, sigma.OpenRead)
	if err != nil {
		return nil, err
	}
	st, err := h.Stat()
	if err != nil {
		h.Close()
		return nil, err
	}
	w := &logWindow{Handle: h, size: int64(st.Size), version: st.ID.Version}
	mark := make([]byte, proclog.MarkLen)
	if n, _ := h.ReadAt(mark, proclog.Head); n == len(mark) {
		if m, ok := proclog.Missing(mark); ok {
			w.missing = int64(m)
		}
	}
	return w, nil
}

func (w *logWindow) head() int64 { return proclog.Head }

// end is how much was written to the stream.
func (w *logWindow) end() int64 { return w.place(w.size) }

// place is that of a byte of the file.
func (w *logWindow) place(at int64) int64 {
	if w.missing == 0 || at < w.head() {
		return at
	}
	return max(at-proclog.MarkLen, w.head()) + w.missing
}

// read reads at a place where nothing is missing.
func (w *logWindow) read(p []byte, at int64) (int, error) {
	switch {
	case w.missing == 0:
	case at < w.head():
		p = p[:min(int64(len(p)), w.head()-at)]
	default:
		at += proclog.MarkLen - w.missing
	}
	return w.ReadAt(p, at)
}

// LastLines is the place where the last n lines begin.
func (w *logWindow) lastLines(n int) (int64, error) {
	buf, at := make([]byte, 64<<10), w.size-1 // the end of the last line begins none
	for at > 0 && n > 0 {
		piece := buf[:min(at, int64(len(buf)))]
		at -= int64(len(piece))
		m, err := w.ReadAt(piece, at)
		if err != nil && err != io.EOF {
			return 0, err
		}
		for i := m - 1; i >= 0; i-- {
			if piece[i] != '\n' {
				continue
			}
			if n--; n == 0 {
				return w.place(at + int64(i) + 1), nil
			}
		}
	}
	if n == 0 {
		return w.end(), nil
	}
	return 0, nil
}

// streams copies what a proc writes to our own streams. Its files grow while it runs and stay when
// it has ended; sigmad changes their version with every piece and at the end.
type streams struct {
	cancel context.CancelFunc
	broken chan error    // an error of our own streams
	ended  chan struct{} // closed: the proc has ended, so the end of file is the end
	done   chan struct{} // closed: all is copied
}

// Follow starts to copy both streams.
func (a *app) follow(ctx context.Context, c *sdk.Client, id sigma.ProcID) *streams {
	ctx, cancel := context.WithCancel(ctx)
	o := &streams{cancel: cancel, broken: make(chan error, 2), ended: make(chan struct{}), done: make(chan struct{})}
	copied := make(chan struct{}, 2)
	for name, w := range map[string]io.Writer{"stdout": term.Raw(a.Out), "stderr": term.Raw(a.Err)} {
		go func() {
			defer func() { copied <- struct{}{} }()
			c.WaitStart(ctx, id) // there are no files before; if it failed, there may be none at all
			t := logTail{Tail: tail.Tail{Tree: c, Path: procFile(id, name), To: w}, lines: -1}
			var e tail.WriteError
			if err := t.Follow(ctx, o.ended, t.copy); errors.As(err, &e) {
				o.broken <- e.Err
			}
		}()
	}
	go func() {
		<-copied
		<-copied
		close(o.done)
	}()
	return o
}

// finish copies what remains after the proc's end, for at most patience if that is not 0.
func (o *streams) finish(patience time.Duration) {
	close(o.ended)
	var enough <-chan time.Time
	if patience > 0 {
		t := time.NewTimer(patience)
		defer t.Stop()
		enough = t.C
	}
	select {
	case <-o.done:
	case <-enough:
	}
}

func procFile(id sigma.ProcID, name string) string {
	return path.Join("/proc", string(id), name)
}
