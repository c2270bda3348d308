package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/kernel"
	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// bootPlan says what to start on a DATA.
type bootPlan struct {
	record           datadir.Record
	join             *kernel.Join // nil = it has joined, or founds a system
	weaken, rootless bool
	network          *hostsetup.Network // nil = the host's
	etcd             *sigmap.Etcd       // nil = what was noted there before, if anything
}

// booting is a launcher that was started.
type booting struct {
	dir       string
	joining   bool
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
func (a *app) boot(ctx context.Context, dir string, p bootPlan) (_ *booting, err error) {
	programs, err := cli.FindPrograms()
	if err != nil {
		return nil, err
	}
	user, err := a.startRootless(p.rootless)
	if err != nil {
		return nil, err
	}
	defer user.Close()
	if err := datadir.Prepare(dir); err != nil {
		return nil, err
	}
	b := &booting{dir: dir, joining: p.join != nil, exited: make(chan struct{})}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.lock, err = datadir.Lock(ctx, dir); err != nil {
		return nil, err
	}
	if err := datadir.WriteHolder(b.lock, os.Getpid()); err != nil {
		return nil, err
	}
	id, err := datadir.Instance(dir)
	if err != nil {
		return nil, err
	}
	if err := p.handOver(dir, id); err != nil {
		return nil, err
	}
	listen, err := p.prepare(dir, id)
	if err != nil {
		return nil, err
	}
	if err := p.prioritize(id); err != nil {
		fmt.Fprintln(a.Err, uplinkWarning(err))
	}
	if b.log, b.logFrom, err = datadir.OpenLog(dir); err != nil {
		return nil, err
	}
	ready, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	b.ready = ready
	// ExtraFiles begin at 3. A session of its own keeps the terminal's ^C from the launcher: up
	// passes on what should reach it.
	args := append(p.record.Arguments(), "--data", dir, "--instance", id, "--lock-fd", "3", "--ready-fd", "4")
	for _, name := range bootSet(&p.record) {
		args = append(args, "--program", name+"="+programs[cli.ProgramOf(name)])
	}
	files := []*os.File{b.lock, w}
	if listen.IsValid() {
		args = append(args, "--listen", listen.String())
	}
	if p.network != nil {
		args = append(args, "--hold-fd", "5")
		files = append(files, p.network.Hub)
	}
	realms, err := listenRealms(dir)
	if err != nil {
		return nil, err
	}
	defer realms.Close()
	args = append(args, "--realm-fd", fmt.Sprint(3+len(files)))
	files = append(files, realms)
	if user != nil {
		args = append(args, user.Argument(3+len(files))...)
		files = append(files, user.Theirs)
	}
	if p.weaken {
		args = append(args, "--weaken")
	}
	b.cmd = exec.Command(programs["launcher"], args...)
	b.cmd.Dir, b.cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	b.cmd.Stdout, b.cmd.Stderr = b.log, b.log
	b.cmd.ExtraFiles = files
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.network.Start(b.cmd); err != nil {
		return nil, sigma.Wrap("sigma.boot", programs["launcher"], err)
	}
	go func() {
		b.cmd.Wait()
		close(b.exited)
	}()
	err = datadir.WriteHolder(b.lock, b.cmd.Process.Pid)
	if err == nil && user != nil {
		err = user.MapIDs(b.cmd.Process.Pid)
	}
	if err != nil {
		b.stop(stopTimeout)
		return nil, err
	}
	return b, nil
}

// prepare writes into DATA, which is locked, what the next up and sigmad read there, and says where
// to listen.
func (p *bootPlan) prepare(dir, instance string) (listen netip.AddrPort, err error) {
	if p.join != nil {
		if err := prepareJoin(dir, instance, p.join); err != nil {
			return listen, err
		}
	}
	if p.etcd != nil {
		if err := putEtcd(dir, instance, p.etcd); err != nil {
			return listen, err
		}
	}
	if err := os.Remove(filepath.Join(dir, "sigmad", "launches")); err != nil &&
		!errors.Is(err, fs.ErrNotExist) { // restarts are counted from here on
		return listen, datadir.Explain(dir, err)
	}
	if err := p.record.Write(dir); err != nil || p.record.Address == "" {
		return listen, err
	}
	to, err := netip.ParseAddrPort(p.record.Address)
	if err != nil {
		return listen, &sigma.Error{Op: "sigma.boot", Path: filepath.Join(dir, datadir.RecordName),
			Kind: sigma.KindInvalid,
			Msg:  "has no address", Err: err, Hint: "give it with --address"}
	}
	if p.network != nil {
		return to, nil
	}
	listen = cli.ListenOn(to)
	return listen, cli.CheckFree(listen)
}

// waiting is what a machine that boots waits for, as sigmad says it.
type waiting struct {
	what    string // "" = nothing is known
	missing bool   // too few control machines answer
}

// parseWaiting reads a line of sigmad's; ok is false if it is its last word.
func parseWaiting(line string) (w waiting, ok bool) {
	if w.what, w.missing = strings.CutPrefix(line, "missing: "); w.missing {
		return w, true
	}
	w.what, ok = strings.CutPrefix(line, "waits:")
	w.what = strings.TrimSpace(w.what)
	return w, ok
}

// awaitReady returns nil when the system is up, and says before, with tell, what the machine waits
// for. Otherwise it has stopped what there was, and said why.
func (a *app) awaitReady(b *booting, r *datadir.Record, tell func(format string, args ...any),
	signals <-chan os.Signal) error {
	b.ready.SetReadDeadline(time.Now().Add(readyTimeout))
	line := make(chan string, 1)
	var now waiting // written before line is
	go func() {
		from := bufio.NewReaderSize(b.ready, 4096)
		for {
			text, err := from.ReadSlice('\n')
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				text = fmt.Appendf(nil, "error: not ready after %v", readyTimeout)
			case err != nil && len(text) == 0:
				text = []byte("error: the launcher ended before the system was ready")
			}
			last := strings.TrimSpace(string(text))
			if w, is := parseWaiting(last); is && err == nil {
				if now = w; w.what != "" {
					tell("machine %s waits for %s", r.Machine, w.what)
				}
				continue
			}
			line <- last
			return
		}
	}()
	var text string
	select {
	case text = <-line:
	case s := <-signals:
		b.stop(stopTimeout)
		freeUplink(b.dir)
		return cli.ExitCode(cli.ExitBySignal + int(s.(syscall.Signal)))
	}
	if text == "ready" {
		return nil
	}
	b.stop(stopTimeout)
	freeUplink(b.dir)
	if tail := datadir.LastLines(b.log, b.logFrom, 20); tail != "" && !hasHint(text) {
		for line := range strings.SplitSeq(tail, "\n") {
			tell("%s", line)
		}
	}
	return notReady(b, r, strings.TrimPrefix(text, "error: "), now)
}

