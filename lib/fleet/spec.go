package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Limits of a Spec.
const (
	NameMax    = 48     // bytes of a name
	MembersMax = 10_000 // members of a fleet
	FleetsMax  = 256    // fleets of a realm
	SpecMax    = 16 << 10
	// SchedulesMax is how many lines of a schedule there may be.
	SchedulesMax = 32
)

// Spec describes a fleet. It is TOML for people and the same as JSON; the zero value of each field
// but Name, Program and Most means its default.
type Spec struct {
	Name    string   `json:"name"`
	Program string   `json:"program"` // path of the realm, as in /bin/web
	Args    []string `json:"args,omitempty"`
	Env     []string `json:"env,omitempty"` // NAME=value
	Profile string   `json:"profile,omitempty"`

	// CPU reserves thousandths of a core for each member, which makes them latency-critical; 0 =
	// they are best-effort.
	CPU    uint32   `json:"cpu,omitempty"`
	Memory string   `json:"memory,omitempty"` // of each member, as in 64MiB; "" = sigma.MemoryDefault
	View   []View   `json:"view,omitempty"`   // what members see; absent = the whole realm
	Where  []string `json:"where,omitempty"`  // labels that the machines of members must have
	Spread string   `json:"spread,omitempty"` // the label whose values are failure domains
	// Near is the machine where members should be; without it and Spread they start near what they
	// talk with.
	Near string `json:"near,omitempty"`

	Least    int        `json:"least"` // members at least; 0 = none while nobody dials
	Most     int        `json:"most"`  // members at most
	Target   Target     `json:"target,omitzero"`
	Idle     Duration   `json:"idle,omitempty"` // of a fleet with Least 0 until its last member goes; 0 = 30 s
	Schedule []Schedule `json:"schedule,omitempty"`

	Policy sdk.Policy `json:"policy,omitzero"` // how clients choose a member
	Health Health     `json:"health,omitzero"`
	Grace  Duration   `json:"grace,omitempty"` // for a member to end after it was asked to; 0 = 10 s
	Update Update     `json:"update,omitzero"`
}

// View is an entry of a member's view (sigma.ViewEntry).
type View struct {
	Path   string `json:"path"`
	Target string `json:"target,omitempty"` // "" = Path
	Rights string `json:"rights,omitempty"` // as sigma.ParseRights reads them; "" = ro
}

// Target says how busy members should be. One field is set; if none is, Utilisation is 0.7.
type Target struct {
	Utilisation float64  `json:"utilisation,omitempty"` // share of the time in which a member serves, 0.05 to 0.95
	CPU         float64  `json:"cpu,omitempty"`         // cores that a member uses
	InFlight    float64  `json:"in_flight,omitempty"`   // requests that a member has at a time
	QueueAge    Duration `json:"queue_age,omitempty"`   // how long the oldest request waits
}

// Schedule changes the bounds of a fleet's size from a time on, until the next line's.
type Schedule struct {
	At    string `json:"at"` // five fields as of cron, in UTC
	Least int    `json:"least"`
	Most  int    `json:"most,omitempty"` // 0 = the Spec's
}

// Health is how the coordinator finds out whether a member serves. A member is not dialled before
// its first good answer, and is replaced after Failures bad ones in a row.
type Health struct {
	Kind     string   `json:"kind,omitempty"`     // "" = no check, "tcp" = it can be dialled, "http" or "call"
	Path     string   `json:"path,omitempty"`     // of http; "" = /healthz; good is a status below 400
	Method   string   `json:"method,omitempty"`   // of call; "" = that of call.StatsMethod
	Every    Duration `json:"every,omitempty"`    // 0 = 5 s
	Timeout  Duration `json:"timeout,omitempty"`  // 0 = 1 s
	Failures int      `json:"failures,omitempty"` // 0 = 3
}

// Update is how members are replaced by those of a new Spec.
type Update struct {
	Surge       int `json:"surge,omitempty"`       // members beyond the size; 0 with Unavailable 0 = 1
	Unavailable int `json:"unavailable,omitempty"` // members that may be missing from the size
	// Canary is the share of requests that the new members have until they served for Hold without
	// failing more than the old; 0 = no such phase.
	Canary float64  `json:"canary,omitempty"`
	Hold   Duration `json:"hold,omitempty"`   // 0 = 5 s
	Within Duration `json:"within,omitempty"` // for a new member to be ready; 0 = 30 s
	// Errors is by how much the share of failed requests of new members may exceed that of the old;
	// 0 = 0.05.
	Errors float64 `json:"errors,omitempty"`
}

