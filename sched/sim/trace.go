package sim

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

// Trace is what a real run's procs asked for, how long they waited and ran, and the machines that
// they had. docs/reference/trace.md describes how it is written down.
type Trace struct {
	Sizes    []Size                   // of the machines; none = not known
	Shares   map[sigma.RealmID]uint32 // of realms that have not 1
	Arrivals []Arrival                // by time
}

// Limits of a trace that is read.
const (
	TraceMax     = 10_000_000           // procs
	traceLineMax = 16 << 20             // bytes; only the first line is long, if there are many machines or realms
	traceTimeMax = 366 * 24 * 3600      // s; of all times in it
	traceVersion = 1                    // in the first line
	MachinesMax  = 100_000              // of a trace, or of a Config
	memoryMax    = sigma.Bytes(1) << 50 // of a machine or a proc
)

// traceHead is the first line.
type traceHead struct {
	Version  int            `json:"trace"`
	Machines []traceMachine `json:"machines,omitempty"`
	Realms   []traceRealm   `json:"realms,omitempty"`
}

type traceMachine struct {
	Cores  float64 `json:"cores"`
	Memory uint64  `json:"memory_bytes"`
}

type traceRealm struct {
	Realm  string `json:"realm"`
	Shares uint32 `json:"shares"`
}

// traceProc is each other line.
type traceProc struct {
	At     float64  `json:"at_s"`
	Realm  string   `json:"realm"`
	Memory uint64   `json:"memory_bytes"`
	Cores  float64  `json:"cores,omitempty"`
	Wait   *float64 `json:"wait_s,omitempty"`
	Start  float64  `json:"start_s,omitempty"`
	Run    float64  `json:"run_s"`
}

// Write writes the trace down.
func (t *Trace) Write(w io.Writer) error {
	out := bufio.NewWriter(w)
	enc := json.NewEncoder(out)
	head := traceHead{Version: traceVersion}
	for _, z := range t.Sizes {
		head.Machines = append(head.Machines, traceMachine{float64(z.CPU) / 1000, uint64(z.Memory)})
	}
	for _, id := range slices.Sorted(maps.Keys(t.Shares)) {
		head.Realms = append(head.Realms, traceRealm{string(id), t.Shares[id]})
	}
	if err := enc.Encode(head); err != nil {
		return err
	}
	for _, a := range t.Arrivals {
		p := traceProc{At: micros(a.At), Realm: string(a.Realm), Memory: uint64(a.Memory), Cores: float64(a.CPU) / 1000,
			Start: micros(a.Start), Run: micros(a.Run)}
		if a.Waited >= 0 {
			wait := micros(a.Waited)
			p.Wait = &wait
		}
		if err := enc.Encode(p); err != nil {
			return err
		}
	}
	return out.Flush()
}

// micros are seconds with six digits, which is what clocks are good for.
func micros(d time.Duration) float64 { return float64(d.Microseconds()) / 1e6 }

// ReadTrace reads what Write wrote. Procs may be in any order. An error is of KindInvalid, and says
// which line is wrong, or is the reader's.
func ReadTrace(r io.Reader) (*Trace, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, traceLineMax)
	t := &Trace{Shares: map[sigma.RealmID]uint32{}}
	n := 0
	for lines.Scan() {
		n++
		var err error
		if n == 1 {
			err = t.head(lines.Bytes())
		} else {
			err = t.proc(lines.Bytes())
		}
		if err != nil {
			return nil, sigma.Errorf("sim.ReadTrace", sigma.KindInvalid, "line %d of the trace %v", n, err)
		}
	}
	switch err := lines.Err(); {
	case err == bufio.ErrTooLong:
		return nil, sigma.Errorf("sim.ReadTrace", sigma.KindInvalid, "line %d of the trace is longer than %d bytes",
			n+1, traceLineMax)
	case err != nil:
		return nil, sigma.Wrap("sim.ReadTrace", "", err)
	case n == 0:
		return nil, sigma.Errorf("sim.ReadTrace", sigma.KindInvalid, "the trace is empty")
	case len(t.Arrivals) == 0:
		return nil, sigma.Errorf("sim.ReadTrace", sigma.KindInvalid, "the trace has no procs")
	}
	slices.SortStableFunc(t.Arrivals, func(a, b Arrival) int { return cmp.Compare(a.At, b.At) })
	return t, nil
}

func (t *Trace) head(line []byte) error {
	var h traceHead
	if err := json.Unmarshal(line, &h); err != nil {
		return fmt.Errorf("is not its head: %w", err)
	}
	if h.Version != traceVersion {
		return fmt.Errorf("says that it is of version %d; this program reads version %d", h.Version, traceVersion)
	}
	if len(h.Machines) > MachinesMax {
		return fmt.Errorf("names %d machines; %d are the most", len(h.Machines), MachinesMax)
	}
	for i, m := range h.Machines {
		cpu, err := coresOf(m.Cores)
		if err == nil && cpu == 0 {
			err = fmt.Errorf("has no cores")
		}
		if err == nil && (m.Memory < uint64(sigma.MemoryLeast) || m.Memory > uint64(memoryMax)) {
			err = fmt.Errorf("has %d bytes of memory", m.Memory)
		}
		if err != nil {
			return fmt.Errorf("is wrong about machine %d, which %w", i, err)
		}
		t.Sizes = append(t.Sizes, Size{cpu, sigma.Bytes(m.Memory)})
	}
	for _, r := range h.Realms {
		if err := sigma.RealmID(r.Realm).Check(); err != nil {
			return fmt.Errorf("names a realm: %w", err)
		}
		t.Shares[sigma.RealmID(r.Realm)] = max(1, r.Shares)
	}
	return nil
}

func (t *Trace) proc(line []byte) error {
	if len(t.Arrivals) >= TraceMax {
		return fmt.Errorf("is one proc more than the %d that are read", TraceMax)
	}
	var p traceProc
	if err := json.Unmarshal(line, &p); err != nil {
		return fmt.Errorf("is no proc: %w", err)
	}
	a := Arrival{Realm: sigma.RealmID(p.Realm), Memory: sigma.Bytes(p.Memory), Waited: -1}
	if err := a.Realm.Check(); err != nil {
		return fmt.Errorf("has %w", err)
	}
	if a.Memory < sigma.MemoryLeast || a.Memory > memoryMax {
		return fmt.Errorf("has memory_bytes %d; %d to %d are allowed", p.Memory, sigma.MemoryLeast, memoryMax)
	}
	var err error
	if a.CPU, err = coresOf(p.Cores); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		is   float64
		to   *time.Duration
	}{{"at_s", p.At, &a.At}, {"start_s", p.Start, &a.Start}, {"run_s", p.Run, &a.Run}} {
		if *f.to, err = secondsOf(f.name, f.is); err != nil {
			return err
		}
	}
	if p.Wait != nil {
		if a.Waited, err = secondsOf("wait_s", *p.Wait); err != nil {
			return err
		}
	}
	t.Arrivals = append(t.Arrivals, a)
	return nil
}

func secondsOf(name string, s float64) (time.Duration, error) {
	if !(s >= 0 && s <= traceTimeMax) {
		return 0, fmt.Errorf("has %s %g; 0 to %d are allowed", name, s, traceTimeMax)
	}
	return time.Duration(math.Round(s * 1e9)), nil
}

func coresOf(n float64) (sigma.MilliCPU, error) {
	if !(n >= 0 && n <= 1e6) {
		return 0, fmt.Errorf("has %g cores", n)
	}
	return sigma.MilliCPU(math.Round(n * 1000)), nil
}
