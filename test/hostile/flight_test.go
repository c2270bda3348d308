//go:build system

package hostile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Two realms have more descriptors in flight than the kernel would allow sigmad in sum, were they
// not bounded: their procs listen and never read, and others ask for connections in advance and say
// that they used them. Meanwhile another realm runs programs and uses names and objects, and a
// service that is killed comes back.
func TestDescriptorsInFlight(t *testing.T) {
	const servers = 6 // of 16 listeners each, whose sockets hold about 190 descriptors each: of two realms some 36,000
	s := shared.Get(t)
	unharmed(t, s, "s3d")
	x := newTenant(t, s)
	program := shared.Program(t, "testdata/flight")
	for _, realm := range []sigma.RealmID{"flight-a", "flight-b"} {
		s.Must(t, "realm", "create", string(realm))
		t.Cleanup(func() { s.Must(t, "realm", "rm", "--force", string(realm)) })
		c := s.Connect(x.ctx, t, realm)
		path := s.Install(x.ctx, t, c, program)
		var es []string
		for range servers {
			es = append(es, listensAt(t, x, c, path)...)
		}
		for i := range servers {
			d := sigma.Descriptor{Program: path, Args: append([]string{"ask"}, es[16*i:16*i+16]...),
				Memory: 32 * sigma.MiB}
			if _, err := c.Spawn(x.ctx, d); err != nil {
				t.Fatal(err)
			}
		}
	}
	for began := time.Now(); time.Since(began) < 3*time.Second; {
		x.works()
	}
	old := s.PID("s3d")
	s.Kill9(t, "s3d")
	testenv.Eventually(t, "the object store is back", func() error {
		if now := s.PID("s3d"); now == 0 || now == old {
			return fmt.Errorf("s3d is process %d, was %d", now, old)
		}
		return nil
	})
	x.works()
}

// listensAt starts a proc that listens and never reads, and returns its endpoints.
func listensAt(t *testing.T, x *tenant, c *sdk.Client, path string) (es []string) {
	t.Helper()
	ids, err := c.Spawn(x.ctx, sigma.Descriptor{Program: path, Args: []string{"listen"}, Memory: 32 * sigma.MiB})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "a proc listens", func() error {
		b, _, err := c.Get(x.ctx, sigma.JoinPath("proc", string(ids[0]), "stdout"))
		if es = strings.Split(strings.TrimSpace(string(b)), "\n"); err == nil && len(es) != 16 {
			err = fmt.Errorf("it prints %q", b)
		}
		return err
	})
	return es
}
