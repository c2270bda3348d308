// Package call is remote procedure calls between procs: unary and streaming calls, many at a time
// on one connection, over whatever a net.Conn is. Messages are bytes; what is in them is the
// caller's matter, and protoc-gen-sigma makes typed clients and servers of .proto files. What goes
// over the wire is in docs/reference/call.md.
//
// It promises: a call is made at most once, or again only if its method is declared idempotent or
// no handler has seen it; errors keep their kind, message and hint; a caller whose context ends
// returns at once and the server's handler is told; a long message delays others by two pieces at
// most, a handler that blocks delays others of its connection by about a millisecond; a peer can
// hurt its own connection only, of which at most some 56 MiB are held, and of answers that it does
// not read 32 MiB and eight longest messages. A handler knows who called as the machine knows it.
// It assumes that connections keep bytes and their order, and end when a peer dies, as those of sdk
// do. Users: procs, by generated code.
//
// Locks: Stream.sendMu is taken before conn.mu; Client.mu, line.mu and Server.mu are not held while
// conn.mu is. Nothing but queueing is done under conn.mu: who writes or reads releases it.
package call

import (
	"time"

	"sigmaos.dev/sigma"
)

// The defaults of Config, and its bounds.
const (
	messageMaxDefault = 4 << 20 // as in gRPC
	callsMaxDefault   = 1024
	streamsMaxDefault = 128
	connectionsMax    = 64
)

// Config is what can be chosen of a Client or Server. The zero value is good.
type Config struct {
	// MessageMax bounds arguments, answers and messages of streams in bytes; what is longer is
	// refused by its length. 0 = 4 MiB; at most 16 MiB less 64 bytes. Both sides have to allow a
	// message.
	MessageMax int
	// CallsMax bounds calls that are under way on one connection, 4,096 at most. A client's further
	// calls wait, a server refuses them with KindBusy. 0 = 1,024.
	CallsMax int
	// StreamsMax bounds the streams among them; each can hold 256 KiB of messages. Further ones are
	// refused by servers with KindBusy. 0 = 128.
	StreamsMax int
	// Connections is how many a Client has, among which it divides calls; each goes to the server
	// that dial finds then. More than one serves where one reader of the server is too slow. 0 = 1.
	Connections int
}

// filled gives the defaults to what is 0 and bounds the rest.
func (c Config) filled() Config {
	or := func(v *int, def, most int) {
		if *v <= 0 {
			*v = def
		}
		*v = min(*v, most)
	}
	or(&c.MessageMax, messageMaxDefault, bulkWindow-messageCost)
	or(&c.CallsMax, callsMaxDefault, callsMost)
	or(&c.StreamsMax, streamsMaxDefault, c.CallsMax)
	or(&c.Connections, 1, connectionsMax)
	return c
}

const (
	// helloMax is how long a client may take to say hello, and partMax how long the rest of a frame
	// that has begun may take.
	helloMax = 10 * time.Second
	partMax  = 30 * time.Second
)

func refused(kind sigma.Kind, msg, hint string) *sigma.Error {
	return &sigma.Error{Op: "call.Server", Kind: kind, Msg: msg, Hint: hint}
}
