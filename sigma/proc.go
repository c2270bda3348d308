package sigma

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Class is the contract of a proc with the scheduler (001 §3.1).
type Class uint8

// The classes.
const (
	BestEffort      Class = iota // runs in what is left
	LatencyCritical              // has a reservation of cores and memory
)

func (c Class) String() string { return [...]string{"be", "lc"}[min(c, 1)] }

// StartMark says when a proc counts as started.
type StartMark uint8

// Start marks.
const (
	// when its program begins to execute; right for programs that know nothing of sigmaOS
	StartedByExec StartMark = iota
	StartedByCall           // when it calls Started
)

// Limits of a Descriptor. ArgsMax is what fits one launcher message with room for its header.
const (
	ArgsMax       = 48 << 10 // bytes of all arguments and environment together
	BurstMax      = 1024     // descriptors in one Spawn
	StatusDataMax = 32 << 10 // bytes of Status.Data
	MemoryDefault = 64 * MiB // of a descriptor that asks for 0
	MemoryLeast   = 4 * MiB
	CPUMost       = 1024 * 1000 // thousandths of a core that one proc can reserve; no machine has more
	WhereMax      = 16          // labels of Where
	LabelMax      = 256         // bytes of each
)

// Descriptor says what to spawn (001 §3.1, Table 1).
type Descriptor struct {
	Program     string // realm path of a static Linux executable, as in /bin/hello
	Name        string // for people; default: last component of Program
	Args        []string
	Env         []string // NAME=value
	Class       Class
	CPU         MilliCPU // reservation; LC only, and at least 1
	Memory      Bytes    // hard limit and admission charge; 0 = MemoryDefault
	Start       StartMark
	TraceParent string  // W3C traceparent, which the proc finds in its environment as TRACEPARENT; "" = none
	Profile     Profile // the calls it may make; "" = ProfileSigma

	// Where are labels that the machine of an LC proc must have, as in zone=a. Spread is the label
	// whose values are failure domains, over which the LC procs of one Name are spread; "" = each
	// machine is one.
	Where  []string
	Spread string

	// Near is the machine where the proc should be if it has room within NearWait, because its data
	// is there; "" = it is all the same.
	Near MachineID

	// View is what the proc sees; nil = what its spawner sees. With a view that is empty and not
	// nil it sees only itself.
	View []ViewEntry
}

// NearWait is how long a proc waits for the machine that it should be near, before any other takes
// it.
const NearWait = 100 * time.Millisecond

// Profile names what a proc is kept from (docs/reference/isolation.md).
type Profile string

// The profiles that a Descriptor may name. That of the provider's own services is none of them.
const (
	ProfileSigma Profile = "sigma" // the default: what programs made for sigmaOS need
	ProfileLinux Profile = "linux" // for unmodified programs: more calls for files and threads, still no sockets
)

// Check returns a KindInvalid error for a name that is no profile, and KindPermission for the
// provider's.
func (p Profile) Check() error {
	switch p {
	case "", ProfileSigma, ProfileLinux:
		return nil
	case "system":
		return Errorf("sigma.Profile.Check", KindPermission, "the profile system is for the provider's services")
	}
	return &Error{Op: "sigma.Profile.Check", Kind: KindInvalid, Msg: fmt.Sprintf("no profile %.50q", string(p)),
		Hint: "the profiles are sigma and linux"}
}

