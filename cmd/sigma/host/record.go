package host

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sigma"
)

// bootSet is what the launcher is told of, sigmad first. A user id belongs to each place
// (docs/internals/launcher-protocol.md), so no set changes the place of what it has; further
// bescheds come last.
func bootSet(r *datadir.Record) []string {
	set := hostsetup.BootSet()
	switch r.Role {
	case datadir.RoleControl:
		set = hostsetup.ControlSet()
	case datadir.RoleOrdinary:
		return []string{"sigmad"}
	}
	for n := 2; n <= r.Bescheds; n++ {
		set = append(set, "besched-"+strconv.Itoa(n))
	}
	return set
}

// offer is what the flags of up and join say of the machine.
type offer struct {
	machine, address, cpu, memory string
	labels                        []string
	encrypt, uplink               string
	bescheds                      int
}

func (o *offer) flags(f *pflag.FlagSet) {
	f.StringVar(&o.machine, "machine", "", "`NAME` of this machine in sigmaOS (default: the host name)")
	f.StringVar(&o.address, "address", "", "`HOST:PORT` where other machines reach this one")
	f.StringVar(&o.cpu, "cpu", "", "`CORES` that this machine offers, as in 2 or 0.5 (default: all)")
	f.StringVar(&o.memory, "memory", "", "memory that this machine offers, as in 4GiB; a hard `LIMIT` (default: all)")
	f.StringVar(&o.encrypt, "encrypt", "",
		"encrypt what programs say to those of other machines: `yes`, or no to end it; where the network is not "+
			"private")
	f.Lookup("encrypt").NoOptDefVal = "yes"
	f.IntVar(&o.bescheds, "bescheds", 0,
		"`N` queues of best-effort procs on this machine, if it is a control machine (default: 1)")
	f.StringVar(&o.uplink, "uplink", "",
		"`RATE` of the network behind this machine's interface, as in 1Gbit, or none: what latency-critical procs "+
			"send goes first there (default: the interface's own, if it is known)")
	f.StringArrayVar(&o.labels, "label", nil, "`NAME=VALUE` that describes this machine, as in zone=a; may be repeated")
}

// given tells whether anything is said that an ordinary user cannot have.
func (o *offer) beyondRootless() string {
	for _, f := range []struct{ name, value string }{{"--address", o.address}, {"--cpu", o.cpu}, {"--memory", o.memory},
		{"--uplink", o.uplink}} {
		if f.value != "" {
			return f.name
		}
	}
	return ""
}

// apply changes what was noted of a machine to what the flags say.
func (o *offer) apply(ctx context.Context, r *datadir.Record) error {
	if o.machine != "" {
		r.Machine = sigma.MachineID(o.machine)
	}
	if err := r.Machine.Check(); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	if o.address != "" {
		to, err := cli.Reachable(ctx, "--address", o.address)
		if err != nil {
			return err
		}
		r.Address = to.String()
	}
	switch {
	case o.bescheds < 0 || o.bescheds > besched.ShardsMax:
		return cli.UsageError(nil, "one is enough for most systems: sigma up", "--bescheds %d is not from 1 to %d",
			o.bescheds, besched.ShardsMax)
	case o.bescheds > 0:
		r.Bescheds = o.bescheds
	}
	if o.cpu != "" {
		cores, err := strconv.ParseFloat(o.cpu, 64)
		if err != nil || math.IsNaN(cores) || cores < 0.01 || cores > float64(runtime.NumCPU()) {
			return cli.UsageError(nil, "write for example --cpu 0.5",
				"--cpu %.40q is not a number of cores of this host, which has %d", o.cpu, runtime.NumCPU())
		}
		r.CPU = sigma.MilliCPU(math.Round(cores * 1000))
	}
	if o.memory != "" {
		m, err := sigma.ParseBytes(o.memory)
		if err != nil {
			return cli.WithCode(cli.ExitUsage, err)
		}
		if host := hostMemory(); m < shareLeast || m > host {
			return cli.UsageError(nil, "write for example --memory 2GiB",
				"--memory %v is not between %v and the host's %v", m, sigma.Bytes(shareLeast), host)
		}
		r.Memory = m
	}
	switch o.encrypt {
	case "":
	case "yes", "no":
		r.Encrypt = o.encrypt == "yes"
	default:
		return cli.UsageError(nil, "write --encrypt, or --encrypt=no to end it",
			"--encrypt %.40q is neither yes nor no", o.encrypt)
	}
	if err := noteUplink(o.uplink, r); err != nil {
		return err
	}
	if o.labels == nil {
		return nil
	}
	r.Labels = map[string]string{}
	for _, l := range o.labels {
		name, value, ok := strings.Cut(l, "=")
		if _, twice := r.Labels[name]; !ok || name == "" || value == "" || twice || len(l) > 200 ||
			strings.ContainsFunc(l, func(c rune) bool {
				return c <= ' ' || c == ',' || c > '~'
			}) {
			return cli.UsageError(nil, "write for example --label zone=a",
				"--label %.80q is not NAME=VALUE, each name once", l)
		}
		r.Labels[name] = value
	}
	return nil
}

