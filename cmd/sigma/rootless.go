package main

import (
	"fmt"
	"os"
	"strings"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/hostsetup"
	"sigmaos.dev/sigma"
)

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
