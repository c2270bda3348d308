// Package filestream moves the bytes of one open file over a byte stream of its own, in pieces of
// up to 1 MiB, where a descriptor of the file itself cannot be passed: the file is on another
// machine, or must be read as it is now. Serve is the server's end; Client is the program's, in
// whose buffers the bytes arrive directly from the socket. A file that can be passed to the server
// is sent by sendfile(2).
//
// It promises what messages do: a read tells what the file has after it began, although the next
// piece is asked for before; an error is that of the request, with its words. What fails otherwise
// breaks the stream (ErrBroken), and the same can be done by messages. It assumes that the version
// of the file changes with each of its changes, and that the stream is this file's and nobody
// else's: whoever has it may do with the file what its handle may. Users: trees/resolve,
// trees/treeserver.
//
// Numbers are little-endian. A request is op[1] 0[3] count[4] offset[8], of a write with count
// bytes after it; an answer is status[4] count[4] version[8] and, of a read, count bytes. A status
// that is not 0 is followed by an Rfail of count bytes. Requests are answered in their order.
//
// Locks: Client.mu, held while something is asked; no other is taken under it.
package filestream

import (
	"encoding/binary"
	"errors"

	"sigmaos.dev/sigma"
)

const (
	// PieceMax is how many bytes are read by one request: enough that what a request costs is
	// little beside its bytes.
	PieceMax = 1 << 20
	// writePiece is how many are written by one: the server, who has to receive them first, writes
	// one while the next arrives.
	writePiece = 256 << 10
)

// Operations.
const (
	opRead  byte = 1
	opWrite byte = 2
)

const headSize = 16

// ErrBroken says that the stream is of no more use. What was asked may be asked by messages; of
// writes it is not known whether they were made.
var ErrBroken = errors.New("the stream of a file is broken")

// request is one that is under way.
type request struct {
	op     byte
	count  uint32
	offset uint64
}

func (r request) append(b []byte) []byte {
	b = append(b, r.op, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, r.count)
	return binary.LittleEndian.AppendUint64(b, r.offset)
}

// parseRequest decodes headSize bytes.
func parseRequest(b []byte) (request, error) {
	r := request{b[0], binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])}
	if r.op != opRead && r.op != opWrite || b[1]|b[2]|b[3] != 0 || r.count > PieceMax || r.op == opWrite &&
		r.count > writePiece || r.offset > 1<<63-1-PieceMax {
		return r, sigma.Errorf("filestream.Serve", sigma.KindInvalid, "what came on the stream of a file is no request")
	}
	return r, nil
}

// answer precedes the bytes of one.
type answer struct {
	status, count uint32
	version       sigma.Version
}

func (a answer) encode(b []byte) {
	binary.LittleEndian.PutUint32(b, a.status)
	binary.LittleEndian.PutUint32(b[4:], a.count)
	binary.LittleEndian.PutUint64(b[8:], uint64(a.version))
}

func parseAnswer(b []byte) answer {
	return answer{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]),
		sigma.Version(binary.LittleEndian.Uint64(b[8:]))}
}
