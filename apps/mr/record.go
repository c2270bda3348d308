package mr

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"sigmaos.dev/sigma"
)

// record is a small file of the job's state: lines of a key and a value, so that sigma cat shows it
// to people. Values that are text are quoted as Go does.
type record map[string]string

// encodeRecord prints keys and values in the given order.
func encodeRecord(pairs ...any) []byte {
	var b bytes.Buffer
	for i := 0; i+1 < len(pairs); i += 2 {
		switch v := pairs[i+1].(type) {
		case string:
			fmt.Fprintf(&b, "%s %q\n", pairs[i], v)
		default:
			fmt.Fprintf(&b, "%s %v\n", pairs[i], v)
		}
	}
	return b.Bytes()
}

func parseRecord(data []byte) record {
	r := record{}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		r[key] = value
	}
	return r
}

// number reads a number, 0 if there is none.
func (r record) number(key string) int64 {
	n, _ := strconv.ParseInt(r[key], 10, 64)
	return n
}

// text reads a text, "" if there is none.
func (r record) text(key string) string {
	s, err := strconv.Unquote(r[key])
	if err != nil {
		return r[key]
	}
	return s
}

// counters is what was counted: by one map, or by a job.
type counters struct {
	Files   int64 // splits, to be exact: a file of several counts several times
	Bytes   int64 // of input
	Records int64 // that were emitted, equal ones too

	Machine sigma.MachineID // where one map ran
}

// Add adds what another counted, wherever.
func (c *counters) Add(o counters) {
	c.Files += o.Files
	c.Bytes += o.Bytes
	c.Records += o.Records
}

func (c counters) encode() []byte {
	return encodeRecord("files", c.Files, "bytes", c.Bytes, "records", c.Records, "machine", string(c.Machine))
}

func decodeCounters(data []byte) counters {
	r := parseRecord(data)
	return counters{Files: r.number("files"), Bytes: r.number("bytes"), Records: r.number("records"),
		Machine: sigma.MachineID(r.text("machine"))}
}

// redo is the Status.Data of a reducer that cannot read what a map published.
type redo struct {
	Map    int
	Target string // of the link that led to it, so that only that attempt is withdrawn
}

func (r redo) encode() []byte { return encodeRecord("redo", r.Map, "target", r.Target) }

func decodeRedo(data []byte) (redo, bool) {
	r := parseRecord(data)
	_, ok := r["redo"]
	return redo{Map: int(r.number("redo")), Target: r.text("target")}, ok
}

// permanent marks errors of the input that another attempt would meet again.
const permanent = "permanent\n"

// lasting reports whether an error of an input file will be there at the next attempt too.
func lasting(err error) bool {
	switch sigma.KindOf(err) {
	case sigma.KindNotFound, sigma.KindPermission, sigma.KindIsDir, sigma.KindNotDir, sigma.KindInvalid,
		sigma.KindTooBig, sigma.KindLoop:
		return true
	}
	return false
}
