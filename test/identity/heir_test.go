//go:build system

package identity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
)

// Goal: when the machine that decides about membership is gone, another control machine decides
// within seconds, with the authority that it was handed before: it lists, makes tokens and
// certifies. An ordinary machine is never handed it, and it is in no other file. The machine that
// comes back is a member again, and decides no more.
func TestHeir(t *testing.T) {
	t.Parallel()
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 4, Control: 3})
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	defer cancel()
	w := &world{t: t, ctx: ctx, m1: c.Machine(1),
		m2: c.Machine(3)} // commands are run at m2; the test's machines are where m4 is
	defer w.all.Wait()
	defer cancel()
	authority := func(i int) ([]byte, error) {
		return os.ReadFile(filepath.Join(c.Machine(i).DataDir, "machined", "authority"))
	}
	first, err := authority(0)
	w.must(err)
	for i := 1; i < 3; i++ {
		testenv.Eventually(t, "an heir has the authority", func() error {
			got, err := authority(i)
			if err == nil && string(got) != string(first) {
				err = errors.New("it is another")
			}
			return err
		})
	}
	if _, err := authority(3); err == nil {
		t.Error("an ordinary machine has the authority")
	}
	secret := strings.Split(string(first), "\n")
	if found := holders(t, c, secret[len(secret)-3]); len(found) != 3 {
		t.Errorf("the authority's key is in %q", found)
	}
	died := time.Now()
	w.must(c.Machine(0).PowerOff())
	testenv.Eventually(t, "m1 is lost", func() error {
		out, stderr, code := w.m1.CLI(t, "machine", "ls")
		if code != 0 || !strings.Contains(out, "m1        lost") {
			return fmt.Errorf("%s%s", out, stderr)
		}
		return nil
	})
	t.Logf("m1 was known to be lost after %v", time.Since(died))
	tok, key := w.token(), identity.NewKey()
	g, err := w.enrol(&tok, "late", key, nil)
	w.must(err)
	late := w.peer("late", key, g)
	late.beat("m2", "m3")
	testenv.Eventually(t, "the machine that the heir certified is admitted",
		func() error { // m2 hears of it a moment later
			return w.dial(late, "m2")
		})
	w.must(c.Machine(0).Restart())
	testenv.Eventually(t, "m1 is back", func() error {
		out, stderr, code := c.Machine(0).CLI(t, "machine", "ls")
		if code != 0 || !strings.Contains(out, "m1*       alive") {
			return fmt.Errorf("%s%s", out, stderr)
		}
		return nil
	})
}

// holders lists the files of all machines that contain text.
func holders(t *testing.T, c *testenv.Cluster, text string) (found []string) {
	t.Helper()
	for _, m := range c.Machines() {
		err := filepath.WalkDir(m.DataDir, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil // it went meanwhile
			}
			if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), text) {
				found = append(found, path)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	return found
}

// dial has p reach the machined of a machine.
func (w *world) dial(p *peer, m sigma.MachineID) error {
	l, err := p.node.Dial(w.ctx, m, link.Target{Kind: link.ToService, Name: "machined"}, provider)
	if err == nil {
		l.Close()
	}
	return err
}

// Goal: a lost machine can be taken out of the control plane and removed; one that lives gives its
// part up, has the authority no more, does not take it again when it is restarted, and can be
// removed then. What is left goes on.
func TestControlOff(t *testing.T) {
	t.Parallel()
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3, Control: 3})
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	defer cancel()
	w := &world{t: t, ctx: ctx, m1: c.Machine(0), m2: c.Machine(1)}
	file := filepath.Join(c.Machine(1).DataDir, "machined", "authority")
	testenv.Eventually(t, "m2 has the authority", func() error { return second(os.Stat(file)) })
	if _, stderr, code := w.m1.CLI(t, "machine", "rm", "--force", "m3"); code != 1 ||
		!strings.Contains(stderr, "sigma machine control m3 off") {
		t.Errorf("a control machine is removed: code %d, %s", code, stderr)
	}
	c.Machine(2).Down(t)
	w.cli("machine", "control", "m3", "off")
	testenv.Eventually(t, "m3 is removed", func() error {
		out, stderr, code := w.m1.CLI(t, "machine", "rm", "m3") // once it is known to be lost
		if code != 0 {
			return fmt.Errorf("%s%s", out, stderr)
		}
		return nil
	})
	w.cli("machine", "control", "m2", "off")
	testenv.Eventually(t, "m2 has the authority no more", func() error {
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is there, %v", file, err)
		}
		return nil
	})
	m2 := c.Machine(1)
	m2.Down(t)
	if err :=
		m2.Boot(); err != nil {
		// it was made a control machine when it joined, but what the operator said last holds: were
		// it one again, it could not be removed
		t.Fatal(err)
	}
	w.cli("machine", "rm", "--force", "m2")
	if got := w.cli("machine", "ls", "-q"); got != "m1" {
		t.Errorf("machines: %q", got)
	}
	w.cli("realm", "create", "after") // names can be written
}
