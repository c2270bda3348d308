package main

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

	"sigmaos.dev/link"
	"sigmaos.dev/sigma"
)

// The queue of the interface by which a machine reaches others (001 §4.3): a hierarchical token bucket whose default class is that of best-effort procs, and of whatever else the host sends. What link.Traffic marks goes before it:
// sigmads' own connections, so that no load makes a machine look lost, and connections of latency-critical procs. Each class may use all that the others leave. The queue is where packets wait only if it is not faster than the
// network behind it, so there is one only where the rate is known. It is made by up and join, before anything sends, and removed when the system is stopped; that of a machine of --machines vanishes with its network.

// uplinkClasses are the classes, in the order of their minor numbers from uplinkFirst on.
var uplinkClasses = [...]struct {
	name    string
	percent uint64 // of the rate, that the class has in any case
	prio    uint32 // of what is left over the lowest goes first
	mark    link.Traffic
}{{"control", 20, 0, link.TrafficControl}, {"latency-critical", 70, 0, link.TrafficLatencyCritical}, {"best-effort", 10, 7, 0}}

const (
	uplinkRoot   = 1    // minor number of the class that all others share
	uplinkFirst  = 0x10 // minor number of the first of them
	uplinkMajors = 0x0fff
	uplinkBase   = 0x5000 // majors from here on are ours: uplinkBase and so many, by instance

	// uplinkAuto is the fastest interface that gets a queue by itself: one lock for all processors costs too much of a faster one.
	uplinkAuto = 10_000_000_000
	// uplinkMargin percent of an interface's own rate are used, so that what waits waits here and not in the card.
	uplinkMargin = 95
	uplinkLeast  = 1_000_000
	uplinkMost   = 400_000_000_000
)

// uplinkMajor is the queue's number on the interface, by which a system knows its own.
func uplinkMajor(instance string) uint16 {
	n, _ := strconv.ParseUint(instance, 16, 32)
	return uplinkBase + uint16(n%uplinkMajors)
}

