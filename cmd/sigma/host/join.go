package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/kernel"
	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/hostdir"
)

type joinOptions struct {
	offer
	token   string
	control bool
	detach  bool
	weaken  bool
}

func newJoinCommand(a *app) *cobra.Command {
	var o joinOptions
	cmd := &cobra.Command{
		Use:   "join ADDR --token TOKEN [--detach] [--control] [--machine NAME] [--data DIR]",
		Short: "Make this machine a part of a system",
		Long: `Make this machine a part of the system that answers at ADDR (the HOST:PORT of any of
its machines), start sigmaOS on it, and stay until SIGINT or SIGTERM stops it, or, with
--detach, return as soon as it has joined.

The token is made by "sigma token create" on a machine of the system; "--token -" reads
it from standard input. It is used once and not kept: from then on the machine has an
identity of its own, below DATA, and is started by "sigma up".

Others reach this machine at --address; the default is the address of this host that
leads to ADDR, with ADDR's port.`,
		Example: `  sudo sigma join 192.0.2.7:7700 --token sigma-token-1-... --detach
  sudo sigma join 192.0.2.7:7700 --token - --control --label zone=b < token`,
		Args:        cli.Between(1, 1),
		Annotations: map[string]string{cli.OwnSignals: ""},
		RunE:        func(cmd *cobra.Command, args []string) error { return a.join(cmd.Context(), args[0], o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.token, "token", "", "`TOKEN` that admits this machine; - reads it from standard input")
	f.BoolVarP(&o.detach, "detach", "d", false, "return when the machine has joined and leave it running")
	f.BoolVar(&o.control, "control", false, "let it hold a part of the control plane")
	o.offer.flags(f)
	f.BoolVar(&o.weaken, "weaken", false, "let tests take protections off procs")
	f.MarkHidden("weaken")
	return cmd
}

func (a *app) join(ctx context.Context, address string, o joinOptions) error {
	if os.Geteuid() != 0 {
		return &sigma.Error{Op: "sigma.join", Kind: sigma.KindPermission,
			Msg: "joining a system needs root: what an ordinary user starts is for one machine, since nothing " +
				"outside could tell its procs apart", Hint: "sudo sigma join " + address[:min(len(address), 100)]}
	}
	to, err := cli.Reachable(ctx, "the address", address)
	if err != nil {
		return err
	}
	if o.token, err = a.readToken(o.token); err != nil {
		return err
	}
	dir, err := a.DataRoot()
	if err != nil {
		return err
	}
	r := datadir.Record{Machine: sigma.MachineID(machineName()), Role: datadir.RoleOrdinary}
	if o.control {
		r.Role = datadir.RoleControl
	}
	if err := o.apply(ctx, &r); err != nil {
		return err
	}
	if r.Address == "" {
		own, err := cli.OwnAddress(to)
		if err != nil {
			return err
		}
		r.Address = netip.AddrPortFrom(own, to.Port()).String()
	}
	p := bootPlan{record: r, weaken: o.weaken, join: &kernel.Join{Address: to.String(), Token: o.token,
		Control: o.control}}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	return a.bootAndStay(ctx, dir, p, o.detach, signals)
}

// readToken takes the token from where it is, and looks whether it is one.
func (a *app) readToken(text string) (string, error) {
	if text == "-" {
		b, err := io.ReadAll(io.LimitReader(a.In, 4096))
		if err != nil {
			return "", sigma.Wrap("sigma.join", "", err)
		}
		text = strings.TrimSpace(string(b))
	}
	if text == "" {
		return "", cli.UsageError(nil,
			"make one on a machine of the system with: sigma token create; then give it with --token",
			"a token is needed")
	}
	if _, err := identity.ParseToken(text); err != nil {
		return "", cli.WithCode(cli.ExitUsage, err)
	}
	return text, nil
}

// prepareJoin makes DATA, which is locked and of this instance, that of a machine that has yet to
// join.
func prepareJoin(dir, instance string, j *kernel.Join) error {
	old, err := datadir.ReadRecord(dir)
	if err != nil {
		return err
	}
	_, used := os.Lstat(filepath.Join(dir, "sigmad"))
	switch {
	case datadir.IsMember(dir) && old != nil && old.Role != datadir.RoleFounder:
		return datadir.Error(dir, sigma.KindExists, fmt.Sprintf("is that of machine %s, which has joined a system",
			old.Machine), "start it with: "+datadir.CommandOn("up --detach", dir)+"; or choose another with --data DIR")
	case datadir.IsCluster(dir):
		return datadir.Error(dir, sigma.KindExists, "is that of several machines", "choose another with --data DIR")
	case old != nil && old.Role == datadir.RoleFounder, old == nil && used == nil:
		return datadir.Error(dir, sigma.KindExists, "is that of a system of its own", "choose another with --data DIR")
	}
	if old != nil {
		// of an attempt that failed; sigmad may have kept the key with which to ask for an answer
		// that was lost
		for _, p := range hostsetup.BootSet()[1:] {
			if err := os.RemoveAll(filepath.Join(dir, p)); err != nil {
				return datadir.Explain(dir, err)
			}
		}
	}
	return tellSigmad(dir, instance, "join", j)
}

// tellSigmad leaves sigmad a file that it alone can read, with what as JSON.
func tellSigmad(dir, instance, name string, what any) error {
	home := filepath.Join(dir, "sigmad")
	if err := os.Mkdir(home, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return datadir.Explain(home, err)
	}
	text, err := json.Marshal(what)
	if err != nil {
		return sigma.Wrap("sigma."+name, "", err)
	}
	uid, err := programUID(instance, 0)
	if err != nil {
		return err
	}
	return datadir.Write(filepath.Join(home, name), string(text), uid)
}

// programUID is what the launcher runs the i-th program of the boot set as
// (docs/internals/launcher-protocol.md); sigmad is the first, 0.
func programUID(instance string, i int) (int, error) {
	n, err := strconv.ParseUint(instance, 16, 32)
	return 0x40000000 + int(n%1024)<<20 + 1 + i, err
}

// ownLevels is down to where the directories of programs are looked at for others' files: to the
// buckets of each realm (s3d/buckets/REALM/BUCKET).
const ownLevels = 3

// handOver gives each program's directory in DATA, which is locked, to the user whom it runs as:
// another than it was if files were put back from a backup of another DATA, or if the machine's
// role, and with it the place in the boot set, has changed.
func (p *bootPlan) handOver(dir, instance string) error {
	if os.Geteuid() != 0 {
		// rootless: what a user puts back is the launcher's root's, and the range of users is the
		// same for all
		return nil
	}
	data, err := hostdir.Open(dir)
	if err != nil {
		return datadir.Explain(dir, err)
	}
	defer data.Close()
	for i, name := range bootSet(&p.record) {
		uid, err := programUID(instance, i)
		if err == nil {
			err = ownDirectory(data, name, uint32(uid))
		}
		if err != nil {
			return datadir.Explain(dir, err)
		}
	}
	return nil
}

// ownDirectory hands over what is in a program's directory; the directory itself is the launcher's
// to give.
func ownDirectory(data *hostdir.Dir, name string, uid uint32) error {
	own, err := data.Dir(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer own.Close()
	return own.Own(uid, ownLevels)
}

// abandonJoin removes the token of an attempt that failed.
func abandonJoin(dir string) {
	if !datadir.IsMember(dir) {
		os.Remove(filepath.Join(dir, "sigmad", "join"))
	}
}
