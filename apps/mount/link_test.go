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
		{"/", "d/a", "x/./y//z", "x/./y//z"},
		{"/", "a", "/s3/b", "/mnt/m/s3/b"},
		{"/", "a", "/../../etc/passwd", "/mnt/m/etc/passwd"},
		{"/", "a", "..", ""},
		{"/", "a", ".", "."},
		{"/", "d/a", "..", "/mnt/m"},
		{"/", "d/a", "../b", "/mnt/m/b"},
		{"/", "d/a", "../../b", ""},
		{"/", "d/e/a", "../../b", "/mnt/m/b"},
		{"/", "d/a", "x/../../../b", ""},
		{"/", "d/a", "x/y/../../z", "/mnt/m/d/z"},
		{"/", "d/a", "../x/../b", "/mnt/m/b"},
		{"/", "d/a", "../m/..", "/mnt/m"},
		{"/", "d/a", "...", "..."},
		{"/", "d/a", "..\x00", ""}, // the kernel takes a NUL for the end
		{"/", "d/a", "b\x00", ""},
		{"/ux/m1", "a", "/ux/m1/b", "/mnt/m/b"},
		{"/ux/m1", "a", "/ux/m1", "/mnt/m"},
		{"/ux/m1", "a", "/ux/m10/b", ""},
		{"/ux/m1", "a", "/etc/passwd", ""},
	} {
		names, _ := sigma.ParsePath(c.at)
		m := &Mount{cfg: Config{Dir: "/mnt/m"}, names: names}
		got, err := m.outward(c.place, c.target)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s -> %q in %s: %q, %v, want %q", c.place, c.target, c.at, got, err, c.want)
		}
	}
}

// Where links are trusted their targets are stored and read as they were written.
func TestTrustedLinks(t *testing.T) {
	m := &Mount{cfg: Config{Dir: "/mnt/m", TrustLinks: true}}
	for _, target := range []string{"a", "../../a", "/etc/passwd", "/mnt/m/a", "x/../y"} {
		if got, err := m.outward("d/l", m.inward(target)); err != nil || got != target {
			t.Errorf("%s reads as %q, %v", target, got, err)
		}
	}
}

func TestInward(t *testing.T) {
	m := &Mount{cfg: Config{Dir: "/mnt/m"}, names: []string{"ux", "m1"}}
	for target, want := range map[string]string{"/mnt/m/a": "/ux/m1/a", "/mnt/m": "/ux/m1", "/mnt/more": "/mnt/more",
		"a": "a", "../a": "../a"} {
		if got := m.inward(target); got != want {
			t.Errorf("%s is stored as %q, want %q", target, got, want)
		}
	}
}

// No target leads out: followed from any directory below the mount, it stays below the mount.
func FuzzOutward(f *testing.F) {
	f.Add("d/a", "../x/../../y")
	f.Add("a", "/../..")
	f.Add("a", "..\x00")
	f.Fuzz(func(t *testing.T, place, target string) {
		if place == "" || place != path.Clean(place) || place[0] == '/' || strings.HasPrefix(place, "..") ||
			place == "." {
			return
		}
		m := &Mount{cfg: Config{Dir: "/mnt/m"}}
		got, err := m.outward(place, target)
		if err != nil {
			return
		}
		if strings.HasPrefix(got, "/") && got != "/mnt/m" && !strings.HasPrefix(got, "/mnt/m/") {
			t.Errorf("%q becomes %q", target, got)
		}
		read, _, _ := strings.Cut(got, "\x00") // as the kernel reads it
		for name := range strings.SplitSeq(read, "/") {
			if name == ".." {
				t.Errorf("%q in %q becomes %q", target, place, got)
			}
		}
	})
}