// parseRate reads a rate as in 1Gbit, 200Mbit or 500kbit, in bits a second.
func parseRate(text string) (uint64, error) {
	for _, u := range []struct {
		suffix string
		bits   float64
	}{{"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}} {
		if number, ok := strings.CutSuffix(text, u.suffix); ok {
			if v, err := strconv.ParseFloat(number, 64); err == nil && v*u.bits >= uplinkLeast && v*u.bits <= uplinkMost {
				return uint64(v * u.bits), nil
			}
		}
	}
	return 0, flagFault("--uplink %.40q is not a rate between 1Mbit and 400Gbit", text)("write for example --uplink 1Gbit, or --uplink none")
}

// uplink is an interface with what up would do with it.
type uplink struct {
	link netlink.Link
	rate uint64 // bits a second; 0: no queue
	why  string // there is none
}

// findUplink looks in this thread's network for the interface that has the address, or, if none has it, the one of the default route. nil: there is none.
func findUplink(address netip.Addr) netlink.Link {
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

// planUplink decides what queue the interface gets. given is what --uplink said, 0 if nothing; mbit is what the interface says of itself.
func planUplink(l netlink.Link, given uint64, mbit int, root string, ours bool) (u uplink) {
	u.link = l
	auto := uint64(max(0, mbit)) * 1_000_000 * uplinkMargin / 100
	switch {
	case l.Attrs().Flags&net.FlagLoopback != 0:
		u.why = "other machines are on this host"
	case root != "" && !ours:
		u.why = "it has a queue of its operator's, " + root
	case given > 0:
		u.rate = given
	case l.Type() == "veth" || auto == 0:
		u.why = "its rate is not known"
	case uint64(mbit)*1_000_000 > uplinkAuto:
		u.why = fmt.Sprintf("at %d Gbit/s a queue of its own would slow it down", mbit/1000)
	default:
		u.rate = auto
	}
	return u
}

// rootQueue is the interface's queue as people know it, "" if it is the one that the kernel gives each.
func rootQueue(l netlink.Link) (name string, major uint16, err error) {
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

// lookAtUplink finds the interface to others and decides about it. nil: there is none.
func lookAtUplink(address string, given uint64, instance string) (*uplink, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, nil
	}
	l := findUplink(at.Addr().Unmap())
	if l == nil {
		return nil, nil
	}
	root, major, err := rootQueue(l)
	if err != nil {
		return nil, err
	}
	u := planUplink(l, given, speedOf(l.Attrs().Name), root, major == uplinkMajor(instance))
	return &u, nil
}

// install makes the queue, in place of one that a dead system left.
func (u *uplink) install(instance string) (err error) {
	major, index := uplinkMajor(instance), u.link.Attrs().Index
	if err := u.remove(instance); err != nil {
		return err
	}
	queue := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(major, 0), Parent: netlink.HANDLE_ROOT})
	queue.Defcls = uplinkFirst + uint32(len(uplinkClasses)) - 1
	if err := netlink.QdiscAdd(queue); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			u.remove(instance)
		}
	}()
	burst := uint32(max(uplinkQuantum, u.rate/8/1000)) // a millisecond's, or one segment
	class := func(parent, minor uint16, rate uint64, prio uint32) error {
		return netlink.ClassAdd(netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: index, Parent: netlink.MakeHandle(major, parent), Handle: netlink.MakeHandle(major, minor)},
			netlink.HtbClassAttrs{Rate: rate, Ceil: u.rate, Prio: prio, Quantum: uplinkQuantum, Buffer: burst, Cbuffer: burst}))
	}
	if err := class(0, uplinkRoot, u.rate, 0); err != nil {
		return err
	}
	for i, c := range uplinkClasses {
		minor := uplinkFirst + uint16(i)
		if err := class(uplinkRoot, minor, max(8, u.rate*c.percent/100), c.prio); err != nil {
			return err
		}
		for j, key := range markKeys(c.mark) {
			f := &netlink.U32{ClassId: netlink.MakeHandle(major, minor), Sel: &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL, Keys: []netlink.TcU32Key{key.key}},
				FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.MakeHandle(major, 0), Priority: uint16(1 + j), Protocol: key.protocol}}
			if err := netlink.FilterAdd(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// uplinkQuantum is what a class sends before the next has a turn: a large segment, as cards take them.
const uplinkQuantum = 64 << 10

// markKey is how a mark is found in a packet.
type markKey struct {
	protocol uint16
	key      netlink.TcU32Key
}

// markKeys finds a mark in the first word of a packet: bits 8 to 13 of version 4's, 4 to 9 of version 6's.
func markKeys(mark link.Traffic) []markKey {
	if mark == 0 {
		return nil
	}
	return []markKey{{unix.ETH_P_IP, netlink.TcU32Key{Mask: 0xfc << 16, Val: uint32(mark) << 16}}, {unix.ETH_P_IPV6, netlink.TcU32Key{Mask: 0xfc << 20, Val: uint32(mark) << 20}}}
}

// remove takes the queue of this instance away, upon which the kernel gives the interface its own back.
func (u *uplink) remove(instance string) error {
	_, major, err := rootQueue(u.link)
	if err != nil || major != uplinkMajor(instance) {
		return err
	}
	err = netlink.QdiscDel(netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: u.link.Attrs().Index, Handle: netlink.MakeHandle(major, 0), Parent: netlink.HANDLE_ROOT}))
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return err
}

// prioritize gives the machine of a record its queue. That it cannot is no reason not to start; doctor says so.
func (p *bootPlan) prioritize(instance string) error {
	if p.record.Address == "" || p.rootless {
		return nil
	}
	return p.network.within(func() error {
		u, err := lookAtUplink(p.record.Address, p.record.Uplink, instance)
		if u == nil || err != nil {
			return err
		}
		if u.rate == 0 || p.record.NoUplink { // a dead system may have left one
			return u.remove(instance)
		}
		return u.install(instance)
	})
}

// freeUplink takes away what prioritize gave the system on dir, which has ended.
func freeUplink(dir string) {
	r, err := readRecord(dir)
	if err != nil || r == nil || r.Address == "" || r.Local || os.Geteuid() != 0 {
		return
	}
	id, err := instance(dir)
	if err != nil {
		return
	}
	if u, err := lookAtUplink(r.Address, r.Uplink, id); u != nil && err == nil {
		u.remove(id)
	}
}

