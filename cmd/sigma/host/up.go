// Package host starts and stops the system on this host: of one machine, of several, and of one
// that joins another system. It writes what the machine is into DATA, makes the sockets, and
// attends the launcher.
package host

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sigma"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return []*cobra.Command{
		newUpCommand(a),
		newJoinCommand(a),
		newDownCommand(a),
	}
}

// How long the parts of a start and a stop may take.
const (
	readyTimeout = 60 * time.Second
	stopTimeout  = 30 * time.Second // the launcher gives sigmad 20 s, then kills
)

type upOptions struct {
	offer
	etcd              etcdOptions
	detach            bool
	weaken            bool
	machines, control int
	// by an ordinary user
	rootless bool
}

func newUpCommand(a *app) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up [--detach] [--rootless] [--data DIR] [--machine NAME] [--address HOST:PORT] [--machines N]",
		Short: "Start sigmaOS on this machine",
		Long: `Start sigmaOS on this machine and stay until SIGINT or SIGTERM stops it in an
orderly way, or, with --detach, return as soon as it is ready.

All state is below DATA, which is made if it does not exist. One system can run on
a DATA at a time. What the system prints goes to DATA/sigma.log. What the flags say of
the machine is remembered there too.

With --address other machines can join: sigmaOS listens there (on all addresses of the
host, if this one is not its own but leads to it). Without it no port is opened.

A machine that has joined a system ("sigma join") is started by up too, and registers
again by itself.

With --machines N sigmaOS is N machines, m1 to mN, on this host, for development: each
has a network of its own, DATA/machines/mI, and its share of cores and memory, and
nothing in common with the others but the kernel. "sigma down" ends all, and the next
up starts all. Other commands talk to m1.

With --etcd the names are in an etcd that you run, instead of one of sigmaOS's own. It
needs TLS, but on this host's loopback, and must allow big transactions; up says which
flags it lacks. It holds the names of one sigmaOS. What --etcd and its FILEs are is
remembered; the FILEs are read at each start.

The programs launcher, sigmad, named, besched, s3d, machined, dbd and lcsched must lie beside sigma.

With --rootless an ordinary user can do it, for development on a machine of one's own:
procs are contained in a user namespace. What is weaker than under root is said at
each start and by "sigma doctor".`,
		Example: `  sudo sigma up --detach
  sudo sigma up --data /srv/sigma --machine host-1
  sudo sigma up --address 192.0.2.7:7700 --label zone=a --detach
  sudo sigma up --machines 3 --detach
  sudo sigma up --etcd etcd-1:2379,etcd-2:2379 --etcd-ca ca.pem --etcd-cert me.pem --etcd-key me.key
  sigma up --rootless --detach`,
		Annotations: map[string]string{cli.OwnSignals: ""},
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.up(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.BoolVarP(&o.detach, "detach", "d", false, "return when the system is ready and leave it running")
	o.offer.flags(f)
	o.etcd.flags(f)
	f.IntVar(&o.machines, "machines", 0, "be `N` machines on this host")
	f.IntVar(&o.control, "control", 0, "how many of --machines hold the control plane: `1, 3 or 5` (default: 1)")
	f.BoolVar(&o.rootless, "rootless", false, "start it as an ordinary user, less protected than under root")
	f.BoolVar(&o.weaken, "weaken", false, "let tests take protections off procs")
	f.MarkHidden("weaken")
	return cmd
}

