//go:build system

package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/hostsetup"
)

// What works in rootless mode as it does under root. The names end at a $, and those of the second
// line say by themselves that they were skipped where no cgroup is to be had.
const rootlessTests = "BadPrograms BadRequests Dial HTTP ServedTree EndpointOfAnotherRealm FileVerbs Links NamesOfProcs Ephemeral Watch Ends Evict StartedByCall Exited UnknownProc " +
	"ChildOutlivesParent SpawnBurst MalformedMessages NonsenseRequests EndlessMessages ProcSendsGarbage RunStreams " +
	"RunLosesNoOutput ProcVerbs RunInterrupted RunClientKilled " +
	"OutOfMemory UsageShown WallsOfOrdinaryUser"

func TestRootless(t *testing.T) {
	testenv.Rootless(t, "^Test("+strings.ReplaceAll(rootlessTests, " ", "|")+")$", "", "testdata/hello.c",
		"testdata/probe.c", "testdata/goprobe")
}

// Goal: what an ordinary user's launcher makes has the walls that root's has. Method: the kernel is
// asked about every process that has a uid of the mapped range.
func TestWallsOfOrdinaryUser(t *testing.T) {
	first, count, ok := testenv.RootlessUIDs()
	if !ok {
		t.Skip("skipped: run by TestRootless")
	}
	r := connect(t, defaultRealm)
	if _, err := r.ReadDir(r.ctx, "/db"); err != nil { // dbd runs once it is used
		t.Fatal(err)
	}
	for range 2 {
		r.wrote(r.spawn(r.descriptor("probe.c", "leave"))[0], "ready")
	}
	testenv.Eventually(t, "every process is confined", func() error { // one that is just being made is not yet
		uids := map[string][]string{} // by program
		statuses, _ := filepath.Glob("/proc/[0-9]*/status")
		for _, file := range statuses {
			st := statusOf(file)
			uid, err := strconv.ParseUint(strings.SplitN(st["Uid"], "\t", 2)[0], 10, 32)
			if err != nil || uint32(uid) < first || uint32(uid)-first >= count {
				continue
			}
			zero := "0000000000000000"
			has := zero
			if st["Name"] == "placer" { // CAP_SYS_NICE
				has = "0000000000800000"
			}
			for key, want := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2", "CapInh": zero, "CapPrm": has,
				"CapEff": has, "CapAmb": zero, "Groups": ""} {
				if st[key] != want {
					return fmt.Errorf("%s (uid %d): %s is %q, want %q", st["Name"], uid, key, st[key], want)
				}
			}
			if uint32(uid) != first && st["Name"] != "placer" &&
				st["Name"] != "launcher" { // not inits, which have one together, nor parked children
				uids[st["Name"]] = append(uids[st["Name"]], st["Uid"])
			}
		}
		var all []string
		for _, name := range hostsetup.BootSet() {
			if len(uids[name]) != 1 {
				return fmt.Errorf("there are %d of %s", len(uids[name]), name)
			}
			all = append(all, uids[name]...)
			delete(uids, name)
		}
		for _, procs := range uids {
			all = append(all, procs...)
		}
		slices.Sort(all)
		distinct := len(slices.Compact(slices.Clone(all)))
		if distinct != len(all) || distinct != len(hostsetup.BootSet())+2 {
			return errors.New("the uids of the daemons and two procs are " + strings.Join(all, ", "))
		}
		return nil
	})
}

// statusOf reads a process's status file; empty if the process is gone.
func statusOf(file string) map[string]string {
	b, _ := os.ReadFile(file)
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		out[key] = strings.TrimSpace(value)
	}
	return out
}
