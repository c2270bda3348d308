package kernel

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"sigmaos.dev/link"
	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// Bytes of files go between machines on direct connections (package bulk), of which a proc has the
// one end and the sigmad of the file's machine the other. The handle is one of the session that the
// two sigmads keep for the realm (attachAt): the file's machine gives a ticket for it, and the
// direct connection begins with that. A ticket is good once, for some seconds, and for the realm
// and the machine of the session alone; the connection ends with the handle.

// directFiles names the service of direct connections.
const directFiles = "files"

const (
	ticketSize = 16
	ticketsMax = 4096             // that were given and not shown yet
	ticketMax  = 10 * time.Second // farMax, and what a busy processor adds
)

// tickets are those that this machine gave.
type tickets struct {
	mu   sync.Mutex
	open map[[ticketSize]byte]*ticket // mu
}

// ticket is for one stream of a file.
type ticket struct {
	of    sigma.Principal // the session's
	serve func(net.Conn)
}

// give makes a ticket; see treekit.Config.BulkTicket.
func (t *tickets) give(ctx context.Context, of sigma.Principal, serve func(net.Conn)) ([]byte, error) {
	var name [ticketSize]byte
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

// take finds the ticket of a name, if it was given to whom shows it.
func (t *tickets) take(name [ticketSize]byte, from sigma.Principal) *ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.open[name]
	if k == nil || !from.System || k.of.Realm != from.Realm || k.of.Machine != from.Machine {
		return nil
	}
	delete(t.open, name)
	return k
}

// serveFiles is a directService.
func (k *Kernel) serveFiles(_ context.Context, d link.Direct, conn *net.TCPConn) {
	var name [ticketSize]byte
	conn.SetReadDeadline(time.Now().Add(ticketMax))
	_, err := io.ReadFull(conn, name[:])
	conn.SetReadDeadline(time.Time{})
	if t := k.tickets.take(name, d.From); err == nil && t != nil {
		t.serve(conn)
	}
}

// PassBulk implements sigma.BulkPasser: what is passed leads to the file's machine.
func (f *farFile) PassBulk(ctx context.Context) (*os.File, error) {
	r, ok := f.file.(interface {
		BulkTicket(ctx context.Context) ([]byte, error)
	})
	if !ok {
		return nil, treekit.Unsupported("a stream")
	}
	ctx, cancel := context.WithTimeout(ctx, farMax)
	defer cancel()
	name, err := r.BulkTicket(ctx)
	if err != nil {
		return nil, f.at.fail(err)
	}
	who := sigma.Principal{Realm: f.at.realm, System: true}
	conn, err := f.at.k.dialDirect(ctx, who, f.at.machine, link.Target{Kind: link.ToService, Name: directFiles})
	if err != nil { // by messages it goes another way
		return nil, &sigma.Error{Op: "kernel.bulk", Path: f.at.path, Kind: sigma.KindUnsupported,
			Msg: "there is no direct connection with machine " + string(f.at.machine), Err: err}
	}
	if _, err := conn.Write(name); err != nil {
		conn.Close()
		return nil, treekit.Unsupported("a stream")
	}
	return fileOf(conn)
}
