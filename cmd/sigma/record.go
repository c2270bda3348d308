package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"sigmaos.dev/besched"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/sigma"
)

// recordName is the file of DATA in which up and join note what the machine is, for the next up.
const recordName = "machine"

// Roles of machines, from which follows what they run besides sigmad.
const (
	roleFounder  = "founder"  // the first of its system; its disk is the store
	roleControl  = "control"  // it joined, and holds a part of the control plane
	roleOrdinary = "ordinary" // it joined
)

// bootSet is what the launcher is told of, sigmad first. A user id belongs to each place
// (docs/internals/launcher-protocol.md), so no set changes the place of what it has; further
// bescheds come last.
func bootSet(r *record) []string {
	set := bootPrograms
	switch r.Role {
	case roleControl:
		set = []string{"sigmad", "named", "besched", "machined", "lcsched"}
	case roleOrdinary:
		return []string{"sigmad"}
	}
	set = slices.Clone(set)
	for n := 2; n <= r.Bescheds; n++ {
		set = append(set, "besched-"+strconv.Itoa(n))
	}
	return set
}

// programOf is the file of a program of a boot set.
func programOf(name string) string {
	if strings.HasPrefix(name, "besched-") {
		return "besched"
	}
	return name
}

// record is what recordName holds.
type record struct {
	Machine sigma.MachineID   `json:"machine"`
	Role    string            `json:"role"`
	Address string            `json:"address,omitempty"` // IP:port where others reach it; "" = nobody does
	CPU     sigma.MilliCPU    `json:"cpu,omitempty"`     // 0 = all of the host's
	Memory  sigma.Bytes       `json:"memory,omitempty"`  // 0 = all of the host's
	Labels  map[string]string `json:"labels,omitempty"`
	// where the names are; nil = in named's own etcd, or as it was told when it joined
	Etcd    *recordEtcd `json:"etcd,omitempty"`
	Encrypt bool        `json:"encrypt,omitempty"` // all that goes to other machines
	Local   bool        `json:"local,omitempty"`   // its network is that of up --machines

	Bescheds int    `json:"bescheds,omitempty"` // that it runs if it is a control machine; 0 = 1
	Uplink   uint64 `json:"uplink,omitempty"`   // bits a second of the network behind its interface; 0 = what that says
	NoUplink bool   `json:"noUplink,omitempty"` // nothing goes first there
}

// readRecord gives what the machine of DATA is; nil if that was never noted.
func readRecord(dir string) (*record, error) {
	path := filepath.Join(dir, recordName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, datadir.Explain(path, err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil || r.Machine.Check() != nil ||
		!slices.Contains([]string{roleFounder, roleControl, roleOrdinary}, r.Role) {
		return nil, &sigma.Error{Op: "sigma.readRecord", Path: path, Kind: sigma.KindInvalid,
			Msg: "does not say what this machine is", Hint: "restore it from a backup"}
	}
	return &r, nil
}

func (r *record) write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return sigma.Wrap("sigma.record", "", err)
	}
	return datadir.Write(filepath.Join(dir, recordName), string(b)+"\n", -1)
}

// isMember tells whether the machine of DATA has an identity in a system.
func isMember(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, "sigmad", "identity"))
	return err == nil
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
func (o *offer) apply(ctx context.Context, r *record) error {
	if o.machine != "" {
		r.Machine = sigma.MachineID(o.machine)
	}
	if err := r.Machine.Check(); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	if o.address != "" {
		to, err := reachable(ctx, "--address", o.address)
		if err != nil {
			return err
		}
		r.Address = to.String()
	}
	switch {
	case o.bescheds < 0 || o.bescheds > besched.ShardsMax:
		return flagFault("--bescheds %d is not from 1 to %d", o.bescheds,
			besched.ShardsMax)("one is enough for most systems: sigma up")
	case o.bescheds > 0:
		r.Bescheds = o.bescheds
	}
	if o.cpu != "" {
		cores, err := strconv.ParseFloat(o.cpu, 64)
		if err != nil || math.IsNaN(cores) || cores < 0.01 || cores > float64(runtime.NumCPU()) {
			return flagFault("--cpu %.40q is not a number of cores of this host, which has %d", o.cpu,
				runtime.NumCPU())("write for example --cpu 0.5")
		}
		r.CPU = sigma.MilliCPU(math.Round(cores * 1000))
	}
	if o.memory != "" {
		m, err := sigma.ParseBytes(o.memory)
		if err != nil {
			return cli.WithCode(cli.ExitUsage, err)
		}
		if host := hostMemory(); m < shareLeast || m > host {
			return flagFault("--memory %v is not between %v and the host's %v", m, sigma.Bytes(shareLeast),
				host)("write for example --memory 2GiB")
		}
		r.Memory = m
	}
	switch o.encrypt {
	case "":
	case "yes", "no":
		r.Encrypt = o.encrypt == "yes"
	default:
		return flagFault("--encrypt %.40q is neither yes nor no",
			o.encrypt)("write --encrypt, or --encrypt=no to end it")
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
			return flagFault("--label %.80q is not NAME=VALUE, each name once", l)("write for example --label zone=a")
		}
		r.Labels[name] = value
	}
	return nil
}

// shareLeast is what sigmad and the services of a machine need.
const shareLeast = 128 << 20

// flagFault is an error of the command line; its result takes the hint.
func flagFault(format string, args ...any) func(hint string) error {
	return func(hint string) error {
		return cli.WithCode(cli.ExitUsage, &sigma.Error{Op: "sigma.flags", Kind: sigma.KindInvalid,
			Msg: fmt.Sprintf(format, args...), Hint: hint})
	}
}

func hostMemory() sigma.Bytes {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 1 << 62
	}
	return sigma.Bytes(uint64(info.Totalram) * uint64(info.Unit))
}

// arguments are the launcher's.
func (r *record) arguments() []string {
	args := []string{"--machine", string(r.Machine)}
	if r.Address != "" {
		args = append(args, "--address", r.Address)
	}
	if r.CPU > 0 {
		args = append(args, "--cpu", fmt.Sprint(uint32(r.CPU)))
	}
	if r.Memory > 0 {
		args = append(args, "--memory", fmt.Sprint(uint64(r.Memory)))
	}
	if r.Encrypt {
		args = append(args, "--encrypt", "yes")
	}
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(r.Labels)) {
		labels = append(labels, name+"="+r.Labels[name])
	}
	if labels != nil {
		args = append(args, "--labels", strings.Join(labels, ","))
	}
	return args
}
