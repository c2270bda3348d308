package host

import (
	"sigmaos.dev/hostsetup"
	"sigmaos.dev/sigma"
)

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