// hasHint reports whether what sigmad said last has a hint, behind a tab: then the log tells no
// more.
func hasHint(text string) bool { return strings.Contains(text, "\t") }

// notReady is the error of a start that ended with why while the machine waited for something.
func notReady(b *booting, r *datadir.Record, why string, w waiting) error {
	why, hint, is := strings.Cut(why, "\t")
	e := &sigma.Error{Op: "sigma.up", Kind: sigma.KindUnavailable, Msg: "sigmaOS did not start: " + why,
		Hint: "see " + filepath.Join(b.dir, datadir.LogName) + "; what this machine lacks is told by: sigma doctor"}
	if b.joining {
		e.Msg = "this machine did not join: " + why
	}
	if is {
		e.Hint = hint
		return e
	}
	if w.what == "" || !strings.HasPrefix(why, "not ready") {
		return e
	}
	e.Msg += fmt.Sprintf(", machine %s waited for %s", r.Machine, w.what)
	switch {
	case !w.missing:
	case r.Role == datadir.RoleOrdinary:
		e.Hint = "start sigmaOS on these machines, and see that this one reaches them; then start it again here"
	default:
		e.Hint =
			"start sigmaOS on these machines within a minute, then here again; if they are gone for good: sigma " +
				"snapshot restore --replace"
	}
	return e
}

// bootAndStay boots, and stays unless detach is set.
func (a *app) bootAndStay(ctx context.Context, dir string, p bootPlan, detach bool, signals <-chan os.Signal) error {
	b, err := a.boot(ctx, dir, p)
	if err != nil {
		return err
	}
	defer b.close()
	if err := a.awaitReady(b, &p.record, a.Remark, signals); err != nil {
		if p.join != nil {
			abandonJoin(dir)
		}
		return err
	}
	is := "sigmaOS is running as machine"
	if p.join != nil {
		is = fmt.Sprintf("joined the system at %s; sigmaOS is running as machine", p.join.Address)
	}
	if !detach {
		fmt.Fprintf(a.Out, "%s %s on %s; ^C stops it\n", is, p.record.Machine, dir)
		return a.stay(b, signals)
	}
	fmt.Fprintf(a.Out, "%s %s on %s (pid %d)\n", is, p.record.Machine, dir, b.cmd.Process.Pid)
	fmt.Fprintln(a.Err, a.next(dir))
	return nil
}

// next says what to do with a system.
func (a *app) next(dir string) string {
	where := ""
	if dir != a.DefaultData() {
		where = " --data " + dir
	}
	return fmt.Sprintf("next: sigma run%s ./PROGRAM | sigma ls%s / | sigma status%s | sigma down%s", where, where,
		where, where)
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
