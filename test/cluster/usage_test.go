//go:build system

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sigmaos.dev/internal/testenv"
	said "sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Goal: what realms have used of a machine outlives the machine: once it had told, it stays in
// /sys/usage when the power fails there, with the time at which it was told, and counts once when
// the machine is there again.
func TestUsageSurvivesItsMachine(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	cluster := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 2, Control: 1})
	m1, m2 := cluster.Machine(0), cluster.Machine(1)
	c, err := m1.Client(ctx, sigma.DefaultRealm)
	must(t, err)
	defer c.Close()
	program := m1.Install(ctx, t, c, testenv.BuildC(t, t.TempDir(), "../machine/testdata/probe.c"))
	everywhere(ctx, t, c, sigma.Descriptor{Program: program, Args: []string{"stay"}, Memory: 8 * sigma.MiB}, 2)
	var before said.RealmUsage
	testenv.Eventually(t, "m2 says what it ran", func() error {
		used, told, err := usedOf(ctx, c, "m2")
		if err == nil && (used.Starts == 0 || used.Starts != used.Ended || told) {
			err = fmt.Errorf("it is %+v, told %v", used, told)
		}
		before = used
		return err
	})
	want := fmt.Sprintf(`"starts":%d,"ended":%d,`, before.Starts, before.Ended)
	testenv.Eventually(t, "the control machine has kept what m2 told", func() error {
		text, err := os.ReadFile(filepath.Join(m1.DataDir, "sigmad", "usage-told"))
		if err != nil {
			return err
		}
		if !bytes.Contains(text, []byte(want)) {
			return fmt.Errorf("it lacks %s", want)
		}
		return nil
	})
	testenv.Eventually(t, "m2 has written what it counted",
		func() error { // 10 s at most; what was not written is lost with the power
			text, err := os.ReadFile(filepath.Join(m2.DataDir, "sigmad", "usage"))
			if err == nil && !bytes.Contains(text, []byte(want)) {
				err = fmt.Errorf("it lacks %s", want)
			}
			return err
		})
	must(t, m2.PowerOff())
	testenv.Eventually(t, "what m2 told is read", func() error {
		used, told, err := usedOf(ctx, c, "m2")
		if err == nil && (!told || used.Starts != before.Starts || used.Ended != before.Ended ||
			used.CPU < before.CPU) {
			err = fmt.Errorf("it is %+v, told %v; it was %+v", used, told, before)
		}
		return err
	})
	must(t, m2.Restart())
	testenv.Eventually(t, "m2 says it again", func() error {
		used, told, err := usedOf(ctx, c, "m2")
		if err == nil && told {
			err = errors.New("it is what it had told")
		}
		if err == nil && (used.Starts != before.Starts || used.Ended != before.Ended || used.CPU < before.CPU) {
			t.Fatalf("it is %+v; it was %+v", used, before)
		}
		return err
	})
}

// usedOf adds up what the default realm has used of a machine. told: it is what the machine had
// told.
func usedOf(ctx context.Context, c *sdk.Client, m string) (sum said.RealmUsage, told bool, err error) {
	text, _, err := c.Get(ctx, "/sys/usage")
	if err != nil {
		return sum, false, err
	}
	for line := range bytes.Lines(text) {
		var u struct {
			said.RealmUsage
			Missing string `json:"missing"`
		}
		if err := json.Unmarshal(line, &u); err != nil {
			return sum, false, err
		}
		if u.Machine != m {
			continue
		}
		if u.Missing != "" {
			return sum, false, errors.New(u.Missing)
		}
		told = told || u.Told != nil
		sum = sum.Plus(u.RealmUsage)
	}
	return sum, told, nil
}