// uplinkFindings tells what goes first on the network of the machine on DATA.
func (a *app) uplinkFindings() []finding {
	const check = "network priority"
	dir, err := a.dataDir()
	if err != nil {
		return nil
	}
	if c, err := readCluster(dir); c != nil || err != nil {
		return nil // each machine's own: --data DATA/machines/mI
	}
	r, err := readRecord(dir)
	if err != nil || r == nil || r.Address == "" {
		return []finding{ok(check, "no other machine reaches this one")}
	}
	id, err := instance(dir)
	if err != nil {
		return nil
	}
	pid, held, _ := running(dir)
	var found finding
	look := func() error {
		u, err := lookAtUplink(r.Address, r.Uplink, id)
		if err == nil {
			found = u.finding(check, r, id, dir, held)
		}
		return err
	}
	if r.Local {
		if !held {
			return nil
		}
		err = withinNetworkOf(pid, look)
	} else {
		err = look()
	}
	if err != nil {
		return []finding{weak(check, "it cannot be seen: "+err.Error(), "ask as root")}
	}
	return []finding{found}
}

// finding is doctor's line about the interface of the system on dir, which may run; u may be nil.
func (u *uplink) finding(check string, r *record, id, dir string, runs bool) finding {
	if u == nil {
		return ok(check, "no interface leads to other machines")
	}
	_, major, _ := rootQueue(u.link)
	return u.findingOf(check, r, id, dir, runs, major)
}

// findingOf is finding where the interface's queue has that number.
func (u *uplink) findingOf(check string, r *record, id, dir string, runs bool, major uint16) finding {
	name := u.link.Attrs().Name
	switch {
	case major == uplinkMajor(id) && !runs:
		return weak(check, fmt.Sprintf("the system on %s has ended and left its queue on %s, htb %x:, through which all that this host sends goes", dir, name, major), "take it away: "+commandOn("down", dir)+"; or: tc qdisc del dev "+name+" root; the next sigma up makes it anew")
	case major >= uplinkBase && major < uplinkBase+uplinkMajors && major != uplinkMajor(id):
		return weak(check, fmt.Sprintf("%s has a queue of another sigmaOS, htb %x:", name, major), "if none else runs on this host, it is of one that has ended; take it away: tc qdisc del dev "+name+" root")
	case r.NoUplink:
		return ok(check, "none on "+name+", by --uplink none")
	case major == uplinkMajor(id):
		return ok(check, fmt.Sprintf("on %s latency-critical procs go before best-effort ones, htb %x: of %s", name, major, rateText(u.rate)))
	case u.why != "" && u.link.Attrs().Flags&net.FlagLoopback != 0:
		return ok(check, "not needed on "+name+": "+u.why)
	case u.why != "":
		return weak(check, "none on "+name+": "+u.why, "if best-effort procs delay what others send, say what its network bears: sigma up --uplink 1Gbit")
	}
	return weak(check, "none on "+name, "it is made at the next sigma up; kernels need CONFIG_NET_SCH_HTB and CONFIG_NET_CLS_U32 (modprobe -a sch_htb cls_u32)")
}

// rateText shows bits a second.
func rateText(rate uint64) string {
	if rate >= 1e9 {
		return strconv.FormatFloat(float64(rate)/1e9, 'g', 3, 64) + "Gbit"
	}
	return strconv.FormatFloat(float64(rate)/1e6, 'g', 3, 64) + "Mbit"
}

// withinNetworkOf runs f in the network of a process.
func withinNetworkOf(pid int, f func() error) error {
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer space.Close()
	return (&localNetwork{own: space}).within(f)
}

// noteUplink changes what was noted of a machine to what --uplink says.
func noteUplink(text string, r *record) (err error) {
	switch text {
	case "":
	case "none":
		r.Uplink, r.NoUplink = 0, true
	case "auto":
		r.Uplink, r.NoUplink = 0, false
	default:
		r.NoUplink = false
		r.Uplink, err = parseRate(text)
	}
	return err
}

// uplinkWarning says why there is no priority, where there should be.
func uplinkWarning(err error) string {
	return fmt.Sprintf("latency-critical procs do not go first on the network: %v; sigma doctor says more", sigma.Wrap("sigma.uplink", "", err))
}
