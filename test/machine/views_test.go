//go:build system

package machine

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: a child spawned with only a static directory and its parent's pipe answers over the pipe,
// and sees and dials nothing else, whatever it tries (000 §5.3). Another one without a view
// succeeds with each attempt.
func TestConfinedWorker(t *testing.T) {
	r := newRealm(t, "cgi")
	for _, dir := range []string{"/cgi/static", "/cgi/pipes"} {
		if err := r.MkdirAll(r.ctx, dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"/cgi/secret", "/cgi/static/index.html", "/cgi/static/b.html", "/cgi/static/d.html"} {
		if _, err := r.Put(r.ctx, f, []byte(filepath.Base(f)), sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for path, target := range map[string]string{"/cgi/static/out": "/cgi/secret", "/cgi/static/up": "/cgi"} {
		if err := r.Symlink(r.ctx, target, path); err != nil {
			t.Fatal(err)
		}
	}
	d := r.descriptor("confined", "parent")
	d.Args = append(d.Args, d.Program)
	id := r.spawn(d)[0]
	st, out := r.wait(id), r.output(id)
	m :=
		regexp.MustCompile(
			`^worker (\S+) answered "index.html" and ended ok\nfree (\S+) ended ok\n$`).FindStringSubmatch(out)
	if m == nil || !st.OK() {
		t.Fatalf("the parent ended %+v and said %q", st, out)
	}
	worker, free := r.output(sigma.ProcID(m[1])), r.output(sigma.ProcID(m[2]))
	controls := strings.Split(strings.TrimSpace(free), "\n")
	for i, line := range strings.Split(strings.TrimSpace(worker), "\n") {
		name, said, _ := strings.Cut(line, ": ")
		if said != sigma.KindPermission.String() && said != sigma.KindNotFound.String() {
			t.Errorf("the worker, %s: %s", name, said)
		}
		if i >= len(controls) || controls[i] != name+": done" {
			t.Errorf("the control of %q says %q", name, controls[min(i, len(controls)-1)])
		}
	}
	if n := strings.Count(worker, "\n"); n < 30 || len(controls) != n {
		t.Errorf("%d attempts, %d controls", n, len(controls))
	}
}
