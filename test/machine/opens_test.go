//go:build system

package machine

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk/database"
	"sigmaos.dev/sigma"
)

// Goal: who opens 100,000 files is told at a bound what it is, whichever service they are of; no
// daemon is harmed, other realms are served while all of it is held, and when it has gone the realm
// can open files again.
func TestOpenWithoutEnd(t *testing.T) {
	const files, all = 4200, 100_000
	x := newRealm(t, "opener")
	other := connect(t, defaultRealm)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	before := map[string]int{}
	daemons := []string{"sigmad", "named", "s3d", "dbd/opener"}
	must(x.Mkdir(x.ctx, "/db/opened", 0o777))
	must(other.Mkdir(other.ctx, "/db/opener-other", 0o777))
	t.Cleanup(func() { other.s.CLI(t, "rm", "-r", "/db/opener-other") })
	for _, name := range daemons {
		before[name] = x.s.PID(name)
	}
	makeMany(x, files, "/ux/~local/many", "/s3/many")
	for _, c := range []struct {
		what, path string
		files, n   int // files in turn
		least      int // that can be open
		kind       sigma.Kind
		says       string
	}{
		{"scratch files", "/ux/~local/many/", files, files, 2000, sigma.KindBusy, "too many files open"},
		{"one scratch file", "/ux/~local/many/0", 0, all, 60_000, sigma.KindBusy, "in one session"},
		{"objects", "/s3/many/", files, files, 2000, sigma.KindBusy, "too many files open"},
		{"sessions of a database", "/db/opened/session", 0, all, 16, sigma.KindBusy, "sessions"},
	} {
		id := x.spawn(x.descriptor("goprobe", "opens", c.path, fmt.Sprint(c.files), fmt.Sprint(c.n)))[0]
		testenv.Eventually(t, c.what+": an end", func() error {
			if list, err := x.List(x.ctx, false); err == nil && len(list) == 0 {
				t.Fatalf("%s: the proc ended: %s", c.what, x.output(id))
			}
			if !strings.Contains(x.output(id), "\n") {
				return fmt.Errorf("it wrote %q", x.output(id))
			}
			return nil
		})
		out := x.output(id)
		n, rest, _ := strings.Cut(strings.TrimSpace(out), " ")
		t.Logf("%s: %s", c.what, strings.TrimSpace(out))
		if opened, err := strconv.Atoi(n); err != nil || opened < c.least || opened >= c.n ||
			!strings.HasPrefix(rest, c.kind.String()+":") || !strings.Contains(rest, c.says) ||
			!strings.Contains(rest, c.path) {
			t.Errorf("%s: %s", c.what, out)
		}
		if err := worksBeside(other); err != nil {
			t.Errorf("%s: another realm: %v", c.what, err)
		}
		pool := database.Open(other.Client, "/db/opener-other")
		one := 0
		if err := pool.QueryRowContext(other.ctx, "select 1").Scan(&one); err != nil || one != 1 {
			t.Errorf("%s: another realm's database: %v", c.what, err)
		}
		pool.Close()
		must(x.Kill(x.ctx, id))
		x.wait(id)
		testenv.Eventually(t, c.what+": the realm can open files again", func() error {
			path := c.path
			if c.files > 0 {
				path += "0"
			}
			h, err := x.Open(x.ctx, path, sigma.OpenRead)
			if err == nil {
				h.Close()
			}
			return err
		})
	}
	for _, name := range daemons {
		if now := x.s.PID(name); now != before[name] {
			t.Errorf("%s was process %d and is %d", name, before[name], now)
		}
	}
}

// makeMany makes files that are called 0 and so on in directories.
func makeMany(x *realm, files int, dirs ...string) {
	for _, dir := range dirs {
		if err := x.MkdirAll(x.ctx, dir, 0o755); err != nil {
			x.t.Fatal(err)
		}
		var makers sync.WaitGroup
		for w := range 16 {
			makers.Go(func() {
				for i := w; i < files; i += 16 {
					if _, err := x.Put(x.ctx, fmt.Sprintf("%s/%d", dir, i), []byte("text"),
						sigma.PutOptions{}); err != nil {
						x.t.Error(err)
						return
					}
				}
			})
		}
		makers.Wait()
	}
}

// worksBeside writes and opens files of a realm in each service.
func worksBeside(x *realm) error {
	if err := x.MkdirAll(x.ctx, "/s3/opener", 0o755); err != nil {
		return err
	}
	for _, path := range []string{"/ux/~local/opener", "/s3/opener/f", "/opener"} {
		if _, err := x.Put(x.ctx, path, []byte("text"), sigma.PutOptions{}); err != nil {
			return err
		}
		h, err := x.Open(x.ctx, path, sigma.OpenRead)
		if err != nil {
			return err
		}
		h.Close()
	}
	return nil
}
