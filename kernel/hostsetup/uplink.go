package hostsetup

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
)

// The queue of the interface by which a machine reaches others (001 §4.3): a hierarchical token
// bucket whose default class is that of best-effort procs, and of whatever else the host sends.
// What link.Traffic marks goes before it: sigmads' own connections, so that no load makes a machine
// look lost, and connections of latency-critical procs. Each class may use all that the others
// leave. The queue is where packets wait only if it is not faster than the network behind it, so
// there is one only where the rate is known. It is made by up and join, before anything sends, and
// removed when the system is stopped; that of a machine of --machines vanishes with its network.

// uplinkClasses are the classes, in the order of their minor numbers from uplinkFirst on.
var uplinkClasses = [...]struct {
	name    string
	percent uint64 // of the rate, that the class has in any case
	prio    uint32 // of what is left over the lowest goes first
	mark    link.Traffic
}{{"control", 20, 0, link.TrafficControl}, {"latency-critical", 70, 0, link.TrafficLatencyCritical},
	{"best-effort", 10, 7, 0}}

const (
	uplinkRoot   = 1    // minor number of the class that all others share
	uplinkFirst  = 0x10 // minor number of the first of them
	uplinkMajors = 0x0fff
	uplinkBase   = 0x5000 // majors from here on are ours: uplinkBase and so many, by instance

	// uplinkAuto is the fastest interface that gets a queue by itself: one lock for all processors
	// costs too much of a faster one.
	uplinkAuto = 10_000_000_000
	// uplinkMargin percent of an interface's own rate are used, so that what waits waits here and
	// not in the card.
	uplinkMargin = 95
	uplinkLeast  = 1_000_000
	uplinkMost   = 400_000_000_000
)

// UplinkMajor is the queue's number on the interface, by which a system knows its own.
func UplinkMajor(instance string) uint16 {
	n, _ := strconv.ParseUint(instance, 16, 32)
	return uplinkBase + uint16(n%uplinkMajors)
}

// ParseRate reads a rate as in 1Gbit, 200Mbit or 500kbit, in bits a second.
func ParseRate(text string) (uint64, error) {
	for _, u := range []struct {
		suffix string
		bits   float64
	}{{"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}} {
		if number, ok := strings.CutSuffix(text, u.suffix); ok {
			if v, err := strconv.ParseFloat(number, 64); err == nil && v*u.bits >= uplinkLeast &&
				v*u.bits <= uplinkMost {
				return uint64(v * u.bits), nil
			}
		}
	}
	return 0, &sigma.Error{Op: "hostsetup.ParseRate", Kind: sigma.KindInvalid,
		Msg:  fmt.Sprintf("--uplink %.40q is not a rate between 1Mbit and 400Gbit", text),
		Hint: "write for example --uplink 1Gbit, or --uplink none"}
}

// Uplink is an interface with what up would do with it.
type Uplink struct {
	Link netlink.Link
	Rate uint64 // bits a second; 0: no queue
	Why  string // there is none
}

// linkOf looks in this thread's network for the interface that has the address, or, if none has it,
// the one of the default route. nil: there is none.
func linkOf(address netip.Addr) netlink.Link {
	links, _ := netlink.LinkList()
	for _, l := range links {
		addrs, _ := netlink.AddrList(l, netlink.FAMILY_ALL)
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.Unmap() == address {
				return l
			}
		}
	}
	routes, _ := netlink.RouteList(nil, netlink.FAMILY_ALL)
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsUnspecified() {
			if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
				return l
			}
		}
	}
	return nil
}

// planUplink decides what queue the interface gets. given is what --uplink said, 0 if nothing; mbit
// is what the interface says of itself.
func planUplink(l netlink.Link, given uint64, mbit int, root string, ours bool) (u Uplink) {
	u.Link = l
	auto := uint64(max(0, mbit)) * 1_000_000 * uplinkMargin / 100
	switch {
	case l.Attrs().Flags&net.FlagLoopback != 0:
		u.Why = "other machines are on this host"
	case root != "" && !ours:
		u.Why = "it has a queue of its operator's, " + root
	case given > 0:
		u.Rate = given
	case l.Type() == "veth" || auto == 0:
		u.Why = "its rate is not known"
	case uint64(mbit)*1_000_000 > uplinkAuto:
		u.Why = fmt.Sprintf("at %d Gbit/s a queue of its own would slow it down", mbit/1000)
	default:
		u.Rate = auto
	}
	return u
}

