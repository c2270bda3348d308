package launch

import (
	"encoding/binary"

	"sigmaos.dev/sigma"
)

// SocketsMax is how many sockets one question can be about.
const SocketsMax = 2048

// Socket is one that a proc has open. What it carried is the kernel's word, and known of TCP only.
type Socket struct {
	Inode          uint64
	Sent, Received uint64 // bytes that the other side has acknowledged, and that came from it
}

// Found answers Sockets or Shut: which of the sockets a proc has open, or had when they were shut
// down.
type Found struct {
	Ask     uint64
	Sockets []Socket
}

// ProcID is the question's number, not a proc's: of one proc there may be several.
func (e Found) ProcID() uint64 { return e.Ask }

// Sockets asks which of these sockets the processes of a proc have open. Exactly one Found answers
// each, while the launcher lives.
func (l *Launcher) Sockets(id, ask uint64, inodes []uint64) error {
	return l.sockets(id, ask, 0, inodes)
}

// Shut ends these sockets for both sides, where the processes of a proc have them open, and says so
// as Sockets does.
func (l *Launcher) Shut(id, ask uint64, inodes []uint64) error {
	return l.sockets(id, ask, 1, inodes)
}

func (l *Launcher) sockets(id, ask uint64, shut uint32, inodes []uint64) error {
	if len(inodes) > SocketsMax {
		return sigma.Errorf("launch.Sockets", sigma.KindTooBig, "%d sockets in one question; %d are allowed",
			len(inodes), SocketsMax)
	}
	b := binary.LittleEndian.AppendUint64([]byte{11, 0, 1, 0}, id)
	b = binary.LittleEndian.AppendUint64(b, ask)
	b = binary.LittleEndian.AppendUint32(b, shut)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(inodes)))
	for _, i := range inodes {
		b = binary.LittleEndian.AppendUint64(b, i)
	}
	return l.send(b)
}

// decodeFound reads what comes after the question's number.
func decodeFound(ask uint64, b []byte) (f Found, ok bool) {
	const each = 24
	if len(b) < 2 || len(b) != 2+each*int(binary.LittleEndian.Uint16(b)) {
		return f, false
	}
	f.Ask = ask
	for b = b[2:]; len(b) > 0; b = b[each:] {
		f.Sockets = append(f.Sockets, Socket{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]),
			binary.LittleEndian.Uint64(b[16:])})
	}
	return f, true
}
