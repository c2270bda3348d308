package main

import (
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

// What is said of a proc names what it waits for, and what rules out each machine.
func TestExplain(t *testing.T) {
	at := time.Unix(1000, 0)
	s := situation{at: at, here: state.MachineUse{Machine: "m1", Running: 3, Capacity: 1 << 30, Free: 1 << 20},
		queues: []state.Queue{{Realm: "a", Waiting: 2, Memory: 128 << 20, Shares: 1}, {Realm: "b", Waiting: 1, Shares: 3}, {Realm: "a", Waiting: 1, Proc: "lc", Class: "lc", Why: "what is reserved leaves no machine with 2 cores"}},
		machines: []state.MachineSeen{{Name: "m1", State: "alive", CPU: 4, Memory: 1 << 30}, {Name: "m2", State: "alive", CPU: 1, Memory: 32 << 20}, {Name: "m3", State: "lost", Memory: 1 << 40},
			{Name: "m4", State: "alive", Cordoned: true, CPU: 4, Memory: 1 << 40}, {Name: "m5", State: "alive", CPU: 1, Memory: 1 << 40}}}
	held := uint64(900 << 20)
	s.most = map[string]state.Limit{"bound": {Realm: "bound", Max: 1 << 30, Used: &held}}
	times := sigma.Times{Spawned: at.Add(-3 * time.Second)}
	placed := times
	placed.Placed, placed.Executed = at.Add(-time.Second), at.Add(-time.Second+time.Millisecond)
	for what, c := range map[string]struct {
		p    sigma.ProcInfo
		near sigma.MachineID
		want []string
	}{
		"best effort that waits": {sigma.ProcInfo{ID: "be", Realm: "a", Name: "job", Memory: 64 << 20, Times: times}, "", []string{"it has waited 3s", "2 procs of its realm wait, which ask for 128MiB", "1 of the 4 shares",
			"m1: is full: 1MiB of 1GiB", "m2: is too small: it has 32MiB", "m3: is lost", "m4: takes nothing new", "m5: is large enough"}},
		"one whose realm has all that it may": {sigma.ProcInfo{ID: "be", Realm: "bound", Memory: 256 << 20, Times: times}, "", []string{"m1: keeps it back: its realm may have 1GiB of memory at each machine, and has 900MiB there", "m2: is too small", "m5: is large enough, but keeps it back while its realm has more than 768MiB there"}},
		"one whose realm has less":            {sigma.ProcInfo{ID: "be", Realm: "bound", Memory: 64 << 20, Times: times}, "", []string{"m1: is full: it has 1MiB free for procs, and its realm has 900MiB there of the 1GiB"}},
		"one that its realm may not have":     {sigma.ProcInfo{ID: "be", Realm: "bound", Memory: 1<<30 + 1, Times: times}, "", []string{"m5: is not for it: its realm may have 1GiB"}},
		"latency critical that waits":         {sigma.ProcInfo{ID: "lc", Realm: "a", Class: sigma.LatencyCritical, CPU: 2000, Memory: 64 << 20, Times: times}, "", []string{"reserves 2 cores", "lcsched: what is reserved leaves no machine", "m5: is too small: it has 1 cores"}},
		"one that has ended": {sigma.ProcInfo{Realm: "a", Name: "job", Machine: "m2", State: sigma.ProcEnded, Status: sigma.Status{Code: sigma.StatusOOM, Msg: "too much"}, Times: placed}, "", []string{"it waited 2s until", "machine m2 had room",
			"started in 1ms", "it ended: oom: too much"}},
		"one that is near its data":    {sigma.ProcInfo{Realm: "a", Machine: "m2", State: sigma.ProcRunning, Times: placed}, "m2", []string{"it is near its data: on machine m2"}},
		"one that is not":              {sigma.ProcInfo{Realm: "a", Machine: "m2", State: sigma.ProcRunning, Times: placed}, "m1", []string{"it should be near the data on machine m1, which had no room for it within 100ms"}},
		"one that waits to be near it": {sigma.ProcInfo{Realm: "a", Times: times}, "m1", []string{"it should be near the data on machine m1, which is preferred for 100ms"}},
		"one that was refused":         {sigma.ProcInfo{Realm: "a", State: sigma.ProcEnded, Status: sigma.Status{Code: sigma.StatusError, Msg: "there is no machine with zone=b"}, Times: times}, "", []string{"never placed", "there is no machine with zone=b"}},
	} {
		got := strings.Join(s.explain(&c.p, c.near), "\n")
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is not in\n%s", what, want, got)
			}
		}
	}
}
