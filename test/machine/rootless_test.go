//go:build system

package machine

import (
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
)

// What works in rootless mode as it does under root. The names end at a $, and those of the second line say by themselves that they were skipped where no cgroup is to be had.
const rootlessTests = "BadPrograms BadRequests Dial HTTP ServedTree EndpointOfAnotherRealm FileVerbs Links NamesOfProcs Ephemeral Watch Ends Evict StartedByCall Exited UnknownProc " +
	"ChildOutlivesParent SpawnBurst MalformedMessages NonsenseRequests EndlessMessages ProcSendsGarbage RunStreams RunLosesNoOutput ProcVerbs RunInterrupted RunClientKilled " +
	"OutOfMemory UsageShown"

func TestRootless(t *testing.T) {
	testenv.Rootless(t, "^Test("+strings.ReplaceAll(rootlessTests, " ", "|")+")$", "", "testdata/hello.c", "testdata/probe.c", "testdata/goprobe")
}
