// Package linear is the model by which tests check that operations on names have one order, in
// which each stands between its call and its answer. Tests of named and of whole systems use it.
package linear

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history is of pairs of names. Operations touch the names of one pair only, so each pair is
// checked alone; a rename goes from one name of a pair to the other.

// Do is what an operation does.
type Do uint8

// The operations.
const (
	Get Do = iota
	Make
	Create // is Make by Create, which does not tell the version
	Put
	PutAt // at a version
	Append
	Remove
	Rename
	end // of the history, by which the checker sees that there is no more to come
)

func (d Do) String() string {
	return [...]string{"get", "make", "create", "put", "put at", "append", "remove", "rename", "end"}[d]
}

// In is an operation.
type In struct {
	Do      Do
	Pair    int
	Name    uint8 // 0 or 1; Rename goes from it to the other
	Data    string
	Version uint64 // of PutAt
}

// Result is how it ended.
type Result uint8

// The results.
const (
	OK     Result = iota
	Lost          // it is not known, nor ever will be, whether the operation took effect
	None          // there is no such name
	Exists        // there is
	Other         // it is at another version
)

func (r Result) String() string {
	return [...]string{"ok", "lost", "not found", "exists", "version"}[r]
}

// Out is its answer.
type Out struct {
	Result  Result
	Data    string
	Version uint64 // 0 = not told
}

// file is what a name has.
type file struct {
	there   bool
	data    string
	version uint64 // 0 = nobody was told yet
	floor   uint64 // the version is more than that
}

// state is a pair of names.
type state struct {
	files [2]file
	most  uint64 // of all versions told so far
	over  bool   // all operations that returned are done
}

// step is what may happen. A lost operation has no return in the history, so that it may also come
// after the end, which is as good as never. Before that it is not looked for where it would change
// nothing: that saves the checker most of its work.
func step(s state, in In, out Out) (bool, state) {
	switch {
	case s.over:
		return out.Result == Lost, s
	case in.Do == end:
		return true, state{over: true}
	}
	ok, next := apply(s, in, out)
	return ok && (out.Result != Lost || next != s), next
}

func apply(s state, in In, out Out) (bool, state) {
	f, lost := &s.files[in.Name], out.Result == Lost
	none := func() (bool, state) { return lost || out.Result == None, s }
	switch in.Do {
	case Get:
		return s.get(in.Name, out)
	case Remove:
		if !f.there {
			return none()
		}
		*f = file{}
		return lost || out.Result == OK, s
	case Rename:
		if !f.there {
			return none()
		}
		s.files[1-in.Name], *f = *f, file{}
		return lost || out.Result == OK, s
	case Make, Create:
		if f.there {
			return lost || out.Result == Exists, s
		}
		return s.put(f, in.Data, out)
	case PutAt:
		// A version that nobody was told of is none that anybody asks for.
		if !f.there || f.version != in.Version {
			return lost || out.Result == Other, s
		}
		return s.put(f, in.Data, out)
	case Append:
		return s.put(f, f.data+in.Data, out)
	default:
		return s.put(f, in.Data, out)
	}
}

func (s state) get(name uint8, out Out) (bool, state) {
	f := &s.files[name]
	switch {
	case !f.there:
		return out.Result == None, s
	case out.Result != OK || out.Data != f.data || f.version != 0 && f.version != out.Version || out.Version <= f.floor:
		return false, s
	}
	f.version, f.floor = out.Version, 0
	s.most = max(s.most, out.Version)
	return true, s
}

func (s *state) put(f *file, data string, out Out) (bool, state) {
	*f = file{there: true, data: data, version: out.Version, floor: s.most}
	if out.Version != 0 {
		f.floor = 0
		if out.Version <= s.most {
			return false, *s
		}
		s.most = out.Version
	}
	return out.Result == OK || out.Result == Lost, *s
}

func model() porcupine.Model {
	return porcupine.Model{
		Init:              func() any { return state{} },
		Step:              func(at, in, out any) (bool, any) { return step(at.(state), in.(In), out.(Out)) },
		DescribeOperation: func(in, out any) string { return Describe(in.(In), out.(Out)) },
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
	}
}

// Describe is one operation and its answer as a line.
func Describe(i In, o Out) string {
	return fmt.Sprintf("%v %d%c %q @%d: %v %q @%d", i.Do, i.Pair, 'a'+i.Name, i.Data, i.Version, o.Result, o.Data,
		o.Version)
}

// Check says whether one pair's history can be.
func Check(ops []porcupine.Operation, most time.Duration) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	last := int64(0)
	for _, o := range ops {
		if last = max(last, o.Call); o.Return != math.MaxInt64 {
			last = max(last, o.Return)
		}
	}
	ops = append(slices.Clone(ops), porcupine.Operation{Input: In{Do: end}, Call: last + 1, Output: Out{},
		Return: last + 2})
	return porcupine.CheckOperationsVerbose(model(), ops, most)
}

// Print is a pair's history in order of calls, for who looks for the cause.
func Print(ops []porcupine.Operation) string {
	var b strings.Builder
	for _, o := range ops {
		ret := "never"
		if o.Return != math.MaxInt64 {
			ret = fmt.Sprintf("%.3f", float64(o.Return)/1e6)
		}
		fmt.Fprintf(&b, "%d: %.3f to %s ms: %s\n", o.ClientId, float64(o.Call)/1e6, ret,
			Describe(o.Input.(In), o.Output.(Out)))
	}
	return b.String()
}
