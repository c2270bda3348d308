//go:build system

// Package cluster tests a system of several machines from outside, and the harness that makes them
// (testenv.Cluster): machines that join, work for one another, drain, and are killed, paused and
// cut off under load. It needs root and /dev/net/tun.
//
// Tests that mostly wait, and count nothing of the host, run beside each other; those that load the
// host, or hold the system to a time, run alone.
package cluster

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/s3server"
	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

const testMax = 5 * time.Minute

// victim, in the environment, makes the test program one that is to be killed (TestVictim).
const victim = "SIGMA_CLUSTER_VICTIM"

// TestMain lets the test program be the object store of a test, too.
func TestMain(m *testing.M) { os.Exit(s3server.Main(m)) }

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Goal: what the harness does to one machine is what it says. A machine that is paused answers
// nobody and goes on afterwards; one that is killed is gone at once and can be booted again; its
// realms are there.
func TestMachine(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c := testenv.NewCluster(t, testenv.ClusterOptions{Realms: []sigma.RealmID{"tenant"}})
	m := c.Machine(0)
	client, err := m.Client(ctx, "tenant")
	must(t, err)
	defer client.Close()
	must(t, m.Pause())
	answered := make(chan error, 1)
	go func() {
		_, err := client.List(ctx, false)
		answered <- err
	}()
	testenv.Eventually(t, "all of it stands still",
		func() error { // a process that waits for a processor does so when it has one
			for _, name := range []string{"sigmad", "keeper", "launcher"} {
				if s := state(m.PID(name)); s != "T" {
					return fmt.Errorf("%s is in state %q", name, s)
				}
			}
			return nil
		})
	select {
	case err := <-answered:
		t.Errorf("a machine that is paused answered, %v", err)
	default:
	}
	must(t, m.Resume())
	if err := <-answered; err != nil {
		t.Errorf("after the pause: %v", err)
	}
	ids, err := client.Spawn(ctx, sigma.Descriptor{Program: m.Install(ctx, t, client, testenv.BuildC(t, t.TempDir(),
		"../machine/testdata/probe.c")), Args: []string{"stay"}})
	must(t, err)
	must(t, client.WaitStart(ctx, ids[0]))
	must(t, m.Kill())
	if _, err := client.WaitExit(ctx, ids[0]); err == nil {
		t.Error("a machine that was killed answered")
	}
	must(t, m.Restart())
	again, err := m.Client(ctx, "tenant")
	must(t, err)
	defer again.Close()
	if list, err := again.List(ctx, false); err != nil || len(list) > 0 {
		t.Errorf("after the restart: %v, %v", list, err)
	}
}

// state is the letter of a process's state.
func state(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(stat), ") ")
	return after[:min(len(after), 1)]
}

// Goal: nothing is left if the test program is killed, while a machine is paused at that.
func TestKilledTest(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	if os.Getenv(victim) != "" {
		c := testenv.NewCluster(t, testenv.ClusterOptions{})
		must(t, c.Machine(0).Pause())
		fmt.Printf("\nvictim %s %d\n", c.Machine(0).DataDir, c.Machine(0).PID("keeper"))
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestKilledTest$")
	cmd.Env = append(os.Environ(), victim+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var data string
	var keeper int
	for lines := bufio.NewScanner(out); keeper == 0 && lines.Scan(); {
		fmt.Sscanf(lines.Text(), "victim %s %d", &data, &keeper)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if keeper == 0 {
		t.Fatal("no machine was made")
	}
	testenv.Eventually(t, "nothing is left", func() error {
		if s := state(keeper); s != "" && s != "Z" {
			return fmt.Errorf("the keeper is in state %s", s)
		}
		_, err := os.Stat(filepath.Dir(filepath.Dir(data)))
		if err == nil {
			return fmt.Errorf("%s is there", data)
		}
		return nil
	})
}
