package fleet

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// Paths of the realm.
const (
	Root   = "/fleet"
	Leader = Root + "/.leader"
)

// The environment of a member.
const (
	EnvName     = "SIGMA_FLEET"
	EnvRevision = "SIGMA_FLEET_REVISION"
)

// ProbeAgent is the User-Agent of health checks, by which members leave them out of their load.
const ProbeAgent = "sigma-fleet-check"

// Dir is the directory of a fleet.
func Dir(name string) string { return Root + "/" + name }

// Members is the directory of a fleet's endpoints: what clients dial.
func Members(name string) string { return Dir(name) + "/members" }

// MemberName is the name of a member's proc.
func MemberName(name string, revision uint64) string { return fmt.Sprintf("%s@%d", name, revision) }

// ParseMemberName is the reverse of MemberName. ok is false for the name of another proc.
func ParseMemberName(s string) (name string, revision uint64, ok bool) {
	name, text, ok := strings.Cut(s, "@")
	if !ok || CheckName(name) != nil {
		return "", 0, false
	}
	revision, err := strconv.ParseUint(text, 10, 63)
	return name, revision, err == nil && revision > 0
}

// Record is what the coordinator keeps of a fleet among the names, in Dir(name)+"/spec".
type Record struct {
	// Generation grows with every change of the record by a user or the coordinator.
	Generation uint64 `json:"generation"`
	// Revision numbers what members are made of: it grows when they have to be replaced.
	Revision uint64 `json:"revision"`
	// Highest is the highest revision that there ever was; an undone one is not used again.
	Highest uint64    `json:"highest"`
	Spec    Spec      `json:"spec"`
	At      time.Time `json:"at"`
	By      string    `json:"by"` // who made the change: a proc, or "" for a program outside
	What    string    `json:"what"`
	// Stable is the last revision that all members had, while members are replaced or after an undo
	// of Undone; nil = it is this one.
	Stable *Stable `json:"stable,omitempty"`
	// Passed says that the canaries of Revision have served long enough.
	Passed bool `json:"passed,omitempty"`
	// Undone is the revision that was taken back last; 0 = none.
	Undone uint64 `json:"undone,omitempty"`
	// Removed says that the fleet goes when its members have.
	Removed bool `json:"removed,omitempty"`
}

// Stable is a revision to go back to.
type Stable struct {
	Revision uint64 `json:"revision"`
	Spec     Spec   `json:"spec"`
}

// recordMax bounds the bytes of a Record: two Specs and what is around them.
const recordMax = 2*SpecMax + 4<<10

// ParseRecord reads a Record. What a later version of sigmaOS has added is ignored.
func ParseRecord(b []byte) (r Record, err error) {
	if len(b) > recordMax {
		return r, tooBig("the record of a fleet has %d bytes", len(b))
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, wrong("the record of a fleet cannot be read: %s", reasonOf(err))
	}
	if r.Revision == 0 || r.Generation == 0 || r.Highest < r.Revision {
		return Record{}, wrong("the record of a fleet has no revision")
	}
	if r.Stable != nil {
		if err := r.Stable.Spec.Check(); err != nil {
			return Record{}, err
		}
	}
	return r, r.Spec.Check()
}

// State is where a member is in its life.
type State string

// The states, in order.
const (
	Wanted   State = "wanted"   // it is being spawned
	Starting State = "starting" // its proc exists
	Ready    State = "ready"    // it is published, and serves
	Draining State = "draining" // it was asked to go, takes nothing new and ends what it has
	Gone     State = "gone"
)

// Load is what a member measures of itself over the time since its last report.
type Load struct {
	Busy     float64       `json:"busy"`      // share of the time in which at least one request was served
	InFlight float64       `json:"in_flight"` // requests at a time, in the mean
	QueueAge time.Duration `json:"queue_age_ns,omitempty"`
	CPU      float64       `json:"cpu"`    // cores used
	Served   uint64        `json:"served"` // requests since its start
	Failed   uint64        `json:"failed"` // of these
}

