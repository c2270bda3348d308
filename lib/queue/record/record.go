package record

import (
	"encoding/binary"

	"sigmaos.dev/sigma"
)

// Kind says what a record changes.
type Kind uint8

// The kinds of records. Their numbers are in logs and do not change.
const (
	Submitted Kind = 1 + iota // tasks of one request are entered
	Acquired                  // tasks are held, each with its next attempt
	Ended                     // holds end: with a result, for another attempt, or for good
	Forgotten                 // outcomes up to a sequence number are not kept any more
	Revived                   // dead tasks wait again
	Dropped                   // dead tasks are forgotten
	Counters                  // of a snapshot: the first record
	Submitter                 // of a snapshot: a submitter and its requests
	Whole                     // of a snapshot: one task as it is
	kindEnd
)

// Record is one change of a queue, as its log has it. Which fields count is decided by the kind.
type Record struct {
	Kind   Kind
	Client string
	Seq    uint64 // of the request; of forgotten: the last outcome; of counters: the next outcome
	Oldest uint64 // the client's oldest request under way; of counters: the next id
	Tasks  []Task
	IDs    []uint64
	Ends   []Ending
	Entry  Entry
}

// State is where a task is.
type State uint8

// The states.
const (
	Waiting State = iota
	InHand
	Finished
	Buried
	StateEnd
)

// Entry is a task in the queue.
type Entry struct {
	Task
	Result // the id and latest attempt; the result once it is done; Failed says why the last attempt failed
	State  State
	Tries  uint64 // attempts since it was entered or revived
	Seq    uint64 // of its outcome; 0 = none is kept
}

// Cost is what an entry takes of a queue's bytes.
func (e *Entry) Cost() int {
	return EntryCost + len(e.Key) + len(e.Task.Data) + len(e.Result.Data) + len(e.Failed)
}

// EntryCost is what an entry takes in memory besides its bytes.
const EntryCost = 200

// HoldCost bounds what a hold, a result or an ending takes besides its bytes.
const HoldCost = 32

// Ending is how a hold ends.
type Ending struct {
	Result
	How State // waiting (for another attempt), done or dead
}

// Code reads or writes r.
func (r *Record) Code(c *Coder) {
	c.Byte((*uint8)(&r.Kind))
	switch r.Kind {
	case Submitted:
		c.Text(&r.Client)
		c.Uint(&r.Seq)
		c.Uint(&r.Oldest)
		List(c, &r.Tasks, (*Coder).Task)
	case Acquired, Revived, Dropped:
		List(c, &r.IDs, (*Coder).Uint)
	case Ended:
		List(c, &r.Ends, func(c *Coder, e *Ending) {
			c.Result(&e.Result)
			if c.State(&e.How); e.How == InHand { // an attempt does not end in being held
				c.Fail()
			}
		})
	case Forgotten:
		c.Uint(&r.Seq)
	case Counters:
		c.Uint(&r.Seq)
		c.Uint(&r.Oldest)
	case Submitter:
		c.Text(&r.Client)
		c.Uint(&r.Seq)
		c.Uint(&r.Oldest)
		List(c, &r.IDs, (*Coder).Uint)
	case Whole:
		c.Entry(&r.Entry)
	default:
		c.Bad = true
	}
}

// Decode calls apply for each record of b. Bytes that are no records are KindInvalid.
func Decode(b []byte, apply func(*Record)) error {
	for c := (&Coder{B: b, Reading: true}); len(c.B) > 0; {
		var r Record
		if r.Code(c); c.Bad {
			return &sigma.Error{Op: "record.Decode", Kind: sigma.KindInvalid, Msg: "the log has what is no record",
				Hint: "the directory of a queue is written by its servers only: restore it from a snapshot of the names"}
		}
		apply(&r)
	}
	return nil
}

// Coder reads or writes values, by the same calls in the same order. What it cannot read makes it
// bad, and all that is read after that is zero.
type Coder struct {
	B       []byte // what is left to read, or what was written
	Reading bool
	Bad     bool
}

// State codes a state. A number that is no state fails the decoding.
func (c *Coder) State(s *State) {
	if c.Byte((*uint8)(s)); *s >= StateEnd {
		*s = Waiting
		c.Fail()
	}
}

func (c *Coder) Byte(v *uint8) {
	if !c.Reading {
		c.B = append(c.B, *v)
		return
	}
	*v = 0
	if len(c.B) == 0 {
		c.Fail()
		return
	}
	*v, c.B = c.B[0], c.B[1:]
}

func (c *Coder) Uint(v *uint64) {
	if !c.Reading {
		c.B = binary.AppendUvarint(c.B, *v)
		return
	}
	x, n := binary.Uvarint(c.B)
	if n <= 0 {
		*v = 0
		c.Fail()
		return
	}
	*v, c.B = x, c.B[n:]
}

func (c *Coder) Bytes(v *[]byte) {
	n := uint64(len(*v))
	c.Uint(&n)
	switch {
	case !c.Reading:
		c.B = append(c.B, *v...)
	case n > uint64(len(c.B)):
		c.Fail()
	default:
		*v, c.B = append([]byte(nil), c.B[:n]...), c.B[n:]
	}
}

func (c *Coder) Text(v *string) {
	b := []byte(*v)
	c.Bytes(&b)
	*v = string(b)
}

// Fail makes c bad.
func (c *Coder) Fail() { c.B, c.Bad = nil, true }

func (c *Coder) Task(t *Task) {
	c.Text(&t.Key)
	c.Bytes(&t.Data)
}

func (c *Coder) Hold(h *Hold) {
	c.Uint(&h.ID)
	c.Uint(&h.Attempt)
}

func (c *Coder) Result(r *Result) {
	c.Hold(&r.Hold)
	c.Bytes(&r.Data)
	c.Text(&r.Failed)
}

func (c *Coder) Held(h *Held) {
	c.Hold(&h.Hold)
	c.Task(&h.Task)
}

func (c *Coder) Dead(d *Dead) {
	c.Held(&d.Held)
	c.Text(&d.Failed)
}

func (c *Coder) Outcome(o *Outcome) {
	c.Uint(&o.Seq)
	c.Text(&o.Key)
	c.Result(&o.Result)
}

func (c *Coder) Entry(e *Entry) {
	c.Task(&e.Task)
	c.Result(&e.Result)
	c.State(&e.State)
	c.Uint(&e.Tries)
	c.Uint(&e.Seq)
}

// list reads or writes a list. Each element takes at least one byte, which bounds what is made.
func List[T any](c *Coder, l *[]T, each func(*Coder, *T)) {
	n := uint64(len(*l))
	c.Uint(&n)
	if c.Reading {
		if n > uint64(len(c.B)) {
			c.Fail()
			return
		}
		*l = make([]T, 0, min(n, listAhead))
		for range n {
			var v T
			if each(c, &v); c.Bad {
				return
			}
			*l = append(*l, v)
		}
		return
	}
	for i := range *l {
		each(c, &(*l)[i])
	}
}

// listAhead bounds the elements for which room is made before they are read.
const listAhead = 1024
