// Package connect connects procs with endpoints of other machines, and takes connections back: by
// TCP connections of their own where no machine encrypts, made one at a time or in batches, and
// else by links that sigmad relays. It also serves direct connections of other machines' programs
// to what sigmad has, as files (Tickets). Connections within the machine are dialproxy's. Users:
// kernel.
//
// Locks: dials.mu, Tickets.mu and hearing.mu. Under hearing.mu the keeper is asked; nothing is
// called under the others.
package connect

import (
	"context"
	"log/slog"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/launchers"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
)

// Config is what a Connect needs of its user.
type Config struct {
	Machine  sigma.MachineID
	Log      *slog.Logger
	Keeper   *launch.Keeper // tells of the ends of TCP connections; nil = nobody does
	Launcher *launchers.Launchers
	Cluster  *cluster.Cluster
	Procs    *procs.Table
	Services *services.Set
	Proxy    *dialproxy.Proxy
	Traffic  *meter.Traffic
	Go       func(func())                       // begins what is waited for before the program ends
	At       func(sigma.MachineID) sigma.Caller // another machine's sigmad
	// Count counts a direct connection of another machine to a target of this one until done is
	// called.
	Count func(m sigma.MachineID, to link.Target) (done func(), err error)
}

// Connect is the connections of a machine's procs with other machines. Safe for concurrent use.
type Connect struct {
	cfg Config
	ctx context.Context // set by Begin

	Tickets  Tickets            // for streams of this machine's files
	Services map[string]Service // what other machines' programs have direct connections to; complete before Begin
	dials    *dials
	tcpEnds  hearing
	rechecks chan struct{} // takes one: connections are to be looked at
}

// New makes the connections of a machine that has none.
func New(cfg Config) *Connect {
	x := &Connect{cfg: cfg, Tickets: Tickets{open: map[[TicketSize]byte]*ticket{}}, dials: newDials(),
		rechecks: make(chan struct{}, 1)}
	x.Services = map[string]Service{Files: x.serveFiles}
	return x
}

// Begin sets the context of connections. It is called before there is one.
func (x *Connect) Begin(ctx context.Context) { x.ctx = ctx }
