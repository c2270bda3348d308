package health

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/hostsetup"
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