func (a *app) up(ctx context.Context, o upOptions) error {
	switch root := os.Geteuid() == 0; {
	case root && o.rootless:
		return cli.WithCode(cli.ExitUsage, &sigma.Error{Op: "sigma.up", Kind: sigma.KindInvalid,
			Msg: "--rootless is for ordinary users, and this is root", Hint: "sigma up"})
	case !root && o.rootless && (o.machines > 0 || o.beyondRootless() != ""):
		return cli.WithCode(cli.ExitUsage, &sigma.Error{Op: "sigma.up", Kind: sigma.KindUnsupported,
			Msg: fmt.Sprintf(
				"%s needs root: an ordinary user has no network namespaces and control groups to give machines, and "+
					"others could not trust one whose procs are a user's", cli.OrElse(o.beyondRootless(),
					"--machines")),
			Hint: "sudo sigma up"})
	case !root && o.rootless && o.etcd.given():
		return cli.WithCode(cli.ExitUsage, &sigma.Error{Op: "sigma.up", Kind: sigma.KindUnsupported,
			Msg:  "--etcd needs root: its keys would not be kept from other programs of the user",
			Hint: "sudo sigma up"})
	case !root && !o.rootless:
		return &sigma.Error{Op: "sigma.up", Kind: sigma.KindPermission, Msg: "starting sigmaOS needs root",
			Hint: "sudo sigma up; or, with weaker protections: sigma up --rootless"}
	}
	dir, err := a.DataRoot()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if several, err := a.several(dir, o); several != nil || err != nil {
		if err != nil {
			return err
		}
		return a.upSeveral(ctx, dir, several, o, signals)
	}
	p := bootPlan{weaken: o.weaken, rootless: o.rootless}
	if p.record, err = upRecord(ctx, dir, &o.offer); err != nil {
		return err
	}
	if err := o.etcd.apply(dir, &p.record); err != nil {
		return err
	}
	if p.etcd, err = lookAtEtcd(ctx, dir, &p.record); err != nil {
		return err
	}
	if p.record.Local {
		if p.network, err = rejoinNetwork(dir, p.record.Address); err != nil {
			return err
		}
		defer p.network.Close()
	}
	return a.bootAndStay(ctx, dir, p, o.detach, signals)
}

// upRecord is what the machine of DATA is from now on.
func upRecord(ctx context.Context, dir string, o *offer) (datadir.Record, error) {
	r := datadir.Record{Machine: sigma.MachineID(machineName()), Role: datadir.RoleFounder}
	if o.machine != "" && sigma.MachineID(o.machine).Check() != nil {
		return r, o.apply(ctx, &r)
	}
	old, err := datadir.ReadRecord(dir)
	if err != nil {
		return r, err
	}
	if old != nil {
		r = *old
		if r.Role != datadir.RoleFounder && !datadir.IsMember(dir) {
			return r, datadir.Error(dir, sigma.KindUnavailable,
				"is that of a machine that tried to join a system and did not succeed",
				"try again with: "+datadir.CommandOn("join", dir)+" ADDR --token TOKEN")
		}
		if name := sigma.MachineID(o.machine); name != "" && name != r.Machine && datadir.IsMember(dir) {
			return r, datadir.Error(dir, sigma.KindExists, fmt.Sprintf(
				"is that of machine %s, whose name its system knows",
				r.Machine), "leave --machine out, or choose another with --data DIR")
		}
	}
	return r, o.apply(ctx, &r)
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

// stay waits for a signal to stop the system, or for its end.
func (a *app) stay(b *booting, signals <-chan os.Signal) error {
	select {
	case <-b.exited:
	case <-signals:
		a.Remark("stopping; once more to kill")
		b.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-b.exited:
		case <-signals:
			b.stop(0)
		case <-time.After(stopTimeout):
			b.stop(0)
		}
		defer freeUplink(b.dir)
		return datadir.WaitStopped(context.Background(), b.unlocked())
	}
	freeUplink(b.dir)
	if b.cmd.ProcessState.Success() {
		a.Remark("sigmaOS was stopped")
		return nil
	}
	if tail := datadir.LastLines(b.log, b.logFrom, 20); tail != "" {
		fmt.Fprintln(a.Err, tail)
	}
	return &sigma.Error{Op: "sigma.up", Kind: sigma.KindLost, Msg: fmt.Sprintf("sigmaOS ended unexpectedly (%v)",
		b.cmd.ProcessState),
		Hint: "see " + filepath.Join(b.dir, datadir.LogName) + "; start it again with: sigma up"}
}

// startRootless prepares for the mode and says what is weaker in it; nil if it was not asked for.
func (a *app) startRootless(asked bool) (*hostsetup.RootlessStart, error) {
	if !asked {
		return nil, nil
	}
	r := hostsetup.FindRootless()
	if r.Missing != "" {
		return nil, &sigma.Error{Op: "sigma.up", Kind: sigma.KindUnavailable,
			Msg: "rootless mode cannot be had here: " + r.Missing, Hint: r.HowMore}
	}
	for _, w := range r.Weaker() {
		a.Remark("rootless: %s", w)
	}
	return r.Start()
}
