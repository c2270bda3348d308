package sigmap

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// Goal: a greeting and its answer are read as they were written; what is none is told from it.
func TestGreeting(t *testing.T) {
	text := "sigma-credential-1.team-a.ci.x"
	g := Greeting(text)
	if got, err := ParseGreeting(g); err != nil || got != text || !IsGreeting(g) {
		t.Errorf("%q, %v", got, err)
	}
	version, err := Encode(nil, NoTag, &Tversion{})
	if err != nil || IsGreeting(version) {
		t.Errorf("a session's first message is taken for a greeting, %v", err)
	}
	if Greeting(strings.Repeat("x", GreetingMax)) != nil {
		t.Error("a huge text has a greeting")
	}
	for _, bad := range [][]byte{nil, g[:len(g)-1], append(bytes.Clone(g), 0), version} {
		if _, err := ParseGreeting(bad); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := ParseWelcome(Welcome(nil)); err != nil {
		t.Error(err)
	}
	refused := ParseWelcome(Welcome(&sigma.Error{Kind: sigma.KindPermission, Msg: strings.Repeat("é", 1000),
		Hint: "ask"}))
	if sigma.KindOf(refused) != sigma.KindPermission || sigma.HintOf(refused) != "ask" {
		t.Errorf("%v", refused)
	}
	if ParseWelcome([]byte("hello")) == nil {
		t.Error("any answer is a welcome")
	}
}

// FuzzCredentials: no bytes make a decoder of credentials panic, and what is read is written so
// that it reads the same.
func FuzzCredentials(f *testing.F) {
	f.Add(Greeting("x"))
	f.Add(Welcome(nil))
	ks := []sigma.Credential{{Name: "ci", Role: sigma.RoleOwner, Created: time.Unix(1, 0)}}
	ps := []Presented{{Realm: "a", Name: "b"}}
	for _, code := range []func(*Coder){func(c *Coder) { c.Credentials(&ks) }, func(c *Coder) { c.Presented(&ps) }} {
		b, err := Payload(code)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if text, err := ParseGreeting(b); err == nil {
			if again := Greeting(text); !bytes.Equal(again, b) {
				t.Errorf("%q became %q", b, again)
			}
		}
		ParseWelcome(b)
		var ks, ks2 []sigma.Credential
		var ps, ps2 []Presented
		var vs, vs2 []Verdict
		var n, n2 NewCredential
		for _, c := range []struct {
			v, v2       any
			code, code2 func(*Coder)
		}{
			{&ks, &ks2, func(c *Coder) { c.Credentials(&ks) }, func(c *Coder) { c.Credentials(&ks2) }},
			{&ps, &ps2, func(c *Coder) { c.Presented(&ps) }, func(c *Coder) { c.Presented(&ps2) }},
			{&vs, &vs2, func(c *Coder) { c.Verdicts(&vs) }, func(c *Coder) { c.Verdicts(&vs2) }},
			{&n, &n2, func(c *Coder) { c.NewCredential(&n) }, func(c *Coder) { c.NewCredential(&n2) }},
		} {
			if Parse(b, c.code) != nil {
				continue
			}
			again, err := Payload(c.code)
			if err != nil {
				continue
			}
			if err := Parse(again, c.code2); err != nil || !reflect.DeepEqual(c.v, c.v2) {
				t.Errorf("%+v became %+v, %v", c.v, c.v2, err)
			}
		}
	})
}
