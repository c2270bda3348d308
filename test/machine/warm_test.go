//go:build system

package machine

import (
	"os"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: whoever was told that a program is stored starts that one next, though a warm start asks
// neither the store nor the names: replaced, reached by another link, moved, gone with its
// directory.
func TestReplacedProgram(t *testing.T) {
	r := connect(t, defaultRealm)
	probe, err := os.ReadFile(program(t, "probe.c"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(program(t, "hello.c"))
	if err != nil {
		t.Fatal(err)
	}
	const dir, path = "/s3/warm/a", "/warm-link/p"
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put := func(path string, program []byte) {
		t.Helper()
		_, err := r.Put(r.ctx, path, program, sigma.PutOptions{Perm: 0o755})
		do(err)
	}
	run := func(what string, code sigma.StatusCode, exit int) {
		t.Helper()
		ids, err := r.Spawn(r.ctx, sigma.Descriptor{Program: path, Args: []string{"exit", "7"},
			Memory: sigma.MemoryLeast})
		do(err)
		if st := r.wait(ids[0]); st.Code != code || st.ExitCode != exit {
			t.Errorf("%s: got %+v, want %v %d", what, st, code, exit)
		}
	}
	probes := func(what string) { t.Helper(); run(what, sigma.StatusError, 7) }
	others := func(what string) { t.Helper(); run(what, sigma.StatusOK, 0) }
	do(r.MkdirAll(r.ctx, dir, 0o755))
	do(r.Symlink(r.ctx, dir, "/warm-link"))
	put(path, probe)
	probes("put")
	probes("again")
	for range 5 {
		put(path, other)
		others("replaced")
		put(dir+"/p", probe)
		probes("replaced by another path")
	}
	do(r.MkdirAll(r.ctx, "/s3/warm/b", 0o755))
	put("/s3/warm/b/p", other)
	_, err = r.Put(r.ctx, "/warm-link", []byte("/s3/warm/b"), sigma.PutOptions{Kind: sigma.KindSymlink})
	do(err)
	others("link set anew")
	do(r.Rename(r.ctx, dir+"/p", "/s3/warm/b/p"))
	probes("moved over it")
	do(r.Rename(r.ctx, "/s3/warm", "/s3/warm2"))
	run("directory above renamed", sigma.StatusError, 127)
	do(r.Rename(r.ctx, "/s3/warm2", "/s3/warm"))
	probes("and back")
	do(r.RemoveAll(r.ctx, "/s3/warm"))
	run("directory above removed", sigma.StatusError, 127)
	do(r.Remove(r.ctx, "/warm-link"))
}

// A start tells how long each of its phases took, and the machine counts them.
func TestTiming(t *testing.T) {
	r := connect(t, defaultRealm)
	before := r.metric("sigma_schedd_start_seconds_count")
	ids, err := r.Spawn(r.ctx, r.descriptor("probe.c", "exit", "0"))
	if err != nil {
		t.Fatal(err)
	}
	r.wait(ids[0])
	i := r.info(ids[0])
	for _, p := range []sigma.Phase{sigma.PhasePlacement, sigma.PhaseHandOver, sigma.PhaseRestrict, sigma.PhaseExec,
		sigma.PhaseFirst} {
		if i.Timing[p] <= 0 {
			t.Errorf("phase %v took %v", p, i.Timing[p])
		}
	}
	if i.Timing[sigma.PhaseStarted] != 0 || i.Profile != sigma.ProfileSigma || i.Usage.MemoryPeak == 0 {
		t.Errorf("got %+v", i)
	}
	if after := r.metric("sigma_schedd_start_seconds_count"); after == before {
		t.Error("the start was not counted")
	}
}

// A descriptor chooses among the profiles for tenants' procs; that of the services is refused.
func TestProfiles(t *testing.T) {
	r := connect(t, defaultRealm)
	d := r.descriptor("probe.c", "exit", "7")
	for profile, want := range map[sigma.Profile]sigma.Profile{"": sigma.ProfileSigma,
		sigma.ProfileSigma: sigma.ProfileSigma, sigma.ProfileLinux: sigma.ProfileLinux} {
		d.Profile = profile
		id := r.spawn(d)[0]
		if st := r.wait(id); st.ExitCode != 7 || r.info(id).Profile != want {
			t.Errorf("%q: got %+v as %q, want exit code 7 as %q", profile, st, r.info(id).Profile, want)
		}
	}
	for profile, kind := range map[sigma.Profile]sigma.Kind{"system": sigma.KindPermission, "none": sigma.KindInvalid} {
		d.Profile = profile
		_, err := r.Spawn(r.ctx, d)
		kindIs(t, string(profile), err, kind)
	}
}
