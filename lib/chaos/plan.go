package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

// Kind is a fault.
type Kind string

// The faults.
const (
	// Kill ends a proc and all its processes at once.
	Kill Kind = "kill"
	// Pause stops all processes of a proc for a while. They keep their connections and memory.
	Pause Kind = "pause"
)

// Kinds are all faults.
func Kinds() []Kind { return []Kind{Kill, Pause} }

// stepsMax bounds a plan: an hour with a fault every 10 ms is more.
const stepsMax = 100_000

// Config says what is to be done. The zero value of a field is its default.
type Config struct {
	Seed  uint64
	For   time.Duration // of the whole; needed
	Every time.Duration // between faults on average; each is between half and one and a half of it; 2 s
	Kinds []Kind        // all
	// PauseMost is the longest pause, a tenth of it the shortest; 3 s. A pause ends with the run.
	PauseMost time.Duration
	// Spare is how many targets are left alone at any time. A step that finds no more than these is
	// skipped. Members of a group of five that may lose two: 3.
	Spare int
}

func (c Config) filled() (Config, error) {
	c.Every, c.PauseMost = cmp.Or(c.Every, 2*time.Second), cmp.Or(c.PauseMost, 3*time.Second)
	if len(c.Kinds) == 0 {
		c.Kinds = Kinds()
	}
	bad := func(hint, format string, args ...any) (Config, error) {
		return c, &sigma.Error{Op: "chaos.Config", Kind: sigma.KindInvalid, Msg: fmt.Sprintf(format, args...),
			Hint: hint}
	}
	switch {
	case c.For <= 0:
		return bad("give for example 30s", "it is not said for how long")
	case c.Every < 0 || c.PauseMost < 0 || c.Spare < 0:
		return bad("times and numbers are at least 0", "a time or number is negative")
	case c.For/c.Every >= stepsMax/2:
		return bad(fmt.Sprintf("a plan has %d steps at most", stepsMax), "a fault every %v for %v is too many", c.Every,
			c.For)
	}
	for _, k := range c.Kinds {
		if !slices.Contains(Kinds(), k) {
			return bad("one of kill, pause", "%.40q is no fault", k)
		}
	}
	return c, nil
}

// Step is one fault of a plan.
type Step struct {
	At   time.Duration // since the start
	Kind Kind
	Pick uint64        // chooses among the targets that are there then
	Long time.Duration // of a pause
}

// Plan gives the steps of a configuration, in order of time.
func (c Config) Plan() ([]Step, error) {
	c, err := c.filled()
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	between := func(least, most time.Duration) time.Duration {
		return least + time.Duration(rng.Int64N(int64(most-least)+1))
	}
	var steps []Step
	for at := between(c.Every/2, c.Every+c.Every/2); at < c.For; at += between(c.Every/2, c.Every+c.Every/2) {
		s := Step{At: at, Kind: c.Kinds[rng.IntN(len(c.Kinds))], Pick: rng.Uint64()}
		if long := between(c.PauseMost/10, c.PauseMost); s.Kind == Pause {
			s.Long = min(long, c.For-at)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// Target is a proc that faults may be done to. Name stays the same when a proc takes the place of
// another, such as that of a registration of initd.
type Target struct {
	Name string
	Proc sigma.ProcID
}

// Choose picks the target of a step. ok is false if there are no more than are to be spared.
func (s Step) Choose(targets []Target, spare int) (t Target, ok bool) {
	if len(targets) <= spare {
		return Target{}, false
	}
	sorted := slices.SortedFunc(slices.Values(targets), func(a, b Target) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Proc, b.Proc))
	})
	return sorted[s.Pick%uint64(len(sorted))], true
}
