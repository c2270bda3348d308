package launch

import (
	"encoding/binary"
	"net"
	"os"
	"syscall"

	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
)

// recordControl is the type of the keeper's record that a control socket comes with.
const recordControl = 32

// Keeper is the connection to the parent of sigmad and of the launcher, which starts the launcher again when it dies.
type Keeper struct{ conn *net.UnixConn }

// NewKeeper wraps the socket that sigmad is born with.
func NewKeeper(conn *net.UnixConn) *Keeper { return &Keeper{conn} }

// Next waits for the next launcher: the first, or one that was started because the last has died. KindLost when the keeper is gone, or was closed.
func (k *Keeper) Next() (*Launcher, error) {
	lost := func(err error) error {
		return &sigma.Error{Op: "launch.Next", Kind: sigma.KindLost, Msg: "the keeper is gone", Err: err}
	}
	buf, oob := make([]byte, 64), make([]byte, syscall.CmsgSpace(4))
	n, oobn, _, _, err := k.conn.ReadMsgUnix(buf, oob)
	if err != nil || n == 0 {
		return nil, lost(err)
	}
	cmsgs, err := syscall.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, lost(err)
	}
	var fds []int
	for _, m := range cmsgs {
		if got, err := syscall.ParseUnixRights(&m); err == nil {
			fds = append(fds, got...)
		}
	}
	if n != 4 || binary.LittleEndian.Uint16(buf) != recordControl || binary.LittleEndian.Uint16(buf[2:]) != 1 || len(fds) != 1 {
		for _, fd := range fds {
			syscall.Close(fd)
		}
		return nil, sigma.Errorf("launch.Next", sigma.KindInvalid, "the keeper sent a record that is none")
	}
	conn, err := session.UnixConn(os.NewFile(uintptr(fds[0]), "launcher"))
	if err != nil {
		return nil, err
	}
	return New(conn), nil
}

// Close ends Next.
func (k *Keeper) Close() { k.conn.Close() }
