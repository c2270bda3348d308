package replica

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// crashRound runs TestCrashChild for a while after its first answer, kills it, and notes what it
// acknowledged.
func crashRound(t *testing.T, dir string, round int, d time.Duration, acknowledged map[string]bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$")
	cmd.Env = append(os.Environ(), "SIGMA_REPLICA_CRASH_DIR="+dir, fmt.Sprint("SIGMA_REPLICA_CRASH_ROUND=", round))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	limit := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer limit.Stop()
	first := true
	for in := bufio.NewScanner(out); in.Scan(); {
		k, ok := strings.CutPrefix(in.Text(), "ack ")
		if !ok || !strings.HasSuffix(k, "=x") { // the last line may be cut off
			continue
		}
		acknowledged[k] = true
		if first {
			first = false
			time.AfterFunc(d, func() { cmd.Process.Kill() })
		}
	}
}
