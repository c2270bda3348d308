package machines

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts do now into them")

var began = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// Scripts: a line is an event, the indented lines after it what it caused. Time passes only by
// after, which lets beats and ticks come as they would.
//
//	found M KEY    token ID USES TTL    revoke ID    enrol M KEY TOKEN|- good|bad    cordon|uncordon|drain M    label M NAME=VALUE    control|uncontrol M
//	remove M [force]    beat M LIFE    vouch M LIFE BY    silent|loud M (its beats)    cut|uncut OBSERVER (its reports)
//	after DURATION    stall DURATION (no tick)    ls    tokens    restore (all is lost but what was saved)
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(script))
			if *rewrite {
				err = os.WriteFile(file, []byte(got), 0o644)
			} else if got != string(script) {
				t.Errorf("got\n%s\nrun with -rewrite and look at the difference", got)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// stage plays one script.
type stage struct {
	t      *testing.T
	out    strings.Builder
	core   *Core
	now    time.Time
	silent map[sigma.MachineID]bool
	cut    map[sigma.MachineID]bool
	kept   kept
}

// kept is a store that does what effects say.
type kept struct {
	epoch   uint64
	members map[sigma.MachineID]Member
	tokens  map[identity.TokenID]Token
}

func (k *kept) save(f Effect) {
	switch f := f.(type) {
	case SaveEpoch:
		k.epoch = f.Epoch
	case SaveMember:
		k.members[f.Member.ID] = f.Member
	case DropMember:
		delete(k.members, f.ID)
	case SaveToken:
		k.tokens[f.Token.ID] = f.Token
	case DropToken:
		delete(k.tokens, f.ID)
	}
}

func (k *kept) state() State {
	s := State{Epoch: k.epoch}
	for _, m := range k.members {
		s.Members = append(s.Members, m)
	}
	for _, t := range k.tokens {
		s.Tokens = append(s.Tokens, t)
	}
	return s
}

func play(t *testing.T, script string) string {
	s := &stage{t: t, now: began, silent: map[sigma.MachineID]bool{}, cut: map[sigma.MachineID]bool{},
		kept: kept{0, map[sigma.MachineID]Member{}, map[identity.TokenID]Token{}}}
	s.restore()
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, " ") {
			continue
		}
		s.out.WriteString(line)
		if w := strings.Fields(line); len(w) > 0 && w[0] != "#" {
			s.line(w)
		}
	}
	return s.out.String()
}

func (s *stage) restore() {
	var err error
	if s.core, err = New(s.now, Config{Self: "m1", State: s.kept.state()}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) line(w []string) {
	arg := func(i int) string {
		if i < len(w) {
			return w[i]
		}
		return ""
	}
	id := sigma.MachineID(arg(1))
	life, _ := strconv.Atoi(arg(2))
	switch w[0] {
	case "after", "stall":
		d, err := time.ParseDuration(arg(1))
		if err != nil {
			s.t.Fatal(err)
		}
		if w[0] == "stall" {
			s.now = s.now.Add(d)
			s.step(Tick{}, 0)
		} else {
			s.pass(d)
		}
	case "silent", "loud":
		s.silent[id] = w[0] == "silent"
	case "cut", "uncut":
		s.cut[id] = w[0] == "cut"
	case "restore":
		s.restore()
	case "ls":
		for _, m := range s.core.List() {
			fmt.Fprintf(&s.out, "  = %s %v life %d fence %d control %t cordoned %t draining %t %v\n", m.ID, m.State,
				m.Incarnation, m.Fence, m.Control, m.Cordoned, m.Draining, m.Labels)
		}
	case "tokens":
		for _, k := range s.core.Tokens() {
			fmt.Fprintf(&s.out, "  = %s uses %d revoked %t for %v\n", k.ID, k.Uses, k.Revoked, k.Expires.Sub(s.now))
		}
	case "beat":
		s.step(Heard{id, sigma.Incarnation(life)}, 0)
	case "vouch":
		s.step(Vouch{id, sigma.Incarnation(life), sigma.MachineID(arg(3))}, 0)
	default:
		s.step(command(s.t, w, arg), 0)
	}
}

func command(t *testing.T, w []string, arg func(int) string) Event {
	id := sigma.MachineID(arg(1))
	r := Request{ID: id, Address: "10.0.0.1:7700"}
	copy(r.Key[:], arg(2))
	switch w[0] {
	case "found":
		return Found{r}
	case "enrol":
		tok := identity.TokenID(arg(3))
		if tok == "-" {
			tok = ""
		}
		return Enrol{r, tok, arg(4) == "good"}
	case "token":
		uses, err := strconv.Atoi(arg(2))
		ttl, err2 := time.ParseDuration(arg(3))
		if err != nil || err2 != nil {
			t.Fatal(w)
		}
		return MakeToken{ID: identity.TokenID(arg(1)), Uses: uses, TTL: ttl}
	case "revoke":
		return RevokeToken{identity.TokenID(arg(1))}
	case "cordon", "uncordon":
		return Cordon{id, w[0] == "cordon"}
	case "drain":
		return DrainStart{id}
	case "label":
		name, value, _ := strings.Cut(arg(2), "=")
		return Label{id, map[string]string{name: value}}
	case "control", "uncontrol":
		return Control{id, w[0] == "control"}
	case "remove":
		return Remove{id, arg(2) == "force"}
	}
	t.Fatalf("no event %q", w)
	return nil
}

// pass lets time go by: beats of those who are not silent, reports of those who are not cut, ticks.
func (s *stage) pass(d time.Duration) {
	t := s.core.timing
	from := s.now
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(t.Tick)
		if s.now.Sub(began)%t.Interval < t.Tick {
			for _, m := range s.core.List() {
				if s.silent[m.ID] {
					continue
				}
				s.step(Heard{m.ID, m.Incarnation}, s.now.Sub(from))
				if m.Control && !s.cut[m.ID] {
					s.step(Report{By: m.ID}, s.now.Sub(from))
				}
			}
		}
		s.step(Tick{}, s.now.Sub(from))
	}
}

