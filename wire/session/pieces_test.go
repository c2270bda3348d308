package session_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"slices"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// TestPieces reads and writes much at once at a server that answers only when many messages are
// under way, and then the last one first.
func TestPieces(t *testing.T) {
	const together, size = 16, 40*sigmap.DataMax + 5
	file := make([]byte, size-100) // it ends within what is asked for
	for i := 0; i+8 < len(file); i += 8 {
		binary.LittleEndian.PutUint64(file[i:], uint64(i))
	}
	type held struct {
		tag uint16
		m   sigmap.Message
	}
	var waiting []held
	left, written := size, make([]byte, size)
	a, b := net.Pipe()
	c, root := dialConn(t, session.NewStreamConn(a), session.NewStreamConn(b),
		func(tag uint16, m sigmap.Message) (reply []byte, _ []*os.File, err error) {
			switch m := m.(type) {
			case *sigmap.Tread:
				left -= int(m.Count)
			case *sigmap.Twrite:
				left -= len(m.Data)
				copy(written[m.Offset:], m.Data)
			default:
				reply, err = sigmap.Encode(nil, tag, &sigmap.Rlopen{})
				return reply, nil, err
			}
			if waiting = append(waiting, held{tag, m}); len(waiting) < together && left > 0 {
				return nil, nil, nil
			}
			for _, h := range slices.Backward(waiting) {
				if m, ok := h.m.(*sigmap.Tread); ok {
					at := min(m.Offset, uint64(len(file)))
					reply, err = sigmap.Encode(reply, h.tag,
						&sigmap.Rread{Data: file[at:min(at+uint64(m.Count), uint64(len(file)))]})
				} else {
					reply, err = sigmap.Encode(reply, h.tag,
						&sigmap.Rwrite{Count: uint32(len(h.m.(*sigmap.Twrite).Data))})
				}
			}
			waiting = nil
			return reply, nil, err
		})
	defer c.Close()
	if err := root.Open(t.Context(), sigma.OpenReadWrite); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, size)
	n, err := root.ReadAt(t.Context(), got, 0)
	if err != nil || !bytes.Equal(got[:n], file) {
		t.Fatalf("read %d bytes of %d, %v", n, len(file), err)
	}
	left = size
	if n, err := root.WriteAt(t.Context(), got, 0); err != nil || n != size || !bytes.Equal(written, got) {
		t.Fatalf("wrote %d bytes of %d, %v", n, size, err)
	}
}
