package schedd

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts do now into them")

// Scripts: a line is an event, the indented lines after it what it caused and how the proc is then.
// Each event comes one second after the last.
//
//	spawn PROC REALM MEMORY [call]   assigned|asked|launched|started|killed|timer|wait|unwait PROC   evict PROC SECONDS
//	exited PROC CODE MESSAGE         not-launched PROC KIND   gone PROC exit|signal NUMBER [oom]     lost   age DURATION   launcher-died PROC
//	leased|recalled                        launched PROC timed               spoke PROC
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(script))
			if *rewrite {
				err = os.WriteFile(file, []byte(got), 0o644)
			} else if got != string(script) {
				t.Errorf("got\n%s\nrun with -rewrite and look at the difference", got)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func play(t *testing.T, script string) string {
	c := NewCore("m", 256*sigma.MiB)
	now := time.Unix(0, 0)
	var out strings.Builder
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, " ") {
			continue
		}
		out.WriteString(line)
		w := strings.Fields(line)
		if len(w) == 0 || w[0] == "#" {
			continue
		}
		now = now.Add(time.Second)
		if w[0] == "age" {
			d, err := time.ParseDuration(w[1])
			if err != nil {
				t.Fatal(err)
			}
			now = now.Add(d)
			continue
		}
		for _, f := range c.Step(now, event(t, w, now)) {
			fmt.Fprintf(&out, "  %s\n", show(f, now))
		}
		if len(w) > 1 {
			if p := c.procs[sigma.ProcID(w[1])]; p != nil {
				fmt.Fprintf(&out, "  = %v", p.State)
				if p.HasStarted() {
					out.WriteString(" started")
				}
				if p.Ended() {
					fmt.Fprintf(&out, " %v %d %q", p.Status.Code, p.Status.ExitCode, p.Status.Msg)
				}
				fmt.Fprintf(&out, ", free %v\n", c.Free())
			}
		}
	}
	return out.String()
}

func event(t *testing.T, w []string, now time.Time) Event {
	t.Helper()
	num := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("%q: %v", w, err)
		}
		return n
	}
	var id sigma.ProcID
	if len(w) > 1 {
		id = sigma.ProcID(w[1])
	}
	switch w[0] {
	case "spawn":
		m, err := sigma.ParseBytes(w[3])
		if err != nil {
			t.Fatal(err)
		}
		d := sigma.Descriptor{Program: "/bin/x", Memory: m}
		if len(w) > 4 {
			d.Start = sigma.StartedByCall
		}
		return Spawned{By: sigma.Principal{Realm: sigma.RealmID(w[2])}, IDs: []sigma.ProcID{id},
			Ds: []sigma.Descriptor{d}}
	case "leased", "recalled":
		return Leased{On: w[0] == "leased"}
	case "assigned":
		return Assigned{id}
	case "asked":
		return LaunchAsked{id, 1}
	case "launched":
		if len(w) > 2 {
			return Launched{ID: id, Cloned: now.Add(-600 * time.Millisecond),
				Contained: now.Add(-400 * time.Millisecond), Executed: now.Add(-100 * time.Millisecond)}
		}
		return Launched{ID: id}
	case "spoke":
		return Spoke{id}
	case "started":
		return CalledStarted{id}
	case "exited":
		return CalledExited{id, sigma.Status{Code: sigma.StatusCode(num(w[2])), Msg: w[3]}}
	case "not-launched":
		return NotLaunched{id, sigma.Errorf("test", sigma.Kind(num(w[2])), "because")}
	case "evict":
		return Evicted{id, time.Duration(num(w[2])) * time.Second}
	case "killed":
		return Killed{id}
	case "drained":
		return Drained{Queued: len(w) > 2, Why: "machine m1 is being stopped"}
	case "timer":
		return TimerFired{id}
	case "wait":
		return WaitsEvict{id, 1}
	case "unwait":
		return WaitsEvict{id, -1}
	case "launcher-died":
		return LauncherDied{id}
	case "lost":
		return ShardLost{}
	case "gone":
		x := launch.Exited{Wait: syscall.WaitStatus(num(w[3]) << 8), OOM: len(w) > 4}
		if w[2] == "signal" {
			x.Wait = syscall.WaitStatus(num(w[3]))
		}
		return Gone{ID: id, Exit: x}
	}
	t.Fatalf("no event %q", w)
	return nil
}

func show(f Effect, now time.Time) string {
	name := strings.ToLower(reflect.TypeOf(f).Name())
	switch f := f.(type) {
	case Timed:
		for p, took := range f.Timing {
			name += fmt.Sprintf(" %v %v", sigma.Phase(p), took)
		}
		return name
	case Enqueue:
		return name + " " + string(f.Proc.ID)
	case Dequeue:
		return name + " " + string(f.ID)
	case Start:
		return name + " " + string(f.Proc.ID)
	case Kill:
		return name + " " + string(f.Proc.ID)
	case Notice:
		return fmt.Sprintf("%s %s signal %d", name, f.Proc.ID, f.Signal)
	case Wake:
		return name + " " + string(f.ID)
	case Timer:
		return fmt.Sprintf("%s %s in %v", name, f.ID, f.At.Sub(now))
	case Abandon:
		return name + " " + string(f.ID)
	case Forget:
		return name + " " + string(f.ID)
	}
	return name
}

