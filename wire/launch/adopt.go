package launch

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
)

// LabelMax bounds what sigmad says of a proc to its successor.
const LabelMax = 60 << 10

// Adopted says that the launcher runs, or ran, what a sigmad that died has kept.
type Adopted struct {
	ID    uint64
	Label []byte // as it was given to Keep
	FDs   []int  // as well; none if it has ended, and its end was told before
}

// ProcID is the request's.
func (e Adopted) ProcID() uint64 { return e.ID }

// Keep asks that a proc outlive this sigmad: the next one gets label and copies of the descriptors.
// Given again without any it replaces the label.
func (l *Launcher) Keep(id uint64, label []byte, fds ...int) error {
	if len(label) > LabelMax {
		return sigma.Errorf("launch.Keep", sigma.KindTooBig, "a label of %d bytes", len(label))
	}
	b := binary.LittleEndian.AppendUint64([]byte{9, 0, 1, 0}, id)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(label)))
	b = append(b, label...)
	return l.send(b, fds...)
}

// Before is how many launchers the keeper had before this one, which is known after Adopt.
func (l *Launcher) Before() uint32 { return l.before }

// Since is when this launcher began, to the second, which is known after Adopt.
func (l *Launcher) Since() time.Time { return l.since }

// Adopt hands to handle what the launcher runs already, and what has ended lately. It must come
// before Run, once.
func (l *Launcher) Adopt(handle func(Event)) error {
	buf, oob := make([]byte, messageMax), make([]byte, syscall.CmsgSpace(4*8))
	for {
		n, oobn, _, _, err := l.conn.ReadMsgUnix(buf, oob)
		if err != nil || n < 4 {
			l.conn.Close()
			return &sigma.Error{Op: "launch.Adopt", Kind: sigma.KindLost, Msg: "the launcher is gone", Err: err}
		}
		fds := received(oob[:oobn])
		switch typ := binary.LittleEndian.Uint16(buf); {
		case typ == 26 && n == 12:
			l.before, l.since = binary.LittleEndian.Uint32(buf[4:]),
				time.Now().Add(-time.Duration(binary.LittleEndian.Uint32(buf[8:]))*time.Second)
			return nil
		case typ == 25 && n >= 18 && n == 18+int(binary.LittleEndian.Uint16(buf[16:])):
			handle(Adopted{ID: binary.LittleEndian.Uint64(buf[4:]), Label: append([]byte(nil), buf[18:n]...), FDs: fds})
		default:
			e, err := Decode(buf[:n])
			if err != nil {
				l.conn.Close()
				return fmt.Errorf("while adopting: %w", err)
			}
			handle(e)
		}
	}
}

// received takes the descriptors that came with a record.
func received(oob []byte) (all []int) {
	cmsgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range cmsgs {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
		}
		all = append(all, fds...)
	}
	return all
}
