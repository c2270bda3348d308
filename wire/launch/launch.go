// Package launch is sigmad's end of the protocol with the launcher
// (docs/internals/launcher-protocol.md): it asks for contained processes and reports what became of
// them. It promises exactly one Started or Failed for each Start, and one Exited after each
// Started, as long as the launcher lives; when it is gone Run returns.
//
// Users: kernel.
package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/inflight"
	"sigmaos.dev/wire/rawio"
)

// messageMax bounds a record in both directions.
const messageMax = 64 << 10

// Profile names a set of protections.
type Profile uint32

// The profiles.
const (
	ProfileSigma  Profile = 0 // tenants' procs
	ProfileSystem Profile = 1 // the boot set
	ProfileLinux  Profile = 2 // tenants' unmodified programs
)

// Passed is a file that becomes file descriptor Target in the program.
type Passed struct {
	File   *os.File
	FD     int // instead of File, if that is nil
	Target uint32
}

// Request says what to start. Files stay the caller's.
type Request struct {
	ID      uint64 // unique while the launcher lives
	Weaken  uint32 // tests only
	Profile Profile
	UID,
	GID uint32 // UID 0: one that no live proc has, of the launcher's choice; not ProfileSystem, and what a seat needs
	PidsMax   uint32
	Memory    sigma.Bytes // hard limit; 0 = none
	CPUShares uint32
	NoFile    uint32
	Group     string // cgroup path, as in "rest/be/default"
	Args, Env []string
	Program   *os.File
	Dir       *os.File // data directory, ProfileSystem only
	// directory below Dir that is the data directory instead, made for UID if it is missing: one
	// path element of a-z, 0-9 and -
	Subdir string
	Passed []Passed
}

// Event is Started, Failed, Exited, Frozen, Thawed, Metered, Found, Yielded, Lost or Adopted.
type Event interface{ ProcID() uint64 }

// Started says that the program executes.
type Started struct {
	ID                                    uint64
	PID                                   int
	Received, Cloned, Contained, Executed time.Duration // CLOCK_MONOTONIC
}

// Failed says that nothing was started, and why.
type Failed struct {
	ID    uint64
	Errno syscall.Errno
	Step  string
}

// Exited says that every process of the proc is gone.
type Exited struct {
	ID         uint64
	Wait       syscall.WaitStatus // of the main process
	OOM        bool               // it exceeded its memory
	Killed     bool               // by Kill
	User, Sys  time.Duration
	MemoryPeak sigma.Bytes
}

// Frozen answers a Freeze: from now on no process of the proc runs, unless Errno is not 0 (ESRCH:
// there is no such proc, or not yet).
type Frozen struct {
	ID    uint64
	Errno syscall.Errno
}

// Thawed answers a Thaw.
type Thawed struct {
	ID    uint64
	Errno syscall.Errno
}

// Metered is what a proc uses now; all zero if there is none of the ID.
type Metered struct {
	ID                 uint64
	User, Sys          time.Duration
	Memory, MemoryPeak sigma.Bytes
	Tasks              uint32 // processes and threads
}

// Yielded is what came of Yield until now. It answers nothing, and comes at most once a second.
type Yielded struct {
	Looks  uint64        // at who waits
	Pushes uint64        // looks after which the second group had less
	Waited time.Duration // of threads of the first group that could have run, while both groups had procs
	CPU    time.Duration // that looking took
}

// ProcID is 0: it is about no proc.
func (e Yielded) ProcID() uint64 { return 0 }

// Lost says that the launcher died, and what it ran with it. Run does not say it: who runs it does,
// of each launch that is not over.
type Lost struct{ ID uint64 }

// ProcID is the id that the request of the start had.
func (e Lost) ProcID() uint64 { return e.ID }

// ProcID is the id that the request of the start had.
func (e Started) ProcID() uint64 { return e.ID }

// ProcID is the id that the request of the start had.
func (e Failed) ProcID() uint64 { return e.ID }

// ProcID is the id that the request of the start had.
func (e Exited) ProcID() uint64 { return e.ID }

// ProcID is the id that the request of the start had.
func (e Frozen) ProcID() uint64 { return e.ID }

// ProcID is the id that the request of the start had.
func (e Thawed) ProcID() uint64 { return e.ID }

