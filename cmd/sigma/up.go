package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/sigma"
)

// How long the parts of a start and a stop may take.
const (
	readyTimeout = 60 * time.Second
	stopTimeout  = 20 * time.Second // the launcher gives sigmad 10 s, then kills
)

// bootPrograms are what the launcher is told of, sigmad first.
var bootPrograms = []string{"sigmad", "named", "besched", "s3d"}

type upOptions struct {
	detach  bool
	machine string
	weaken  bool
	// by an ordinary user
	rootless bool
}

func newUpCommand(a *app) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up [--detach] [--rootless] [--data DIR] [--machine NAME]",
		Short: "Start sigmaOS on this machine",
		Long: `Start sigmaOS on this machine and stay until SIGINT or SIGTERM stops it in an
orderly way, or, with --detach, return as soon as it is ready.

All state is below DATA, which is made if it does not exist. One system can run on
a DATA at a time. What the system prints goes to DATA/sigma.log.

The programs launcher, sigmad, named, besched and s3d must lie beside sigma.

With --rootless an ordinary user can do it, for development on a machine of one's own:
procs are contained in a user namespace. What is weaker than under root is said at
each start and by "sigma doctor".`,
		Example: `  sudo sigma up --detach
  sudo sigma up --data /srv/sigma --machine host-1
  sigma up --rootless --detach`,
		Args:        between(0, 0),
		Annotations: map[string]string{ownSignals: ""},
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.up(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.BoolVarP(&o.detach, "detach", "d", false, "return when the system is ready and leave it running")
	f.StringVar(&o.machine, "machine", "", "`NAME` of this machine in sigmaOS (default: the host name)")
	f.BoolVar(&o.rootless, "rootless", false, "start it as an ordinary user, less protected than under root")
	f.BoolVar(&o.weaken, "weaken", false, "let tests take protections off procs")
	f.MarkHidden("weaken")
	return cmd
}

func (a *app) up(ctx context.Context, o upOptions) error {
	if o.machine == "" {
		o.machine = machineName()
	}
	if err := sigma.MachineID(o.machine).Check(); err != nil {
		return withCode(exitUsage, err)
	}
	switch root := os.Geteuid() == 0; {
	case root && o.rootless:
		return withCode(exitUsage, &sigma.Error{Op: "sigma.up", Kind: sigma.KindInvalid, Msg: "--rootless is for ordinary users, and this is root", Hint: "sigma up"})
	case !root && !o.rootless:
		return &sigma.Error{Op: "sigma.up", Kind: sigma.KindPermission, Msg: "starting sigmaOS needs root", Hint: "sudo sigma up; or, with weaker protections: sigma up --rootless"}
	}
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	b, err := a.boot(ctx, dir, o)
	if err != nil {
		return err
	}
	defer b.close()
	if err := a.awaitReady(b, signals); err != nil {
		return err
	}
	where := ""
	if dir != a.defaultData() {
		where = " --data " + dir
	}
	if o.detach {
		fmt.Fprintf(a.out, "sigmaOS is running as machine %s on %s (pid %d)\n", o.machine, dir, b.cmd.Process.Pid)
		a.remark("next: sigma run%s ./PROGRAM | sigma ls%s / | sigma status%s | sigma down%s", where, where, where, where)
		return nil
	}
	fmt.Fprintf(a.out, "sigmaOS is running as machine %s on %s; ^C stops it\n", o.machine, dir)
	return a.stay(b, signals)
}

// machineName makes a machine's name of the host's.
func machineName() string {
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	name := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, host), "-")
	if name == "" || name[0] < 'a' {
		name = "m-" + name
	}
	return strings.TrimRight(name[:min(len(name), 63)], "-")
}

// booting is a launcher that was started.
type booting struct {
	dir       string
	cmd       *exec.Cmd
	lock, log *os.File
	ready     *os.File // the pipe's end to read
	logFrom   int64
	exited    chan struct{} // closed when the launcher is gone
}

func (b *booting) close() {
	for _, f := range []*os.File{b.lock, b.log, b.ready} {
		f.Close()
	}
}

