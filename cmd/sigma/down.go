package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// How long down waits for an answer of sigmad, for an orderly end, and for the end after it has insisted.
const (
	downAnswer = 5 * time.Second
	downGrace  = 30 * time.Second
	downInsist = 30 * time.Second
)

func newDownCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "down [--data DIR]",
		Short: "Stop the system on this machine",
		Long: `Stop the system on this machine and return when nothing of it is left running.
If it is several machines ("sigma up --machines"), all are stopped.
Procs that run are ended; realms, names and stored files stay in DATA for the next
"sigma up".

A system that does not answer is stopped through its launcher. It is a failure (exit
code 1) if no system runs on DATA; what a killed one left on the host is removed then.`,
		Example: `  sudo sigma down`,
		Args:    between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, is := a.guest(); is {
				return &sigma.Error{Op: "sigma.down", Kind: sigma.KindPermission, Msg: "to stop the system is the provider's, and a credential is of one realm", Hint: "work as root, without a credential"}
			}
			return a.down(cmd.Context())
		},
	}
}

func (a *app) down(ctx context.Context) error {
	dir, err := a.dataRoot()
	if err != nil {
		return err
	}
	if c, err := readCluster(dir); c != nil || err != nil {
		if err != nil {
			return err
		}
		return a.downSeveral(ctx, dir, c)
	}
	pid, held, err := running(dir)
	if err != nil {
		return err
	}
	if !held {
		freeUplink(dir) // of one that died
		freeCgroups(ctx, dir)
		return notRunning(dir)
	}
	if err := a.downOne(ctx, dir, pid); err != nil {
		return err
	}
	fmt.Fprintf(a.out, "sigmaOS on %s is stopped\n", dir)
	return nil
}

// downOne stops the system on dir, whose keeper is pid.
func (a *app) downOne(ctx context.Context, dir string, pid int) error {
	asked := a.askDown(ctx, dir)
	if asked != nil && ctx.Err() == nil {
		a.remark("the system does not answer (%v); stopping it through its launcher", asked)
		signalLauncher(pid, syscall.SIGTERM)
	}
	wait, cancel := context.WithTimeout(ctx, downGrace)
	defer cancel()
	if waitStopped(wait, dir) != nil && ctx.Err() == nil {
		a.remark("still stopping after %v; killing it", downGrace)
		signalLauncher(pid, syscall.SIGKILL)
		wait, cancel := context.WithTimeout(ctx, downInsist)
		defer cancel()
		if err := waitStopped(wait, dir); err != nil && ctx.Err() == nil {
			return &sigma.Error{Op: "sigma.down", Kind: sigma.KindTimeout, Msg: fmt.Sprintf("something still holds %s", filepath.Join(dir, lockName)), Hint: "find it with: fuser " + filepath.Join(dir, lockName)}
		}
	}
	freeUplink(dir)
	freeCgroups(ctx, dir)
	return ctx.Err()
}

// askDown asks sigmad to stop. That the connection breaks is an answer too.
func (a *app) askDown(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, downAnswer)
	defer cancel()
	socket := a.addr
	if socket == "" {
		socket = filepath.Join(dir, adminSocket)
	}
	c, err := sdk.Connect(ctx, socket, sigma.SystemRealm)
	if err != nil {
		return err
	}
	defer c.Close()
	if err = c.Down(ctx); sigma.KindOf(err) == sigma.KindLost {
		err = nil
	}
	return err
}

// signalLauncher signals the process that holds the lock. Its number cannot belong to another process while the lock is held.
func signalLauncher(pid int, s syscall.Signal) {
	if pid > 1 && pid != os.Getpid() {
		syscall.Kill(pid, s)
	}
}

func notRunning(dir string) error {
	verb := "up --detach"
	if os.Geteuid() != 0 {
		verb = "up --rootless --detach"
	}
	return &sigma.Error{Op: "sigma.running", Kind: sigma.KindUnavailable, Msg: "no sigmaOS is running on " + dir, Hint: "start it with: " + commandOn(verb, dir)}
}