// Check returns a KindInvalid error that names the first field that is wrong.
func (d *Descriptor) Check() error {
	const op = "sigma.Descriptor.Check"
	if _, err := ParsePath(d.Program); err != nil {
		return Wrap(op, d.Program, err)
	}
	total := 0
	for _, list := range [][]string{d.Args, d.Env} {
		for _, s := range list {
			total += len(s) + 5
			for i := range len(s) {
				if s[i] == 0 {
					return Errorf(op, KindInvalid, "an argument or environment entry contains a NUL byte")
				}
			}
		}
	}
	if len(d.Args) > 4096 || len(d.Env) > 4096 {
		return Errorf(op, KindTooBig, "more than 4096 arguments or environment entries")
	}
	if err := d.Profile.Check(); err != nil {
		return err
	}
	if err := checkView(d.View); err != nil {
		return err
	}
	switch {
	case total > ArgsMax:
		return &Error{Op: op, Kind: KindTooBig,
			Msg:  fmt.Sprintf("arguments and environment have %d bytes, %d are allowed", total, ArgsMax),
			Hint: "put long input into a file of the realm and pass its path"}
	case len(d.Name) > 64:
		return Errorf(op, KindInvalid, "name is longer than 64 bytes")
	case d.Class > LatencyCritical:
		return Errorf(op, KindInvalid, "no class has the number %d", d.Class)
	case d.Class == LatencyCritical && d.CPU == 0:
		return &Error{Op: op, Kind: KindInvalid, Msg: "a latency-critical proc needs a reservation of cores",
			Hint: "set CPU to the cores that it needs, or leave the class best-effort"}
	case d.CPU > CPUMost:
		return Errorf(op, KindInvalid, "a reservation of %d cores; no machine has more than %d", d.CPU/1000,
			CPUMost/1000)
	case d.Class == BestEffort && (d.CPU != 0 || len(d.Where) > 0 || d.Spread != ""):
		return &Error{Op: op, Kind: KindInvalid, Msg: "a best-effort proc reserves no cores and chooses no machine",
			Hint: "make it latency-critical"}
	case d.TraceParent != "" && (len(d.TraceParent) != 55 || strings.Trim(d.TraceParent, "0123456789abcdef-") != ""):
		return &Error{Op: op, Kind: KindInvalid, Msg: "the trace is no traceparent",
			Hint: "it is 00-TRACE-SPAN-FLAGS in lower-case hexadecimal digits, 55 bytes"}
	case len(d.Where) > WhereMax:
		return Errorf(op, KindTooBig, "%d labels are asked for; %d are allowed", len(d.Where), WhereMax)
	case !labelsOK(d.Where), len(d.Spread) > LabelMax, strings.Contains(d.Spread, "="):
		return &Error{Op: op, Kind: KindInvalid, Msg: "a label that is asked for is not NAME=VALUE, or too long",
			Hint: "write for example zone=a"}
	case d.Near != "" && d.Near.Check() != nil:
		return Wrap(op, "", d.Near.Check())
	case d.Memory != 0 && d.Memory < MemoryLeast:
		return Errorf(op, KindInvalid, "memory %v is less than %v", d.Memory, MemoryLeast)
	}
	return nil
}

// labelsOK checks the form of labels.
func labelsOK(labels []string) bool {
	for _, l := range labels {
		if name, _, ok := strings.Cut(l, "="); !ok || len(l) > LabelMax || name == "" {
			return false
		}
	}
	return true
}

// StatusCode says how a proc ended.
type StatusCode uint8

// Status codes. StatusNone is the zero value of a proc that has not ended.
const (
	StatusNone    StatusCode = iota
	StatusOK                 // Exited(ok) or exit code 0
	StatusError              // Exited(error), a non-zero exit code, or it could not be started
	StatusEvicted            // went, or was killed, after Evict or Kill
	StatusCrashed            // died by a signal nobody of sigmaOS sent
	StatusOOM                // exceeded its memory limit
	StatusLost               // its machine, sigmad or scheduler died; unknown what it did last
)

func (c StatusCode) String() string {
	return [...]string{"none", "ok", "error", "evicted", "crashed", "oom", "lost"}[min(c, 6)]
}

// Status is how a proc ended.
type Status struct {
	Code     StatusCode
	ExitCode int // of the process; 128+signal if a signal ended it
	// when Code is StatusError because it could not be started: why; KindUnavailable when it was
	// evicted because its machine was stopped or drained
	Kind Kind
	Msg  string // a sentence part for people
	Data []byte // whatever the proc gave to Exited, up to StatusDataMax
}

// OK reports whether the proc ended well.
func (s Status) OK() bool { return s.Code == StatusOK }

// ProcState is where a proc is in its life.
type ProcState uint8

// The states, in order.
const (
	ProcQueued   ProcState = iota // spawned, at besched or lcsched
	ProcStarting                  // assigned to a machine
	ProcRunning                   // its program executes
	ProcEnded                     // has a Status
)

func (s ProcState) String() string {
	return [...]string{"queued", "starting", "running", "ended"}[min(s, 3)]
}

// Usage is what a proc consumes, or consumed.
type Usage struct {
	UserTime, SystemTime time.Duration // of all its processes
	Memory               Bytes         // now; 0 when it has ended
	MemoryPeak           Bytes
	Tasks                uint32 // processes and threads now
	Output               Bytes  // written to standard output and error, what was not kept included
	Traffic              Traffic
}

