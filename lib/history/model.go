package history

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"sigmaos.dev/sigma"
)

// Model is what a key is to do.
type Model struct {
	name  string
	kinds []Kind
	empty bool // a key that was never written is the same as one with an empty value
}

// The models.
var (
	// Register is a value that is empty at first: get, put, cas-value.
	Register = Model{"register", []Kind{Get, Put, CASValue}, true}
	// KV is a key of a store, which is not there at first: all operations. A change gives a key a
	// version above those that it had since it was last absent.
	KV = Model{"kv", []Kind{Get, Put, Delete, CAS, CASValue}, false}
)

// ModelOf finds a model by name: "register" or "kv".
func ModelOf(name string) (Model, error) {
	all := map[string]Model{Register.name: Register, KV.name: KV}
	if m, ok := all[name]; ok {
		return m, nil
	}
	return Model{}, &sigma.Error{Op: "history.ModelOf", Kind: sigma.KindInvalid,
		Msg: fmt.Sprintf("%.40q is no model", name), Hint: "kv or register"}
}

// takes says whether the model has an operation.
func (m Model) takes(k Kind) error {
	if slices.Contains(m.kinds, k) {
		return nil
	}
	return &sigma.Error{Op: "history.Check", Kind: sigma.KindInvalid,
		Msg: fmt.Sprintf("the model %s has no operation %s", m.name, k), Hint: "it has: " + list(m.kinds)}
}

// list joins words.
func list[W ~string](words []W) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = string(w)
	}
	return strings.Join(out, ", ")
}

// endKind comes after all operations. An operation with unknown result stands in the history as one
// that never returns. After the end it may take place without effect, so that it need not have
// happened.
const endKind Kind = "end"

// state is a key.
type state struct {
	there   bool
	value   Text
	version uint64 // 0 = not told yet
	floor   uint64 // the version is above it
	over    bool   // the end has come
}

// written is the state after a value was written, at a version or, if that was not told, at 0. It
// may not be if ok is false.
func (s state) written(value Text, version uint64) (next state, ok bool) {
	next = state{there: true, value: value, version: version, floor: max(s.version, s.floor)}
	if version != 0 {
		ok, next.floor = version > next.floor, 0
		return next, ok
	}
	return next, true
}

// matches says whether the key may be as a cas asks.
func (s state) matches(m Model, op *Op) bool {
	switch {
	case op.Kind == CASValue:
		return (s.there || m.empty) && s.value == op.IfValue
	case op.IfVersion == 0:
		return !s.there
	case s.version == 0:
		return s.there && op.IfVersion > s.floor
	}
	return s.there && s.version == op.IfVersion
}

// step says whether an operation may come next with its result, and what the key is then.
func (m Model) step(s state, op *Op) (bool, state) {
	switch {
	case s.over:
		return op.Result == Unknown, s
	case op.Kind == endKind:
		return true, state{over: true}
	case op.Result == Unknown:
		next, happened := m.unknown(s, op)
		return happened && next != s, next // one without effect may wait for the end, which saves most of the search
	case op.Result == Absent:
		return !s.there && (op.Kind == Get || op.Kind == Delete || op.Kind == CASValue || op.IfVersion != 0) &&
			(s.value == "" || !m.empty), s
	case op.Result == Mismatch:
		return m.mismatch(s, op), s
	}
	switch op.Kind {
	case Get:
		return m.found(s, op)
	case Delete:
		return s.there, state{}
	case CAS, CASValue:
		if !s.matches(m, op) {
			return false, s
		}
		if op.Kind == CAS && op.IfVersion != 0 && s.version == 0 {
			s.version = op.IfVersion
		}
	}
	next, ok := s.written(op.In, op.Version)
	return ok, next
}

// unknown is the effect of an operation whose answer did not come.
func (m Model) unknown(s state, op *Op) (next state, happened bool) {
	switch op.Kind {
	case Delete:
		return state{}, s.there
	case CAS, CASValue:
		if !s.matches(m, op) {
			return s, false
		}
	}
	return s.written(op.In, 0)
}

// mismatch says whether a cas may have been refused.
func (m Model) mismatch(s state, op *Op) bool {
	if op.Kind == CAS && op.IfVersion != 0 && s.there && s.version == 0 {
		return true // the version may be any
	}
	return !s.matches(m, op)
}

// found is a get that was told a value.
func (m Model) found(s state, op *Op) (bool, state) {
	switch {
	case !s.there:
		return m.empty && op.Out == "" && op.Version == 0, s
	case op.Out != s.value:
		return false, s
	case op.Version == 0:
		return true, s
	case s.version != 0:
		return s.version == op.Version, s
	}
	ok := op.Version > s.floor
	s.version, s.floor = op.Version, 0
	return ok, s
}

// porcupine is the model as the checker takes it. Input and output of an operation are the same
// *Op.
func (m Model) porcupine() porcupine.Model {
	return porcupine.Model{
		Init:              func() any { return state{} },
		Step:              func(s, op, _ any) (bool, any) { return m.step(s.(state), op.(*Op)) },
		DescribeOperation: func(op, _ any) string { return op.(*Op).String() },
		DescribeState: func(at any) string {
			switch s := at.(state); {
			case s.over:
				return "the end"
			case !s.there:
				return "absent"
			case s.version != 0:
				return fmt.Sprintf("%v @%d", s.value, s.version)
			default:
				return s.value.String()
			}
		},
	}
}
