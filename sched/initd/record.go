// Package initd keeps registered procs running (001 §3.4): of each that a realm has registered one
// instance runs, is started again when it ends, as its policy says, with longer and longer pauses
// if it fails, and after a restart of the whole system. Core is the pure state machine; Runner the
// shell, which one leader runs.
//
// What is registered, and what became of it, are records in the names of the system's realm: kernel
// writes them for a realm's programs (/sys/init), the leader notes there which proc it starts
// before it does. Two instances never run at once, whoever dies or stands still when: a proc's id
// is drawn and saved first; a new leader fences every machine at its epoch, so that a former
// leader's spawn is refused wherever it is still under way, and only then believes that a proc is
// unknown. Until each machine has answered, or is lost, nothing is started.
//
// It assumes that procs of a lost machine have no effect any more (machines), and a leader elected
// with an epoch (sdk.Campaign). Users: cmd/lcsched, in which it runs; kernel, for records and
// calls.
package initd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sigma"
)

// Where records are, in the names of the system's realm: Dir/REALM/NAME. ChangedFile is written
// after each change that a realm's program made.
const (
	Dir         = "/initd"
	RealmsDir   = Dir + "/realms"
	ChangedFile = Dir + "/changed"
)

// HistoryMax instances are remembered of each registration, the latest.
const HistoryMax = 32

// A record is written by conditional puts, which take recordMax bytes with the path. Of its history
// there is as much as fits into recordFull; a new one has registeredMax at most, because JSON may
// write a byte as six.
const (
	recordMax     = 60 << 10
	recordFull    = 56 << 10
	registeredMax = 40 << 10
)

// Key names a registration.
type Key struct {
	Realm sigma.RealmID
	Name  string
}

// Path is where its record is.
func (k Key) Path() string { return fmt.Sprintf("%s/%s/%s", RealmsDir, k.Realm, k.Name) }

// Record is what is kept of a registration.
type Record struct {
	Format       int // recordFormat
	Registration sigma.Registration
	Added        time.Time
	Removed      bool // its proc is to end, and then this record is to go
	// its proc is to end, and another to be started at once, whatever the policy says
	Anew   bool `json:",omitempty"`
	Starts uint64
	// after the last end, before the next start; a later leader, whose clock may be another, waits
	// that long anew
	Pause   time.Duration    `json:",omitempty"`
	History []sigma.Instance // oldest first; the last is the present one if it has not ended
	Going   bool             `json:"-"` // the file is empty: it is about to be gone, and not to be written
}

// recordFormat is the version of the format.
const recordFormat = 1

// NewRecord is that of a registration that was just made.
func NewRecord(r sigma.Registration, now time.Time) Record {
	return Record{Format: recordFormat, Registration: r, Added: now}
}

// Replace gives the record another registration, as which it counts from now on; its present
// instance is to end, and one of the new registration to be started at once.
func (r *Record) Replace(g sigma.Registration, now time.Time) {
	r.Registration, r.Added, r.Removed, r.Anew, r.Starts = g, now, false, true, 0
}

// Again has the present instance end and another started at once, also if the policy wants no more.
func (r *Record) Again() {
	if r.Anew = true; r.spent() {
		r.Starts = 0
	}
}

// Encode is the content of the record's file, with as much of the history as there is room for.
func (r *Record) Encode() ([]byte, error) {
	r.Format = recordFormat
	for kept := *r; ; kept.History = kept.History[1:] {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(&kept); err != nil {
			return nil, sigma.Wrap("initd.Encode", r.Registration.Name, err)
		}
		if b.Len() <= recordFull || len(kept.History) <= 1 {
			return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
		}
	}
}

// Fits says whether a new record leaves room for what will become of the proc. KindTooBig: it does
// not.
func (r *Record) Fits() error {
	b, err := r.Encode()
	if err == nil && len(b) > registeredMax {
		err = &sigma.Error{Op: "initd.Fits", Path: r.Registration.Name, Kind: sigma.KindTooBig,
			Msg:  fmt.Sprintf("the registration has %d bytes as JSON; %d are allowed", len(b), registeredMax),
			Hint: "put long input into a file of the realm and pass its path"}
	}
	return err
}

