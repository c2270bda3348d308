package treeserver_test

import (
	"context"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// recalling knows the file "known", a link and an absence at once; everything else must be asked
// for.
type recalling struct{ treeserver.Base }

func (r recalling) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return r, nil
}
func (recalling) Stat(context.Context) (sigma.Stat, error) { return sigma.Stat{}, nil }
func (recalling) Get(_ context.Context, names []string, _ uint64, _ int) (sigma.GetResult, *sigma.Stopped, error) {
	return sigma.GetResult{Data: []byte("asked " + names[0]), Size: 6}, nil, nil
}
func (recalling) Recall(names []string, _ uint64, _ int) (g sigma.GetResult, stop *sigma.Stopped, known bool,
	err error) {
	switch names[0] {
	case "known":
		return sigma.GetResult{Data: []byte("recalled"), Size: 8}, nil, true, nil
	case "link":
		return g, &sigma.Stopped{Walked: 1, Kind: sigma.KindSymlink, Target: "/there"}, true, nil
	case "absent":
		return g, nil, true, sigma.PathError("test", sigma.KindNotFound, "absent")
	case "wrong":
		panic("a bug")
	}
	return g, nil, false, nil
}

// TestRecall: what a file knows at once is the answer; what it does not know, and what it fails at,
// is asked for; a request that carries something never comes there.
func TestRecall(t *testing.T) {
	_, root := dial(t, pairs["packet"], treeserver.Config{Tree: recalling{}})
	get := func(ctx context.Context, name string) string {
		g, stop, err := root.(sigma.Getter).Get(ctx, []string{name}, 0, 100)
		switch {
		case err != nil:
			return sigma.KindOf(err).String()
		case stop != nil:
			return stop.Target
		}
		return string(g.Data)
	}
	for name, want := range map[string]string{"known": "recalled", "link": "/there",
		"absent": sigma.KindNotFound.String(), "wrong": "asked wrong", "other": "asked other"} {
		if got := get(t.Context(), name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if got := get(sigma.WithSync(t.Context()), "known"); got != "asked known" {
		t.Errorf("a read that must be current got %q", got)
	}
}
