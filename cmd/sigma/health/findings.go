package health

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/kernel/hostsetup"
)

// closedTo is the first directory on the way to path that other users may not pass; "" if they may
// pass all.
func closedTo(path string) (closed string) {
	path, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err == nil && st.Mode().Perm()&0o001 == 0 {
			closed = dir
		}
		if dir == filepath.Dir(dir) {
			return closed
		}
	}
}

// realmSocketFindings say whether programs with a credential can connect to the system that runs
// here; none if none does.
func (a *app) realmSocketFindings() []finding {
	const check = "realm socket"
	dir := datadir.HomeOf(a.Data)
	if _, held, err := datadir.Running(dir); err != nil || !held {
		return nil
	}
	path := filepath.Join(dir, datadir.RealmSocket)
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return []finding{weak(check, path+" is not there",
			"who has a credential of a realm cannot connect: start the system again, by sigma down and sigma up")}
	case st.Mode().Perm()&0o006 != 0o006:
		return []finding{weak(check, path+" is not for all users",
			"who has a credential of a realm cannot connect: chmod 666 "+path)}
	}
	if closed := closedTo(path); closed != "" {
		return []finding{weak(check, path+" is there, and other users cannot reach it: "+closed+" is closed to them",
			"if they are to use credentials: chmod o+x "+closed)}
	}
	return []finding{ok(check, path+" takes programs with a credential of a realm")}
}

// rootlessFinding says whether this user could start a system without root, and what would be
// weaker.
func rootlessFinding() finding {
	f := finding{Check: "rootless", State: findingOK, Found: "not needed: this is root"}
	if os.Geteuid() == 0 {
		return f
	}
	r := hostsetup.FindRootless()
	if r.Missing != "" {
		f.State, f.Found, f.Advice = findingWeak, r.Missing, r.HowMore
		return f
	}
	f.Found, f.Advice = fmt.Sprintf("%d uids, cgroup %s", r.Count(), cli.OrElse(r.CGroup, "none")),
		strings.Join(r.Weaker(), "; ")
	f.State = findingWeak
	return f
}

// uplinkFindings tells what goes first on the network of the machine on DATA.
func (a *app) uplinkFindings() []finding {
	const check = "network priority"
	dir, err := a.DataDir()
	if err != nil {
		return nil
	}
	if c, err := datadir.ReadCluster(dir); c != nil || err != nil {
		return nil // each machine's own: --data DATA/machines/mI
	}
	r, err := datadir.ReadRecord(dir)
	if err != nil || r == nil || r.Address == "" {
		return []finding{ok(check, "no other machine reaches this one")}
	}
	id, err := datadir.Instance(dir)
	if err != nil {
		return nil
	}
	pid, held, _ := datadir.Running(dir)
	var found finding
	look := func() error {
		u, err := hostsetup.FindUplink(r.Address, r.Uplink, id)
		if err != nil {
			return err
		}
		var major uint16
		if u != nil {
			_, major, _ = hostsetup.RootQueue(u.Link)
		}
		found = uplinkFinding(u, check, r, id, dir, held, major)
		return nil
	}
	if r.Local {
		if !held {
			return nil
		}
		err = hostsetup.WithinNetworkOf(pid, look)
	} else {
		err = look()
	}
	if err != nil {
		return []finding{weak(check, "it cannot be seen: "+err.Error(), "ask as root")}
	}
	return []finding{found}
}

// uplinkFinding is doctor's line about the interface of the system on dir, which may run, where the
// interface's queue has the number major; u may be nil.
func uplinkFinding(u *hostsetup.Uplink, check string, r *datadir.Record, id, dir string, runs bool,
	major uint16) finding {
	if u == nil {
		return ok(check, "no interface leads to other machines")
	}
	name := u.Link.Attrs().Name
	own, another := hostsetup.UplinkOf(major, id)
	switch {
	case own && !runs:
		return weak(check,
			fmt.Sprintf(
				"the system on %s has ended and left its queue on %s, htb %x:, through which all that this host "+
					"sends goes", dir, name, major), "take it away: "+datadir.CommandOn("down",
				dir)+"; or: tc qdisc del dev "+name+" root; the next sigma up makes it anew")
	case another:
		return weak(check, fmt.Sprintf("%s has a queue of another sigmaOS, htb %x:", name, major),
			"if none else runs on this host, it is of one that has ended; take it away: tc qdisc del dev "+name+" root")
	case r.NoUplink:
		return ok(check, "none on "+name+", by --uplink none")
	case own:
		return ok(check, fmt.Sprintf("on %s latency-critical procs go before best-effort ones, htb %x: of %s", name,
			major, rateText(u.Rate)))
	case u.Why != "" && u.Link.Attrs().Flags&net.FlagLoopback != 0:
		return ok(check, "not needed on "+name+": "+u.Why)
	case u.Why != "":
		return weak(check, "none on "+name+": "+u.Why,
			"if best-effort procs delay what others send, say what its network bears: sigma up --uplink 1Gbit")
	}
	return weak(check, "none on "+name,
		"it is made at the next sigma up; kernels need CONFIG_NET_SCH_HTB and CONFIG_NET_CLS_U32 (modprobe -a "+
			"sch_htb cls_u32)")
}

// rateText shows bits a second.
func rateText(rate uint64) string {
	if rate >= 1e9 {
		return strconv.FormatFloat(float64(rate)/1e9, 'g', 3, 64) + "Gbit"
	}
	return strconv.FormatFloat(float64(rate)/1e6, 'g', 3, 64) + "Mbit"
}
