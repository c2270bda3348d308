package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// How long down waits for an answer of sigmad, for an orderly end, and for the end after it has
// insisted.
const (
	downAnswer = 5 * time.Second
	downGrace  = 30 * time.Second
	downInsist = 30 * time.Second
)

// How procs that are asked to go are waited for.
const (
	downKill  = 2 * time.Second        // that killed ones may take to end
	downLook  = 50 * time.Millisecond  // between looks
	downQuiet = 300 * time.Millisecond // before it is said
	downShown = 5                      // that are named
)

func newDownCommand(a *app) *cobra.Command {
	var now bool
	cmd := &cobra.Command{
		Use:   "down [--now] [--data DIR]",
		Short: "Stop the system on this machine",
		Long: `Stop the system on this machine and return when nothing of it is left running.
If it is several machines ("sigma up --machines"), all are stopped.
Procs that run are asked to go, and killed if they have not gone after 5 seconds, in
which the whole system works on; with --now they are killed at once. Realms, names and
stored files stay in DATA for the next "sigma up".

A system that does not answer is stopped through its launcher. It is a failure (exit
code 1) if no system runs on DATA; what a killed one left on the host is removed then.`,
		Example: `  sudo sigma down
  sudo sigma down --now`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, is := a.Guest(); is {
				return &sigma.Error{Op: "sigma.down", Kind: sigma.KindPermission,
					Msg:  "to stop the system is the provider's, and a credential is of one realm",
					Hint: "work as root, without a credential"}
			}
			return a.down(cmd.Context(), now)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "kill procs at once")
	return cmd
}

func (a *app) down(ctx context.Context, now bool) error {
	dir, err := a.DataRoot()
	if err != nil {
		return err
	}
	if c, err := datadir.ReadCluster(dir); c != nil || err != nil {
		if err != nil {
			return err
		}
		return a.downSeveral(ctx, dir, c, now)
	}
	pid, held, err := datadir.Running(dir)
	if err != nil {
		return err
	}
	if !held {
		freeUplink(dir) // of one that died
		freeCgroups(ctx, dir)
		return datadir.NotRunning(dir)
	}
	ms := []*stopping{{dir: dir, pid: pid}}
	if err := a.seeOff(ctx, ms, now); err != nil {
		return err
	}
	if err := a.downOne(ctx, ms[0], now); err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "sigmaOS on %s is stopped\n", dir)
	return nil
}

// stopping is a machine that is being stopped.
type stopping struct {
	dir    string
	pid    int   // of its keeper
	silent error // why it does not answer
}

// seeOff gives the procs of machines their grace, while all of these work on. A machine that does
// not answer is left out.
func (a *app) seeOff(ctx context.Context, ms []*stopping, now bool) error {
	clients := make([]*sdk.Client, len(ms))
	onEach(ms, func(i int, m *stopping) {
		ctx, cancel := context.WithTimeout(ctx, downAnswer)
		defer cancel()
		clients[i], m.silent = sdk.Connect(ctx, a.socketOf(m.dir), sigma.SystemRealm)
	})
	defer onEach(ms, func(i int, m *stopping) {
		if clients[i] != nil {
			clients[i].Close()
		}
	})
	if now {
		return ctx.Err()
	}
	ask := func(evict bool) (n int, some []sigma.ProcInfo) {
		var mu sync.Mutex
		onEach(ms, func(i int, m *stopping) {
			if m.silent != nil {
				return
			}
			ctx, cancel := context.WithTimeout(ctx, downAnswer)
			defer cancel()
			of, which, err := clients[i].Leave(ctx, evict)
			mu.Lock()
			defer mu.Unlock()
			m.silent = err
			n += int(of)
			some = append(some, which...)
		})
		return n, some
	}
	ask(false) // all know it before the first proc goes
	said := false
	for begun := time.Now(); ctx.Err() == nil && time.Since(begun) < schedd.GraceDefault+downKill; datadir.Pause(ctx,
		downLook) {
		n, some := ask(true)
		if n == 0 {
			break
		}
		if !said && time.Since(begun) >= downQuiet {
			said = true
			a.Remark("waiting for %s to go, killed after %v (not waited for with --now): %s", cli.Count(n, "proc"),
				schedd.GraceDefault, procWords(n, some))
		}
	}
	if ctx.Err() != nil {
		a.Remark("not stopped; procs that were asked to go may be gone")
	}
	return ctx.Err()
}