// RootQueue is the interface's queue as people know it, "" if it is the one that the kernel gives
// each.
func RootQueue(l netlink.Link) (name string, major uint16, err error) {
	all, err := netlink.QdiscList(l)
	if err != nil {
		return "", 0, err
	}
	for _, q := range all {
		if m, _ := netlink.MajorMinor(q.Attrs().Handle); q.Attrs().Parent == netlink.HANDLE_ROOT && m != 0 {
			return fmt.Sprintf("%s %x:", q.Type(), m), m, nil
		}
	}
	return "", 0, nil
}

// speedOf is the rate of an interface in Mbit/s, as its driver says; 0 if it does not.
func speedOf(name string) int {
	text, _ := os.ReadFile(filepath.Join("/sys/class/net", filepath.Base(name), "speed"))
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return max(0, n)
}

// FindUplink finds the interface to others and decides about it. nil: there is none.
func FindUplink(address string, given uint64, instance string) (*Uplink, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, nil
	}
	l := linkOf(at.Addr().Unmap())
	if l == nil {
		return nil, nil
	}
	root, major, err := RootQueue(l)
	if err != nil {
		return nil, err
	}
	u := planUplink(l, given, speedOf(l.Attrs().Name), root, major == UplinkMajor(instance))
	return &u, nil
}

// Install makes the queue, in place of one that a dead system left.
func (u *Uplink) Install(instance string) (err error) {
	major, index := UplinkMajor(instance), u.Link.Attrs().Index
	if err := u.Remove(instance); err != nil {
		return err
	}
	queue := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(major, 0),
		Parent: netlink.HANDLE_ROOT})
	queue.Defcls = uplinkFirst + uint32(len(uplinkClasses)) - 1
	if err := netlink.QdiscAdd(queue); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			u.Remove(instance)
		}
	}()
	burst := uint32(max(uplinkQuantum, u.Rate/8/1000)) // a millisecond's, or one segment
	class := func(parent, minor uint16, rate uint64, prio uint32) error {
		return netlink.ClassAdd(netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: index,
			Parent: netlink.MakeHandle(major, parent), Handle: netlink.MakeHandle(major, minor)},
			netlink.HtbClassAttrs{Rate: rate, Ceil: u.Rate, Prio: prio, Quantum: uplinkQuantum, Buffer: burst,
				Cbuffer: burst}))
	}
	if err := class(0, uplinkRoot, u.Rate, 0); err != nil {
		return err
	}
	for i, c := range uplinkClasses {
		minor := uplinkFirst + uint16(i)
		if err := class(uplinkRoot, minor, max(8, u.Rate*c.percent/100), c.prio); err != nil {
			return err
		}
		for j, key := range markKeys(c.mark) {
			f := &netlink.U32{ClassId: netlink.MakeHandle(major, minor),
				Sel: &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL, Keys: []netlink.TcU32Key{key.key}},
				FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.MakeHandle(major, 0),
					Priority: uint16(1 + j), Protocol: key.protocol}}
			if err := netlink.FilterAdd(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// uplinkQuantum is what a class sends before the next has a turn: a large segment, as cards take
// them.
const uplinkQuantum = 64 << 10

// markKey is how a mark is found in a packet.
type markKey struct {
	protocol uint16
	key      netlink.TcU32Key
}

// markKeys finds a mark in the first word of a packet: bits 8 to 13 of version 4's, 4 to 9 of
// version 6's.
func markKeys(mark link.Traffic) []markKey {
	if mark == 0 {
		return nil
	}
	return []markKey{{unix.ETH_P_IP, netlink.TcU32Key{Mask: 0xfc << 16, Val: uint32(mark) << 16}},
		{unix.ETH_P_IPV6, netlink.TcU32Key{Mask: 0xfc << 20, Val: uint32(mark) << 20}}}
}

// Remove takes the queue of this instance away, upon which the kernel gives the interface its own
// back.
func (u *Uplink) Remove(instance string) error {
	_, major, err := RootQueue(u.Link)
	if err != nil || major != UplinkMajor(instance) {
		return err
	}
	err = netlink.QdiscDel(netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: u.Link.Attrs().Index,
		Handle: netlink.MakeHandle(major, 0), Parent: netlink.HANDLE_ROOT}))
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return err
}

// UplinkOf says whose queue has a number: the instance's, another system's of sigmaOS, or somebody
// else's.
func UplinkOf(major uint16, instance string) (own, another bool) {
	own = major == UplinkMajor(instance)
	return own, !own && major >= uplinkBase && major < uplinkBase+uplinkMajors
}
