package linear

import (
	"math"
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestModel shows that histories that cannot be are told from those that can.
func TestModel(t *testing.T) {
	never := int64(math.MaxInt64)
	at := func(call, ret int64, in In, out Out) porcupine.Operation {
		return porcupine.Operation{Input: in, Call: call, Output: out, Return: ret}
	}
	put, get := In{Do: Put, Data: "x"}, In{Do: Get}
	created := at(0, 1, In{Do: Make, Data: "y"}, Out{Version: 5})
	lost := at(2, never, put, Out{Result: Lost})
	ok := func(data string, version uint64) Out { return Out{Data: data, Version: version} }
	for name, c := range map[string]struct {
		ops  []porcupine.Operation
		want bool
	}{
		"seen": {[]porcupine.Operation{created, at(2, 3, get, ok("y", 5))}, true},
		"stale": {[]porcupine.Operation{created, at(2, 3, put, ok("", 6)), at(4, 5, get, ok("y", 5))},
			false},
		"concurrent": {[]porcupine.Operation{created, at(2, 5, put, ok("", 6)), at(3, 4, get, ok("y", 5))},
			true},
		"lost and never seen": {[]porcupine.Operation{created, lost, at(4, 5, get, ok("y", 5))}, true},
		"lost and seen": {[]porcupine.Operation{created, lost, at(4, 5, get, ok("y", 5)),
			at(6, 7, get, ok("x", 6))}, true},
		"lost and taken back": {[]porcupine.Operation{created, lost, at(4, 5, get, ok("x", 6)),
			at(6, 7, get, ok("y", 5))}, false},
		"seen at two versions": {[]porcupine.Operation{created, lost, at(4, 5, get, ok("x", 6)),
			at(6, 7, get, ok("x", 7))}, false},
		"made twice": {[]porcupine.Operation{created, at(2, 3, created.Input.(In), ok("", 6))}, false},
		"appended twice": {[]porcupine.Operation{created, at(2, 3, In{Do: Append, Data: "z"}, ok("", 6)),
			at(4, 5, get, ok("yzz", 6))}, false},
		"at an old version": {[]porcupine.Operation{created, at(2, 3, put, ok("", 6)),
			at(4, 5, In{Do: PutAt, Version: 5}, ok("", 7))}, false},
		"moved": {[]porcupine.Operation{created, at(2, 3, In{Do: Rename}, Out{}),
			at(4, 5, In{Do: Get, Name: 1}, ok("y", 5)), at(4, 5, get, Out{Result: None})}, true},
		"there twice": {[]porcupine.Operation{created, at(2, 3, In{Do: Rename}, Out{}),
			at(4, 5, get, ok("y", 5))}, false},
		"removed for two callers": {[]porcupine.Operation{created, at(2, 3, In{Do: Remove}, Out{}),
			at(2, 3, In{Do: Remove}, Out{})}, false},
		"a version falls": {[]porcupine.Operation{created, at(2, 3, put, ok("", 4))}, false},
	} {
		if got, _ := Check(c.ops, 0); (got == porcupine.Ok) != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
