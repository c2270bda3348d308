//go:build system

package attack

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

var rewrite = flag.Bool("rewrite", false, "write what a proc may call into testdata/allowed; review the difference")

// sweeps is the attempt that all calls by number are, however many there are.
func sweeps(name string) act {
	return act{name, "sweep every system call number", "the kernel's attack surface"}
}

// attackBySweep makes every call by its number from inside a proc, by each of the kernel's three
// doors, and those that depend on an argument with every argument. What gets through must be
// exactly what testdata/allowed says. The control is the same with the filter off.
func attackBySweep(ctx context.Context, t *testing.T, s *score, plain, weak *arena) {
	for profile, d := range profiles() {
		d.Program, d.Args = plain.attack, []string{"sweep"}
		d.Env = plain.env(t, everything)
		out, st := plain.run(ctx, t, d)
		if !st.OK() {
			t.Fatalf("the sweep of profile %s ended with %v %s", profile, st.Code, st.Msg)
		}
		file := filepath.Join("testdata", "allowed", profile+".txt")
		if *rewrite {
			for _, l := range pastFilters() {
				out = strings.ReplaceAll(out, l+"\n", "")
			}
			if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		more, less := difference(t, file, out)
		s.tried(t, sweeps("calls beyond the list of profile "+profile), len(more) > 0, fmt.Sprintf("%q", more))
		if len(less) > 0 {
			t.Errorf("profile %s does not allow %q, which are on its list", profile, less)
		}
	}
	out, _ := weak.run(ctx, t, sigma.Descriptor{Program: weak.attack, Args: []string{"sweep"}, Env: weak.env(t, 1)})
	through := map[string]int{}
	for l := range strings.Lines(out) {
		kind, _, _ := strings.Cut(l, " ")
		through[kind]++
	}
	// Without a filter nearly all of 1024 numbers end otherwise than by SIGSYS, and of the kernel's
	// some 360 calls most by another error than those of a filter.
	ok := through["x32"] > 900 && through["int80"] > 900 && through["call"] > 250 && through["setsockopt"] > 1000
	for profile := range profiles() {
		s.control(t, sweeps("calls beyond the list of profile "+profile), ok, fmt.Sprint(through))
	}
}

// profiles are those of procs, by the name of their list.
func profiles() map[string]sigma.Descriptor {
	return map[string]sigma.Descriptor{"sigma": {}, "linux": {Profile: sigma.ProfileLinux}}
}

// pastFilters are calls that newer kernels (6.11, 6.18) make past every filter: they belong to the
// kernel's own trampolines of probes, and kill whoever else makes them.
func pastFilters() []string { return []string{"call 335", "call 336"} }

// difference compares what got through with a list.
func difference(t *testing.T, file, out string) (more, less []string) {
	list, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, want := strings.Split(strings.TrimSpace(out), "\n"), strings.Split(strings.TrimSpace(string(list)), "\n")
	for _, l := range got {
		if !slices.Contains(want, l) && !slices.Contains(pastFilters(), l) {
			more = append(more, l)
		}
	}
	for _, l := range want {
		if !slices.Contains(got, l) {
			less = append(less, l)
		}
	}
	return more, less
}