// Duration is a time.Duration that is written as in 1m30s.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return sigma.Errorf("fleet.Duration", sigma.KindInvalid, "%.40q is no duration, as 10s or 1m30s is", text)
	}
	*d = Duration(v)
	return nil
}

// Or is d, or a default if d is 0.
func (d Duration) Or(def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return time.Duration(d)
}

// ParseSpec reads a Spec that is JSON, and checks it.
func ParseSpec(text []byte) (s Spec, err error) {
	if s, err = DecodeSpec(text); err != nil {
		return s, err
	}
	return s, s.Check()
}

// DecodeSpec reads a Spec that is JSON. A key that is unknown is KindInvalid; what Check finds is
// not looked for.
func DecodeSpec(text []byte) (s Spec, err error) {
	if len(text) > SpecMax {
		return s, tooBig("the description has %d bytes, %d are allowed", len(text), SpecMax)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return Spec{}, wrong("the description cannot be read: %s", reasonOf(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Spec{}, wrong("something follows the description")
	}
	return s, nil
}

// reasonOf is what an error of encoding/json says to people.
func reasonOf(err error) string {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Sprintf("%s is a %s, where %s belongs", kind.Field, kind.Value, kind.Type)
	}
	var e *sigma.Error
	if errors.As(err, &e) {
		return e.Msg
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// CheckName returns a KindInvalid error for what cannot be a fleet's name.
func CheckName(name string) error {
	for i, c := range []byte(name) {
		lower, digit := c >= 'a' && c <= 'z', c >= '0' && c <= '9'
		if !lower && !digit && (c != '-' || i == 0) {
			name = ""
			break
		}
	}
	if name == "" || len(name) > NameMax {
		return &sigma.Error{Op: "fleet.CheckName", Kind: sigma.KindInvalid, Msg: "this cannot be the name of a fleet",
			Hint: fmt.Sprintf("1 to %d of a-z, 0-9 and -, a letter or digit first", NameMax)}
	}
	return nil
}

// Check returns a KindInvalid or KindTooBig error that names the first field that is wrong.
func (s *Spec) Check() error {
	if err := CheckName(s.Name); err != nil {
		return err
	}
	if _, err := s.Descriptor(1); err != nil {
		return err
	}
	for _, check := range []func() error{s.checkSize, s.Target.check, s.checkSchedule, s.Health.check,
		s.Update.check} {
		if err := check(); err != nil {
			return err
		}
	}
	return s.Policy.Check()
}

func (s *Spec) checkSize() error {
	switch {
	case s.Most == 0:
		return wrong("most is missing: how many members there may be")
	case s.Least < 0 || s.Most < 0 || s.Most > MembersMax:
		return wrong("least and most are 0 to %d", MembersMax)
	case s.Least > s.Most:
		return wrong("least is %d, more than most, which is %d", s.Least, s.Most)
	case s.Idle < 0 || s.Grace < 0:
		return wrong("idle and grace are not negative")
	case time.Duration(s.Grace) > time.Hour:
		return wrong("grace is an hour at most")
	}
	return nil
}

func (t *Target) check() error {
	set := 0
	for _, is := range []bool{t.Utilisation != 0, t.CPU != 0, t.InFlight != 0, t.QueueAge != 0} {
		if is {
			set++
		}
	}
	switch {
	case set > 1:
		return wrong("target has one of utilisation, cpu, in_flight and queue_age")
	case t.Utilisation != 0 && (t.Utilisation < 0.05 || t.Utilisation > 0.95):
		return wrong("target.utilisation is 0.05 to 0.95")
	case t.CPU < 0 || t.CPU > sigma.CPUMost/1000:
		return wrong("target.cpu is a number of cores")
	case t.InFlight < 0 || t.InFlight > 1e6:
		return wrong("target.in_flight is 0 to 1000000")
	case t.QueueAge < 0:
		return wrong("target.queue_age is not negative")
	}
	return nil
}

func (s *Spec) checkSchedule() error {
	if len(s.Schedule) > SchedulesMax {
		return tooBig("the schedule has %d lines, %d are allowed", len(s.Schedule), SchedulesMax)
	}
	for i, l := range s.Schedule {
		if err := l.check(s); err != nil {
			return wrong("line %d of schedule: %s", i+1, reasonOf(err))
		}
	}
	return nil
}

func (h *Health) check() error {
	switch h.Kind {
	case "", "tcp", "http", "call":
	default:
		return wrong("health.kind is tcp, http or call")
	}
	switch {
	case h.Kind == "" && *h != Health{}:
		return wrong("health.kind is missing: tcp, http or call")
	case h.Path != "" && (h.Kind != "http" || h.Path[0] != '/' || strings.ContainsAny(h.Path, " \r\n")):
		return wrong("health.path is the path of a URL, and for kind http only")
	case h.Method != "" && h.Kind != "call":
		return wrong("health.method is for kind call only")
	case h.Every < 0 || h.Timeout < 0 || h.Failures < 0 || h.Failures > 1000:
		return wrong("health.every, timeout and failures are not negative")
	case h.Every != 0 && time.Duration(h.Every) < 50*time.Millisecond:
		return wrong("health.every is 50ms at least")
	}
	return nil
}

func (u *Update) check() error {
	switch {
	case u.Surge < 0 || u.Unavailable < 0 || u.Surge > MembersMax || u.Unavailable > MembersMax:
		return wrong("update.surge and unavailable are 0 to %d", MembersMax)
	case u.Canary < 0 || u.Canary > 0.5:
		return wrong("update.canary is a share of 0 to 0.5")
	case u.Errors < 0 || u.Errors > 1:
		return wrong("update.errors is a share of 0 to 1")
	case u.Hold < 0 || u.Within < 0:
		return wrong("update.hold and within are not negative")
	}
	return nil
}

// Descriptor is that of a member of a revision. Its name is NAME@REVISION.
func (s *Spec) Descriptor(revision uint64) (d sigma.Descriptor, err error) {
	d = sigma.Descriptor{Program: s.Program, Name: MemberName(s.Name, revision), Args: s.Args,
		Profile: sigma.Profile(s.Profile), CPU: sigma.MilliCPU(s.CPU), Where: s.Where, Spread: s.Spread,
		Near: sigma.MachineID(s.Near), Start: sigma.StartedByExec}
	d.Env = append(append([]string{}, s.Env...), EnvName+"="+s.Name, fmt.Sprintf("%s=%d", EnvRevision, revision))
	if s.CPU != 0 {
		d.Class = sigma.LatencyCritical
	}
	if s.Memory != "" {
		if d.Memory, err = sigma.ParseBytes(s.Memory); err != nil {
			return d, wrong("memory: %s", reasonOf(err))
		}
	}
	if s.View != nil { // what a member needs to be one
		d.View = []sigma.ViewEntry{{Path: Members(s.Name), Target: Members(s.Name), Rights: sigma.RightsAll},
			{Path: Leader, Target: Leader, Rights: sigma.RightsRead}}
	}
	for _, v := range s.View {
		e := sigma.ViewEntry{Path: v.Path, Target: v.Target}
		if e.Target == "" {
			e.Target = e.Path
		}
		if v.Rights == "" {
			v.Rights = sigma.RightsRead.String()
		}
		if e.Rights, err = sigma.ParseRights(v.Rights); err != nil {
			return d, wrong("view: %s", reasonOf(err))
		}
		d.View = append(d.View, e)
	}
	return d, d.Check()
}

// SameMembers reports whether members of s need not be replaced to be members of t.
func (s *Spec) SameMembers(t *Spec) bool {
	a, errA := s.Descriptor(1)
	b, errB := t.Descriptor(1)
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errors.Join(errA, errB, errX, errY) == nil && bytes.Equal(x, y)
}

func wrong(format string, args ...any) error {
	return &sigma.Error{Op: "fleet.Spec", Kind: sigma.KindInvalid, Msg: fmt.Sprintf(format, args...),
		Hint: "docs/reference/fleet.md names all keys"}
}

func tooBig(format string, args ...any) error {
	return sigma.Errorf("fleet.Spec", sigma.KindTooBig, format, args...)
}