// ProcID is the id that the request of the start had.
func (e Metered) ProcID() uint64 { return e.ID }

// Err describes the failure.
func (e Failed) Err() error {
	kind := sigma.KindOther
	hint := ""
	switch {
	case e.Step == "exec" || e.Step == "program":
		kind, hint = sigma.KindNoExec, "programs are static Linux executables for this machine's architecture"
	case e.Errno == syscall.ENOMEM || e.Errno == syscall.EAGAIN:
		kind = sigma.KindBusy
	case e.Step == "plan":
		kind = sigma.KindInvalid
	case e.Errno == syscall.ETIMEDOUT:
		kind, hint = sigma.KindTimeout, "the machine has too much to do, or its launcher hangs: run sigma doctor on it"
	default:
		hint = "run sigma doctor on the machine"
	}
	return &sigma.Error{Op: "launch.Start", Kind: kind, Msg: fmt.Sprintf("could not be started: step %s: %v", e.Step,
		e.Errno), Hint: hint}
}

// Launcher is the connection. Safe for concurrent use.
type Launcher struct {
	conn     *net.UnixConn
	raw      syscall.RawConn // of it; nil if it was closed already
	mu       sync.Mutex      // orders senders
	passing  inflight.Queue
	patience time.Duration // sendMax
	before   uint32        // set by Adopt, as is since
	since    time.Time
}

// New wraps the control socket.
func New(conn *net.UnixConn) *Launcher {
	raw, err := conn.SyscallConn()
	if err != nil {
		raw = nil // it is closed
	}
	l := &Launcher{conn: conn, raw: raw, patience: sendMax}
	l.passing.Of(raw, inflight.LauncherMax)
	return l
}

// Start sends a request. An error means that nothing was started.
func (l *Launcher) Start(r Request) error {
	b := binary.LittleEndian.AppendUint16(nil, 1)
	b = binary.LittleEndian.AppendUint16(b, 1)
	u32 := func(vs ...uint32) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	u16 := func(vs ...int) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint16(b, uint16(v))
		}
	}
	u32(r.Weaken)
	b = binary.LittleEndian.AppendUint64(b, r.ID)
	u32(uint32(r.Profile), r.UID, r.GID, r.PidsMax)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Memory))
	u32(r.CPUShares, r.NoFile)
	u16(len(r.Args), len(r.Env), len(r.Passed), len(r.Group), len(r.Subdir))
	fds := []int{int(r.Program.Fd())}
	if r.Profile == ProfileSystem {
		fds = append(fds, int(r.Dir.Fd()))
	}
	for _, p := range r.Passed {
		u32(p.Target)
		fd := p.FD
		if p.File != nil {
			fd = int(p.File.Fd())
		}
		fds = append(fds, fd)
	}
	b = append(append(b, r.Group...), r.Subdir...)
	for _, list := range [][]string{r.Args, r.Env} {
		for _, s := range list {
			u32(uint32(len(s)))
			b = append(b, s...)
		}
	}
	if len(b) > messageMax {
		return sigma.Errorf("launch.Start", sigma.KindTooBig, "arguments and environment do not fit %d bytes",
			messageMax)
	}
	return l.send(b, fds...)
}

// Kill ends all processes of a proc at once.
func (l *Launcher) Kill(id uint64) error {
	return l.send(binary.LittleEndian.AppendUint64([]byte{2, 0, 1, 0}, id))
}

// Signal sends a signal to the main process of a proc.
func (l *Launcher) Signal(id uint64, sig syscall.Signal) error {
	b := binary.LittleEndian.AppendUint64([]byte{3, 0, 1, 0}, id)
	return l.send(binary.LittleEndian.AppendUint32(b, uint32(sig)))
}

// Share is what a group of procs has beside the groups that have the same parent.
type Share struct {
	CPUShares uint32         // weight; 1024 is a group's that nobody has given another
	Quota     sigma.MilliCPU // that all of it may use; 0 = no bound
	Idle      bool           // it runs only where nothing else of its parent wants to
}

