package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// EntriesMax bounds the entries of a schedule, NameMax the name of one.
const (
	EntriesMax = 1000
	NameMax    = 100
)

const (
	fileMax    = 48 << 10         // bytes of the file of entries
	lookAgain  = 30 * time.Second // between looks at the clock, which somebody may set
	retryFirst = 100 * time.Millisecond
	retryMost  = 10 * time.Second
	recordMost = 5 * time.Second // for the record of a program that is to end
	missedMost = 1000            // times of one entry that are fired later
	lateMost   = time.Minute
)

// Missed says what becomes of times at which nobody could fire.
type Missed string

// The policies. A time that is less than a minute ago is not missed.
const (
	Skip Missed = "skip" // they are not fired
	Once Missed = "once" // the last is fired
	All  Missed = "all"  // the last 1,000 are fired, in order
)

// Entry is one line of a schedule: "NAME skip|once|all WHEN", where WHEN is five fields as cron has
// them, in UTC unless it begins with TZ=..., or @hourly, @every 10m and the like.
type Entry struct {
	Name   string
	Missed Missed
	When   string
	next   cron.Schedule
}

// Firing is one time of an entry.
type Firing struct {
	Name string
	Time time.Time
}

// Key names the firing, the same whoever fires it.
func (f Firing) Key() string { return f.Name + "@" + f.Time.UTC().Format(time.RFC3339) }

// Client is what Run needs of *sdk.Client.
type Client interface {
	sigma.Namespace
	sdk.Candidate
}

// Config is a schedule, the same for all who run it.
type Config struct {
	Dir string
	TTL time.Duration // after which a silent leader is replaced. 0 = 5 s
}

// Parse reads the lines of a schedule. Empty ones and those that begin with # are passed over.
func Parse(text string) (entries []Entry, err error) {
	bad := func(line int, msg string, err error) error {
		return &sigma.Error{Op: "schedule.Parse", Kind: sigma.KindInvalid, Msg: fmt.Sprintf("line %d: %s", line, msg),
			Hint: "a line is NAME skip|once|all and when, as in: report once 30 4 * * *", Err: err}
	}
	if len(text) > fileMax {
		return nil, bad(1, fmt.Sprintf("the schedule has more than %d bytes", fileMax), nil)
	}
	names := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) < 3 {
			return nil, bad(i+1, "it has fewer than three words", nil)
		}
		e := Entry{Name: words[0], Missed: Missed(words[1]), When: strings.Join(words[2:], " ")}
		switch {
		case len(e.Name) > NameMax || names[e.Name]:
			return nil, bad(i+1, fmt.Sprintf("the name %.100q is too long, or there twice", e.Name), nil)
		case !slices.Contains([]Missed{Skip, Once, All}, e.Missed):
			return nil, bad(i+1, fmt.Sprintf("%.100q is no policy for missed times", e.Missed), nil)
		case len(entries) == EntriesMax:
			return nil, bad(i+1, fmt.Sprintf("there are more than %d entries", EntriesMax), nil)
		}
		if e.next, err = parseWhen(e.When); err != nil {
			return nil, bad(i+1, "this is no time", err)
		}
		names[e.Name] = true
		entries = append(entries, e)
	}
	return entries, nil
}

// parseWhen reads a time, which is UTC unless it says otherwise.
func parseWhen(when string) (s cron.Schedule, err error) {
	defer func() { // the parser of the library indexes without looking
		if p := recover(); p != nil {
			err = fmt.Errorf("%.100q: %v", when, p)
		}
	}()
	if !strings.HasPrefix(when, "TZ=") && !strings.HasPrefix(when, "CRON_TZ=") && !strings.HasPrefix(when, "@every") {
		when = "TZ=UTC " + when
	}
	s, err = cron.ParseStandard(when)
	if err == nil && s.Next(time.Unix(0, 0)).IsZero() {
		err = fmt.Errorf("it never comes")
	}
	return s, err
}

// Set replaces the entries of a schedule, which are checked first.
func Set(ctx context.Context, n sigma.Namespace, dir, text string) error {
	if _, err := Parse(text); err != nil {
		return err
	}
	err := n.MkdirAll(ctx, dir, 0o755)
	if err == nil {
		_, err = n.Put(ctx, dir+"/entries", []byte(text), sigma.PutOptions{})
	}
	return sigma.Wrap("schedule.Set", dir, err)
}

// Run has the schedule fired by this program whenever it leads, until ctx ends. fire is called for
// one time after another, and again after an error.
func Run(ctx context.Context, c Client, cfg Config, fire func(ctx context.Context, f Firing) error) error {
	err := c.MkdirAll(ctx, cfg.Dir, 0o755)
	if err == nil {
		err = sdk.Lead(ctx, c, sdk.Election{Path: cfg.Dir + "/leader", TTL: cfg.TTL,
			Fenced: []string{cfg.Dir + "/fired"}}, func(ctx context.Context, _ *sdk.Leadership) error {
			r := &runner{client: c, dir: cfg.Dir, fire: fire}
			var err error
			for err == nil {
				err = r.round(ctx)
			}
			return err
		})
	}
	return sigma.Wrap("schedule.Run", cfg.Dir, err)
}

