//go:build system

package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// away says that the machine has noticed that the names' keeper does not answer: what it remembers
// of path, which is read by somebody all the time, is told to who takes what is old.
func (r *realm) away(path, want string) {
	r.t.Helper()
	testenv.Eventually(r.t, "what is remembered is told, and marked", func() error {
		old, age := sigma.WithStale(r.ctx)
		b, _, err := r.Get(old, path)
		if err == nil && string(b) == want && age.Most() == 0 {
			err = errors.New("it is not marked")
		}
		if err != nil || string(b) != want {
			return fmt.Errorf("%q, %w", b, err)
		}
		return nil
	})
	out, stderr, code := r.s.CLI(r.t, "cat", "--stale", path)
	if out != want || code != 0 || !strings.Contains(stderr, "warning: the name service does not answer") {
		r.t.Errorf("cat --stale prints %q and %q, exit code %d", out, stderr, code)
	}
	var files []struct {
		StaleMS int64 `json:"stale_ms"`
	}
	out, stderr, code = r.s.CLI(r.t, "stat", "--stale", "--json", path)
	if err := json.Unmarshal([]byte(out), &files); err != nil || len(files) != 1 || files[0].StaleMS < 1000 {
		r.t.Errorf("stat --stale --json prints %q and %q, exit code %d, %v", out, stderr, code, err)
	}
}

// remembered reads a file until the machine follows the realm's changes.
func (r *realm) remembered(path, want string) {
	r.t.Helper()
	hits := func() string {
		b, _, err := r.Get(r.ctx, "/sys/metrics")
		if err != nil {
			r.t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(b), "\nsigma_names_cache_hits_total ")
		n, _, _ := strings.Cut(after, "\n")
		return n
	}
	testenv.Eventually(r.t, "what is read is remembered", func() error {
		before := hits()
		if out := r.s.Must(r.t, "cat", path); out != want {
			return fmt.Errorf("it is %q", out)
		}
		if b, _, err := r.Get(r.ctx, path); err != nil || string(b) != want {
			return fmt.Errorf("it is %q, %v", b, err)
		}
		if hits() == before {
			return errors.New("nothing was answered from memory")
		}
		return nil
	})
}

// Goal: a named that does not answer, stopped as it stands, ends nothing: what was read lately is
// told to those who take what is old, with a mark; others wait no longer than their patience, and a
// change fails by its deadline and says what did not answer. When named goes on, or another is
// started, so does all else.
func TestNamedAway(t *testing.T) {
	r := connect(t, defaultRealm)
	put(r.ctx, t, r, "/away", "words\n", sigma.PutOptions{})
	defer r.s.Must(t, "rm", "/away")
	for what, end := range map[string]func(pid int) error{
		"stopped for a while":    func(pid int) error { return syscall.Kill(pid, syscall.SIGCONT) },
		"killed when it stopped": func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) },
	} {
		pid := r.s.PID("named")
		r.remembered("/away", "words\n")
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer syscall.Kill(pid, syscall.SIGCONT)
		r.away("/away", "words\n")
		soon, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
		defer cancel()
		if b, _, err := r.Get(soon, "/away"); sigma.KindOf(err) != sigma.KindTimeout {
			t.Errorf("%s: a read that is not to be old: %q, %v", what, b, err)
		}
		began := time.Now()
		soon, cancel = context.WithTimeout(r.ctx, 300*time.Millisecond)
		defer cancel()
		_, err := r.Put(soon, "/away2", nil, sigma.PutOptions{})
		if sigma.KindOf(err) != sigma.KindTimeout || !strings.Contains(err.Error(), "name service") ||
			!strings.Contains(sigma.HintOf(err), "sigma status") {
			t.Errorf("%s: a change: %v (%s)", what, err, sigma.HintOf(err))
		}
		if d := time.Since(began); d > 20*time.Second { // it is said within a second or two; the machine may be busy
			t.Errorf("%s: a change with 0.3 s of patience took %v", what, d)
		}
		if err := end(pid); err != nil {
			t.Fatal(err)
		}
		put(r.ctx, t, r, "/away2", "more\n", sigma.PutOptions{})
		if out, stderr, code := r.s.CLI(t, "cat", "--stale", "/away2"); out != "more\n" || stderr != "" || code != 0 {
			t.Errorf("%s: afterwards cat --stale prints %q and %q, exit code %d", what, out, stderr, code)
		}
		if err := r.Remove(r.ctx, "/away2"); err != nil {
			t.Error(err)
		}
	}
	r.restarted("named")
}
