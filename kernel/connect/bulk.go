package connect

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"sync"
	"time"

	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
)

// Bytes of files go between machines on direct connections (package bulk), of which a proc has the
// one end and the sigmad of the file's machine the other. The handle is one of the session that the
// two sigmads keep for the realm (attachAt): the file's machine gives a ticket for it, and the
// direct connection begins with that. A ticket is good once, for some seconds, and for the realm
// and the machine of the session alone; the connection ends with the handle.

// Files names the service of direct connections.
const Files = "files"

const (
	TicketSize = 16
	ticketsMax = 4096             // that were given and not shown yet
	ticketMax  = 10 * time.Second // farMax, and what a busy processor adds
)

// Tickets are those that this machine gave.
type Tickets struct {
	mu   sync.Mutex
	open map[[TicketSize]byte]*ticket // mu
}

// ticket is for one stream of a file.
type ticket struct {
	of    sigma.Principal // the session's
	serve func(net.Conn)
}

// Give makes a ticket; see treeserver.Config.BulkTicket.
func (t *Tickets) Give(ctx context.Context, of sigma.Principal, serve func(net.Conn)) ([]byte, error) {
	var name [TicketSize]byte
	rand.Read(name[:])
	t.mu.Lock()
	full := len(t.open) >= ticketsMax
	if !full {
		t.open[name] = &ticket{of, serve}
	}
	t.mu.Unlock()
	if full {
		return nil, sigma.Errorf("kernel.bulk", sigma.KindUnsupported, "%d streams of files are being made", ticketsMax)
	}
	ctx, cancel := context.WithTimeout(ctx, ticketMax)
	context.AfterFunc(ctx, func() {
		cancel()
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.open, name)
	})
	return name[:], nil
}

// Take finds the ticket of a name, if it was given to whom shows it.
func (t *Tickets) Take(name [TicketSize]byte, from sigma.Principal) *ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.open[name]
	if one == nil || !from.System || one.of.Realm != from.Realm || one.of.Machine != from.Machine {
		return nil
	}
	delete(t.open, name)
	return one
}

// serveFiles is the Service of Files.
func (x *Connect) serveFiles(_ context.Context, d link.Direct, conn *net.TCPConn) {
	var name [TicketSize]byte
	conn.SetReadDeadline(time.Now().Add(ticketMax))
	_, err := io.ReadFull(conn, name[:])
	conn.SetReadDeadline(time.Time{})
	if t := x.Tickets.Take(name, d.From); err == nil && t != nil {
		t.serve(conn)
	}
}
