//go:build system

package machine

import "testing"

// Goal: the first thing a user does works, for three languages.
func TestRunHello(t *testing.T) {
	s := shared.Get(t)
	for _, source := range []string{"hello.c", "hello.rs", "hello"} {
		t.Run(source, func(t *testing.T) {
			stdout, stderr, code := s.CLI(t, "run", program(t, source))
			if code != 0 || stdout != "hello\n" || stderr != "" {
				t.Errorf("got code %d, stdout %q, stderr %q, want 0, hello and nothing", code, stdout, stderr)
			}
		})
	}
}