// Goal: whatever order events come in, each proc ends at most once, memory never exceeds the
// capacity that was granted, and all of it is free when all have ended.
func TestRandom(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 7))
		c := NewCore("m", sigma.GiB)
		var ids []sigma.ProcID
		starts, ends := map[sigma.ProcID]int{}, map[sigma.ProcID]int{}
		c.Step(time.Unix(1, 0), Leased{On: seed%2 == 0})
		for i := range 12 {
			id := sigma.ProcID(fmt.Sprint("p", i))
			ids = append(ids, id)
			for _, f := range c.Step(time.Unix(1, 0), Spawned{By: sigma.Principal{Realm: "a"}, IDs: []sigma.ProcID{id},
				Ds: []sigma.Descriptor{{Program: "/bin/x", Start: sigma.StartMark(i % 2)}}}) {
				if _, ok := f.(Start); ok {
					starts[id]++
				}
			}
		}
		step := func(e Event, id sigma.ProcID) {
			was := c.Proc("a", id).Ended()
			for _, f := range c.Step(time.Unix(2, 0), e) {
				if s, ok := f.(Start); ok {
					starts[s.Proc.ID]++
				}
			}
			if p := c.Proc("a", id); !was && p.Ended() {
				ends[id]++
				if p.Status.Code == sigma.StatusNone {
					t.Fatalf("seed %d: %s ended without a status", seed, id)
				}
			}
		}
		for i := range 300 {
			id := ids[r.IntN(len(ids))]
			events := []Event{Assigned{id}, LaunchAsked{id, 1}, Launched{ID: id}, CalledStarted{id},
				CalledExited{id, sigma.Status{Code: sigma.StatusOK}}, Evicted{id, time.Second}, Killed{id},
				TimerFired{id}, WaitsEvict{id, 1}, Gone{ID: id},
				NotLaunched{id, sigma.Errorf("t", sigma.KindNoExec, "no")}, Leased{On: i%2 == 0}}
			step(events[r.IntN(len(events))], id)
		}
		for _, id := range ids {
			step(Killed{id}, id)
			step(Gone{ID: id}, id)
			if seed%2 == 0 && starts[id] != 1 {
				t.Fatalf("seed %d: %s started %d times under a lease with room", seed, id, starts[id])
			}
			if starts[id] > 1 || ends[id] != 1 {
				t.Fatalf("seed %d: %s started %d times, ended %d times", seed, id, starts[id], ends[id])
			}
		}
		if c.Free() != c.Capacity() || c.Live("a") != 0 {
			t.Fatalf("seed %d: free %v of %v, %d live", seed, c.Free(), c.Capacity(), c.Live("a"))
		}
	}
}

func TestCanSpawn(t *testing.T) {
	c := NewCore("m", 256*sigma.MiB)
	if err := c.CanSpawn("a", []sigma.Descriptor{{Memory: 257 * sigma.MiB}}); sigma.KindOf(err) != sigma.KindInvalid ||
		sigma.HintOf(err) == "" {
		t.Errorf("what can never fit was taken: %v", err)
	}
	if err := c.CanSpawn("a", make([]sigma.Descriptor, QueuedMax+1)); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("got %v, want busy", err)
	}
	if err := c.CanSpawn("a", []sigma.Descriptor{{}}); err != nil {
		t.Error(err)
	}
}

// Ended procs are remembered up to a number and an age, the oldest going first.
func TestForget(t *testing.T) {
	c := NewCore("m", sigma.GiB)
	now := time.Unix(1, 0)
	for i := range EndedMax + 2 {
		id := sigma.ProcID(fmt.Sprint(i))
		c.Step(now, Spawned{By: sigma.Principal{Realm: "a"}, IDs: []sigma.ProcID{id},
			Ds: []sigma.Descriptor{{Program: "/bin/x"}}})
		c.Step(now, Killed{id})
	}
	if c.Proc("a", "1") != nil || c.Proc("a", "2") == nil {
		t.Error("the oldest were not forgotten, or too many were")
	}
	c.Step(now.Add(2*EndedAge), Spawned{By: sigma.Principal{Realm: "a"}, IDs: []sigma.ProcID{"new"},
		Ds: []sigma.Descriptor{{Program: "/bin/x"}}})
	if got := len(c.List("a", true, 0, 10)); got != 1 {
		t.Errorf("%d procs are remembered after a long time, want the new one", got)
	}
}