func (s *stage) step(e Event, at time.Duration) {
	effects, err := s.core.Step(s.now, e)
	if err != nil {
		fmt.Fprintf(&s.out, "  ! %v: %v\n", sigma.KindOf(err), err)
	}
	for _, f := range effects {
		s.kept.save(f)
		text := show(f)
		if text == "" {
			continue
		}
		if at > 0 {
			fmt.Fprintf(&s.out, "  %v: %s\n", at, text)
		} else {
			fmt.Fprintf(&s.out, "  %s\n", text)
		}
	}
}

func show(f Effect) string {
	name := strings.ToLower(reflect.TypeOf(f).Name())
	switch f := f.(type) {
	case SaveEpoch:
		return ""
	case SaveMember:
		return fmt.Sprint(name, " ", f.Member.ID)
	case SaveToken:
		return fmt.Sprint(name, " ", f.Token.ID, " uses ", f.Token.Uses)
	case Publish:
		var names []string
		for _, m := range f.Members {
			names = append(names, string(m.Machine)+map[bool]string{true: " (lost)"}[m.Lost])
		}
		return fmt.Sprint(name, " ", f.Epoch, " ", strings.Join(names, ", "))
	case Certify:
		return fmt.Sprint(name, " ", f.Member.ID, " life ", f.Member.Incarnation)
	case Lost:
		return fmt.Sprintf("%s %s life %d fence %d: %s", name, f.ID, f.Incarnation, f.Fence, f.Why)
	}
	return strings.NewReplacer("{", "", "}", "").Replace(fmt.Sprintf("%s %v", name, f))
}

