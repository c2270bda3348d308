//go:build system

package machine

import (
	"encoding/json"
	"strings"
	"testing"

	"sigmaos.dev/kernel/report"
)

// The files of /sys and /proc of a real system say what sigma --json does, with the same keys and
// values where nothing moves; of a proc that has ended in three files what inspect has in one.
func TestStateFiles(t *testing.T) {
	s := shared.Get(t)
	id := strings.TrimSpace(s.Must(t, "run", "-d", "--name", "stated", program(t, "hello.c")))
	s.Must(t, "wait", id)
	inspected := map[string]any{}
	one := func(text string, into any) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	}
	var list []map[string]any
	one(s.Must(t, "inspect", "--json", id), &list)
	for _, name := range []string{"descriptor", "status"} {
		one(s.Must(t, "cat", "/proc/"+id+"/"+name), &inspected)
	}
	usage := map[string]any{}
	one(s.Must(t, "cat", "/proc/"+id+"/usage"), &usage)
	delete(usage, "stdout_dropped_bytes")
	delete(usage, "stderr_dropped_bytes")
	inspected["usage"] = usage
	got, _ := json.Marshal(inspected)
	want, _ := json.Marshal(list[0])
	if string(got) != string(want) {
		t.Errorf("/proc has\n%s, inspect\n%s", got, want)
	}
	// A machine is heard all the time, and realms have procs of other tests.
	machine := func(m report.Machine) report.Machine { m.Heard = nil; return m }
	var machines []report.Machine
	one(s.Must(t, "machine", "ls", "--json"), &machines)
	var m report.Machine
	one(s.Must(t, "cat", "/sys/machines"), &m)
	if a, b := jsonOf(t, machine(m)), jsonOf(t, machine(machines[0])); a != b {
		t.Errorf("/sys/machines has\n%s, machine ls\n%s", a, b)
	}
	var realms []report.Realm
	one(s.Must(t, "realm", "ls", "--json"), &realms)
	for i, line := range strings.Split(strings.TrimSpace(s.Must(t, "cat", "/sys/realms")), "\n") {
		var r report.Realm
		if one(line, &r); r.ID != realms[i].ID || !r.Created.Equal(realms[i].Created) || r.Limits != realms[i].Limits {
			t.Errorf("/sys/realms has %+v, realm ls %+v", r, realms[i])
		}
	}
	limits := s.Must(t, "cat", "/sys/limits")
	for _, name := range []string{"names", "watches", "procs"} {
		if !strings.Contains(limits, `{"realm":"default","limit":"`+name+`","max":`) {
			t.Errorf("/sys/limits has no %s:\n%s", name, limits)
		}
	}
	if text := s.Must(t, "cat", "/proc/"+id+"/children"); text != "" {
		t.Errorf("a proc that spawned nothing has the children %q", text)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