// SetShare gives a group its share from now on, whether or not any proc is in it.
func (l *Launcher) SetShare(group string, s Share) error {
	b := binary.LittleEndian.AppendUint32([]byte{10, 0, 1, 0}, s.CPUShares)
	b = binary.LittleEndian.AppendUint32(b, uint32(s.Quota))
	idle := uint32(0)
	if s.Idle {
		idle = 1
	}
	b = binary.LittleEndian.AppendUint32(b, idle)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(group)))
	return l.send(append(b, group...))
}

// DropGroup removes a group as soon as nothing is in it. A proc that starts in it, or SetShare,
// before that lets it be, and makes it again afterwards. It is no error if there is no such group.
func (l *Launcher) DropGroup(group string) error {
	b := binary.LittleEndian.AppendUint16([]byte{13, 0, 1, 0}, uint16(len(group)))
	return l.send(append(b, group...))
}

// Yield has group second, and what is below it, stand aside while threads of group first wait for a
// processor: from now on, or until the next Yield. Each is a group's path, as in SetShare. Yielded
// tells from time to time what came of it.
func (l *Launcher) Yield(first, second string) error {
	b := []byte{12, 0, 1, 0}
	for _, group := range []string{first, second} {
		b = append(binary.LittleEndian.AppendUint16(b, uint16(len(group))), group...)
	}
	return l.send(b)
}

// Freeze stops all processes of a proc until Thaw. Exactly one Frozen answers each, while the
// launcher lives. It is no error if the proc is frozen. Kill ends a frozen proc.
func (l *Launcher) Freeze(id uint64) error {
	return l.send(binary.LittleEndian.AppendUint64([]byte{4, 0, 1, 0}, id))
}

// Thaw lets a frozen proc go on. Exactly one Thawed answers each, while the launcher lives. It is
// no error if the proc is not frozen.
func (l *Launcher) Thaw(id uint64) error {
	return l.send(binary.LittleEndian.AppendUint64([]byte{5, 0, 1, 0}, id))
}

// Meter asks what a proc uses. Exactly one Metered answers each, while the launcher lives.
func (l *Launcher) Meter(id uint64) error {
	return l.send(binary.LittleEndian.AppendUint64([]byte{8, 0, 1, 0}, id))
}

// sendMax is how long the launcher may take nothing, while its socket is full.
const sendMax = 30 * time.Second

// send sends a record with descriptors. KindLost: the launcher is gone, and Run says so. Otherwise
// it is there and nothing was sent: KindBusy if the kernel has no room for descriptors or memory,
// KindTimeout if the launcher does not read.
func (l *Launcher) send(b []byte, fds ...int) error {
	const op = "launch.send"
	late := time.Now().Add(l.patience) // of who waits for others that wait, too
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.sendLocked(b, fds, late)
	switch kind := sigma.KindOf(err); {
	case err == nil:
		return nil
	case kind == sigma.KindLost, errors.Is(err, net.ErrClosed):
		return &sigma.Error{Op: op, Kind: sigma.KindLost, Msg: "the launcher is gone", Err: err}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &sigma.Error{Op: op, Kind: sigma.KindTimeout, Msg: "the launcher takes no requests",
			Hint: "see sigma doctor on the machine", Err: err}
	default:
		return &sigma.Error{Op: op, Kind: kind, Msg: "the launcher cannot be asked", Err: err}
	}
}

// sendLocked sends at once if there is room, which is the rule.
func (l *Launcher) sendLocked(b []byte, fds []int, late time.Time) error {
	if l.raw == nil {
		return net.ErrClosed
	}
	put := func(fd uintptr) error { _, err := l.passing.Write(int(fd), b); return err }
	if len(fds) > 0 {
		parcel, err := l.packLocked(fds, late)
		if err != nil {
			return err
		}
		defer parcel.Drop()
		put = func(fd uintptr) error { return parcel.Send(int(fd), b) }
	}
	var failed error
	err := l.raw.Control(func(fd uintptr) { failed = put(fd) })
	if err == nil && failed == syscall.EAGAIN {
		l.conn.SetWriteDeadline(late)
		defer l.conn.SetWriteDeadline(time.Time{})
		err = l.raw.Write(func(fd uintptr) bool {
			failed = put(fd)
			return failed != syscall.EAGAIN
		})
	}
	if err == nil && failed != nil {
		err = os.NewSyscallError("sendmsg", failed)
	}
	return err
}

