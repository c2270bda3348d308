//go:build system

package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
)

// removedMost is how long a machine that was removed may take to say so. It hears of it within a
// second or two, and by then what it began has failed.
const removedMost = 12 * time.Second

// Goal: a machine that was removed says so to whoever uses it, soon and in words; what it takes
// none the less is there.
func TestRemovedMachine(t *testing.T) {
	t.Parallel()
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 2, Control: 1})
	m1, m2 := c.Machine(0), c.Machine(1)
	local := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(local, []byte("text"), 0o644))
	m1.Must(t, "machine", "rm", "--force", string(m2.Name))
	for _, name := range []string{"/first", "/ux/~local/second", "/third"} {
		at := time.Now()
		_, said, code := m2.CLI(t, "put", local, name)
		if _, _, there := m1.CLI(t, "cat", name); code == 0 && there != 0 {
			t.Errorf("%s was taken, and is nowhere", name)
		}
		if took := time.Since(at); took > removedMost*testenv.Slow() {
			t.Errorf("%s: after %v: %s", name, took, said)
		}
	}
	testenv.Eventually(t, "it says that it is no member any more", func() error {
		_, said, code := m2.CLI(t, "put", local, "/last")
		if code == 1 && strings.Contains(said, "no member of its system any more") &&
			strings.Contains(said, "sigma join") {
			return nil
		}
		return errors.New(said)
	})
}
