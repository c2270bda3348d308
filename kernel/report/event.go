package report

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// Event is a line of /sys/events, and what "sigma events --json" prints: something that happened.
type Event struct {
	Seq     uint64    `json:"seq"` // of the machine that tells it; they grow
	Time    time.Time `json:"time"`
	At      string    `json:"at"` // the machine that tells it, whose clock the time is of
	Event   string    `json:"event"`
	Realm   string    `json:"realm,omitempty"`
	Proc    string    `json:"proc,omitempty"`
	Name    string    `json:"name,omitempty"` // of the proc
	Machine string    `json:"machine,omitempty"`
	Daemon  string    `json:"daemon,omitempty"`
	Message string    `json:"message,omitempty"`
}

// What happens.
const (
	EventProcStarted        = "proc.started"
	EventProcEnded          = "proc.ended"
	EventReservationRefused = "reservation.refused"
	EventRealmCreated       = "realm.created"
	EventRealmRemoved       = "realm.removed"
	EventMachineJoined      = "machine.joined"
	EventMachineLost        = "machine.lost"
	EventMachineLeft        = "machine.left" // it was stopped, and said so
	EventMachineDrained     = "machine.drained"
	EventMachineCordoned    = "machine.cordoned"
	EventMachineUncordoned  = "machine.uncordoned"
	EventMachineRemoved     = "machine.removed"
	EventDaemonEnded        = "daemon.ended"
	EventDaemonStarted      = "daemon.started"
	EventGap                = "gap" // some that were asked for are not remembered
)

// Events are the names of all events.
var Events = []string{EventProcStarted, EventProcEnded, EventReservationRefused, EventRealmCreated, EventRealmRemoved,
	EventMachineJoined, EventMachineLost, EventMachineLeft,
	EventMachineDrained, EventMachineCordoned, EventMachineUncordoned, EventMachineRemoved, EventDaemonEnded,
	EventDaemonStarted, EventGap}

// Cursor is how far somebody has read the events of each machine: the number of the latest, by
// machine.
type Cursor map[string]uint64

// cursorMax bounds the text of a cursor.
const cursorMax = 48 << 10

// String is the cursor's text: MACHINE:NUMBER, with commas between them.
func (c Cursor) String() string {
	var words []string
	for _, m := range slices.Sorted(maps.Keys(c)) {
		words = append(words, fmt.Sprintf("%s:%d", m, c[m]))
	}
	return strings.Join(words, ",")
}

// ParseCursor reads what String gives; "" is the beginning.
func ParseCursor(text string) (Cursor, error) {
	c := Cursor{}
	wrong := &sigma.Error{Op: "report.ParseCursor", Kind: sigma.KindInvalid,
		Msg:  fmt.Sprintf("%.80q is no position in events", text),
		Hint: "it is made of MACHINE:NUMBER, with commas between them; leave it out to begin with the oldest"}
	if len(text) > cursorMax {
		return nil, wrong
	}
	if text = strings.TrimSpace(text); text == "" {
		return c, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		m, number, ok := strings.Cut(word, ":")
		n, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil || sigma.MachineID(m).Check() != nil {
			return nil, wrong
		}
		c[m] = n
	}
	return c, nil
}
