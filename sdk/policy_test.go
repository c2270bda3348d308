package sdk

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

func TestPolicy(t *testing.T) {
	weights := func(w map[string]uint32) Policy { return Policy{Choice: ChoiceWeights, Weights: w} }
	for text, want := range map[string]Policy{
		`{}`: {Choice: "turn"},
		" {\n\t\"choice\" : \"two-choices\" , \"wanted\":true}\r\n": {Choice: "two-choices", Wanted: true},
		`{"weights":{"a":1,"b":0,"c":4294967295},"choice":"weights"}`: weights(
			map[string]uint32{"a": 1, "b": 0, "c": 1<<32 - 1}),
		`{"choice":"weights","weights":{"a\/b":7}}`:       {}, // no name has a /
		`{"choice":"random","wanted":false,"weights":{}}`: {Choice: "random"},
		`{"choice":"weights","weights":{"q\"\\\u00e9\ud83d\ude00\tx":   7}}`: weights(
			map[string]uint32{"q\"\\é😀\tx": 7}),
	} {
		p, err := ParsePolicy([]byte(text))
		if strings.Contains(text, `\/`) { // no name has a /
			if sigma.KindOf(err) != sigma.KindInvalid {
				t.Errorf("%s: %+v, %v", text, p, err)
			}
			continue
		}
		if err != nil || p.Choice != want.Choice || p.Wanted != want.Wanted || !maps.Equal(p.Weights, want.Weights) {
			t.Errorf("%s: %+v, %v, want %+v", text, p, err, want)
		}
		again, err := ParsePolicy([]byte(p.String()))
		if err != nil || again.Choice != p.Choice || again.Wanted != p.Wanted || !maps.Equal(again.Weights, p.Weights) {
			t.Errorf("%s: printed as %s and read as %+v, %v", text, p, again, err)
		}
		if !json.Valid([]byte(p.String())) {
			t.Errorf("%s is not JSON", p)
		}
	}
	many := map[string]uint32{}
	for i := range weightsMax {
		many[fmt.Sprintf("member-%030d", i)] = 1 << 31
	}
	if p, err := ParsePolicy([]byte(Policy{Choice: ChoiceWeights, Weights: many}.String())); err != nil ||
		len(p.Weights) != weightsMax {
		t.Errorf("as many weights as there may be: %d, %v", len(p.Weights), err)
	}
	many["one-more"] = 1
	for _, text := range []string{``, `turn`, `[]`, `{"choice":"best"}`, `{"choice":1}`, `{"Choice":"turn"}`,
		`{"choice":"turn","choice":"turn"}`, `{"choice":"turn"}x`, `{"choice":"turn",}`, `{"choice":"turn"`,
		`{"choice":"turn" "wanted":true}`, `{"wanted":1}`, `{"wanted":null}`, `{"weights":[1]}`, `{"weights":{"a":-1}}`,
		`{"weights":{"a":1.5}}`, `{"weights":{"a":1e3}}`, `{"weights":{"a":01}}`, `{"weights":{"a":4294967296}}`,
		`{"weights":{"a":"1"}}`, `{"weights":{"a":}}`, `{"weights":{"":1}}`, `{"weights":{"a/b":1}}`,
		`{"weights":{".policy":1}}`, `{"weights":{"..":1}}`, `{"weights":{"a":1,"a":1}}`, `{"weights":{"\ud800":1}}`,
		`{"weights":{"\ud800\u0041":1}}`, `{"weights":{"\x41":1}}`, "{\"weights\":{\"\xff\":1}}",
		"{\"weights\":{\"a\nb\":1}}", `{"weights":{"\u12":1}}`, `{"weights":{"\`, `{"more":1}`,
		`{"weights":{"` + strings.Repeat("a", 256) + `":1}}`, Policy{Weights: many}.String(),
		"{}" + strings.Repeat(" ", policyMax)} {
		if p, err := ParsePolicy([]byte(text)); sigma.KindOf(err) != sigma.KindInvalid || err == nil {
			t.Errorf("%.60q: %+v, %v", text, p, err)
		}
	}
}

func FuzzParsePolicy(f *testing.F) {
	for _, s := range []string{`{"choice":"weights","weights":{"a":3,"\u00e9":0},"wanted":true}`, `{}`,
		`{"choice":"hash"}`, `{"weights":{"\ud83d\ude00\n":1}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePolicy([]byte(text))
		if err != nil {
			return
		}
		if !json.Valid([]byte(text)) {
			t.Errorf("%q is no JSON", text)
		}
		again, err := ParsePolicy([]byte(p.String()))
		if err != nil || again.String() != p.String() {
			t.Errorf("%q is printed as %q and read as %+v, %v", text, p, again, err)
		}
	})
}

// Goal: a policy is kept, and what is none is refused when it is written.
func TestSetPolicy(t *testing.T) {
	s := &system{listed: func() {}}
	c := s.connect(t)
	ctx := t.Context()
	if p, err := c.PolicyOf(ctx, "/d"); err != nil || p.Choice != ChoiceTurn {
		t.Errorf("no policy: %+v, %v", p, err)
	}
	for _, dir := range []string{"/d", "/new/one/"} {
		want := Policy{Choice: ChoiceWeights, Weights: map[string]uint32{"a": 3}, Wanted: true}
		if err := c.SetPolicy(ctx, dir, want); err != nil {
			t.Fatal(err)
		}
		if p, err := c.PolicyOf(ctx, dir); err != nil || p.String() != want.String() {
			t.Errorf("%s: %+v, %v", dir, p, err)
		}
	}
	for _, p := range []Policy{{Choice: "best"}, {Weights: map[string]uint32{"a/b": 1}}} {
		if err := c.SetPolicy(ctx, "/d", p); sigma.KindOf(err) != sigma.KindInvalid || err == nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if _, err := c.Put(ctx, "/d/.policy", []byte(`{"choice":"best"}`), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.PolicyOf(ctx, "/d"); sigma.KindOf(err) != sigma.KindInvalid || err == nil {
		t.Errorf("a policy of another version: %v", err)
	}
}
