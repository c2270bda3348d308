//go:build system

package machine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// carried is what /proc/PID/usage says of a proc's connections.
func (r *realm) carried(id sigma.ProcID) (u report.ProcUsage) {
	r.t.Helper()
	text, _, err := r.Get(r.ctx, "/proc/"+string(id)+"/usage")
	if err == nil {
		err = json.Unmarshal(text, &u)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return u
}

// connected waits for the line of /sys/connections of a proc that has had messages answered.
func (r *realm) connected(from, to sigma.ProcID, transport string, poured, messages uint64) {
	r.t.Helper()
	testenv.Eventually(r.t, "its connection is shown", func() error {
		return r.shown(from, to, transport, poured, messages)
	})
}

func (r *realm) shown(from, to sigma.ProcID, transport string, poured, messages uint64) error {
	text, _, err := r.Get(r.ctx, "/sys/connections")
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		var one report.Connection
		if err := json.Unmarshal(line, &one); err != nil {
			return err
		}
		if one.From != string(from) || one.Proc != string(to) {
			continue
		}
		if transport != "" && one.Transport != transport || one.Sent == nil || *one.Sent != poured ||
			one.Turns == nil || *one.Turns < messages || *one.Turns > messages+1 || one.Messages == nil ||
			*one.Messages < 2*messages {
			return fmt.Errorf("of its connection: %s", strings.TrimSpace(string(line)))
		}
		return nil
	}
	return fmt.Errorf("it is not among %s", text)
}

// TestTraffic: what a proc's connections carried is known while it runs, when it has ended and when
// it was killed, on sockets and in rings, of both sides; nothing of it has left the machine.
func TestTraffic(t *testing.T) {
	r := connect(t, defaultRealm)
	const bytesPoured, messages = 100_000, 100
	want := func(what string, u report.ProcUsage) {
		t.Helper()
		if u.Sent != bytesPoured || u.Messages != messages || u.Received < bytesPoured ||
			u.Received > bytesPoured+200 || u.Egress != 0 || u.Ingress != 0 {
			t.Errorf("%s: %+v", what, u.Traffic)
		}
	}
	for _, c := range []struct{ serve, pour, path, transport string }{{"echo", "pour", "/poured", ""},
		{"echo-ring", "pour-ring", "/poured-ring", "ring"}} {
		server := r.serve(c.serve, c.path)
		for what, end := range map[string]func(sigma.ProcID) error{
			"killed":  func(id sigma.ProcID) error { return r.Kill(r.ctx, id) },
			"evicted": func(id sigma.ProcID) error { return r.Evict(r.ctx, id, 0) },
		} {
			d := r.descriptor("goprobe", c.pour, c.path)
			d.Start = sigma.StartedByCall
			id := r.spawn(d)[0]
			r.started(id)
			testenv.Eventually(t, "a proc that runs is counted",
				func() error { // its meter comes soon after its first connection
					if u := r.carried(id); u.Sent != bytesPoured {
						return fmt.Errorf("%+v", u.Traffic)
					}
					return nil
				})
			r.connected(id, server, c.transport, bytesPoured, messages)
			if err := end(id); err != nil {
				t.Fatal(err)
			}
			r.wait(id)
			want(c.pour+" "+what, r.carried(id))
		}
		if u := r.carried(server); u.Received < 2*bytesPoured || u.Sent < 2*bytesPoured || u.Messages < 2 {
			t.Errorf("%s: %+v", c.serve, u.Traffic)
		}
		if err := r.Kill(r.ctx, server); err != nil {
			t.Error(err)
		}
	}
}