// Goal: what one realm does costs no other its memory of ended procs, and a realm that was removed
// leaves nothing behind.
func TestRealmsApart(t *testing.T) {
	c := NewCore("m", sigma.GiB)
	now := time.Unix(1, 0)
	spawn := func(realm sigma.RealmID, id sigma.ProcID) {
		c.Step(now, Spawned{By: sigma.Principal{Realm: realm}, IDs: []sigma.ProcID{id},
			Ds: []sigma.Descriptor{{Program: "/bin/x"}}})
	}
	spawn("quiet", "q")
	c.Step(now, Killed{"q"})
	for i := range EndedMax + 2 {
		id := sigma.ProcID(fmt.Sprint(i))
		spawn("loud", id)
		c.Step(now, Killed{id})
	}
	if c.Proc("quiet", "q") == nil {
		t.Error("a realm that ends many procs had another's forgotten")
	}
	if got := c.List("loud", true, EndedMax-3, 10); len(got) != 3 || got[2].ID != sigma.ProcID(fmt.Sprint(EndedMax+1)) {
		t.Errorf("the end of the list is %v", got)
	}
	seq, n := uint64(0), 0
	for more := true; more; n++ {
		more = false
		for s := range c.After("loud", seq) {
			seq, more = s, true
			break
		}
	}
	if n != EndedMax+1 {
		t.Errorf("going on behind each found %d procs", n-1)
	}
	if got := len(c.Step(now, RealmGone{"loud"})); got != EndedMax || c.List("loud", true, 0, 10) != nil ||
		c.realms["loud"] != nil {
		t.Errorf("%d procs were forgotten with their realm; left: %v", got, c.List("loud", true, 0, 10))
	}
}

// Goal: no call that can be repeated for ever costs more than the first time: notices, kills,
// timers.
func TestRepeated(t *testing.T) {
	c := NewCore("m", sigma.GiB)
	now := time.Unix(1, 0)
	c.Step(now, Spawned{By: sigma.Principal{Realm: "a"}, IDs: []sigma.ProcID{"p"},
		Ds: []sigma.Descriptor{{Program: "/bin/x"}}})
	c.Step(now, Assigned{"p"})
	c.Step(now, Launched{ID: "p"})
	if got := c.Step(now, Evicted{"p", time.Minute}); len(got) != 2 {
		t.Errorf("evict did %v", got)
	}
	if got := c.Step(now, Evicted{"p", time.Minute}); len(got) != 0 {
		t.Errorf("the second evict did %v", got)
	}
	got := c.Step(now, Evicted{"p", time.Second})
	if timer, ok := got[0].(Timer); len(got) != 1 || !ok || timer.At != now.Add(time.Second) {
		t.Errorf("an evict with less grace did %v", got)
	}
	if got := c.Step(now, Killed{"p"}); len(got) != 1 {
		t.Errorf("kill did %v", got)
	}
	if got := c.Step(now, Killed{"p"}); len(got) != 0 {
		t.Errorf("the second kill did %v", got)
	}
}

// Goal: what waiting procs' arguments and ended procs' results occupy is bounded.
func TestBytes(t *testing.T) {
	c := NewCore("m", sigma.GiB)
	now := time.Unix(1, 0)
	d := sigma.Descriptor{Program: "/bin/x", Args: []string{strings.Repeat("x", 40<<10)}}
	n := 0
	for ; c.CanSpawn("a", []sigma.Descriptor{d}) == nil; n++ {
		c.Step(now, Spawned{By: sigma.Principal{Realm: "a"}, IDs: []sigma.ProcID{sigma.ProcID(fmt.Sprint(n))},
			Ds: []sigma.Descriptor{d}})
	}
	if n != int(waitingMax/sizeOf(d)) || c.CanSpawn("b", []sigma.Descriptor{d}) != nil {
		t.Errorf("%d procs of 40 KiB can wait", n)
	}
	for i := range n {
		id := sigma.ProcID(fmt.Sprint(i))
		c.Step(now, Assigned{id})
		c.Step(now, Launched{ID: id})
		c.Step(now, CalledExited{id, sigma.Status{Code: sigma.StatusOK, Data: make([]byte, sigma.StatusDataMax)}})
		c.Step(now, Gone{ID: id})
	}
	if left := len(c.List("a", true, 0, n)); left != int(resultsMax/sigma.StatusDataMax) ||
		c.realms["a"].waiting != 0 || c.realms["a"].results > resultsMax {
		t.Errorf("%d of %d procs are remembered; %+v", left, n, c.realms["a"].results)
	}
}

// Goal: what a proc's connections carried counts whether TCP tells it before the proc's end is
// known or after.
func TestCarried(t *testing.T) {
	c := NewCore("m", sigma.GiB)
	now := time.Unix(1, 0)
	c.Step(now, Spawned{By: sigma.Principal{Realm: "a"}, IDs: []sigma.ProcID{"p"},
		Ds: []sigma.Descriptor{{Program: "/bin/x"}}})
	c.Step(now, Assigned{"p"})
	c.Step(now, Launched{ID: "p"})
	c.Step(now, Carried{"p", sigma.Traffic{Egress: 1}})
	c.Step(now, Gone{ID: "p", Traffic: sigma.Traffic{Sent: 7, Egress: 2}})
	c.Step(now, Carried{"p", sigma.Traffic{Egress: 4}})
	if got := c.Find("p").Usage.Traffic; got != (sigma.Traffic{Sent: 7, Egress: 7}) {
		t.Errorf("it carried %+v", got)
	}
}
