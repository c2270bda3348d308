package health

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/kernel/hostsetup"
)

// Goal: a queue that a system has left is told, with how to take it away; one of another system is
// told apart from an operator's.
func TestUplinkLeft(t *testing.T) {
	const id = "12345678"
	card := &hostsetup.Uplink{Link: &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth7"}}, Rate: 1e9}
	for _, c := range []struct {
		what  string
		major uint16
		runs  bool
		good  bool
		hint  string // in the advice
	}{
		{"it runs", hostsetup.UplinkMajor(id), true, true, ""},
		{"it has ended", hostsetup.UplinkMajor(id), false, false, "sigma down --data /d"},
		{"another has left one", hostsetup.UplinkMajor("12345679"), false, false, "tc qdisc del dev eth7 root"},
		{"another's, while it runs", hostsetup.UplinkMajor("12345679"), true, false, "tc qdisc del dev eth7 root"},
		{"none, and it runs", 0, true, false, "next sigma up"},
	} {
		f := uplinkFinding(card, "network priority", &datadir.Record{}, id, "/d", c.runs, c.major)
		if (f.State == findingOK) != c.good || !strings.Contains(f.Advice, c.hint) {
			t.Errorf("%s: %+v", c.what, f)
		}
	}
}
