package health

import (
	"context"
	"strings"

	"sigmaos.dev/cmd/sigma/stores"
	"sigmaos.dev/sigma"
)

// storeFindings says how the object stores are, if any is set.
func (a *app) storeFindings(ctx context.Context) []finding {
	c, err := a.ConnectTo(ctx, sigma.SystemRealm) // which needs no names
	if err != nil {                               // sigmad is told of elsewhere
		return nil
	}
	defer c.Close()
	return storeWords(ctx, c)
}

// storeWords judges the stores that c lists.
func storeWords(ctx context.Context, c stores.Lister) (out []finding) {
	const check = "object store"
	list, err := stores.List(ctx, c, true)
	if err != nil {
		out = append(out, unknown(ctx, check, err))
	}
	for _, s := range list {
		found := s.URL + " of the realm " + string(s.Realm)
		if s.Realm == sigma.SystemRealm {
			found = s.URL + " of all realms without one of their own"
		}
		if s.State == "ok" {
			out = append(out, ok(check, found+" answers"))
			continue
		}
		advice := s.Hint
		if advice == "" || strings.Contains(advice, "doctor") {
			advice = "is it up, and does HOST still have these addresses? sigma s3 store set looks them up again"
		}
		out = append(out, finding{check, findingDown, found + ": " + s.State, advice})
	}
	return out
}
