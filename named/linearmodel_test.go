package named

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history is of pairs of names. Operations touch the names of one pair only, so each pair is checked alone; a rename goes from one name of a pair to the other.

type linearDo uint8

const (
	linearGet linearDo = iota
	linearMake
	linearOpen // is linearMake by Create, which does not tell the version
	linearPut
	linearPutAt // at a version
	linearAppend
	linearRemove
	linearRename
	linearEnd // of the history, by which the checker sees that there is no more to come
)

func (d linearDo) String() string {
	return [...]string{"get", "make", "create", "put", "put at", "append", "remove", "rename", "end"}[d]
}

type linearIn struct {
	do      linearDo
	pair    int
	name    uint8 // 0 or 1; rename goes from it to the other
	data    string
	version uint64
}

type linearResult uint8

const (
	linearOK     linearResult = iota
	linearLost                // it is not known, nor ever will be, whether the operation took effect
	linearNone                // there is no such name
	linearExists              // there is
	linearOther               // it is at another version
)

func (r linearResult) String() string {
	return [...]string{"ok", "lost", "not found", "exists", "version"}[r]
}

type linearOut struct {
	result  linearResult
	data    string
	version uint64 // 0 = not told
}

// linearFile is what a name has.
type linearFile struct {
	there   bool
	data    string
	version uint64 // 0 = nobody was told yet
	floor   uint64 // the version is more than that
}

// linearState is a pair of names.
type linearState struct {
	files [2]linearFile
	most  uint64 // of all versions told so far
	over  bool   // all operations that returned are done
}

// linearStep is what may happen. A lost operation has no return in the history, so that it may also come after the end, which is as good as never. Before that it is not looked for where it would change nothing: that
// saves the checker most of its work.
func linearStep(s linearState, in linearIn, out linearOut) (bool, linearState) {
	switch {
	case s.over:
		return out.result == linearLost, s
	case in.do == linearEnd:
		return true, linearState{over: true}
	}
	ok, next := linearApply(s, in, out)
	return ok && (out.result != linearLost || next != s), next
}

func linearApply(s linearState, in linearIn, out linearOut) (bool, linearState) {
	f, lost := &s.files[in.name], out.result == linearLost
	none := func() (bool, linearState) { return lost || out.result == linearNone, s }
	switch in.do {
	case linearGet:
		return s.get(in.name, out)
	case linearRemove:
		if !f.there {
			return none()
		}
		*f = linearFile{}
		return lost || out.result == linearOK, s
	case linearRename:
		if !f.there {
			return none()
		}
		s.files[1-in.name], *f = *f, linearFile{}
		return lost || out.result == linearOK, s
	case linearMake, linearOpen:
		if f.there {
			return lost || out.result == linearExists, s
		}
		return s.put(f, in.data, out)
	case linearPutAt:
		// A version that nobody was told of is none that anybody asks for.
		if !f.there || f.version != in.version {
			return lost || out.result == linearOther, s
		}
		return s.put(f, in.data, out)
	case linearAppend:
		return s.put(f, f.data+in.data, out)
	default:
		return s.put(f, in.data, out)
	}
}

func (s linearState) get(name uint8, out linearOut) (bool, linearState) {
	f := &s.files[name]
	switch {
	case !f.there:
		return out.result == linearNone, s
	case out.result != linearOK || out.data != f.data || f.version != 0 && f.version != out.version || out.version <= f.floor:
		return false, s
	}
	f.version, f.floor = out.version, 0
	s.most = max(s.most, out.version)
	return true, s
}

func (s *linearState) put(f *linearFile, data string, out linearOut) (bool, linearState) {
	*f = linearFile{there: true, data: data, version: out.version, floor: s.most}
	if out.version != 0 {
		f.floor = 0
		if out.version <= s.most {
			return false, *s
		}
		s.most = out.version
	}
	return out.result == linearOK || out.result == linearLost, *s
}

var linearModel = porcupine.Model{
	Init: func() any { return linearState{} },
	Step: func(state, in, out any) (bool, any) {
		return linearStep(state.(linearState), in.(linearIn), out.(linearOut))
	},
	DescribeOperation: func(in, out any) string { return describeLinear(in.(linearIn), out.(linearOut)) },
	DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
}

func describeLinear(i linearIn, o linearOut) string {
	return fmt.Sprintf("%v %d%c %q @%d: %v %q @%d", i.do, i.pair, 'a'+i.name, i.data, i.version, o.result, o.data, o.version)
}