// Traffic is what connections carried. Sent, Received and Messages are the programs' own word, but
// no less than what crossed to and from other machines, which the kernel and sigmad have counted.
type Traffic struct {
	Sent, Received  Bytes
	Messages        uint64 // that were sent: writes
	Egress, Ingress Bytes  // to and from other machines; part of Sent and Received
}

// Plus is both.
func (t Traffic) Plus(o Traffic) Traffic {
	return Traffic{t.Sent + o.Sent, t.Received + o.Received, t.Messages + o.Messages, t.Egress + o.Egress,
		t.Ingress + o.Ingress}
}

// Less is what t has more than o, which was before.
func (t Traffic) Less(o Traffic) Traffic {
	return Traffic{t.Sent - o.Sent, t.Received - o.Received, t.Messages - o.Messages, t.Egress - o.Egress,
		t.Ingress - o.Ingress}
}

// Times are the moments of a start on the clock of the proc's machine; zero when not reached.
type Times struct {
	Spawned, Placed, Contained, Executed, Started, Ended time.Time
}

// ProcInfo describes a proc to those who list procs.
type ProcInfo struct {
	ID      ProcID
	Realm   RealmID
	Name    string
	Program string
	Args    []string
	Parent  ProcID // "" when spawned from outside
	Machine MachineID
	Class   Class
	CPU     MilliCPU // its reservation; LC only
	Memory  Bytes
	Profile Profile
	State   ProcState
	Frozen  bool // by Freeze
	Status  Status
	Times   Times
	Timing  Timing // of its start
	Usage   Usage  // kept after its end
}

// Procs is how anybody makes and controls procs of one realm (001 Table 1). Safe for concurrent
// use. A child outlives its parent. An unknown ProcID gives KindNotFound; an ended proc is
// remembered for a while (SPECIFICATION: retention), its status with it.
type Procs interface {
	// Spawn queues one proc per descriptor and returns their ids in order; all or none. It does not
	// wait for a start.
	Spawn(ctx context.Context, ds ...Descriptor) ([]ProcID, error)
	// WaitStart returns nil once the proc has started, or its failure if it ended before.
	WaitStart(ctx context.Context, id ProcID) error
	// WaitExit returns how the proc ended. Any number may wait, any time.
	WaitExit(ctx context.Context, id ProcID) (Status, error)
	// Evict gives notice, then kills after grace (0 = the default). It returns when the notice is
	// given.
	Evict(ctx context.Context, id ProcID, grace time.Duration) error
	// Kill ends the proc and all its processes at once.
	Kill(ctx context.Context, id ProcID) error
	// Freeze stops all processes of a running proc until Thaw. A frozen proc can be killed; notice
	// of Evict reaches it when it is thawed, but its grace runs.
	Freeze(ctx context.Context, id ProcID) error
	// Thaw lets a frozen proc go on. It is no error if it is not frozen.
	Thaw(ctx context.Context, id ProcID) error
	// List returns the realm's procs, oldest first; ended ones only if all.
	List(ctx context.Context, all bool) ([]ProcInfo, error)
}

// Self is what a proc may say and ask about itself.
type Self interface {
	// Started marks the proc as started (see StartMark).
	Started(ctx context.Context) error
	// Exited records the status; the proc should end soon after.
	Exited(ctx context.Context, s Status) error
	// WaitEvict returns nil when the proc should go. After that it has its grace to do so.
	WaitEvict(ctx context.Context) error
}

// Phase is one part of a proc's start. The phases follow one another without gaps, so that their
// sum is the time from Spawn to Started.
type Phase uint8

// The phases, in order. What a start did not reach is 0.
const (
	PhaseQueue     Phase = iota // from Spawn until a machine has room for it and its turn has come
	PhasePlacement              // until its program is there and the launcher is asked
	PhaseHandOver               // until the launcher has given it to a child, one that is ready or a new one
	PhaseRestrict               // until that has put on what depends on the program
	PhaseExec                   // until the program is executed
	// until the first sign of it: its first message, or of programs that need not send one the
	// launcher's word
	PhaseFirst
	PhaseStarted // until it has called Started; 0 if it need not
	PhaseCount
)

func (p Phase) String() string {
	return [...]string{"queue", "placement", "hand-over", "restrict", "exec", "first", "started",
		"unknown"}[min(p, PhaseCount)]
}

// Timing is how long each phase of a start took, on the clock of the proc's machine.
type Timing [PhaseCount]time.Duration

// Total is the time from Spawn to Started, as far as it came.
func (t Timing) Total() (sum time.Duration) {
	for _, d := range t {
		sum += d
	}
	return sum
}
