package sdk

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"sigmaos.dev/sigma"
)

// Names in a directory of endpoints that a Dialer knows. No name that begins with a dot is a
// member's.
const (
	// PolicyName is the file that says how members are chosen (Policy).
	PolicyName = ".policy"
	// WantedName is the file that a Dialer makes in a directory without members, if the policy has
	// Wanted. It is empty.
	WantedName = ".wanted"
)

// The values of Policy.Choice. What is counted is counted by each Dialer for itself.
const (
	ChoiceTurn       = "turn"        // one after another
	ChoiceRandom     = "random"      // any
	ChoiceTwoChoices = "two-choices" // of two random ones that with fewer open connections
	ChoiceLeast      = "least"       // that with the fewest open connections
	ChoiceLocal      = "local"       // in turn those of the client's machine; all, if none is there
	ChoiceHash       = "hash"        // by the key of DialKey; without a key in turn
	ChoiceWeights    = "weights"     // in proportion to Policy.Weights
)

// choices are the values of Policy.Choice.
var choices = [...]string{ChoiceTurn, ChoiceRandom, ChoiceTwoChoices, ChoiceLeast, ChoiceLocal, ChoiceHash,
	ChoiceWeights}

const (
	// policyMax bounds the text of a policy.
	policyMax = 256 * 1024
	// weightsMax bounds the members that have a weight. Their text fits policyMax.
	weightsMax = 4096
)

// Policy says how Dialers choose among the members of a directory. It is kept in the file
// PolicyName of the directory, as JSON; without that file members are taken in turn.
type Policy struct {
	Choice string `json:"choice,omitempty"` // "" = ChoiceTurn
	// Weights are by member. A member without a weight has 0 and is not chosen, unless no member
	// that is there has one: then all are equal.
	Weights map[string]uint32 `json:"weights,omitempty"`
	// Wanted has a Dialer that finds no member make the file WantedName and wait for a member,
	// instead of failing.
	Wanted bool `json:"wanted,omitempty"`
}

// Check says what of p is wrong.
func (p Policy) Check() error {
	switch {
	case p.Choice != "" && !slices.Contains(choices[:], p.Choice):
		return &sigma.Error{Op: "sdk.Policy", Kind: sigma.KindInvalid, Msg: fmt.Sprintf("%.40q is no choice", p.Choice),
			Hint: "it can be " + strings.Join(choices[:], ", ")}
	case len(p.Weights) > weightsMax:
		return sigma.Errorf("sdk.Policy", sigma.KindInvalid, "%d weights; %d are possible", len(p.Weights), weightsMax)
	}
	for name := range p.Weights {
		if err := sigma.CheckName(name); err != nil {
			return sigma.Wrap("sdk.Policy", "", err)
		}
		if name[0] == '.' || !utf8.ValidString(name) {
			return sigma.Errorf("sdk.Policy", sigma.KindInvalid, "%.80q is no member's name", name)
		}
	}
	return nil
}

// String gives p as JSON, as ParsePolicy reads it.
func (p Policy) String() string {
	b := append([]byte(`{"choice":`), quote(cmp.Or(p.Choice, ChoiceTurn))...)
	for i, name := range slices.Sorted(maps.Keys(p.Weights)) {
		if i == 0 {
			b = append(b, `,"weights":{`...)
		}
		b = append(append(b, quote(name)...), ':')
		b = append(strconv.AppendUint(b, uint64(p.Weights[name]), 10), ",}"[min(1, (i+1)/len(p.Weights))])
	}
	if p.Wanted {
		b = append(b, `,"wanted":true`...)
	}
	return string(b) + "}\n"
}

