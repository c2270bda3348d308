package binfs

import (
	"bytes"
	"encoding/binary"

	"sigmaos.dev/sigma"
)

// The part of the FUSE protocol (linux/fuse.h, version 7.31 and later) that a flat read-only
// directory of programs needs. A request is taken apart by decodeRequest, which is all that reads
// the kernel's bytes; replies have fixed layouts.

// Sizes of requests and replies, in bytes.
const (
	requestHeader = 40
	replyHeader   = 16
	// the kernel wants room for at least 8 KiB; the largest that comes here is a batch of forgets
	requestMax = 16 << 10
	pagesMax   = 256 // of one READ: 1 MiB
	attrSize   = 88
)

// Operations.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opOpen        = 14
	opRead        = 15
	opInit        = 26
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42
)

// Flags of INIT.
const (
	flagAsyncRead = 1 << 0  // several READs of one file at once
	flagParallel  = 1 << 18 // several LOOKUPs of one directory at once
	flagMaxPages  = 1 << 22
	flagExt       = 1 << 30 // there are 64 bits of flags
	flagResend    = 1 << 39 // requests that were not answered can be had again
)

// Notifications, which are replies to no request.
const (
	notifyInvalEntry = 3
	notifyResend     = 7
)

const minorLeast = 31 // Linux 5.7 has it; the layouts below have been the same since 7.28

// request is one of the kernel's.
type request struct {
	op     uint32
	unique uint64
	node   uint64
	body   body
}

// body is what an operation carries, by operation.
type body struct {
	name    string   // LOOKUP
	offset  uint64   // READ
	size    uint32   // READ
	unique  uint64   // INTERRUPT: of the request that is given up
	forgets []forget // FORGET, BATCH_FORGET
	init    initBody // INIT
}

type forget struct{ node, lookups uint64 }

type initBody struct {
	major, minor, readAhead uint32
	flags                   uint64
}

// decodeRequest takes one request apart. What it returns shares nothing with b.
func decodeRequest(b []byte) (request, error) {
	bad := func() (request, error) {
		return request{}, sigma.Errorf("binfs.decodeRequest", sigma.KindInvalid,
			"the kernel sent a request that is none")
	}
	le := binary.LittleEndian
	if len(b) < requestHeader || uint64(le.Uint32(b)) != uint64(len(b)) {
		return bad()
	}
	r := request{op: le.Uint32(b[4:]), unique: le.Uint64(b[8:]), node: le.Uint64(b[16:])}
	b = b[requestHeader:]
	least := map[uint32]int{opForget: 8, opRead: 24, opInit: 16, opInterrupt: 8, opBatchForget: 8}
	if len(b) < least[r.op] {
		return bad()
	}
	switch r.op {
	case opLookup:
		name, _, ended := bytes.Cut(b, []byte{0})
		if !ended {
			return bad()
		}
		r.body.name = string(name)
	case opForget:
		r.body.forgets = []forget{{r.node, le.Uint64(b)}}
	case opBatchForget:
		n := int(le.Uint32(b))
		if b = b[8:]; n > len(b)/16 {
			return bad()
		}
		for ; n > 0; n-- {
			r.body.forgets = append(r.body.forgets, forget{le.Uint64(b), le.Uint64(b[8:])})
			b = b[16:]
		}
	case opRead:
		r.body.offset, r.body.size = le.Uint64(b[8:]), le.Uint32(b[16:])
	case opInterrupt:
		r.body.unique = le.Uint64(b)
	case opInit:
		i := initBody{major: le.Uint32(b), minor: le.Uint32(b[4:]), readAhead: le.Uint32(b[8:]),
			flags: uint64(le.Uint32(b[12:]))}
		if i.flags&flagExt != 0 && len(b) >= 20 {
			i.flags |= uint64(le.Uint32(b[16:])) << 32
		}
		r.body.init = i
	}
	return r, nil
}

// reply makes room for a reply of size bytes and fills in the header. errno is 0 or positive.
func reply(unique uint64, errno int32, size int) []byte {
	b := make([]byte, replyHeader+size)
	putReply(b, unique, errno)
	return b
}

func putReply(b []byte, unique uint64, errno int32) {
	le := binary.LittleEndian
	le.PutUint32(b, uint32(len(b)))
	le.PutUint32(b[4:], uint32(-errno))
	le.PutUint64(b[8:], unique)
}

// initReply agrees on the version and on what both sides can.
func initReply(unique uint64, in initBody) []byte {
	if in.major != 7 || in.minor < minorLeast {
		return reply(unique, errProtocol, 0)
	}
	flags := in.flags & (flagAsyncRead | flagParallel | flagMaxPages | flagExt | flagResend)
	out := reply(unique, 0, 64)
	b, le := out[replyHeader:], binary.LittleEndian
	le.PutUint32(b, 7)
	le.PutUint32(b[4:], min(in.minor, 38))
	le.PutUint32(b[8:], in.readAhead)
	le.PutUint32(b[12:], uint32(flags))
	le.PutUint16(b[16:], backgroundMax)
	le.PutUint16(b[18:], backgroundMax*3/4)
	le.PutUint32(b[20:], 4096) // of a write, of which there is none
	le.PutUint32(b[24:], 1)
	le.PutUint16(b[28:], pagesMax)
	le.PutUint32(b[32:], uint32(flags>>32))
	return out
}

// backgroundMax is how many read-aheads the kernel may have under way at once, for all procs
// together; beyond it they wait.
const backgroundMax = 256

// forEver is how long what was told about a file stays true: a program's node never changes.
const forEver = 1 << 62

func putAttr(b []byte, node uint64, size int64) {
	le := binary.LittleEndian
	le.PutUint64(b, node)
	mode, links := uint32(0o100555), uint32(1)
	if node == rootNode {
		mode, links = 0o040555, 2
	}
	le.PutUint64(b[8:], uint64(size))
	le.PutUint64(b[16:], uint64(size+511)/512)
	le.PutUint32(b[60:], mode)
	le.PutUint32(b[64:], links)
	le.PutUint32(b[80:], 4096)
}

func attrReply(unique, node uint64, size int64) []byte {
	out := reply(unique, 0, 16+attrSize)
	b := out[replyHeader:]
	binary.LittleEndian.PutUint64(b, forEver)
	putAttr(b[16:], node, size)
	return out
}

func entryReply(unique, node uint64, size int64) []byte {
	out := reply(unique, 0, 40+attrSize)
	b, le := out[replyHeader:], binary.LittleEndian
	le.PutUint64(b, node)
	le.PutUint64(b[8:], 1)
	le.PutUint64(b[16:], forEver)
	le.PutUint64(b[24:], forEver)
	putAttr(b[40:], node, size)
	return out
}

// invalEntry makes the kernel forget a name, and the node when the last process that uses it is
// gone.
func invalEntry(name string) []byte {
	out := reply(0, -notifyInvalEntry, 16+len(name)+1)
	le := binary.LittleEndian
	le.PutUint64(out[replyHeader:], rootNode)
	le.PutUint32(out[replyHeader+8:], uint32(len(name)))
	copy(out[replyHeader+16:], name)
	return out
}

// resend asks for the requests that were read and not answered.
func resend() []byte { return reply(0, -notifyResend, 0) }