// Parse reads a record of a name; an empty one is Going. KindInvalid: it is damaged, or of a
// version that this one does not know.
func Parse(name string, data []byte) (r Record, err error) {
	const op = "initd.Parse"
	if len(data) > recordMax {
		return r, &sigma.Error{Op: op, Path: name, Kind: sigma.KindInvalid, Msg: "the record is too long"}
	}
	if len(data) == 0 {
		return Record{Registration: sigma.Registration{Name: name}, Removed: true, Going: true}, nil
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, &sigma.Error{Op: op, Path: name, Kind: sigma.KindInvalid, Msg: "the record is damaged",
			Hint: "remove it with sigma init rm and register the proc again", Err: err}
	}
	if r.Format != recordFormat {
		return Record{}, &sigma.Error{Op: op, Path: name, Kind: sigma.KindInvalid,
			Msg:  fmt.Sprintf("the record has the format %d", r.Format),
			Hint: "this version reads 1; was the system newer once?"}
	}
	if r.Registration.Name != name || len(r.History) > HistoryMax {
		return Record{}, &sigma.Error{Op: op, Path: name, Kind: sigma.KindInvalid,
			Msg: "the record is not of this name, or its history too long"}
	}
	if err := r.Registration.Check(); err != nil {
		return Record{}, sigma.Wrap(op, name, err)
	}
	return r, nil
}

// Present is the instance that runs as far as is known, or nil.
func (r *Record) Present() *sigma.Instance {
	if n := len(r.History); n > 0 && r.History[n-1].Ended.IsZero() {
		return &r.History[n-1]
	}
	return nil
}

// State says in a word how the registration stands: running (an instance was spawned and has not
// ended), waiting (one will be), ended (its policy wants no more), given-up (it was started as
// often as it may be), restarting (the present instance was told to go), removing.
func (r *Record) State() string {
	switch {
	case r.Removed:
		return "removing"
	case r.Present() != nil && r.Anew:
		return "restarting"
	case r.Present() != nil:
		return "running"
	case r.over():
		return "ended"
	case r.spent():
		return "given-up"
	}
	return "waiting"
}

// over says that the policy wants no further instance after the last, whose end was noted.
func (r *Record) over() bool {
	n := len(r.History)
	return n > 0 && !r.Anew && r.Registration.Restart == sigma.RestartOnFailure && r.History[n-1].Status.OK()
}

func (r *Record) spent() bool {
	return r.Registration.Most > 0 && r.Starts >= uint64(r.Registration.Most)
}

// begin notes a new instance.
func (r *Record) begin(p sigma.ProcID, at sigma.MachineID, now time.Time) {
	r.Starts++
	r.Anew = false
	h := append([]sigma.Instance(nil), r.History[max(0, len(r.History)-HistoryMax+1):]...)
	r.History = append(h, sigma.Instance{Proc: p, Begun: now, Machine: at})
}

// end notes how the present instance ended.
func (r *Record) end(s sigma.Status, now time.Time) {
	h := append([]sigma.Instance(nil), r.History...)
	s.Data, s.Msg = nil, strings.ToValidUTF8(s.Msg[:min(len(s.Msg), messageMax)], "")
	h[len(h)-1].Status, h[len(h)-1].Ended = s, now
	r.History = h
}

// why says what becomes of a registration whose last instance ended, for that instance; "" if one
// runs.
func (r *Record) why() (decision.Reason, string) {
	if len(r.History) == 0 || r.Present() != nil || r.Removed {
		return "", ""
	}
	s := r.History[len(r.History)-1].Status
	ended := fmt.Sprintf("it ended: %v: %s; ", s.Code, s.Msg)
	switch {
	case r.over():
		return decision.Finished, ended + "it is not started again, for it is to be only after a failure"
	case r.spent():
		return decision.Finished,
			fmt.Sprintf("%sit is not started again, for it was started %d times, as often as it may be", ended,
				r.Starts)
	}
	return decision.Pause, fmt.Sprintf("%sthe next is started after %v; pauses grow while instances end soon", ended,
		r.Pause)
}

// messageMax bytes of a status's message are kept.
const messageMax = 256
