package hostsetup

import (
	"os/user"
	"strings"
	"testing"
)

func TestSubordinate(t *testing.T) {
	u := &user.User{Username: "ann", Uid: "1000"}
	const text = "bob:100000:65536\nann:200000:1000\n1000:300000:65536\nann:broken\nann:1:99999999999\n:::\n"
	if got, want := subordinate(text, u), (idRange{300000, 65536}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := subordinate("bob:100000:65536\n10:1:9\n", u); got != (idRange{}) {
		t.Errorf("another's range: got %v", got)
	}
}

// What the operator gives up is said, and no more is given up than was found missing.
func TestRootlessSaysWhatIsWeaker(t *testing.T) {
	with, without := Rootless{CGroup: "/sys/fs/cgroup/mine"}, Rootless{cgroupWhy: "there are none of version 2"}
	if said := strings.Join(with.Weaker(), "\n"); strings.Contains(said, "cgroup") {
		t.Errorf("with a cgroup: %s", said)
	}
	if said := strings.Join(without.Weaker(), "\n"); !strings.Contains(said, "no limit of memory") ||
		!strings.Contains(said, without.cgroupWhy) {
		t.Errorf("without: %s", said)
	}
	uids := RootlessStart{Rootless: Rootless{uids: idRange{1, 70000}, gids: idRange{1, 65536},
		CGroup: "/sys/fs/cgroup/mine"}}
	if got, want := strings.Join(uids.Argument(5), " "), "--rootless 5:65536:/sys/fs/cgroup/mine"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
