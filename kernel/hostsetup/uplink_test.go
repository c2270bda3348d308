package hostsetup

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
)

// TestUplinkRates: rates are read with their units, within what a queue can have.
func TestUplinkRates(t *testing.T) {
	for text, want := range map[string]uint64{"1Gbit": 1e9, "2.5Gbit": 25e8, "100Mbit": 1e8, "1000kbit": 1e6} {
		if got, err := ParseRate(text); err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1", "Gbit", "-1Gbit", "NaNGbit", "InfGbit", "1e99Gbit", "10kbit", "500Gbit",
		"1GB", "auto "} {
		if got, err := ParseRate(text); sigma.KindOf(err) != sigma.KindInvalid || sigma.HintOf(err) == "" {
			t.Errorf("%q is %d, %v; want an error that says what to write", text, got, err)
		}
	}
}

// TestUplinkPlan: an interface has a queue of ours where the rate behind it is known and nobody
// else has given it one.
func TestUplinkPlan(t *testing.T) {
	card, veth := &netlink.Device{}, &netlink.Veth{}
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Flags: net.FlagLoopback}}
	for _, c := range []struct {
		what  string
		link  netlink.Link
		given uint64
		mbit  int
		root  string
		ours  bool
		want  uint64
	}{
		{"a card says its rate, of which a little is left free", card, 0, 1000, "", false, 950_000_000},
		{"a virtual machine's does not", card, 0, 0, "", false, 0},
		{"the operator knows it", card, 500_000_000, 0, "", false, 500_000_000},
		{"the operator has a queue of their own", card, 500_000_000, 1000, "cake 8001:", false, 0},
		{"a dead system left one", card, 0, 1000, "htb 5001:", true, 950_000_000},
		{"a fast card", card, 0, 100_000, "", false, 0},
		{"a fast card whose operator wants it", card, 100e9, 100_000, "", false, 100e9},
		{"a pair within the host says a rate that it has not", veth, 0, 10_000, "", false, 0},
		{"a pair within the host, in a test", veth, 1e8, 10_000, "", false, 1e8},
		{"all machines are on this host", lo, 1e9, 0, "", false, 0},
	} {
		if u := planUplink(c.link, c.given, c.mbit, c.root, c.ours); u.Rate != c.want ||
			(u.Rate == 0) == (u.Why == "") {
			t.Errorf("%s: %d bits a second, %q; want %d", c.what, u.Rate, u.Why, c.want)
		}
	}
}

// TestUplinkMarks: a mark is found in the first word of a packet's head, whatever the two bits
// beneath it say, and no mark is another.
func TestUplinkMarks(t *testing.T) {
	for _, mark := range []link.Traffic{link.TrafficControl, link.TrafficLatencyCritical} {
		for _, c := range []struct {
			word func(tos uint32) uint32
			key  markKey
		}{
			{func(tos uint32) uint32 { return 0x45<<24 | tos<<16 | 1500 }, markKeys(mark)[0]},
			{func(tos uint32) uint32 { return 6<<28 | tos<<20 | 0x12345 }, markKeys(mark)[1]},
		} {
			for tos := range uint32(256) {
				if is, want := c.word(tos)&c.key.key.Mask == c.key.key.Val, tos&^3 == uint32(mark); is != want {
					t.Errorf("protocol %#x, mark %#x: a packet with %#x is found: %v", c.key.protocol, mark, tos, is)
				}
			}
		}
	}
	if markKeys(0) != nil {
		t.Error("unmarked packets need no filter")
	}
	sum := uint64(0)
	for _, c := range uplinkClasses {
		sum += c.percent
	}
	if sum != 100 || uplinkClasses[len(uplinkClasses)-1].mark != 0 {
		t.Errorf("the classes have %d %% together, and the last is not the default", sum)
	}
}

// TestUplinkNumbers: each instance has a number of its own range, which the kernel takes for a
// queue's.
func TestUplinkNumbers(t *testing.T) {
	for _, id := range []string{"00000000", "ffffffff", "0000ffff", "12345678"} {
		if m := UplinkMajor(id); m < uplinkBase || m >= uplinkBase+uplinkMajors {
			t.Errorf("instance %s has number %x", id, m)
		}
	}
}

// Goal: whatever is given as a rate is refused in words, or within what a queue can have.
func FuzzParseRate(f *testing.F) {
	for _, text := range []string{"1Gbit", "2.5Gbit", "1000kbit", "NaNGbit", "1e99Gbit", "-1Mbit", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseRate(text)
		if err == nil && (got < uplinkLeast || got > uplinkMost) || err != nil && sigma.HintOf(err) == "" {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	})
}
