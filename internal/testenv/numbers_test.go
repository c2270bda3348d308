package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Goal: clusters that start at the same time get numbers that differ modulo 1024.
func TestNumbersDiffer(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const clusters, machines = 8, 20
	var all sync.WaitGroup
	for c := range clusters {
		all.Go(func() {
			if err := takeNumbers(machines, func(first uint32) error {
				for i := range uint32(machines) {
					if err := giveNumber(filepath.Join(os.TempDir(), fmt.Sprint("sigma-test-", c), fmt.Sprint("m", i),
						"data"), first+i); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	files, err := filepath.Glob(filepath.Join(os.TempDir(), "sigma-test-*", "m*", "data", "instance"))
	if err != nil || len(files) != clusters*machines {
		t.Fatalf("%d machines have numbers: %v", len(files), err)
	}
	seen := map[uint32]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var n uint32
		if _, err := fmt.Sscanf(string(b), "%x", &n); err != nil {
			t.Fatal(err)
		}
		if other := seen[n%1024]; other != "" {
			t.Errorf("%s and %s have the same number", f, other)
		}
		seen[n%1024] = f
	}
}