// shareLeast is what sigmad and the services of a machine need.
const shareLeast = 128 << 20

func hostMemory() sigma.Bytes {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 1 << 62
	}
	return sigma.Bytes(uint64(info.Totalram) * uint64(info.Unit))
}

// prioritize gives the machine of a record its queue. That it cannot is no reason not to start;
// doctor says so.
func (p *bootPlan) prioritize(instance string) error {
	if p.record.Address == "" || p.rootless {
		return nil
	}
	return p.network.Within(func() error {
		u, err := hostsetup.FindUplink(p.record.Address, p.record.Uplink, instance)
		if u == nil || err != nil {
			return err
		}
		if u.Rate == 0 || p.record.NoUplink { // a dead system may have left one
			return u.Remove(instance)
		}
		return u.Install(instance)
	})
}

// freeUplink takes away what prioritize gave the system on dir, which has ended.
func freeUplink(dir string) {
	r, err := datadir.ReadRecord(dir)
	if err != nil || r == nil || r.Address == "" || r.Local || os.Geteuid() != 0 {
		return
	}
	id, err := datadir.Instance(dir)
	if err != nil {
		return
	}
	if u, err := hostsetup.FindUplink(r.Address, r.Uplink, id); u != nil && err == nil {
		u.Remove(id)
	}
}

// noteUplink changes what was noted of a machine to what --uplink says.
func noteUplink(text string, r *datadir.Record) (err error) {
	switch text {
	case "":
	case "none":
		r.Uplink, r.NoUplink = 0, true
	case "auto":
		r.Uplink, r.NoUplink = 0, false
	default:
		r.NoUplink = false
		r.Uplink, err = hostsetup.ParseRate(text)
	}
	return cli.WithCode(cli.ExitUsage, err)
}

// uplinkWarning says why there is no priority, where there should be.
func uplinkWarning(err error) string {
	return fmt.Sprintf("latency-critical procs do not go first on the network: %v; sigma doctor says more",
		sigma.Wrap("sigma.uplink", "", err))
}

// rejoinNetwork makes the network of one machine of several anew, joined to those that run. dir is
// DATA/machines/mI.
func rejoinNetwork(dir, address string) (*hostsetup.Network, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().Is4() {
		return nil, &sigma.Error{Op: "sigma.network", Path: filepath.Join(dir, datadir.RecordName),
			Kind: sigma.KindInvalid,
			Msg:  "has no address", Err: err, Hint: "restore it from a backup"}
	}
	hub, err := hubOf(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	return hostsetup.NewNetwork(hub, at.Addr())
}

// hubOf gives the hub of the machines below a directory: that of those that run, or a new one.
func hubOf(machines string) (*os.File, error) {
	entries, _ := os.ReadDir(machines)
	for _, e := range entries {
		if pid, held, err := datadir.Running(filepath.Join(machines, e.Name())); err == nil && held {
			if hub := hostsetup.FindHub(pid); hub != nil {
				return hub, nil
			}
		}
	}
	return hostsetup.NewHub()
}