// Member is one member as the coordinator knows it.
type Member struct {
	Proc     sigma.ProcID    `json:"proc"`
	Machine  sigma.MachineID `json:"machine,omitempty"`
	Revision uint64          `json:"revision"`
	State    State           `json:"state"`
	Since    time.Time       `json:"since"` // of the state
	Load     Load            `json:"load"`
	Rate     float64         `json:"rate"` // requests a second, by its last two reports
	Why      string          `json:"why,omitempty"`
}

// Status is a fleet as it is.
type Status struct {
	Name       string    `json:"name"`
	Generation uint64    `json:"generation"`
	Revision   uint64    `json:"revision"`
	Old        uint64    `json:"old_revision,omitempty"` // that members are being replaced of
	Phase      string    `json:"phase"`                  // "steady", "canary", "rolling", "removing"
	Want       int       `json:"want"`
	Ready      int       `json:"ready"`
	Starting   int       `json:"starting"`
	Draining   int       `json:"draining"`
	Least      int       `json:"least"`
	Most       int       `json:"most"`
	Busy       float64   `json:"busy"` // mean of the ready members
	Rate       float64   `json:"rate"` // requests a second of all
	Failed     uint64    `json:"failed"`
	Choice     string    `json:"choice"`
	At         time.Time `json:"at"`
	Members    []Member  `json:"members,omitempty"` // in the order of their start
}

// Decision is one decision of the coordinator, in the form of all decisions of the system: when,
// who, what, why with numbers.
type Decision struct {
	Seq     uint64             `json:"seq"`
	Time    time.Time          `json:"time"`
	By      string             `json:"by"` // the proc that coordinates
	Fleet   string             `json:"fleet"`
	Reason  string             `json:"reason"`            // one of the Reasons
	Why     string             `json:"why"`               // for people
	Machine sigma.MachineID    `json:"machine,omitempty"` // that ReasonNear is about
	Numbers map[string]float64 `json:"numbers,omitempty"`
}

// The reasons of decisions.
const (
	ReasonApplied  = "applied"  // a user changed the description
	ReasonGrow     = "grow"     // more members by load, schedule or bounds
	ReasonShrink   = "shrink"   // fewer
	ReasonBack     = "back"     // a growth brought nothing and was taken back
	ReasonWanted   = "wanted"   // somebody dialled the empty fleet
	ReasonReplace  = "replace"  // a member ended or failed its check
	ReasonPause    = "pause"    // members fail one after another, and are started more slowly
	ReasonRoll     = "roll"     // members are replaced by a new revision
	ReasonCanary   = "canary"   // the first of a new revision serve
	ReasonRolled   = "rolled"   // all members are of the new revision
	ReasonUndone   = "undone"   // the new revision was taken back
	ReasonSurplus  = "surplus"  // a member too many was asked to go
	ReasonTakeOver = "takeover" // another coordinator leads
	ReasonNear     = "near"     // members are started near what they talk with, or had no room there
	ReasonRemoved  = "removed"
)

// Next is the record after a new description: members are replaced if they have to be.
func (r Record) Next(s Spec, now time.Time, by, what string) Record {
	if !r.Spec.SameMembers(&s) {
		r = r.renewed()
	}
	r.Generation++
	r.Spec, r.At, r.By, r.What = s, now, by, what
	return r
}

// Rolled is the record after it was asked for new members of the same description.
func (r Record) Rolled(now time.Time, by string) Record {
	r = r.renewed()
	r.Generation++
	r.At, r.By, r.What = now, by, "rolled"
	return r
}

// renewed begins a new revision. What is stable stays so until the new one has taken its place.
func (r Record) renewed() Record {
	if r.Stable == nil {
		r.Stable = &Stable{r.Revision, r.Spec}
	}
	r.Highest++
	r.Revision, r.Passed, r.Undone = r.Highest, false, 0
	return r
}
