// Package hostsetup makes on a host what a machine of sigmaOS needs besides its processes: networks
// of several machines of one host, the queue of the interface to others, and the user namespace of
// an ordinary user's system. It also says which programs a machine consists of.
//
// It promises that nothing of it needs a name that others could have, and that each can be taken
// away by whoever did not make it. It assumes the rights to do so: root's, but for a user
// namespace. cmd/sigma uses it for up, join, down and doctor; tests and benches use the programs.
package hostsetup

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// The network of up --machines: each machine is in a network namespace of its own, which a veth
// pair joins to a bridge in one more, the hub. No namespace has a name, and none is the host's;
// what keeps the hub is a descriptor of each keeper, and what keeps a machine's is its processes.
// So whatever way they end, the kernel removes all of it with the last.
const (
	bridgeName  = "hub"
	machinePort = 7700
)

// LocalAddress is where the i-th machine, from 1, listens. The network is shared with nothing, so
// it is the same in each system.
func LocalAddress(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 77, 0, byte(i)}), machinePort)
}

// Network is the network of one machine. nil is the host's.
type Network struct {
	Hub *os.File // a network namespace
	own *os.File // a network namespace
}

// Close lets go of the network.
func (n *Network) Close() {
	if n != nil {
		n.Hub.Close()
		n.own.Close()
	}
}

// Start starts a program in the network.
func (n *Network) Start(cmd *exec.Cmd) error {
	if n == nil {
		return cmd.Start()
	}
	return n.Within(cmd.Start)
}

// Within runs f in the network.
func (n *Network) Within(f func() error) error {
	if n == nil {
		return f()
	}
	return onThread(func() error {
		if err := unix.Setns(int(n.own.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// onThread runs f on a thread that ends with it, so that f may change its namespaces.
func onThread(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, upon which the thread ends with the goroutine
		result <- f()
	}()
	return <-result
}

func networkError(doing string, err error) error {
	e := &sigma.Error{Op: "hostsetup.Network", Kind: sigma.KindOf(err),
		Msg: "cannot " + doing + " for machines on this host", Err: err}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		e.Kind, e.Hint = sigma.KindUnsupported, "the kernel needs veth and bridge: modprobe -a veth bridge"
	}
	return e
}

// newSpace makes a network namespace and has f prepare it from inside.
func newSpace(f func() error) (space *os.File, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if space, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		if err := f(); err != nil {
			space.Close()
			return err
		}
		return nil
	})
	return space, err
}

// NewHub makes the bridge.
func NewHub() (*os.File, error) {
	hub, err := newSpace(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		return netlink.LinkSetUp(bridge)
	})
	if err != nil {
		return nil, networkError("make a bridge", err)
	}
	return hub, nil
}

// NewNetwork makes the network of the machine with this address and takes over hub.
func NewNetwork(hub *os.File, at netip.Addr) (*Network, error) {
	own, err := newSpace(func() error { return plug(hub, at) })
	if err != nil {
		hub.Close()
		return nil, networkError("make a network", err)
	}
	return &Network{Hub: hub, own: own}, nil
}

// plug connects this thread's namespace to the hub.
func plug(hub *os.File, at netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return err
	}
	var random [5]byte
	rand.Read(random[:])
	peer := "m" + hex.EncodeToString(random[:]) // the one of a former life may not be gone yet
	ip := at.As4()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: net.HardwareAddr{2, 0, ip[0], ip[1],
		ip[2], ip[3]}}, // the same in each life, as others may remember it
		PeerName: peer, PeerNamespace: netlink.NsFd(int(hub.Fd()))}
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	there, err := netlink.NewHandleAt(netns.NsHandle(int(hub.Fd())))
	if err != nil {
		return err
	}
	defer there.Close()
	bridge, err := there.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	port, err := there.LinkByName(peer)
	if err == nil {
		err = there.LinkSetMaster(port, bridge)
	}
	if err == nil {
		err = there.LinkSetUp(port)
	}
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: at.AsSlice(), Mask: net.CIDRMask(24, 32)}}
	if err := netlink.AddrAdd(veth, addr); err != nil {
		return err
	}
	return netlink.LinkSetUp(veth)
}

// FindHub opens the hub that a running keeper holds: that of its descriptors which is a network
// namespace. nil if there is none.
func FindHub(keeper int) *os.File {
	dir := fmt.Sprintf("/proc/%d/fd", keeper)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if to, err := os.Readlink(path); err != nil || !strings.HasPrefix(to, "net:[") {
			continue
		}
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		if hasBridge(f) {
			return f
		}
		f.Close()
	}
	return nil
}

// hasBridge tells a hub from the empty namespace of services, which a keeper holds too.
func hasBridge(space *os.File) bool {
	h, err := netlink.NewHandleAt(netns.NsHandle(int(space.Fd())))
	if err != nil {
		return false
	}
	defer h.Close()
	l, err := h.LinkByName(bridgeName)
	return err == nil && l.Type() == "bridge"
}

// WithinNetworkOf runs f in the network of a process.
func WithinNetworkOf(pid int, f func() error) error {
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer space.Close()
	return (&Network{own: space}).Within(f)
}