// checkLinear says whether one pair's history can be.
func checkLinear(ops []porcupine.Operation, most time.Duration) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	end := int64(0)
	for _, o := range ops {
		if end = max(end, o.Call); o.Return != math.MaxInt64 {
			end = max(end, o.Return)
		}
	}
	ops = append(slices.Clone(ops), porcupine.Operation{Input: linearIn{do: linearEnd}, Call: end + 1, Output: linearOut{}, Return: end + 2})
	return porcupine.CheckOperationsVerbose(linearModel, ops, most)
}

// TestLinearModel shows that histories that cannot be are told from those that can.
func TestLinearModel(t *testing.T) {
	never := int64(math.MaxInt64)
	at := func(call, ret int64, in linearIn, out linearOut) porcupine.Operation {
		return porcupine.Operation{Input: in, Call: call, Output: out, Return: ret}
	}
	put, get := linearIn{do: linearPut, data: "x"}, linearIn{do: linearGet}
	made := at(0, 1, linearIn{do: linearMake, data: "y"}, linearOut{version: 5})
	lost := at(2, never, put, linearOut{result: linearLost})
	ok := func(data string, version uint64) linearOut { return linearOut{data: data, version: version} }
	for name, c := range map[string]struct {
		ops  []porcupine.Operation
		want bool
	}{
		"seen":                    {[]porcupine.Operation{made, at(2, 3, get, ok("y", 5))}, true},
		"stale":                   {[]porcupine.Operation{made, at(2, 3, put, ok("", 6)), at(4, 5, get, ok("y", 5))}, false},
		"concurrent":              {[]porcupine.Operation{made, at(2, 5, put, ok("", 6)), at(3, 4, get, ok("y", 5))}, true},
		"lost and never seen":     {[]porcupine.Operation{made, lost, at(4, 5, get, ok("y", 5))}, true},
		"lost and seen":           {[]porcupine.Operation{made, lost, at(4, 5, get, ok("y", 5)), at(6, 7, get, ok("x", 6))}, true},
		"lost and taken back":     {[]porcupine.Operation{made, lost, at(4, 5, get, ok("x", 6)), at(6, 7, get, ok("y", 5))}, false},
		"seen at two versions":    {[]porcupine.Operation{made, lost, at(4, 5, get, ok("x", 6)), at(6, 7, get, ok("x", 7))}, false},
		"made twice":              {[]porcupine.Operation{made, at(2, 3, made.Input.(linearIn), ok("", 6))}, false},
		"appended twice":          {[]porcupine.Operation{made, at(2, 3, linearIn{do: linearAppend, data: "z"}, ok("", 6)), at(4, 5, get, ok("yzz", 6))}, false},
		"at an old version":       {[]porcupine.Operation{made, at(2, 3, put, ok("", 6)), at(4, 5, linearIn{do: linearPutAt, version: 5}, ok("", 7))}, false},
		"moved":                   {[]porcupine.Operation{made, at(2, 3, linearIn{do: linearRename}, linearOut{}), at(4, 5, linearIn{do: linearGet, name: 1}, ok("y", 5)), at(4, 5, get, linearOut{result: linearNone})}, true},
		"there twice":             {[]porcupine.Operation{made, at(2, 3, linearIn{do: linearRename}, linearOut{}), at(4, 5, get, ok("y", 5))}, false},
		"removed for two callers": {[]porcupine.Operation{made, at(2, 3, linearIn{do: linearRemove}, linearOut{}), at(2, 3, linearIn{do: linearRemove}, linearOut{})}, false},
		"a version falls":         {[]porcupine.Operation{made, at(2, 3, put, ok("", 4))}, false},
	} {
		if got, _ := checkLinear(c.ops, 0); (got == porcupine.Ok) != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// printLinear is a pair's history in order of calls, for who looks for the cause.
func printLinear(ops []porcupine.Operation) string {
	var b strings.Builder
	for _, o := range ops {
		ret := "never"
		if o.Return != math.MaxInt64 {
			ret = fmt.Sprintf("%.3f", float64(o.Return)/1e6)
		}
		fmt.Fprintf(&b, "%d: %.3f to %s ms: %s\n", o.ClientId, float64(o.Call)/1e6, ret, describeLinear(o.Input.(linearIn), o.Output.(linearOut)))
	}
	return b.String()
}
