//go:build system

package machine

import (
	"context"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// serve starts a proc that listens at path.
func (r *realm) serve(word, path string) sigma.ProcID {
	r.t.Helper()
	d := r.descriptor("goprobe", word, path)
	d.Start = sigma.StartedByCall
	id := r.spawn(d)[0]
	r.started(id)
	r.t.Cleanup(func() { r.Remove(context.Background(), path) })
	return id
}

// Procs find each other by name and talk; the server knows who called, and those who dial and say
// nothing disturb nobody.
func TestDial(t *testing.T) {
	r := connect(t, defaultRealm)
	r.serve("echo", "/echo")
	before := r.s.Census()
	for range 3 {
		st, out := r.run("goprobe", "say", "/echo", "some words")
		if want := "you are ME in default\nsome words"; !st.OK() || out != want {
			t.Errorf("got %+v, %q, want %q", st, out, want)
		}
	}
	r.s.NoLeaks(t, before)
}

// Two procs carry a connection in memory that they share, within what the filter and their memory
// limits allow, and leave nothing.
func TestRing(t *testing.T) {
	r := connect(t, defaultRealm)
	r.serve("echo-ring", "/echo-ring")
	before := r.s.Census()
	for range 2 {
		if st, out := r.run("goprobe", "ring", "/echo-ring"); !st.OK() || out != "1000 answers in memory\n" {
			t.Errorf("got %+v, %q", st, out)
		}
	}
	r.s.NoLeaks(t, before)
}

// SIGMA_TRANSPORT in a proc's environment forces what carries its connections, without a change to
// the program; another word keeps it from connecting, and says so.
func TestForcedTransport(t *testing.T) {
	r := connect(t, defaultRealm)
	for _, x := range []struct{ server, client, want string }{
		{"unix", "", "socket socket\n"}, // what one side does not want is not used
		{"", "unix", "socket socket\n"},
		{"ring", "ring", "ring ring\n"},
		{"automatic", "", "ring ring\n"},
	} {
		set := func(d sigma.Descriptor, to string) sigma.Descriptor {
			if to != "" {
				d.Env = append(d.Env, "SIGMA_TRANSPORT="+to)
			}
			return d
		}
		d := set(r.descriptor("goprobe", "echo", "/forced"), x.server)
		d.Start = sigma.StartedByCall
		server := r.spawn(d)[0]
		r.started(server)
		id := r.spawn(set(r.descriptor("goprobe", "transport", "/forced"), x.client))[0]
		if st, out := r.wait(id), r.output(id); !st.OK() || out != x.want {
			t.Errorf("%q and %q: %+v, %q, want %q", x.server, x.client, st, out, x.want)
		}
		if err := r.Kill(r.ctx, server); err != nil {
			t.Error(err)
		}
		r.wait(server)
		if err := r.Remove(r.ctx, "/forced"); err != nil {
			t.Error(err)
		}
	}
	d := r.descriptor("goprobe", "transport", "/forced")
	d.Env = append(d.Env, "SIGMA_TRANSPORT=tcp")
	id := r.spawn(d)[0]
	if st, out := r.wait(id), r.output(id); st.OK() || !strings.Contains(out, "SIGMA_TRANSPORT") ||
		!strings.Contains(out, `"tcp" is no transport`) {
		t.Errorf("an unknown word: %+v, %q", st, out)
	}
}

func TestHTTP(t *testing.T) {
	r := connect(t, defaultRealm)
	r.serve("http", "/web")
	st, out := r.run("goprobe", "get", "/web")
	want :=
		"200 OK: POST /page/0 with 0 bytes\n200 OK: POST /page/1 with 100000 bytes\n200 OK: POST /page/2 with 200000 " +
			"bytes\n"
	if !st.OK() || out != want {
		t.Errorf("got %+v, %q, want %q", st, out, want)
	}
}

// A tree that a proc serves is part of the realm's for procs, for programs outside and for the CLI.
func TestServedTree(t *testing.T) {
	r := connect(t, defaultRealm)
	id := r.serve("tree", "/served")
	if st, out := r.run("goprobe", "walk", "/served"); !st.OK() || out != "big\nsmall\n" {
		t.Errorf("from a proc: %+v, %q", st, out)
	}
	if b, _, err := r.Get(r.ctx, "/served/deep/small"); err != nil || string(b) != "words" {
		t.Errorf("from outside: %q, %v", b, err)
	}
	if got := r.s.Must(t, "cat", "/served/deep/small"); got != "words" {
		t.Errorf("cat: %q", got)
	}
	if got := r.s.Must(t, "ls", "/served/deep"); got != "big\nsmall\n" {
		t.Errorf("ls: %q", got)
	}
	if err := r.Kill(r.ctx, id); err != nil {
		t.Fatal(err)
	}
	r.wait(id)
	_, _, err := r.Get(r.ctx, "/served/deep/small")
	if k := sigma.KindOf(err); k != sigma.KindUnavailable && k != sigma.KindLost {
		t.Errorf("the tree of a proc that is gone: %v (%v), want unavailable", err, k)
	}
	_, _, err = r.Get(r.ctx, "/served/deep/small")
	kindIs(t, "the tree of a proc that is gone, again", err, sigma.KindUnavailable)
}

// An endpoint is good for its realm only, whoever has its text; and it ends with its listener.
func TestEndpointOfAnotherRealm(t *testing.T) {
	r := connect(t, defaultRealm)
	id := r.serve("echo", "/capability")
	text, err := r.ReadLink(r.ctx, "/capability")
	if err != nil {
		t.Fatal(err)
	}
	other := newRealm(t, "other")
	if st, out := r.run("goprobe", "dial", text); !st.OK() || out != "connected\n" {
		t.Errorf("from its own realm: %+v %q", st, out)
	}
	forged := strings.Replace(text, " default ", " other ", 1)
	unknown := strings.Replace(text, string(id), string(sigma.NewProcID()), 1)
	for _, c := range []struct {
		what, text, want string
		r                *realm
	}{
		{"another realm's endpoint", text, "permission denied: the endpoint belongs to another realm\n", other},
		{"one that claims our realm", forged, "permission denied: the endpoint belongs to another realm\n", other},
		{"one that claims another realm than its own", forged, "unavailable: nobody listens at the endpoint\n", r},
		{"one that claims another proc", unknown, "unavailable: nobody listens at the endpoint\n", r},
	} {
		if st, out := c.r.run("goprobe", "dial", c.text); st.ExitCode != 1 || out != c.want {
			t.Errorf("%s: %+v %q, want %q", c.what, st, out, c.want)
		}
	}
	// Published in the other realm it is of no more use.
	if _, err := other.Put(other.ctx, "/copied", []byte(text), sigma.PutOptions{Kind: sigma.KindEndpoint}); err != nil {
		t.Fatal(err)
	}
	if st, out := other.run("goprobe", "say", "/copied", "x"); st.ExitCode != 1 ||
		!strings.Contains(out, "another realm") {
		t.Errorf("by a copied endpoint file: %+v %q", st, out)
	}
	r.Kill(r.ctx, id)
	r.wait(id)
	if st, out := r.run("goprobe", "dial", text); st.ExitCode != 1 ||
		out != "unavailable: nobody listens at the endpoint\n" {
		t.Errorf("after the listener's end: %+v %q", st, out)
	}
}
