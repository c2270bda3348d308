package identity

import (
	"fmt"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: a secret is read as it was written, and in no other form; nothing that prints it shows it.
func TestSecret(t *testing.T) {
	s := NewSecret("team-a", "ci")
	text := s.Text()
	if len(text) > sigma.CredentialTextMax || !IsSecret(text) {
		t.Errorf("%d bytes", len(text))
	}
	again, err := ParseSecret(" " + text + "\n")
	if err != nil || again != s || again.Hash() != s.Hash() {
		t.Fatalf("read as %v, %v", again, err)
	}
	for _, shown := range []string{s.String(), fmt.Sprintf("%v %+v %#v %s", s, s, s, s), s.LogValue().String()} {
		if strings.Contains(shown, text[len(text)-8:]) {
			t.Errorf("shows itself: %s", shown)
		}
	}
	for what, bad := range map[string]string{
		"nothing":            "",
		"cut short":          text[:len(text)-1],
		"longer":             text + "A",
		"another version":    strings.Replace(text, "-1.", "-2.", 1),
		"no realm":           strings.Replace(text, "team-a", "", 1),
		"a realm of slashes": strings.Replace(text, "team-a", "../x", 1),
		"a bad name":         strings.Replace(text, ".ci.", ".C I.", 1),
		"other characters":   text[:len(text)-2] + "!!",
		"huge":               text + strings.Repeat(" ", 1<<20),
		"not canonical":      text[:len(text)-1] + "_",
	} {
		if got, err := ParseSecret(bad); err == nil && got == s || sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s: read as %v, %v", what, got, err)
		} else if err != nil && len(bad) > 30 && strings.Contains(err.Error()+sigma.HintOf(err), bad[len(bad)-12:]) {
			t.Errorf("%s: the error shows the text: %v", what, err)
		}
	}
	other := s
	other.Name = "cd"
	if other.Hash() == s.Hash() {
		t.Error("the hash does not depend on the name")
	}
}

// FuzzParseSecret: whatever is read as a secret is written the same way.
func FuzzParseSecret(f *testing.F) {
	f.Add(NewSecret("a", "b").Text())
	f.Add(secretPrefix + "a.b.")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := ParseSecret(text); err == nil && s.Text() != strings.TrimSpace(text) {
			t.Errorf("%q became %q", text, s.Text())
		}
	})
}
