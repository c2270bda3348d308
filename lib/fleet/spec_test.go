package fleet

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

func TestParseSpec(t *testing.T) {
	for name, c := range map[string]struct {
		text, msg string // "" = it is good
	}{
		"least that it takes": {`{"name":"web","program":"/bin/web","most":4}`, ""},
		"all": {`{"name":"w-1","program":"/bin/w","args":["a"],"env":["A=b"],"memory":"64MiB","least":1,"most":8,
			"target":{"queue_age":"50ms"},"idle":"1m","schedule":[{"at":"0 8 * * 1-5","least":2}],
			"policy":{"choice":"two-choices"},"health":{"kind":"http","path":"/ok","every":"1s"},
			"update":{"surge":2,"canary":0.1,"hold":"3s"}}`, ""},
		"unknown key":       {`{"name":"web","program":"/bin/web","most":4,"colour":"red"}`, `unknown field "colour"`},
		"key of a bad type": {`{"name":"web","program":"/bin/web","most":"4"}`, "most is a string"},
		"bad duration":      {`{"name":"web","program":"/bin/web","most":4,"grace":"ten"}`, `"ten" is no duration`},
		"no name":           {`{"program":"/bin/web","most":4}`, "cannot be the name"},
		"upper case":        {`{"name":"Web","program":"/bin/web","most":4}`, "cannot be the name"},
		"no program":        {`{"name":"web","most":4}`, "path"},
		"no most":           {`{"name":"web","program":"/bin/web"}`, "most is missing"},
		"least over most":   {`{"name":"web","program":"/bin/web","least":5,"most":4}`, "least is 5"},
		"too many":          {`{"name":"web","program":"/bin/web","most":100000}`, "0 to 10000"},
		"two targets":       {`{"name":"web","program":"/bin/web","most":4,"target":{"cpu":1,"in_flight":2}}`, "one of"},
		"no kind of check":  {`{"name":"web","program":"/bin/web","most":4,"health":{"path":"/x"}}`, "health.kind"},
		"bad check":         {`{"name":"web","program":"/bin/web","most":4,"health":{"kind":"icmp"}}`, "health.kind"},
		"canary of all":     {`{"name":"web","program":"/bin/web","most":4,"update":{"canary":1}}`, "canary"},
		"bad schedule":      {`{"name":"web","program":"/bin/web","most":4,"schedule":[{"at":"noon","least":1}]}`, "line 1"},
		"two documents":     {`{"name":"web","program":"/bin/web","most":4}{}`, "follows"},
		"nothing":           {"", "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseSpec([]byte(c.text))
			if c.msg == "" && err != nil || c.msg != "" && (err == nil || !strings.Contains(err.Error(), c.msg)) {
				t.Errorf("got %v, want %q", err, c.msg)
			}
			if err != nil && sigma.KindOf(err) != sigma.KindInvalid {
				t.Errorf("got the kind %v", sigma.KindOf(err))
			}
		})
	}
}

// A member with a view of its own can still be one.
func TestViewOfMember(t *testing.T) {
	s, err := ParseSpec([]byte(`{"name":"web","program":"/bin/web","most":1,"view":[{"path":"/in","target":"/s3/in"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.Descriptor(3)
	if err != nil {
		t.Fatal(err)
	}
	want := []sigma.ViewEntry{{Path: "/fleet/web/members", Target: "/fleet/web/members", Rights: sigma.RightsAll},
		{Path: "/fleet/.leader", Target: "/fleet/.leader", Rights: sigma.RightsRead},
		{Path: "/in", Target: "/s3/in", Rights: sigma.RightsRead}}
	if !slices.Equal(d.View, want) {
		t.Errorf("got %v", d.View)
	}
}

func TestBounds(t *testing.T) {
	s := Spec{Name: "web", Program: "/bin/web", Least: 1, Most: 9, Schedule: []Schedule{
		{At: "0 8 * * 1-5", Least: 4}, {At: "0 18 * * 1-5", Least: 2, Most: 3}}}
	for at, want := range map[string][2]int{
		"2026-11-23T07:59:00Z": {2, 3}, // Monday: Friday's evening is in force
		"2026-11-23T08:00:00Z": {4, 9},
		"2026-11-23T17:59:59Z": {4, 9},
		"2026-11-23T18:00:00Z": {2, 3},
		"2026-11-28T12:00:00Z": {2, 3}, // Saturday
	} {
		now, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		if least, most := s.Bounds(now); [2]int{least, most} != want {
			t.Errorf("at %s: got %d to %d, want %v", at, least, most, want)
		}
	}
	if least, most := (&Spec{Least: 1, Most: 2}).Bounds(time.Now()); least != 1 || most != 2 {
		t.Errorf("without a schedule: got %d to %d", least, most)
	}
}

func TestMemberNames(t *testing.T) {
	if n, r, ok := ParseMemberName(MemberName("web-1", 12)); n != "web-1" || r != 12 || !ok {
		t.Errorf("got %q, %d, %v", n, r, ok)
	}
	for _, s := range []string{"", "web", "web@", "web@0", "web@-1", "@1", "We b@1", "web@1@2"} {
		if n, r, ok := ParseMemberName(s); ok {
			t.Errorf("%q is the name of member %q of revision %d", s, n, r)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add([]byte(`{"name":"web","program":"/bin/web","most":4,"schedule":[{"at":"0 8 * * 1-5","least":4}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := ParseSpec(b); err == nil {
			s.Bounds(time.Unix(1e9, 0))
			if s.Check() != nil || !s.SameMembers(&s) {
				t.Error("a good description is not")
			}
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"generation":1,"revision":1,"highest":1,"spec":{"name":"web","program":"/bin/web","most":4}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseRecord(b); err == nil && (r.Spec.Check() != nil || r.Revision > r.Highest) {
			t.Error("a good record is not")
		}
	})
}
