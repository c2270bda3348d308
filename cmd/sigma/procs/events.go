package procs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// eventsEvery is how often it is asked whether there is something new.
const eventsEvery = 250 * time.Millisecond

// eventsOptions say which events are shown, and from where on.
type eventsOptions struct {
	watch, all bool
	events     []string
	proc, name string
	machine    string
	cursorFile string
}

func newEventsCommand(a *app) *cobra.Command {
	var o eventsOptions
	cmd := &cobra.Command{
		Use: "events [-w] [--all] [--event EVENT]... [--proc PROC] [--name NAME] [--machine MACHINE] " +
			"[--cursor-file FILE]",
		Short: "Show what happened lately, and what happens",
		Long: `Show what happened lately in the realm and in the system, oldest first: procs that started
and ended, reservations that were refused, realms that were made and removed, machines that
joined, were lost, drained or removed, daemons that ended and are there again. With --watch
go on until interrupted. Each machine remembers the latest 256 events of a realm and 2048 of
the system, as long as its sigmad runs; "gap" says that some were not remembered.

With --cursor-file the position is kept in FILE, and the next run goes on from there. With
--json an event is a line, as in /sys/events.`,
		Example: `  sudo sigma events -w
  sudo sigma events --event machine --event daemon.ended
  sudo sigma events --all --json --cursor-file /var/lib/me/cursor`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, e := range o.events {
				if !slices.ContainsFunc(report.Events, func(known string) bool { return isEvent(known, e) }) {
					return cli.UsageError(cmd, "events are "+strings.Join(report.Events, ", "),
						"there is no event %.40q", e)
				}
			}
			return a.events(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.watch, "watch", "w", false, "go on with what happens, until interrupted")
	f.BoolVarP(&o.watch, "follow", "f", false, "the same as --watch")
	f.BoolVarP(&o.all, "all", "a", false, "of all realms")
	f.StringArrayVar(&o.events, "event", nil,
		"only `EVENT`, as in proc.ended, or proc for all of procs; can be repeated")
	f.StringVar(&o.proc, "proc", "", "only those of `PROC`, an id or its beginning")
	f.StringVar(&o.name, "name", "", "only those of procs of this `NAME`")
	f.StringVar(&o.machine, "machine", "", "only those about `MACHINE`")
	f.StringVar(&o.cursorFile, "cursor-file", "", "begin after the position in `FILE`, and keep it there")
	f.Lookup("follow").Hidden = true
	return cmd
}

// shows says whether an event is asked for.
func (o *eventsOptions) shows(e *report.Event) bool {
	if !strings.HasPrefix(e.Proc, o.proc) || o.name != "" && e.Name != o.name || o.machine != "" &&
		e.Machine != o.machine {
		return false
	}
	return len(o.events) == 0 || slices.ContainsFunc(o.events, func(want string) bool { return isEvent(e.Event, want) })
}

// isEvent says whether want, a name or the first word of some, means event.
func isEvent(event, want string) bool {
	return event == want || strings.HasPrefix(event, want+".")
}

func (a *app) events(ctx context.Context, o eventsOptions) error {
	cursor, err := readCursor(o.cursorFile)
	if err != nil {
		return err
	}
	realm := sigma.RealmID(a.Realm)
	if o.all {
		realm = sigma.SystemRealm
	}
	c, err := a.ClientOf(ctx, realm)
	if err != nil {
		return err
	}
	tick := time.NewTicker(eventsEvery)
	defer tick.Stop()
	begun, shown := time.Now(), 0
	end := func() error { // of those that were asked for there may be none, which looks like a mistake
		if shown == 0 && o.cursorFile == "" && (o.proc != "" || o.name != "" || o.machine != "" || len(o.events) > 0) {
			a.Remark("no event that is remembered is one of these; all of them: sigma events --all")
		}
		return nil
	}
	for {
		n, some, latest, err := a.eventsPage(ctx, c, &o, cursor)
		shown += some
		switch {
		case err != nil && o.watch && (sigma.KindOf(err) == sigma.KindLost ||
			sigma.KindOf(err) == sigma.KindUnavailable) && ctx.Err() == nil: // sigmad is being started again
		case err != nil:
			return err
		case n > 0:
			if err := writeCursor(o.cursorFile, cursor); err != nil {
				return err
			}
			if !o.watch && latest.After(begun) { // where more happens than can be read there is no end otherwise
				return end()
			}
			continue
		case !o.watch:
			return end()
		}
		select {
		case <-tick.C:
		case <-c.Done():
			a.Drop(realm)
			if c, err = a.ClientOf(ctx, realm); err != nil {
				return err
			}
		case <-ctx.Done():
			return cli.ExitCode(cli.ExitInterrupted)
		}
	}
}

// eventsPage shows those of the next n events that are asked for, and moves the cursor over all.
// latest is when the last of them happened.
func (a *app) eventsPage(ctx context.Context, c *sdk.Client, o *eventsOptions, cursor report.Cursor) (n, shown int,
	latest time.Time, err error) {
	text, err := c.Events(ctx, cursor.String())
	if err != nil {
		return 0, 0, latest, err
	}
	es, err := cli.LinesOf[report.Event]("events", text)
	if err != nil {
		return 0, 0, latest, err
	}
	for i := range es {
		e := &es[i]
		cursor[e.At], latest = e.Seq, e.Time
		if !o.shows(e) {
			continue
		}
		shown++
		if a.JSON {
			line, err := report.Line(e)
			if err == nil {
				_, err = a.Out.Write(line)
			}
			if err != nil {
				return n, shown, latest, err
			}
			continue
		}
		if _, err := fmt.Fprintln(a.Out, eventText(e)); err != nil {
			return n, shown, latest, err
		}
	}
	return len(es), shown, latest, nil
}

// eventText is an event as a line for people.
func eventText(e *report.Event) string {
	words := []string{e.Time.Local().Format("2006-01-02 15:04:05.000"), fmt.Sprintf("%-19s", e.Event)}
	for _, w := range []struct{ key, value string }{{"realm", e.Realm}, {"proc", e.Proc}, {"name", e.Name},
		{"machine", e.Machine}, {"daemon", e.Daemon}} {
		if w.value != "" {
			words = append(words, w.key+"="+term.Printable(w.value))
		}
	}
	if e.Message != "" {
		words = append(words, term.Printable(e.Message))
	}
	return strings.Join(words, " ")
}

// readCursor is the position that is kept in a file; that there is none yet is no error.
func readCursor(file string) (report.Cursor, error) {
	if file == "" {
		return report.Cursor{}, nil
	}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, sigma.Wrap("sigma.events", file, err)
	}
	c, err := report.ParseCursor(string(text))
	return c, sigma.Wrap("sigma.events", file, err)
}

// writeCursor replaces the file as a whole.
func writeCursor(file string, c report.Cursor) error {
	if file == "" {
		return nil
	}
	return datadir.Write(file, c.String()+"\n", -1)
}
