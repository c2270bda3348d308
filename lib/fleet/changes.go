package fleet

import (
	"encoding/json"
	"maps"
	"slices"
)

// Changes are the keys in which two descriptions differ, sorted; old may be nil.
func Changes(old, next *Spec) []Change {
	before, after := keys(old), keys(next)
	names := maps.Clone(before)
	maps.Copy(names, after)
	changes := []Change{}
	for _, k := range slices.Sorted(maps.Keys(names)) {
		if before[k] != after[k] {
			changes = append(changes, Change{k, before[k], after[k]})
		}
	}
	return changes
}

// keys are the keys of a description with their values as JSON. Those within tables have the
// table's name before, as in update.surge.
func keys(s *Spec) map[string]string {
	flat := map[string]string{}
	if s == nil {
		return flat
	}
	b, err := json.Marshal(s)
	var all map[string]json.RawMessage
	if err != nil || json.Unmarshal(b, &all) != nil {
		return flat // a Spec always can be written
	}
	for k, v := range all {
		var table map[string]json.RawMessage
		if v[0] != '{' || json.Unmarshal(v, &table) != nil {
			flat[k] = string(v)
			continue
		}
		for in, v := range table {
			flat[k+"."+in] = string(v)
		}
	}
	return flat
}