// roomPause is how long sendLocked waits before it looks again whether the launcher has received
// descriptors.
const roomPause = time.Millisecond

// packLocked counts descriptors, when the launcher has received enough of those before: it reads
// all, so a burst waits.
func (l *Launcher) packLocked(fds []int, late time.Time) (*inflight.Parcel, error) {
	for {
		parcel, err := l.passing.PackFDs(fds)
		if err == nil || sigma.KindOf(err) != sigma.KindBusy {
			return parcel, err
		}
		if time.Now().After(late) {
			return nil, os.ErrDeadlineExceeded
		}
		if err := l.raw.Control(func(uintptr) {}); err != nil { // Run has closed it: the launcher is gone
			return nil, err
		}
		time.Sleep(roomPause)
	}
}

// receive waits for a record.
func (l *Launcher) receive(buf []byte) (n int, err error) {
	if l.raw == nil {
		return 0, net.ErrClosed
	}
	var failed error
	err = l.raw.Read(func(fd uintptr) bool {
		n, failed = rawio.Read(int(fd), buf)
		return failed != syscall.EAGAIN
	})
	switch {
	case err == nil && failed != nil:
		err = os.NewSyscallError("read", failed)
	case err == nil && n == 0:
		err = io.EOF
	}
	return n, err
}

// Run hands every event to handle, in order, until ctx ends or the launcher is gone (KindLost). The
// connection is closed then.
func (l *Launcher) Run(ctx context.Context, handle func(Event)) error {
	stop := context.AfterFunc(ctx, func() { l.conn.Close() })
	defer stop()
	defer l.conn.Close()
	buf := make([]byte, messageMax)
	for {
		n, err := l.receive(buf)
		if err != nil {
			return &sigma.Error{Op: "launch.Run", Kind: sigma.KindLost, Msg: "the launcher is gone", Err: err}
		}
		e, err := Decode(buf[:n])
		if err != nil {
			return err
		}
		handle(e)
	}
}

// Decode reads one record of the launcher's.
func Decode(b []byte) (Event, error) {
	bad := sigma.Errorf("launch.Decode", sigma.KindInvalid, "the launcher sent a record that is none")
	if len(b) < 12 || binary.LittleEndian.Uint16(b[2:]) != 1 {
		return nil, bad
	}
	typ, id := binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint64(b[4:])
	b = b[12:]
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	switch {
	case typ == 16 && len(b) == 36:
		return Started{ID: id, PID: int(u32(0)), Received: time.Duration(u64(4)), Cloned: time.Duration(u64(12)),
			Contained: time.Duration(u64(20)), Executed: time.Duration(u64(28))}, nil
	case typ == 17 && len(b) >= 8:
		n := int(binary.LittleEndian.Uint16(b[6:]))
		if len(b) != 8+n {
			return nil, bad
		}
		return Failed{ID: id, Errno: syscall.Errno(u32(0)), Step: string(b[8:])}, nil
	case typ == 18 && len(b) == 32:
		flags := u32(4)
		return Exited{ID: id, Wait: syscall.WaitStatus(u32(0)), OOM: flags&1 != 0, Killed: flags&2 != 0,
			User: time.Duration(u64(8)) * time.Microsecond,
			Sys:  time.Duration(u64(16)) * time.Microsecond, MemoryPeak: sigma.Bytes(u64(24))}, nil
	case typ == 20 && len(b) == 4:
		return Frozen{ID: id, Errno: syscall.Errno(u32(0))}, nil
	case typ == 21 && len(b) == 4:
		return Thawed{ID: id, Errno: syscall.Errno(u32(0))}, nil
	case typ == 24 && len(b) == 36:
		return Metered{ID: id, User: time.Duration(u64(0)) * time.Microsecond,
			Sys: time.Duration(u64(8)) * time.Microsecond, Memory: sigma.Bytes(u64(16)),
			MemoryPeak: sigma.Bytes(u64(24)),
			Tasks:      u32(32)}, nil
	case typ == 28 && len(b) == 32:
		return Yielded{Looks: u64(0), Pushes: u64(8), Waited: time.Duration(u64(16)), CPU: time.Duration(u64(24))}, nil
	case typ == 27:
		if f, ok := decodeFound(id, b); ok {
			return f, nil
		}
	}
	return nil, bad
}

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