// quote gives a string of JSON.
func quote(s string) string {
	b := []byte{'"'}
	for _, c := range []byte(s) {
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}

// ParsePolicy reads a policy. KindInvalid: it is not one, or has what this SDK does not know.
func ParsePolicy(text []byte) (p Policy, err error) {
	r := reader{string(text)}
	if len(text) > policyMax || !r.object(func(key string) (ok bool) {
		switch key {
		case "choice":
			p.Choice, ok = r.text()
		case "weights":
			p.Weights = map[string]uint32{}
			ok = r.object(func(name string) (ok bool) {
				p.Weights[name], ok = r.number()
				return ok && len(p.Weights) <= weightsMax
			})
		case "wanted":
			p.Wanted, ok = r.boolean()
		}
		return ok
	}) || r.space() != "" {
		return Policy{}, &sigma.Error{Op: "sdk.ParsePolicy", Kind: sigma.KindInvalid,
			Msg:  fmt.Sprintf("this is not a policy, from byte %d on", len(text)-len(r.rest)+1),
			Hint: `one is {"choice": "weights", "weights": {"MEMBER": 3}, "wanted": true}`}
	}
	if p.Choice == "" {
		p.Choice = ChoiceTurn
	}
	return p, p.Check()
}

// SetPolicy has the members of a directory be chosen by p. It makes the directory if it is missing.
func (c *Client) SetPolicy(ctx context.Context, dir string, p Policy) error {
	if err := p.Check(); err != nil {
		return err
	}
	put := func() error {
		_, err := c.Put(ctx, within(dir, PolicyName), []byte(p.String()), sigma.PutOptions{})
		return err
	}
	err := put()
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		if err = c.MkdirAll(ctx, dir, 0o755); err == nil {
			err = put()
		}
	}
	return err
}

// PolicyOf tells by which policy the members of a directory are chosen.
func (c *Client) PolicyOf(ctx context.Context, dir string) (Policy, error) {
	text, _, err := c.Get(ctx, within(dir, PolicyName))
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		return Policy{Choice: ChoiceTurn}, nil
	}
	if err != nil {
		return Policy{}, err
	}
	p, err := ParsePolicy(text)
	return p, sigma.Wrap("sdk.PolicyOf", within(dir, PolicyName), err)
}

// within is the path of a name in a directory.
func within(dir, name string) string { return strings.TrimSuffix(dir, "/") + "/" + name }

// reader reads JSON, of which a policy needs little; the standard library's package has tables that
// cost a proc's start.
type reader struct{ rest string }

// space skips white space and gives what is left.
func (r *reader) space() string {
	r.rest = strings.TrimLeft(r.rest, " \t\r\n")
	return r.rest
}

// take skips a word after white space, if it is there.
func (r *reader) take(word string) bool {
	after, ok := strings.CutPrefix(r.space(), word)
	if ok {
		r.rest = after
	}
	return ok
}

// object reads one, and has each value read by its key. A key is there once.
func (r *reader) object(value func(key string) bool) bool {
	if !r.take("{") {
		return false
	}
	for seen := map[string]bool{}; !r.take("}"); {
		if len(seen) > 0 && !r.take(",") {
			return false
		}
		key, ok := r.text()
		if !ok || seen[key] || !r.take(":") || !value(key) {
			return false
		}
		seen[key] = true
	}
	return true
}

func (r *reader) boolean() (value, ok bool) {
	value = r.take("true")
	return value, value || r.take("false")
}

// number reads a whole one.
func (r *reader) number() (uint32, bool) {
	rest := r.space()
	digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || len(digits) > 1 && digits[0] == '0' {
		return 0, false
	}
	r.rest = rest[len(digits):]
	return uint32(n), true
}

func (r *reader) text() (string, bool) {
	if !r.take(`"`) {
		return "", false
	}
	var b []byte
	for i := 0; i < len(r.rest); i++ {
		switch c := r.rest[i]; {
		case c == '"':
			r.rest = r.rest[i+1:]
			return string(b), utf8.Valid(b)
		case c < ' ':
			return "", false
		case c != '\\':
			b = append(b, c)
		default:
			char, n := escaped(r.rest[i:])
			if n == 0 {
				return "", false
			}
			b = utf8.AppendRune(b, char)
			i += n - 1
		}
	}
	return "", false
}

// escaped reads what begins with a backslash; n = 0: it is nothing.
func escaped(s string) (char rune, n int) {
	if len(s) < 2 {
		return 0, 0
	}
	if at := strings.IndexByte(`"\/bfnrt`, s[1]); at >= 0 {
		return rune("\"\\/\b\f\n\r\t"[at]), 2
	}
	unit := func(s string) rune {
		if len(s) < 6 || s[:2] != `\u` {
			return -1
		}
		v, err := strconv.ParseUint(s[2:6], 16, 16)
		if err != nil {
			return -1
		}
		return rune(v)
	}
	switch char = unit(s); {
	case char < 0:
		return 0, 0
	case !utf16.IsSurrogate(char):
		return char, 6
	}
	if char = utf16.DecodeRune(char, unit(s[6:])); char == utf8.RuneError {
		return 0, 0
	}
	return char, 12
}