// runner is a term of a leader.
type runner struct {
	client Client
	dir    string
	fire   func(context.Context, Firing) error
}

// fired is the file of what was fired last, by entry. A new entry begins when it is first seen.
type fired map[string]time.Time

// decodeFired reads the file.
func decodeFired(b []byte) (f fired, err error) {
	if len(b) > 0 {
		err = json.Unmarshal(b, &f)
	}
	if f == nil {
		f = fired{}
	}
	if err != nil {
		return nil, &sigma.Error{Op: "schedule.decodeFired", Kind: sigma.KindInvalid,
			Msg:  "this does not tell what was fired",
			Hint: "remove the file to go on from now", Err: err}
	}
	return f, nil
}

// round fires what is due and waits until something is again, or the entries have changed.
func (r *runner) round(ctx context.Context) error {
	path := r.dir + "/entries"
	text, id, err := r.client.Get(sigma.WithSync(ctx), path)
	if err != nil {
		if sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
		return r.client.WaitFor(ctx, path)
	}
	entries, err := Parse(string(text))
	if err != nil {
		return err
	}
	done, err := r.read(ctx, entries)
	if err != nil {
		return err
	}
	next := time.Now().Add(lookAgain)
	for _, e := range entries {
		for _, at := range e.due(done[e.Name], time.Now()) {
			if at.fire {
				if err := r.fireOne(ctx, Firing{e.Name, at.Time}); err != nil {
					return err
				}
			}
			done[e.Name] = at.Time
			if err := r.record(ctx, done); err != nil {
				return err
			}
		}
		if t := e.next.Next(done[e.Name]); t.Before(next) {
			next = t
		}
	}
	return r.wait(ctx, path, id.Version, next)
}

// read tells what was fired, with new entries as of now and without those that are no more.
func (r *runner) read(ctx context.Context, entries []Entry) (fired, error) {
	text, _, err := r.client.Get(sigma.WithSync(ctx), r.dir+"/fired")
	if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		return nil, err
	}
	old, err := decodeFired(text)
	if err != nil {
		return nil, err
	}
	now, changed := fired{}, len(old) != len(entries)
	for _, e := range entries {
		t, is := old[e.Name]
		if !is {
			t, changed = time.Now().UTC().Truncate(time.Second), true
		}
		now[e.Name] = t
	}
	if changed {
		err = r.write(ctx, now)
	}
	return now, err
}

// record writes what was fired, also when the program is to end just now.
func (r *runner) record(ctx context.Context, f fired) error {
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordMost)
	defer cancel()
	return r.write(whole, f)
}

// write replaces the record, fenced at the leader's epoch. It is right to do it twice.
func (r *runner) write(ctx context.Context, f fired) error {
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	for {
		_, err = r.client.Put(ctx, r.dir+"/fired", text, sigma.PutOptions{})
		if kind := sigma.KindOf(err); err == nil || kind != sigma.KindLost && !kind.Retryable() {
			return err
		}
		if !retry.Pause(ctx, retryFirst) {
			return ctx.Err()
		}
	}
}

// moment is a time that has come, and whether it is to be fired or only recorded.
type moment struct {
	time.Time
	fire bool
}

// due gives the times since the last that was fired, up to now, as the policy wants them.
func (e *Entry) due(last, now time.Time) (all []moment) {
	var times []time.Time
	for t := e.next.Next(last); !t.IsZero() && !t.After(now); t = e.next.Next(t) {
		if times = append(times, t); len(times) > 2*missedMost {
			times = append(times[:0], times[missedMost:]...)
		}
	}
	times = times[max(0, len(times)-missedMost):]
	for i, t := range times {
		final := i == len(times)-1
		fire := e.Missed == All || now.Sub(t) <= lateMost || final && e.Missed == Once
		if fire || final {
			all = append(all, moment{t, fire})
		}
	}
	return all
}

// fireOne calls fire until it succeeds.
func (r *runner) fireOne(ctx context.Context, f Firing) error {
	for wait := retryFirst; ; wait = min(2*wait, retryMost) {
		if r.fire(ctx, f) == nil {
			return nil
		}
		if !retry.Pause(ctx, wait) {
			return ctx.Err()
		}
	}
}

// wait waits for a time, or for a change of the entries.
func (r *runner) wait(ctx context.Context, path string, v sigma.Version, until time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, max(time.Until(until.Round(0)), time.Millisecond))
	defer cancel()
	_, err := r.client.Watch(ctx, path, v)
	if kind := sigma.KindOf(err); kind == sigma.KindTimeout || kind == sigma.KindNotFound {
		return nil
	}
	return err
}