// TestNew: what makes no sense is refused, and a judge that takes over keeps what it heard as an
// observer.
func TestNew(t *testing.T) {
	for _, bad := range []Timing{{Tick: 1}, {Interval: time.Second, Suspect: time.Second, Lost: time.Second,
		Vouched: time.Minute, Report: time.Second, Tick: time.Millisecond}} {
		if _, err := New(began, Config{Timing: bad}); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	s := State{Epoch: 9, Members: []Member{{ID: "m1", Control: true, Incarnation: 2}, {ID: "m2", Incarnation: 3},
		{ID: "m3", Incarnation: 12}}}
	c, err := New(began, Config{Self: "m1", State: s,
		Heard: map[sigma.MachineID]time.Time{"m2": began.Add(-time.Minute)}})
	if err != nil {
		t.Fatal(err)
	}
	if c.epoch != 12 {
		t.Errorf("the counter goes on at %d", c.epoch)
	}
	var lost []sigma.MachineID
	effects, _ := c.Step(began.Add(time.Millisecond), Tick{})
	for _, f := range effects {
		if l, ok := f.(Lost); ok {
			lost = append(lost, l.ID)
		}
	}
	if !slices.Equal(lost, []sigma.MachineID{"m2"}) {
		t.Errorf("at once lost: %v, want the one that was silent before", lost)
	}
}

// TestBounds: tokens, members, labels and control machines have limits with words.
func TestBounds(t *testing.T) {
	c, err := New(began, Config{Self: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	try := func(e Event) error { _, err := c.Step(began, e); return err }
	if err := try(Found{Request{ID: "m1", Address: "a:1"}}); err != nil {
		t.Fatal(err)
	}
	for i := range TokensMax {
		if err := try(MakeToken{ID: identity.TokenID(fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	for what, e := range map[string]Event{"a token too many": MakeToken{ID: "x"}, "the same token": MakeToken{ID: "1"},
		"no life": MakeToken{ID: "x", TTL: -1}, "a long life": MakeToken{ID: "x", TTL: TokenAgeMax + 1},
		"many uses":   MakeToken{ID: "x", Uses: TokenUsesMax + 1},
		"a bad name":  Enrol{Request: Request{ID: "M2", Address: "a:1"}},
		"no address":  Enrol{Request: Request{ID: "m2"}},
		"a bad label": Label{"m1", map[string]string{"a b": "c"}}, "an unknown machine": Cordon{ID: "m9"},
		"the last control machine": Control{ID: "m1"}, "a second founder": Found{Request{ID: "m2", Address: "a:1"}},
		"an unknown event": nil} {
		if err := try(e); err == nil {
			t.Errorf("%s was taken", what)
		}
	}
	labels := map[string]string{}
	for i := range LabelsMax {
		labels[fmt.Sprint("l", i)] = "v"
	}
	if err := try(Label{"m1", labels}); err != nil {
		t.Error(err)
	}
	if err := try(Label{"m1", map[string]string{"more": "v"}}); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("got %v", err)
	}
}

// TestRemote: a judge that hears through its own machine's reports blames nobody for their absence,
// and goes on soon after they come again.
func TestRemote(t *testing.T) {
	s := State{Epoch: 4, Members: []Member{{ID: "m1", Control: true, Incarnation: 2}, {ID: "m2", Incarnation: 3},
		{ID: "m3", Incarnation: 4}}}
	c, err := New(began, Config{Self: "m1", Remote: true, State: s})
	if err != nil {
		t.Fatal(err)
	}
	now, lost := began, []sigma.MachineID{}
	pass := func(d time.Duration, reports ...Evidence) {
		for end := now.Add(d); now.Before(end); {
			now = now.Add(DefaultTiming().Tick)
			if reports != nil {
				c.Step(now, Report{By: "m1", Beat: reports})
			}
			effects, _ := c.Step(now, Tick{})
			for _, f := range effects {
				if l, ok := f.(Lost); ok {
					lost = append(lost, l.ID)
				}
			}
		}
	}
	m2, m3 := Evidence{ID: "m2", Incarnation: 3}, Evidence{ID: "m3", Incarnation: 4}
	pass(5*time.Second, m2, m3)
	pass(20 * time.Second)
	if len(lost) != 0 {
		t.Fatalf("without reports lost are %v", lost)
	}
	if pass(2*time.Second, m2); !slices.Equal(lost, []sigma.MachineID{"m3"}) {
		t.Errorf("lost are %v", lost)
	}
}

// TestGivenLabels: what a machine names anew at a start changes its labels, what operators changed
// stays.
func TestGivenLabels(t *testing.T) {
	c, err := New(began, Config{Self: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Step(began, Found{Request{ID: "m1", Address: "a:1", Labels: map[string]string{"zone": "a",
		"rack": "7", "row": "1"}}}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		e    Event
		want string
	}{
		{Label{"m1", map[string]string{"rack": "8", "row": "", "disk": "fast"}}, "map[disk:fast rack:8 zone:a]"},
		{Enrol{Request: Request{ID: "m1", Address: "a:1", Labels: map[string]string{"zone": "a", "rack": "7",
			"row": "1"}}}, "map[disk:fast rack:8 zone:a]"},
		{Enrol{Request: Request{ID: "m1", Address: "a:1", Labels: map[string]string{"zone": "b", "row": "1"}}},
			"map[disk:fast rack:8 zone:b]"},
		{Enrol{Request: Request{ID: "m1", Address: "a:1"}}, "map[disk:fast rack:8]"},
	} {
		if _, err := c.Step(began, step.e); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.List()[0].Labels); got != step.want {
			t.Errorf("after %+v: %s, want %s", step.e, got, step.want)
		}
	}
}
