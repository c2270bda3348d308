package procs

import (
	"context"
	"strings"
	"testing"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/sigma"
)

func TestFindProc(t *testing.T) {
	procs := []sigma.ProcInfo{
		{ID: "aaaa1111", Name: "old", State: sigma.ProcEnded}, {ID: "aabb2222", Name: "web"},
		{ID: "aabb3333", Name: "web"},
		{ID: "ccdd4444", Name: "job", State: sigma.ProcEnded}, {ID: "ccdd5555", Name: "job"},
		{ID: "web99999", Name: "x"},
	}
	for word, want := range map[string]string{
		"aaaa1111": "aaaa1111", "aaa": "aaaa1111", "old": "aaaa1111", "aabb2": "aabb2222", "job": "ccdd5555",
		"ccdd4": "ccdd4444", "x": "web99999",
		"web": "", "aabb": "", "aa": "", "": "", "nobody": "",
	} {
		got, err := findProc(procs, word)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("findProc(%q) = %q, %v; want %q", word, got, err, want)
		}
		if err != nil && sigma.HintOf(err) == "" {
			t.Errorf("findProc(%q): no hint", word)
		}
	}
}

// refusing is a system that answers all who wait for a start.
type refusing struct {
	sigma.Procs
	err error
}

func (r refusing) WaitStart(ctx context.Context, _ sigma.ProcID) error {
	if r.err == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	return r.err
}

// Goal: run -d of a proc that no machine can ever take fails with the code of a start that did; one
// that waits for room is no failure.
func TestRefused(t *testing.T) {
	err := refused(t.Context(), refusing{err: sigma.Errorf("lcsched", sigma.KindInvalid,
		"there is no machine with zone=none")}, "p")
	if code := cli.CodeOf(err); code != startCode(sigma.KindInvalid) || !strings.Contains(err.Error(),
		"zone=none") {
		t.Errorf("refused: code %d, %v", code, err)
	}
	if err := refused(t.Context(), refusing{}, "p"); err != nil {
		t.Errorf("one that waits: %v", err)
	}
}
