//go:build system

package machine

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// What a running proc uses is shown by ps, inspect and top, what it used by inspect; and doctor
// finds the walls of every process of the system.
func TestUsageShown(t *testing.T) {
	s := shared.Get(t)
	s.RequireLimits(t)
	id := strings.TrimSpace(s.Must(t, "run", "-d", "--name", "usage", program(t, "probe.c"), "leave"))
	if err := s.Connect(t.Context(), t, defaultRealm).WaitStart(t.Context(), sigma.ProcID(id)); err != nil {
		t.Fatal(err)
	}
	type proc struct {
		ID    string
		Usage struct {
			Now   uint64 `json:"memory_now_bytes"`
			Peak  uint64 `json:"memory_peak_bytes"`
			Tasks int
		}
	}
	running := func(what string, procs []proc) {
		t.Helper()
		for _, p := range procs {
			if p.ID == id && p.Usage.Now > 0 && p.Usage.Peak >= p.Usage.Now && p.Usage.Tasks == 1 {
				return
			}
		}
		t.Errorf("%s: got %+v, want %s with memory and one task", what, procs, id)
	}
	for _, args := range [][]string{{"ps", "--json"}, {"inspect", id, "--json"}} {
		var list []proc
		if err := json.Unmarshal([]byte(s.Must(t, args...)), &list); err != nil {
			t.Fatal(err)
		}
		running(args[0], list)
	}
	var top struct {
		Procs   []proc
		Machine struct{ Cores int }
		Realms  []struct {
			Realm   string
			Running int
		}
	}
	if err := json.Unmarshal([]byte(s.Must(t, "top", "--json", "-i", "100ms")), &top); err != nil ||
		top.Machine.Cores == 0 || len(top.Realms) == 0 {
		t.Errorf("top: got %+v, %v", top, err)
	}
	running("top", top.Procs)
	out, _, _ := s.CLI(t, "doctor", "--json")
	var findings []struct{ Check, State, Found string }
	if err := json.Unmarshal([]byte(out), &findings); err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Check == "running system" && (f.State != "ok" || !strings.Contains(f.Found, "no capabilities")) {
			t.Errorf("doctor: %+v", f)
		}
	}
	s.Must(t, "kill", id)
	s.CLI(t, "wait", id)
	var list []proc
	if err := json.Unmarshal([]byte(s.Must(t, "inspect", "--json", id)), &list); err != nil || len(list) != 1 ||
		list[0].Usage.Now != 0 || list[0].Usage.Tasks != 0 || list[0].Usage.Peak == 0 {
		t.Errorf("after the end: got %+v, %v", list, err)
	}
}

// A frozen proc uses no processor and goes on where it was; a frozen one can be killed.
func TestFreeze(t *testing.T) {
	s := shared.Get(t)
	for _, end := range []string{"thaw", "kill"} {
		id := strings.TrimSpace(s.Must(t, "run", "-d", "--name", "cold", program(t, "probe.c"), "leave"))
		s.Must(t, "freeze", id)
		var list []struct{ Frozen bool }
		if err := json.Unmarshal([]byte(s.Must(t, "inspect", "--json", id)), &list); err != nil || len(list) != 1 ||
			!list[0].Frozen {
			t.Errorf("got %+v, %v, want it frozen", list, err)
		}
		s.Must(t, "freeze", id) // twice is once
		if end == "thaw" {
			s.Must(t, "thaw", id)
			s.Must(t, "evict", id)
		} else {
			s.Must(t, "kill", id)
		}
		if out, _, code := s.CLI(t, "wait", id); code == 0 {
			t.Errorf("%s: got %q", end, out)
		}
		if _, stderr, code := s.CLI(t, "freeze", id); code != 1 || !strings.Contains(stderr, "has ended") {
			t.Errorf("an ended proc: code %d, %q", code, stderr)
		}
	}
}

// What s3d and named do for a realm is in its usage, with bytes, some seconds later; what its procs
// use is on the machine's line of top and of /sys/load.
func TestServicesUsage(t *testing.T) {
	s := shared.Get(t)
	c := s.Connect(t.Context(), t, defaultRealm)
	s.Must(t, "mkdir", "/s3/used")
	defer s.Must(t, "rm", "-r", "/s3/used", "/usage-name")
	data := make([]byte, 40<<10)
	for range 20 {
		if _, err := c.Put(t.Context(), "/s3/used/file", data, sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Put(t.Context(), "/usage-name", []byte("x"), sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	type used struct {
		Requests uint64
		In       uint64  `json:"in_bytes"`
		CPU      float64 `json:"cpu_seconds"`
	}
	type realm struct {
		Realm    string
		Services struct{ Named, S3d used }
	}
	const most = time.Minute // reports are 5 s apart
	for began := time.Now(); ; {
		var all []realm
		if err := json.Unmarshal([]byte(s.Must(t, "-r", string(defaultRealm), "usage", "--json")), &all); err != nil {
			t.Fatal(err)
		}
		if len(all) == 1 && all[0].Services.Named.Requests >= 20 && all[0].Services.Named.CPU > 0 &&
			all[0].Services.S3d.Requests >= 20 && all[0].Services.S3d.In >= 20*40<<10 && all[0].Services.S3d.CPU > 0 {
			break
		}
		if time.Since(began) > most {
			t.Fatalf("the usage is %+v", all)
		}
		<-time.After(200 * time.Millisecond)
	}
	var top struct {
		Machines []struct {
			Machine string
			Cores   float64
			System  float64 `json:"system_cores"`
			Memory  uint64  `json:"memory_bytes"`
		}
	}
	if err := json.Unmarshal([]byte(s.Must(t, "top", "--json", "-i", "100ms")), &top); err != nil ||
		len(top.Machines) == 0 || top.Machines[0].Cores == 0 || top.Machines[0].Memory == 0 {
		t.Errorf("top: got %+v, %v", top, err)
	}
	if text := s.Must(t, "cat", "/sys/load"); !strings.Contains(text, `"be_cpu_seconds"`) {
		t.Errorf("/sys/load is %s", text)
	}
}
