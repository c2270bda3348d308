package schedd

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// Goal: procs that waited with all that a descriptor can name keep none of it when they have ended.
func TestEndedKeepLittle(t *testing.T) {
	c := NewCore("m", sigma.GiB)
	now := time.Unix(1, 0)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, n := heap(), 0
	text := func(l int) string { return strings.Repeat("x", l) }
	for ; n < 2000; n++ {
		d := sigma.Descriptor{Class: sigma.LatencyCritical, CPU: 1000, Program: "/bin/" + text(3000),
			Where: []string{"a=" + text(20<<10)}, Env: []string{"B=" + text(8<<10)}, Args: []string{text(16 << 10)},
			Memory: sigma.MiB}
		c.Step(now, Spawned{By: sigma.Principal{Realm: "a"}, IDs: []sigma.ProcID{sigma.ProcID(fmt.Sprint(n))},
			Ds: []sigma.Descriptor{d}})
	}
	full := heap()
	for i := range n {
		c.Step(now, Killed{sigma.ProcID(fmt.Sprint(i))})
	}
	after := heap()
	runtime.KeepAlive(c)
	if each :=
		(int64(after) - int64(before)) / int64(n); each > 8<<10 { // its program's path and 1 KiB of arguments are shown
		t.Errorf("%d KiB of each were kept while they waited, %d KiB are of each that has ended",
			(full-before)/uint64(n)>>10, each>>10)
	}
}
