package cli

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
)

// ResolveMax is how long a host name may take to be resolved.
const ResolveMax = 10 * time.Second

// Reachable reads an address that other machines can connect to: a host that has a name or a number
// of its own, and a port. Machines know each other by numbers only.
func Reachable(ctx context.Context, what, text string) (netip.AddrPort, error) {
	var none netip.AddrPort
	host, service, err := net.SplitHostPort(text)
	if err != nil || host == "" {
		return none, UsageError(nil, "write for example 192.0.2.7:7700", "%s %.100q is not HOST:PORT", what, text)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil || port == 0 {
		return none, UsageError(nil, "write for example 192.0.2.7:7700", "%s %.100q has no port number", what, text)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		ctx, cancel := context.WithTimeout(ctx, ResolveMax)
		defer cancel()
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil || len(ips) == 0 {
			return none, &sigma.Error{Op: "sigma.reachable", Kind: sigma.KindNotFound,
				Msg: "the host of " + what + " " + strconv.Quote(host[:min(len(host), 100)]) + " is not known",
				Err: err, Hint: "give its IP address"}
		}
		ip = ips[0]
	}
	ip = ip.Unmap()
	switch {
	case ip.IsUnspecified(), ip.IsMulticast():
		return none, UsageError(nil,
			"give the address of this host that others see; where it is not its own (NAT), all of the host's addresses are listened on",
			"%s %s is no address that another machine could connect to", what, text)
	case ip.Zone() != "":
		return none, UsageError(nil, "give an address without a zone", "%s %s means something else on each machine",
			what, text)
	}
	return netip.AddrPortFrom(ip, uint16(port)), nil
}

// ListenOn is where to listen so that others reach address: there if it is one of this host's,
// otherwise, as behind NAT, on all of them.
func ListenOn(address netip.AddrPort) netip.AddrPort {
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == address.Addr() {
				return address
			}
		}
	}
	all := netip.IPv6Unspecified()
	if address.Addr().Is4() {
		all = netip.IPv4Unspecified()
	}
	return netip.AddrPortFrom(all, address.Port())
}

// CheckFree says in words what would keep the launcher from listening.
func CheckFree(at netip.AddrPort) error {
	l, err := net.Listen("tcp", at.String())
	if err == nil {
		return l.Close()
	}
	e := &sigma.Error{Op: "sigma.listen", Kind: sigma.KindUnavailable, Msg: "cannot listen on " + at.String(), Err: err,
		Hint: "choose another with --address"}
	if errors.Is(err, syscall.EADDRINUSE) {
		e.Kind, e.Err, e.Msg = sigma.KindExists, nil, "another program listens on "+at.String()
	}
	return e
}

// OwnAddress is the address that this host has towards another.
func OwnAddress(to netip.AddrPort) (netip.Addr, error) {
	c, err := net.Dial("udp", to.String()) // sends nothing
	if err != nil {
		return netip.Addr{}, &sigma.Error{Op: "sigma.ownAddress", Kind: sigma.KindUnavailable,
			Msg: "no way leads from this host to " + to.Addr().String(), Err: err,
			Hint: "is its network up? ip route shows"}
	}
	defer c.Close()
	from, err := netip.ParseAddrPort(c.LocalAddr().String())
	return from.Addr().Unmap(), err
}