// boot starts the launcher on DATA.
func (a *app) boot(ctx context.Context, dir string, o upOptions) (_ *booting, err error) {
	programs, err := findPrograms()
	if err != nil {
		return nil, err
	}
	user, err := a.startRootless(o)
	if err != nil {
		return nil, err
	}
	defer user.close()
	if err := prepareData(dir); err != nil {
		return nil, err
	}
	b := &booting{dir: dir, exited: make(chan struct{})}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.lock, err = lockData(ctx, dir); err != nil {
		return nil, err
	}
	if err := writeHolder(b.lock, os.Getpid()); err != nil {
		return nil, err
	}
	id, err := instance(dir)
	if err != nil {
		return nil, err
	}
	if b.log, b.logFrom, err = openLog(dir); err != nil {
		return nil, err
	}
	ready, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	b.ready = ready
	// ExtraFiles begin at 3. A session of its own keeps the terminal's ^C from the launcher: up passes on what should reach it.
	args := []string{"--data", dir, "--machine", o.machine, "--instance", id, "--lock-fd", "3", "--ready-fd", "4"}
	for _, p := range bootPrograms {
		args = append(args, "--program", p+"="+programs[p])
	}
	if o.weaken {
		args = append(args, "--weaken")
	}
	if user != nil {
		args = append(args, user.argument(5)...)
	}
	b.cmd = exec.Command(programs["launcher"], args...)
	b.cmd.Dir, b.cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	b.cmd.Stdout, b.cmd.Stderr = b.log, b.log
	b.cmd.ExtraFiles = []*os.File{b.lock, w}
	if user != nil {
		b.cmd.ExtraFiles = append(b.cmd.ExtraFiles, user.theirs)
	}
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := b.cmd.Start(); err != nil {
		return nil, sigma.Wrap("sigma.boot", programs["launcher"], err)
	}
	go func() {
		b.cmd.Wait()
		close(b.exited)
	}()
	err = writeHolder(b.lock, b.cmd.Process.Pid)
	if err == nil && user != nil {
		err = user.mapIDs(b.cmd.Process.Pid)
	}
	if err != nil {
		b.stop(stopTimeout)
		return nil, err
	}
	return b, nil
}

// findPrograms looks for the system's programs beside this one.
func findPrograms() (map[string]string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return nil, sigma.Wrap("sigma.findPrograms", "", err)
	}
	found := map[string]string{}
	for _, name := range append([]string{"launcher"}, bootPrograms...) {
		path := filepath.Join(filepath.Dir(self), name)
		if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
			return nil, &sigma.Error{Op: "sigma.findPrograms", Kind: sigma.KindNotFound, Msg: fmt.Sprintf("the program %s is not in %s", name, filepath.Dir(self)),
				Hint: "build all of sigmaOS with: make build; then use bin/sigma, or install with: make install"}
		}
		found[name] = path
	}
	return found, nil
}

// awaitReady returns nil when the system is up. Otherwise it has stopped what there was, and said why.
func (a *app) awaitReady(b *booting, signals <-chan os.Signal) error {
	b.ready.SetReadDeadline(time.Now().Add(readyTimeout))
	line := make(chan string, 1)
	go func() {
		text, err := bufio.NewReaderSize(b.ready, 4096).ReadSlice('\n')
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			text = fmt.Appendf(nil, "error: not ready after %v", readyTimeout)
		case err != nil && len(text) == 0:
			text = []byte("error: the launcher ended before the system was ready")
		}
		line <- strings.TrimSpace(string(text))
	}()
	var text string
	select {
	case text = <-line:
	case s := <-signals:
		b.stop(stopTimeout)
		return exitCode(exitBySignal + int(s.(syscall.Signal)))
	}
	if text == "ready" {
		return nil
	}
	b.stop(stopTimeout)
	if tail := lastLines(b.log, b.logFrom, 20); tail != "" {
		a.remark("%s", tail)
	}
	return &sigma.Error{Op: "sigma.up", Kind: sigma.KindUnavailable, Msg: "sigmaOS did not start: " + strings.TrimPrefix(text, "error: "),
		Hint: "see " + filepath.Join(b.dir, logName) + "; what this machine lacks is told by: sigma doctor"}
}

// stay waits for a signal to stop the system, or for its end.
func (a *app) stay(b *booting, signals <-chan os.Signal) error {
	select {
	case <-b.exited:
	case <-signals:
		a.remark("stopping; once more to kill")
		b.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-b.exited:
		case <-signals:
			b.stop(0)
		case <-time.After(stopTimeout):
			b.stop(0)
		}
		return waitStopped(context.Background(), b.unlocked())
	}
	if b.cmd.ProcessState.Success() {
		a.remark("sigmaOS was stopped")
		return nil
	}
	if tail := lastLines(b.log, b.logFrom, 20); tail != "" {
		a.remark("%s", tail)
	}
	return &sigma.Error{Op: "sigma.up", Kind: sigma.KindLost, Msg: fmt.Sprintf("sigmaOS ended unexpectedly (%v)", b.cmd.ProcessState),
		Hint: "see " + filepath.Join(b.dir, logName) + "; start it again with: sigma up"}
}

// unlocked gives up this program's share of the lock and returns DATA.
func (b *booting) unlocked() string {
	b.lock.Close()
	return b.dir
}

// stop ends the launcher in the orderly way, or by force after grace.
func (b *booting) stop(grace time.Duration) {
	if grace > 0 {
		b.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-b.exited:
			return
		case <-time.After(grace):
		}
	}
	b.cmd.Process.Kill() // its children die with it (PDEATHSIG)
	<-b.exited
}
