package host

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/hostsetup"
	"sigmaos.dev/sigma"
)

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
