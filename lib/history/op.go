package history

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"sigmaos.dev/sigma"
)

// Limits of a history. What is larger is refused with KindTooBig.
const (
	// TextMax is the size of a key or value in bytes. Digest shortens what is larger.
	TextMax = 4 << 10
	// OpsMax is the number of operations, and that of faults.
	OpsMax = 1 << 20
	// timeMax is the latest time: the year 2116, if times begin in 1970.
	timeMax = 1 << 62
	// lineMax is the size of a line in bytes: four texts, of which JSON may escape each byte.
	lineMax = 4*6*TextMax + 4<<10
)

// Kind is what an operation does.
type Kind string

// The operations.
const (
	Get      Kind = "get"
	Put      Kind = "put"
	Delete   Kind = "delete"
	CAS      Kind = "cas"       // put, if the key is at IfVersion; 0 = if there is no such key
	CASValue Kind = "cas-value" // put, if the key's value is IfValue
)

// Result is how an operation ended.
type Result string

// The results.
const (
	OK       Result = "ok"       // it happened; a get or delete found its key
	Absent   Result = "absent"   // there was no such key; not of a put
	Mismatch Result = "mismatch" // the key was not as a cas asked
	Failed   Result = "failed"   // it did not happen, and tells nothing of the key
	Unknown  Result = "unknown"  // it may have happened, or may yet
)

// results are those that an operation may have besides Failed and Unknown.
var results = map[Kind][]Result{Get: {OK, Absent}, Put: {OK}, Delete: {OK, Absent}, CAS: {OK, Absent, Mismatch},
	CASValue: {OK, Absent, Mismatch}}

// Text is a key or a value, of any bytes. Its JSON is a string, or {"base64": "..."} if it is not
// UTF-8.
type Text string

type rawText struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(rawText{[]byte(t)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var raw rawText
		err := json.Unmarshal(b, &raw)
		*t = Text(raw.Base64)
		return err
	}
	return json.Unmarshal(b, (*string)(t))
}

func (t Text) String() string {
	if utf8.ValidString(string(t)) {
		return fmt.Sprintf("%q", string(t))
	}
	return "base64:" + base64.StdEncoding.EncodeToString([]byte(t))
}

// Op is an operation and its answer: a line of a history.
type Op struct {
	Client    int    `json:"client"` // any number >= 0
	Kind      Kind   `json:"op"`
	Key       Text   `json:"key,omitempty"`
	In        Text   `json:"in,omitempty"`         // the value that a put or cas writes
	IfVersion uint64 `json:"if_version,omitempty"` // of CAS
	IfValue   Text   `json:"if_value,omitempty"`   // of CASValue
	Result    Result `json:"result"`
	Out       Text   `json:"out,omitempty"`     // the value that a get found
	Version   uint64 `json:"version,omitempty"` // of the key after the operation; 0 = not told
	Call      int64  `json:"call"`              // nanoseconds
	Return    int64  `json:"return,omitempty"`  // nanoseconds; ignored if the result is unknown
	Note      string `json:"note,omitempty"`    // anything; not looked at
}

// Fault is something that was done to the system meanwhile, such as by sigma chaos: a line too. It
// is shown beside a violation and decides nothing.
type Fault struct {
	Fault  string `json:"fault"`  // what: "kill", "pause"
	Target string `json:"target"` // to whom
	Proc   string `json:"proc,omitempty"`
	At     int64  `json:"at"`              // nanoseconds, of the operations' clock
	Until  int64  `json:"until,omitempty"` // 0 = it was over at once
	Error  string `json:"error,omitempty"` // why it could not be done
}

// History is what was recorded, in any order.
type History struct {
	Ops    []Op
	Faults []Fault
}

// check finds what no operation has.
func (o *Op) check() error {
	allowed, known := results[o.Kind]
	switch {
	case !known:
		return invalid("%.40q is no operation", "one of get, put, delete, cas, cas-value", o.Kind)
	case o.Result != Failed && o.Result != Unknown && !slices.Contains(allowed, o.Result):
		return invalid("%.40q is no result of a %s", "one of "+list(allowed)+", failed, unknown", o.Result,
			o.Kind)
	case o.Client < 0:
		return invalid("the client is %d", "clients are numbered from 0", o.Client)
	case min(o.Call, o.Return) < 0 || max(o.Call, o.Return) > timeMax:
		return invalid("%d is no time", "times are nanoseconds of one clock, from 0", min(o.Call, o.Return))
	case o.Result != Unknown && o.Return < o.Call:
		return invalid("it returned at %d, before its call at %d", "times are nanoseconds of one clock", o.Return,
			o.Call)
	}
	for _, t := range []Text{o.Key, o.In, o.IfValue, o.Out} {
		if len(t) > TextMax {
			return &sigma.Error{Op: "history.Decode", Kind: sigma.KindTooBig,
				Msg:  fmt.Sprintf("a key or value has %d bytes; the most are %d", len(t), TextMax),
				Hint: "record a digest in place of a long value"}
		}
	}
	return nil
}

func invalid(format, hint string, args ...any) error {
	return &sigma.Error{Op: "history.Decode", Kind: sigma.KindInvalid, Msg: fmt.Sprintf(format, args...), Hint: hint}
}

// line has the fields of an operation and of a fault. It is one of them.
type line struct {
	Op
	Fault
}

// parseLine adds a line to a history.
func (h *History) parseLine(b []byte) error {
	var l line
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return invalid("%v", "a line is a JSON object; docs/reference/toolkit/history.md has its fields", err)
	}
	if rest, err := io.ReadAll(d.Buffered()); err != nil || len(bytes.TrimSpace(rest)) > 0 {
		return invalid("there is more after the object", "one object a line")
	}
	if len(h.Ops) >= OpsMax || len(h.Faults) >= OpsMax {
		return &sigma.Error{Op: "history.Decode", Kind: sigma.KindTooBig,
			Msg: fmt.Sprintf("there are more than %d operations", OpsMax), Hint: "record for a shorter time"}
	}
	if l.Fault.Fault != "" {
		h.Faults = append(h.Faults, l.Fault)
		return nil
	}
	if err := l.Op.check(); err != nil {
		return err
	}
	h.Ops = append(h.Ops, l.Op)
	return nil
}

// Decode reads lines of operations and faults. Empty lines are skipped. An error names the line.
func Decode(r io.Reader) (*History, error) {
	h := &History{}
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), lineMax)
	n := 0
	for s.Scan() {
		n++
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		if err := h.parseLine(s.Bytes()); err != nil {
			return nil, sigma.Wrap("history.Decode", fmt.Sprintf("line %d", n), err)
		}
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		return nil, sigma.Wrap("history.Decode", fmt.Sprintf("line %d", n+1), &sigma.Error{Kind: sigma.KindTooBig,
			Msg: fmt.Sprintf("it has more than %d bytes", lineMax), Hint: "record a digest in place of a long value"})
	}
	return h, sigma.Wrap("history.Decode", "", s.Err())
}

// Encode is an operation as a line, with its newline.
func (o *Op) Encode() ([]byte, error) {
	b, err := json.Marshal(o)
	return append(b, '\n'), sigma.Wrap("history.Encode", "", err)
}
