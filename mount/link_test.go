package mount

import (
	"path"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

func TestOutward(t *testing.T) {
	for _, c := range []struct{ at, place, target, want string }{
		{"/", "a", "b", "b"},
		{"/", "a", "/s3/b", "/mnt/m/s3/b"},
		{"/", "a", "/../../etc/passwd", "/mnt/m/etc/passwd"},
		{"/", "a", "..", ""},
		{"/", "d/a", "../b", "../b"},
		{"/", "d/a", "../../b", ""},
		{"/", "d/e/a", "../../b", "../../b"},
		{"/", "d/a", "x/../../../b", ""},
		{"/", "d/a", "x/y/../../z", "z"}, // the kernel would go up from where x/y leads
		{"/", "d/a", "../x/../b", "../b"},
		{"/", "d/a", "...", "..."},
		{"/ux/m1", "a", "/ux/m1/b", "/mnt/m/b"},
		{"/ux/m1", "a", "/ux/m10/b", ""},
		{"/ux/m1", "a", "/etc/passwd", ""},
	} {
		names, _ := sigma.ParsePath(c.at)
		m := &Mount{cfg: Config{Dir: "/mnt/m"}, names: names}
		got, err := m.outward(c.place, c.target)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s -> %s in %s: %q, %v, want %q", c.place, c.target, c.at, got, err, c.want)
		}
	}
}

func TestInward(t *testing.T) {
	m := &Mount{cfg: Config{Dir: "/mnt/m"}, names: []string{"ux", "m1"}}
	for target, want := range map[string]string{"/mnt/m/a": "/ux/m1/a", "/mnt/m": "/ux/m1", "/mnt/more": "/mnt/more", "a": "a", "../a": "../a"} {
		if got := m.inward(target); got != want {
			t.Errorf("%s is stored as %q, want %q", target, got, want)
		}
	}
}

// No target leads out: followed from the link's directory, by whatever rules, it stays below the mount.
func FuzzOutward(f *testing.F) {
	f.Add("d/a", "../x/../../y")
	f.Add("a", "/../..")
	f.Fuzz(func(t *testing.T, place, target string) {
		if place == "" || place != path.Clean(place) || place[0] == '/' || strings.HasPrefix(place, "..") || place == "." {
			return
		}
		m := &Mount{cfg: Config{Dir: "/mnt/m"}}
		got, err := m.outward(place, target)
		if err != nil {
			return
		}
		if strings.HasPrefix(got, "/") {
			if got != "/mnt/m" && !strings.HasPrefix(got, "/mnt/m/") {
				t.Errorf("%q becomes %q", target, got)
			}
			if got != path.Clean(got) {
				t.Errorf("%q becomes %q, which the kernel follows otherwise", target, got)
			}
			return
		}
		depth, down := strings.Count(place, "/"), false
		for name := range strings.SplitSeq(got, "/") {
			switch name {
			case "..":
				if depth--; down || depth < 0 {
					t.Errorf("%q in %q becomes %q", target, place, got)
				}
			case "", ".":
			default:
				down = true
			}
		}
	})
}