// procWords names some of n procs.
func procWords(n int, some []sigma.ProcInfo) string {
	some = some[:min(len(some), downShown)]
	var words []string
	for _, p := range some {
		words = append(words, fmt.Sprintf("%s (%s, realm %s)", term.Printable(p.Name), p.ID, p.Realm))
	}
	if n > len(some) {
		words = append(words, fmt.Sprintf("%d more", n-len(some)))
	}
	return strings.Join(words, ", ")
}

// onEach does something for all machines at the same time.
func onEach(ms []*stopping, do func(i int, m *stopping)) {
	var all sync.WaitGroup
	for i, m := range ms {
		all.Go(func() { do(i, m) })
	}
	all.Wait()
}

// downOne stops the system of a machine.
func (a *app) downOne(ctx context.Context, m *stopping, now bool) error {
	dir, pid := m.dir, m.pid
	if m.silent == nil {
		m.silent = a.askDown(ctx, dir, now)
	}
	if _, held, err := datadir.Running(dir); m.silent != nil && ctx.Err() == nil && (held || err != nil) {
		a.Remark("the system does not answer (%v); stopping it through its launcher", m.silent)
		signalLauncher(pid, syscall.SIGTERM)
	}
	wait, cancel := context.WithTimeout(ctx, downGrace)
	defer cancel()
	if datadir.WaitStopped(wait, dir) != nil && ctx.Err() == nil {
		a.Remark("still stopping after %v; killing it", downGrace)
		signalLauncher(pid, syscall.SIGKILL)
		wait, cancel := context.WithTimeout(ctx, downInsist)
		defer cancel()
		if err := datadir.WaitStopped(wait, dir); err != nil && ctx.Err() == nil {
			return &sigma.Error{Op: "sigma.down", Kind: sigma.KindTimeout, Msg: fmt.Sprintf("something still holds %s",
				filepath.Join(dir, datadir.LockName)), Hint: "find it with: fuser " +
				filepath.Join(dir, datadir.LockName)}
		}
	}
	freeUplink(dir)
	freeCgroups(ctx, dir)
	return ctx.Err()
}

// askDown asks sigmad to stop. That the connection breaks is an answer too.
func (a *app) askDown(ctx context.Context, dir string, now bool) error {
	ctx, cancel := context.WithTimeout(ctx, downAnswer)
	defer cancel()
	c, err := sdk.Connect(ctx, a.socketOf(dir), sigma.SystemRealm)
	if err != nil {
		return err
	}
	defer c.Close()
	if err = c.Down(ctx, now); sigma.KindOf(err) == sigma.KindLost {
		err = nil
	}
	return err
}

// socketOf is the admin socket of the machine of a DATA.
func (a *app) socketOf(dir string) string {
	if a.Addr != "" {
		return a.Addr
	}
	return filepath.Join(dir, datadir.AdminSocket)
}

// signalLauncher signals the process that holds the lock. Its number cannot belong to another
// process while the lock is held.
func signalLauncher(pid int, s syscall.Signal) {
	if pid > 1 && pid != os.Getpid() {
		syscall.Kill(pid, s)
	}
}

// cgroupsMost is how long processes that were killed may take to leave their cgroups.
const cgroupsMost = 2 * time.Second

// freeCgroups takes away the cgroups of the system on dir, which has ended. One that was killed
// could not do so itself. What is not empty stays for the next up, which ends what is in it.
func freeCgroups(ctx context.Context, dir string) {
	if _, err := os.Lstat(filepath.Join(dir, datadir.InstanceName)); err != nil || os.Geteuid() != 0 {
		return
	}
	lock, err := datadir.Lock(ctx, dir) // so that none is started meanwhile
	if err != nil {
		return
	}
	defer lock.Close()
	id, err := datadir.Instance(dir)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, cgroupsMost)
	defer cancel()
	for _, at := range hostsetup.Hierarchies(hostsetup.Read) {
		for !removeDirs(filepath.Join(at, "sigma-"+id)) && datadir.Pause(ctx, 20*time.Millisecond) == nil {
		}
	}
}

// removeDirs removes an empty directory and those in it, and reports whether it is gone. The files
// of a cgroup go with it.
func removeDirs(dir string) (gone bool) {
	in, _ := os.ReadDir(dir)
	for _, e := range in {
		if e.IsDir() {
			removeDirs(filepath.Join(dir, e.Name()))
		}
	}
	err := syscall.Rmdir(dir)
	return err == nil || errors.Is(err, fs.ErrNotExist)
}
